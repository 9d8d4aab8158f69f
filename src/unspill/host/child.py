# SPDX-License-Identifier: Apache-2.0
"""What happens in the child that becomes bwrap: its mount namespace, its descriptors, then execve.

Runs after fork in the spawner, in a process with one thread and full capabilities in its own user namespace;
execve by an ordinary uid drops them all, since nothing is inheritable or ambient.
"""

from __future__ import annotations

import fcntl
import os
from _socket import socket as Socket

from unspill.host import libc
from unspill.host.job import Job, receive, send
from unspill.host.mounts import MountRefused, mount_overlays

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import NoReturn
else:
    # The module around it makes enums of all its numbers, which costs more than all of this
    import _signal as signal


# Above what a job may bring along, so that placing one descriptor never overwrites another
_OUT_OF_THE_WAY = 512


def wait_for_job(line: Socket, parent: int, *, own_namespace: bool) -> NoReturn:
    """Be a child in reserve: get ready ahead of time, then wait for a job and become its bwrap.

    The mount namespace is this process's own, but follows what the host mounts until the job comes.
    """
    try:
        if own_namespace:
            libc.unshare(libc.CLONE_NEWNS)
        libc.prctl(libc.PR_SET_PDEATHSIG, libc.SIGKILL)
        restore_signals()
        message = receive(line)
        if message is not None and os.getppid() == parent:
            values, descriptors = message
            become_bwrap(Job(**values), descriptors[1:], Socket(fileno=descriptors[0]))
    finally:
        # Whatever happens, this copy of the spawner must not go on as one
        os._exit(125)


def become_bwrap(job: Job, descriptors: Sequence[int], reply: Socket) -> None:
    """Mount the job's overlays and execute bwrap; on failure tell the caller through `reply` and return.

    `descriptors` become 0, 1, 2, ... in this order; all others are closed.
    """
    try:
        if job.overlays:
            libc.mount(None, b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)
            mount_overlays(job.overlays)
        os.umask(job.umask)
        # One of the descriptors may be about to take its number
        reply = Socket(fileno=fcntl.fcntl(reply.detach(), fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY))
        place_descriptors(descriptors)
        os.execve(job.argv[0], job.argv, {})
    except MountRefused as refused:
        send(reply, ("refused", refused.dest, refused.errno, refused.text))
    except BaseException as error:
        send(reply, ("failed", f"{type(error).__name__}: {error}"))


def restore_signals() -> None:
    """Let the command begin with no signal ignored or blocked: Python ignores SIGPIPE, and execve keeps that."""
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def place_descriptors(descriptors: Sequence[int]) -> None:
    """Make `descriptors` 0, 1, 2, ... for the program to come.

    Every other descriptor of this process is closed by execve: all that the spawner opens or receives is close-on-exec.
    """
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY) for fd in descriptors]
    for number, fd in enumerate(moved):
        os.dup2(fd, number)
