# SPDX-License-Identifier: Apache-2.0
"""Starts bwrap for one job: its mount namespace, its overlays, its descriptors, then a vfork and execve.

Nothing is forked with Python in it: the spawner itself steps into the run's mount namespace, starts bwrap there and
steps back. It has full capabilities in its own user namespace; execve by an ordinary uid drops them all, since
nothing is inheritable or ambient.
"""

from __future__ import annotations

import fcntl
import os

from unspill.host import libc
from unspill.host.mounts import mount_overlays

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

    from unspill.host.job import Job
else:
    # The module around it makes enums of all its numbers, which costs more than all of this
    import _signal as signal

# Numbers that a job's descriptors get in bwrap; nothing else of the spawner's may have one of them
RESERVED = 64


class Starter:
    """Starts bwraps from one process, each in a mount namespace of its own."""

    def __init__(self) -> None:
        self._base = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        # Python ignores SIGPIPE, and execve keeps that; the command begins with no signal ignored or blocked
        self._ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]

    def start(self, job: Job, descriptors: Sequence[int]) -> int:
        """Start a job's bwrap, leading a process group of its own, with `descriptors` as 0, 1, 2, ...

        Raises:
            MountRefused: an overlay can't be mounted.
            OSError: there is no process to be had.
        """
        if not job.overlays:
            return self._spawn(job, descriptors)
        libc.unshare(libc.CLONE_NEWNS)
        try:
            # Until here the namespace was a slave of the host's; from here on it is this run's alone
            libc.mount(None, b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)
            mount_overlays(job.overlays, job.kept)
            return self._spawn(job, descriptors)
        finally:
            self._step_back()

    def _step_back(self) -> None:
        try:
            libc.setns(self._base, libc.CLONE_NEWNS)
        except OSError:
            # Better no run than one that starts from another's overlays
            os._exit(1)

    def _spawn(self, job: Job, descriptors: Sequence[int]) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(descriptors)]
        own_umask = os.umask(job.umask)
        try:
            return os.posix_spawn(
                job.program,
                job.argv,
                {},
                file_actions=actions,
                setpgroup=0,
                setsigmask=(),
                setsigdef=self._ignored,
            )
        finally:
            os.umask(own_umask)


def reserve_numbers() -> None:
    """Occupy the low descriptor numbers, so that placing one of a job's descriptors never overwrites another."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    while null < RESERVED:
        null = os.dup(null)
    os.close(null)


def place_descriptors(descriptors: Sequence[int]) -> None:
    """Make `descriptors` 0, 1, 2, ... of this process, and close all others."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, RESERVED) for fd in descriptors]
    for number, fd in enumerate(moved):
        os.dup2(fd, number)
    os.closerange(len(moved), 1 << 20)
