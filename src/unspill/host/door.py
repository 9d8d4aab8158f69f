# SPDX-License-Identifier: Apache-2.0
"""The door of a live sandbox: one process inside that starts its commands, and the program that keeps it alive.

The spawner forks the door once into the sandbox's namespaces. There it takes on every protection of a command, then
starts commands by vfork and execve, which saves making a sandbox for each. It is not dumpable from before the
fork on, so no command can trace it, or read its memory or its descriptors; whoever kills or stops it ends the sandbox.

    caller ── requests ──▶ door      marshal: from outside, and only we have the other end
    caller ◀── frames ──── door      four numbers each: what comes from inside is data

pid 1 of a live sandbox is a program of two hundred bytes that only waits. As the kernel's pid 1 it can't be killed from
inside, so the door ends all that commands have left by one kill(-1).
"""

from __future__ import annotations

import errno
import os
import resource
import select
import time
from _socket import socket as Socket

from unspill.host import libc
from unspill.host.job import receive
from unspill.host.landlock import fence_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from typing import NoReturn

    # The rights that a fence handles, its rules by path, and its ports
    Fencing = tuple[tuple[int, int, int], tuple[tuple[bytes, int], ...], tuple[int, ...]]
else:
    # The module around it makes enums of all its numbers, which costs more than all of this
    import _signal as signal


# Kinds of frames; the second number is the command's, the others say more
READY, STARTED, FAILED, ENDED, QUIET = range(1, 6)
# FAILED: what the errno is about
NO_DIRECTORY, NO_PROGRAM = range(2)
FRAME_BYTES = 16

_NAMESPACES = (
    libc.CLONE_NEWUSER
    | libc.CLONE_NEWNS
    | libc.CLONE_NEWNET
    | libc.CLONE_NEWIPC
    | libc.CLONE_NEWUTS
    | libc.CLONE_NEWCGROUP
)
_NAME = b"unspill-door"
_SOCKET_FD = 3
_TRIES, _PAUSE_S = 5000, 0.001
_SEARCHED_ON = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_DEFAULT_PATH = b"/bin:/usr/bin"
# /proc/self/stat: where the words of this process lie in its memory
_ARG_START, _ARG_END = 47, 48
_WAIT = os.WEXITED | os.WNOHANG


def frame(kind: int, command: int = 0, value: int = 0, more: int = 0) -> bytes:
    """Return a frame."""
    return b"".join(number.to_bytes(4, "little", signed=True) for number in (kind, command, value, more))


def read_frame(raw: bytes) -> tuple[int, int, int, int] | None:
    """Return the numbers of a frame, None for anything else."""
    if len(raw) != FRAME_BYTES:
        return None
    kind, command, value, more = (int.from_bytes(raw[at : at + 4], "little", signed=True) for at in range(0, 16, 4))
    return kind, command, value, more


def waiting_program(machine: str) -> bytes | None:
    """Return a program that says one byte on its stdout and waits for ever; None for machines that we do not know.

    It ignores SIGCHLD, so that the kernel reaps what is left to it.
    """
    found = {"x86_64": (62, _wait_on_x86_64), "aarch64": (183, _wait_on_aarch64)}.get(machine)
    if found is None:
        return None
    number, code = found
    # The action of a signal as the kernel has it: SIG_IGN, and three zeros
    body = code() + (1).to_bytes(32, "little")
    base, head = 0x400000, 120
    size = head + len(body)
    numbers = ((2, 2), (number, 2), (1, 4), (base + head, 8), (64, 8), (0, 8), (0, 4), (64, 2), (56, 2), (1, 2))
    segment = ((1, 4), (5, 4), (0, 8), (base, 8), (base, 8), (size, 8), (size, 8), (0x1000, 8))
    padded = (*numbers, (0, 2), (0, 2), (0, 2), *segment)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    return ident + b"".join(value.to_bytes(width, "little") for value, width in padded) + body


def _wait_on_x86_64() -> bytes:
    # rt_sigaction(SIGCHLD, action, 0, 8); write(1, action, 1); for (;;) pause();
    parts = (
        b"\xb8\x0d\0\0\0\xbf\x11\0\0\0\x48\x8d\x35" + (43).to_bytes(4, "little"),
        b"\x31\xd2\x41\xba\x08\0\0\0\x0f\x05",
        b"\xb8\x01\0\0\0\xbf\x01\0\0\0\x48\x8d\x35" + (16).to_bytes(4, "little"),
        b"\xba\x01\0\0\0\x0f\x05",
        b"\xb8\x22\0\0\0\x0f\x05\xeb\xf7",
    )
    return b"".join(parts)


