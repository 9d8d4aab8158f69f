# SPDX-License-Identifier: Apache-2.0
"""The spawner: a small process with one thread that starts bwrap for a whole interpreter.

It is pid 1 of a pid namespace in a user namespace of its own (identity mapping), so that killing it kills every
run at once, whatever else happens, and so that a run's overlays can be mounted without root. It never carries
an overlay itself: each run has its own mount namespace. It ends when its socket does.

    caller ──jobs──▶ parent ── waits for ──▶ spawner (pid 1) ──▶ bwrap ──▶ sandbox's pid 1 ──▶ command
"""

from __future__ import annotations

import errno
import os
import select
import sys
from _socket import socket as Socket

from unspill.host import libc
from unspill.host.job import Job, receive_job
from unspill.host.mounts import MountRefused
from unspill.host.own_namespace import enter_own_namespaces, show_own_processes
from unspill.host.spawned_run import SpawnedRun, try_send
from unspill.host.starter import Starter, reserve_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal

_SOCKET_FD = 3


class Spawner:
    """The loop of the spawner process."""

    def __init__(self, control: Socket, caller: int | None) -> None:
        self._control = control
        self._caller = caller
        self._starter = Starter()
        self._waiting: dict[int, SpawnedRun] = {}
        self._bwraps: set[int] = set()
        # poll(2) would look at every descriptor of every run each time one of them has something to say
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)
        if caller is not None:
            self._poll.register(caller, select.EPOLLIN)

    def loop(self) -> None:
        """Start what is asked for and report ends, until the caller closes its socket or is dead.

        The socket alone does not tell: a fork of the caller has it too.
        """
        self._greet()
        while True:
            ready = self._serve_all()
            _reap_orphans(self._bwraps)
            if self._caller in ready:
                return
            if self._control.fileno() in ready:
                message = receive_job(self._control)
                if message is None:
                    return
                self._try_start(*message)

    def end_all(self) -> None:
        """Kill what is alive and wait for it. Where this process is a pid 1, the kernel does that by itself."""
        self._poll.unregister(self._control.fileno())
        if self._caller is not None:
            self._poll.unregister(self._caller)
        for run in list(self._waiting.values()):
            run.kill()
        while self._waiting:
            self._serve_all()

    def _greet(self) -> None:
        """Give the caller a descriptor of this process, by which it learns when this and all of its are dead."""
        me = os.pidfd_open(os.getpid())
        try_send(self._control, ("spawner",), (me,))
        os.close(me)

    def _serve_all(self) -> list[int]:
        """Wait until something happens and serve the runs it happened to; return what was ready."""
        ready = [fd for fd, _event in self._poll.poll()]
        for run in {id(run): run for run in map(self._waiting.get, ready) if run}.values():
            self._serve(run, ready)
        return ready

    def _serve(self, run: SpawnedRun, ready: list[int]) -> None:
        if not run.is_info_read and run.info in ready:
            run.read_info()
        # Nothing but "kill" ever comes from the caller: a byte, or the end of a caller that went away
        if run.status is None and run.reply.fileno() in ready:
            _try_read(run.reply)
            run.kill()
        is_over = (run.status is not None or run.bwrap_fd in ready) and run.reap()
        self._wait_for(run, () if is_over else run.descriptors())
        if is_over:
            self._bwraps.discard(run.bwrap)
            run.finish()

    def _wait_for(self, run: SpawnedRun, descriptors: tuple[int, ...]) -> None:
        """Wait for these descriptors of a run from now on, and for no others of it."""
        for fd in run.awaited:
            if fd not in descriptors:
                del self._waiting[fd]
                self._poll.unregister(fd)
        for fd in descriptors:
            if fd not in run.awaited:
                self._waiting[fd] = run
                self._poll.register(fd, select.EPOLLIN)
        run.awaited = descriptors

    def _try_start(self, job: Job | None, descriptors: list[int]) -> None:
        """Start a job; if there is no process or descriptor to be had for it, others must go on."""
        if job is None or not descriptors:
            return  # more runs than descriptors: the caller's end of the reply is closed already
        reply, given = Socket(fileno=descriptors[0]), descriptors[1:]
        try:
            if len(given) < len(Job.DESCRIPTORS):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._start(job, reply, given)
        except MountRefused as refused:
            _refuse(reply, ("refused", refused.dest, refused.errno, refused.text))
        except OSError as error:
            _refuse(reply, ("failed", f"could not start bwrap: {error}"))
        finally:
            for fd in given:
                os.close(fd)

    def _start(self, job: Job, reply: Socket, given: list[int]) -> None:
        info_read, info_write = os.pipe()
        block_read, block_write = os.pipe()
        stdio, files = given[: len(Job.DESCRIPTORS)], given[len(Job.DESCRIPTORS) :]
        try:
            pid = self._starter.start(job, (*stdio, info_write, block_read, *files))
            run = _follow(job, reply, pid, info_read, block_write)
            self._bwraps.add(pid)
            self._wait_for(run, run.descriptors())
        except BaseException:
            os.close(info_read)
            os.close(block_write)
            raise
        finally:
            os.close(info_write)
            os.close(block_read)


