# SPDX-License-Identifier: Apache-2.0
"""One run as the spawner knows it: bwrap, the sandbox's pid 1, what both still wait for and what the caller is told.

Never waits: the spawner calls it when one of its descriptors is ready.
"""

from __future__ import annotations

import errno
import os

from unspill.host import libc
from unspill.host.job import is_dead, send
from unspill.host.own_namespace import write_setting
from unspill.host.remains import find_files, find_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket

    from unspill.host.job import Job

# The mount namespaces of bwrap and of the sandbox's pid 1
_BOTH = 2


class SpawnedRun:
    """One bwrap from fork to the death of all its processes."""

    def __init__(self, job: Job, reply: Socket, bwrap: int, info: int, block: int) -> None:
        self.job = job
        self.reply = reply
        self.bwrap = bwrap
        self.bwrap_fd = os.pidfd_open(bwrap)
        self.status: int | None = None
        self.info = info
        self.is_info_read = False
        self.block: int | None = block
        self.text = b""
        self.init = 0
        self.init_fd: int | None = None
        self.awaited: tuple[int, ...] = ()
        self.mounts: list[int] = []
        self.is_ended = False
        self.processes: tuple[int, list[bytes]] = (0, [])

    def read_info(self) -> None:
        """Take bwrap's word for the pid of the sandbox's pid 1, which `block` holds back until limits are set."""
        chunk = os.read(self.info, 4096)
        self.text += chunk
        # bwrap writes the pid with one write(2) and the rest later: nobody waits for that, but the pipe stays open
        self.init = _number_after(self.text, b'"child-pid":')
        self.is_info_read = bool(self.init) or not chunk
        if self.init:
            self._release()

    def _release(self) -> None:
        assert self.block is not None
        try:
            self.init_fd = os.pidfd_open(self.init)
            self._hold_mounts()
            self._set_limits()
            self._tell_start(self.init_fd)
            os.write(self.block, b"x")
        except OSError as error:
            self.kill()
            try_send(self.reply, ("failed", f"limits: {error}"))
            return
        os.close(self.block)
        self.block = None

    def _set_limits(self) -> None:
        import resource

        for kind, wanted in self.job.limits:
            hard = resource.prlimit(self.init, kind)[1]
            bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.prlimit(self.init, kind, (bound, bound))
        for path in self.job.cgroups:
            write_setting(path, b"%d" % self.init)
        # If the host runs out of memory, this is what may go first: RLIMIT_DATA does not count all kinds of it
        write_setting(b"/proc/%d/oom_score_adj" % self.init, b"1000")

    def _tell_start(self, init_fd: int) -> None:
        """Give the caller what it watches the run by, and the listener inside if one is wanted."""
        if not self.job.port:
            send(self.reply, ("started",), (init_fd,))
            return
        from unspill.host.listener import make_listener

        listener = make_listener(self.init, self.job.port)
        try:
            if is_dead(init_fd, 0):
                # Then its pid may have been another process's already when its namespace was looked for
                raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
            send(self.reply, ("started",), (init_fd, listener))
        finally:
            os.close(listener)

    def _hold_mounts(self) -> None:
        """Keep the mount namespaces of the run until its end is told.

        Otherwise its processes take them apart while they die, and everybody waits for that; nothing can be written
        through a mount that no process has.
        """
        for pid in (self.bwrap, self.init):
            try:
                self.mounts.append(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                continue  # not ours to look into where the spawner has no namespace of its own; it only takes longer

    def kill(self) -> None:
        """Kill the sandbox's pid 1, with which the kernel kills all others, or bwrap while there is none."""
        self.is_ended = True
        if self.init_fd is not None:
            libc.kill_pidfd(self.init_fd)
        elif self.status is None:
            self._kill_group()

    def _kill_group(self) -> None:
        # Only while bwrap is not reaped: its pid, which names the group, can't belong to anyone else. The process
        # itself as well: just forked, it may not have made the group yet
        for kill in (os.killpg, os.kill):
            try:
                kill(self.bwrap, libc.SIGKILL)
            except ProcessLookupError:
                continue

    def reap(self) -> bool:
        """Reap bwrap if it has ended; tell whether every process of this run is dead."""
        if self.status is None:
            if os.waitid(os.P_PID, self.bwrap, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            if self.job.temporary and not self.is_ended:
                # The command has ended by itself; what it leaves behind is alive until we kill it
                self.processes = find_processes(self.init)
            # What bwrap started dies with it by PDEATHSIG, or by this if it had not come that far
            self._kill_group()
            self.status = os.waitpid(self.bwrap, 0)[1]
            self.kill()
        return self.init_fd is None or is_dead(self.init_fd, 0)

    def descriptors(self) -> tuple[int, ...]:
        """Return what to wait for now."""
        if self.status is not None:
            return () if self.init_fd is None else (self.init_fd,)
        info = () if self.is_info_read else (self.info,)
        return (self.bwrap_fd, self.reply.fileno(), *info)

    def finish(self) -> None:
        """Tell the caller and let go of everything."""
        files: tuple[int, list[bytes]] = (0, [])
        if self.job.temporary and len(self.mounts) == _BOTH:
            files = find_files(self.mounts[-1], self.job.temporary)
        try_send(self.reply, ("ended", self.status, files, self.processes))
        self.reply.close()
        for fd in (self.bwrap_fd, self.info, self.block, self.init_fd, *self.mounts):
            if fd is not None:
                os.close(fd)


def try_send(to: Socket, message: object, descriptors: tuple[int, ...] = ()) -> bool:
    """Tell whether a message was sent: the other end may be gone."""
    try:
        send(to, message, descriptors)
    except OSError:
        return False
    return True


def _number_after(text: bytes, key: bytes) -> int:
    start = text.find(key)
    if start < 0:
        return 0
    return int(text[start + len(key) :].split(b",")[0].split(b"}")[0])