def _wait_on_aarch64() -> bytes:
    # The same, with ppoll(0, 0, 0, 0), since there is no pause
    def load(register: int, value: int) -> int:
        return 0xD2800000 | value << 5 | register

    call = 0xD4000001
    words = [load(0, 17), 0, load(2, 0), load(3, 8), load(8, 134), call]
    words += [load(0, 1), 0, load(2, 1), load(8, 64), call]
    words += [load(0, 0), load(1, 0), load(2, 0), load(3, 0), load(8, 73), call, 0x14000000 | (-6 & 0x3FFFFFF)]
    for at in (1, 7):
        # adr x1, action
        words[at] = 0x10000000 | (len(words) - at) << 5 | 1
    return b"".join(word.to_bytes(4, "little") for word in words)


class Protection:
    """What a door takes on before it starts anything: all that bwrap gives a command."""

    def __init__(self, limits: tuple[tuple[int, int], ...], program: bytes, fence: Fencing | None) -> None:
        self.limits = limits
        self.program = program
        self.fence = fence

    def take_on(self) -> None:
        """Protect others from this process and all that it starts, for good."""
        # The fence needs it too
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        if self.fence is not None:
            fence_in(*self.fence)
        libc.drop_capabilities()
        for kind, wanted in self.limits:
            hard = resource.getrlimit(kind)[1]
            bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (bound, bound))
        if self.program:
            libc.set_filter(self.program)


def be_door(init: int, to: int, begin: int, protection: Protection) -> NoReturn:
    """Enter the sandbox of which `init` is pid 1, when `begin` can be read, and serve until `to` ends.

    Called in a fresh fork of the spawner, in which nothing else may ever run.
    """
    try:
        os.read(begin, 1)
        sock = _move_in(init, to)
        try:
            _rename()
            libc.setns(_SOCKET_FD + 1, _NAMESPACES)
            os.close(_SOCKET_FD + 1)
            os.chdir("/")
            libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
            protection.take_on()
        except OSError as error:
            sock.send(frame(READY, value=error.errno or -1))
            os._exit(1)
        DoorLoop(sock).serve()
    finally:
        os._exit(1)