def _follow(job: Job, reply: Socket, bwrap: int, info: int, block: int) -> SpawnedRun:
    """Return the run of a bwrap; one that can't be followed for want of descriptors must not go on."""
    try:
        return SpawnedRun(job, reply, bwrap, info, block)
    except OSError:
        os.killpg(bwrap, libc.SIGKILL)
        os.waitpid(bwrap, 0)
        raise


def run_spawner(control: Socket, parent: int, *, own_namespace: bool) -> None:
    """Become the spawner of `parent` and return when it is gone. Called in a child that has nothing else to do."""
    os.umask(0o077)
    os.chdir("/")
    # A parent that is out of sight, in another pid namespace, is 0
    caller = os.pidfd_open(parent) if os.getppid() == parent else None
    if caller is None and os.getppid():
        return
    # A caller may ignore it, and then nobody could be waited for
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    allow_many_descriptors()
    reserve_numbers()
    if not own_namespace:
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        spawner = Spawner(control, caller)
        spawner.loop()
        spawner.end_all()
        return
    enter_own_namespaces()
    pid = os.fork()
    if pid:
        control.close()
        _wait_for(pid)
        return
    # unshare(CLONE_NEWUSER) clears it, so only now; a dead parent would leave nobody to reap this process
    libc.prctl(libc.PR_SET_PDEATHSIG, libc.SIGKILL)
    show_own_processes()
    Spawner(control, caller).loop()
    os._exit(0)


def allow_many_descriptors() -> None:
    """Take all descriptors that the host grants: each run that is alive needs four here."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> NoReturn:
    """Run as a program of its own: descriptor 3 is the socket, the arguments are `own` or `shared`, and the caller."""
    os.closerange(_SOCKET_FD + 1, 1 << 20)
    os.set_inheritable(_SOCKET_FD, False)
    control = Socket(fileno=_SOCKET_FD)
    run_spawner(control, int(sys.argv[2]), own_namespace=sys.argv[1] == "own")
    os._exit(0)


def _reap_orphans(known: set[int]) -> None:
    """Reap what was left to this process by a bwrap that died before its children did."""
    while True:
        try:
            waited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if waited is None or waited.si_pid in known:
            return
        os.waitpid(waited.si_pid, 0)


def _wait_for(pid: int) -> None:
    os.closerange(0, 1 << 20)
    os.waitpid(pid, 0)


def _try_read(reply: Socket) -> None:
    try:
        reply.recv(16)
    except ConnectionError:
        return  # the caller went away without reading what it was told


def _refuse(reply: Socket, words: tuple[object, ...]) -> None:
    try_send(reply, words)
    try_send(reply, ("ended", None, (0, []), (0, [])))
    reply.close()