def _move_in(init: int, to: int) -> Socket:
    """Let go of everything of the spawner's but a socket and the sandbox's pid 1."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    kept = [os.dup(fd) for fd in (null, null, null, to, init)]
    top = max(kept) + 1
    moved = [os.dup2(fd, top + number, inheritable=False) for number, fd in enumerate(kept)]
    for number, fd in enumerate(moved):
        os.dup2(fd, number, inheritable=False)
    os.closerange(len(moved), 1 << 20)
    return Socket(fileno=_SOCKET_FD)


def _rename() -> None:
    """Have a neutral command line: that of the spawner may be the person's own, and anybody inside can read it."""
    with open("/proc/self/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    # The first two fields are cut off
    start, end = int(words[_ARG_START - 2]), int(words[_ARG_END - 2])
    libc.overwrite(start, _NAME[: end - start - 1].ljust(end - start, b"\0"))
    libc.set_name(_NAME)


class DoorLoop:
    """The loop of the door process."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        # By descriptor of the process: its number, and that of the command
        self._commands: dict[int, tuple[int, int]] = {}
        self._ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
        self._poll = select.poll()
        self._poll.register(_SOCKET_FD, select.POLLIN)

    def serve(self) -> None:
        """Do what is asked for, until the caller's end is closed."""
        self._tell(READY)
        while True:
            for fd, _event in self._poll.poll():
                if fd in self._commands:
                    self._end(fd)
                elif fd == _SOCKET_FD and not self._listen():
                    return

    def _tell(self, kind: int, command: int = 0, value: int = 0, more: int = 0) -> None:
        self._sock.send(frame(kind, command, value, more))

    def _listen(self) -> bool:
        message = receive(self._sock)
        if message is None:
            return False
        words, descriptors = message
        try:
            match words:
                case ("run", number, argv, environ, cwd, umask):
                    self._start(number, argv, dict(environ), cwd, umask, descriptors)
                case ("clear",):
                    self._clear()
        finally:
            for fd in descriptors:
                os.close(fd)
        return True

    def _start(
        self,
        number: int,
        argv: tuple[bytes, ...],
        environ: dict[bytes, bytes],
        cwd: bytes,
        umask: int,
        descriptors: list[int],
    ) -> None:
        try:
            os.chdir(cwd)
        except OSError as error:
            self._tell(FAILED, number, error.errno or -1, NO_DIRECTORY)
            return
        try:
            os.umask(umask)
            pid = self._spawn(argv, environ, descriptors)
            fd = os.pidfd_open(pid)
        except OSError as error:
            self._tell(FAILED, number, error.errno or -1, NO_PROGRAM)
            return
        finally:
            # What is mounted there is exchanged between commands
            os.chdir("/")
        self._commands[fd] = (pid, number)
        self._poll.register(fd, select.POLLIN)
        self._tell(STARTED, number)

    def _spawn(self, argv: tuple[bytes, ...], environ: Mapping[bytes, bytes], descriptors: list[int]) -> int:
        """Start a program as execvp(3) would find it, by the PATH that it will have."""
        name = argv[0]
        if b"/" in name:
            return self._spawn_at(name, argv, environ, descriptors)
        problem = errno.ENOENT
        for directory in environ.get(b"PATH", _DEFAULT_PATH).split(b":"):
            try:
                return self._spawn_at(os.path.join(directory or b".", name), argv, environ, descriptors)
            except OSError as error:
                if error.errno not in _SEARCHED_ON:
                    raise
                # One that may not be executed is worth telling of, where none is found further on
                problem = errno.EACCES if error.errno == errno.EACCES else problem
        raise OSError(problem, os.strerror(problem))

    def _spawn_at(
        self, path: bytes, argv: tuple[bytes, ...], environ: Mapping[bytes, bytes], descriptors: list[int]
    ) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(descriptors)]
        for program, words in ((path, argv), (b"/bin/sh", (b"sh", path, *argv[1:]))):
            try:
                return os.posix_spawn(
                    program,
                    words,
                    environ,
                    file_actions=actions,
                    setsid=True,
                    setsigmask=(),
                    setsigdef=self._ignored,
                )
            except OSError as error:
                # A text without a first line that says whose it is: a shell's
                if error.errno != errno.ENOEXEC or program != path:
                    raise
        raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC))

    def _end(self, fd: int) -> None:
        pid, number = self._commands.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        code = _code_of(os.waitpid(pid, 0)[1])
        self._tell(ENDED, number, code, int(not self._is_quiet()))

    def _is_quiet(self) -> bool:
        """Reap what was left to this process, and tell whether none of what commands started is alive.

        Whoever loses its parent comes here, so without a child there is no descendant either.
        """
        known = {pid for pid, _number in self._commands.values()}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, _WAIT | os.WNOWAIT)
            except ChildProcessError:
                return True
            if found is None or found.si_pid in known:
                return False
            os.waitpid(found.si_pid, 0)

    def _clear(self) -> None:
        """Kill everything inside but pid 1 and this process; tell when it is gone, then how the commands ended."""
        known = {pid: (fd, number) for fd, (pid, number) in self._commands.items()}
        ended: list[tuple[int, int]] = []
        for _ in range(_TRIES):
            _kill_all()
            if self._reap_all(known, ended):
                break
            time.sleep(_PAUSE_S)
        self._tell(QUIET, value=len(known))
        for number, code in ended:
            self._tell(ENDED, number, code)

    def _reap_all(self, known: dict[int, tuple[int, int]], ended: list[tuple[int, int]]) -> bool:
        """Reap who is dead, and tell whether nobody is left; commands go from `known` to `ended`."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return False
            if pid in known:
                fd, number = known.pop(pid)
                del self._commands[fd]
                self._poll.unregister(fd)
                os.close(fd)
                ended.append((number, _code_of(status)))


def _kill_all() -> None:
    try:
        os.kill(-1, libc.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left, or only who has to be reaped


def _code_of(status: int) -> int:
    """Return an exit code as bwrap tells it: 128 and more for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
