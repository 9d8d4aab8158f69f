# SPDX-License-Identifier: Apache-2.0
"""The door of a live sandbox: one process inside that starts its commands, and the program that keeps it alive.

The spawner forks the door once into the sandbox's namespaces. There it takes on every protection of a command, then
starts commands by vfork and execve, which saves making a sandbox for each. It is not dumpable from before the
fork on, so no command can trace it, or read its memory or its descriptors; whoever kills or stops it ends the sandbox.
So does whoever changes its limits or its priority, which the kernel lets every process of the user do: it looks at them
before each command, which would have them too, and after it.

    caller ── requests ──▶ door      marshal: from outside, and only we have the other end
    caller ◀── frames ──── door      three numbers each: what comes from inside is data

Each request brings the socket that it is answered on. That of a command stays for as long as the command does: it
carries orders to it, and a caller that closes it gives the command up. A command with a terminal has one of the
sandbox's own; the door passes its master out and keeps nothing of it. It does the same with sockets that it connects to
a port of the sandbox, or that listen there: whoever asked for one moves the bytes.

pid 1 of a live sandbox is a program of two hundred bytes that only waits. As the kernel's pid 1 it can't be killed from
inside, so the door ends all that commands have left by one kill(-1). It is not dumpable before the first command is
started: nobody inside can have it run something else.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import select
import sys
import termios
import time
from _socket import (
    AF_INET,
    AF_INET6,
    SCM_RIGHTS,
    SO_REUSEADDR,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
)
from _socket import socket as Socket

from unspill.host import libc
from unspill.host.job import receive
from unspill.host.landlock import fence_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    # The rights that a fence handles, its rules by path, and its ports
    Fencing = tuple[tuple[int, int, int], tuple[tuple[bytes, int], ...], tuple[int, ...]]
    Frame = tuple[int, int, int]
    # What posix_spawn does with a descriptor before it starts the program
    FileAction = tuple[int, int, int] | tuple[int, int, bytes, int, int]
else:
    # The module around it makes enums of all its numbers, which costs more than all of this
    import _signal as signal


# Kinds of frames; the other two numbers say more
READY, STARTED, FAILED, ENDED, QUIET, PASSED = range(1, 7)
# FAILED: what the errno is about
NO_DIRECTORY, NO_PROGRAM, NO_TERMINAL, NO_SOCKET, NOT_AS_BEFORE = range(5)
# ENDED: others that the command started are alive; the door is not as it was
HAS_OTHERS, IS_CHANGED = 1, 2
FRAME_BYTES = 12

_NAMESPACES = libc.CLONE_NEWUSER | libc.CLONE_NEWNS | libc.CLONE_NEWIPC | libc.CLONE_NEWUTS | libc.CLONE_NEWCGROUP
_NAME = b"unspill-door"
_SOCKET_FD = 3
_TRIES, _PAUSE_S = 5000, 0.001
_SEARCHED_ON = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_DEFAULT_PATH = b"/bin:/usr/bin"
# /proc/self/stat: where the words of this process lie in its memory
_ARG_START, _ARG_END = 47, 48
# The same file, from the state of a process on
_PARENT, _SESSION, _START = 1, 3, 19
_WAIT = os.WEXITED | os.WNOHANG
# To lock a terminal's other side, and its number; Python has no names for them before 3.14
_TIOCSPTLCK, _TIOCGPTN = 0x40045431, 0x80045430
_BACKLOG = 128
_LIMITS = range(16)


def frame(kind: int, value: int = 0, more: int = 0) -> bytes:
    """Return a frame."""
    return b"".join(number.to_bytes(4, "little", signed=True) for number in (kind, value, more))


def read_frame(raw: bytes) -> Frame | None:
    """Return the numbers of a frame, None for anything else."""
    if len(raw) != FRAME_BYTES:
        return None
    kind, value, more = (int.from_bytes(raw[at : at + 4], "little", signed=True) for at in range(0, FRAME_BYTES, 4))
    return kind, value, more


def waiting_program(machine: str) -> bytes | None:
    """Return a program that says one byte on its stdout and waits for ever; None for machines that we do not know.

    It ignores SIGCHLD, so that the kernel reaps what is left to it, and is not dumpable, so that nobody traces it.
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
    # prctl(PR_SET_DUMPABLE, 0); rt_sigaction(SIGCHLD, action, 0, 8); write(1, action, 1); for (;;) pause();
    parts = (
        b"\xb8\x9d\0\0\0\xbf\x04\0\0\0\x31\xf6\x0f\x05",
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
    words = [load(0, 4), load(1, 0), load(8, 167), call]
    words += [load(0, 17), 0, load(2, 0), load(3, 8), load(8, 134), call]
    words += [load(0, 1), 0, load(2, 1), load(8, 64), call]
    words += [load(0, 0), load(1, 0), load(2, 0), load(3, 0), load(8, 73), call, 0x14000000 | (-6 & 0x3FFFFFF)]
    for at in (5, 11):
        # adr x1, action
        words[at] = 0x10000000 | (len(words) - at) << 5 | 1
    return b"".join(word.to_bytes(4, "little") for word in words)


class Protection:
    """What a door takes on before it starts anything: all that bwrap gives a command.

    It is made in the spawner, before the fork: what a door finds when it looks at itself, somebody inside may have
    changed by then. Only where the sandbox `shares_network` with the spawner, the door stays in that.
    """

    def __init__(
        self,
        limits: tuple[tuple[int, int], ...],
        program: bytes,
        fence: Fencing | None,
        *,
        shares_network: bool = False,
    ) -> None:
        found = [resource.getrlimit(number) for number in _LIMITS]
        for kind, wanted in limits:
            hard = found[kind][1]
            bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            found[kind] = bound, bound
        self.limits = tuple((kind, found[kind]) for kind, _wanted in limits)
        self.standing = (*found, *libc.read_scheduling())
        self.processors = os.sched_getaffinity(0)
        self.program = program
        self.fence = fence
        # The kernel lets nobody but root enter the host's, not even who is there already
        self.namespaces = _NAMESPACES if shares_network else _NAMESPACES | libc.CLONE_NEWNET

    def take_on(self) -> None:
        """Protect others from this process and all that it starts, for good."""
        # The fence needs it too
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        if self.fence is not None:
            fence_in(*self.fence)
        libc.drop_capabilities()
        for kind, bounds in self.limits:
            resource.setrlimit(kind, bounds)
        if self.program:
            libc.set_filter(self.program)


def be_door(init: int, to: int, begin: int, protection: Protection) -> NoReturn:
    """Enter the sandbox of which `init` is pid 1, when `begin` can be read, and serve until `to` ends.

    Called in a fresh fork of the spawner, in which nothing else may ever run.
    """
    try:
        # A look at all that the spawner has would make a copy of it
        gc.freeze()
        _heed_signals()
        os.read(begin, 1)
        sock = _move_in(init, to)
        try:
            take_name(_NAME)
            libc.setns(_SOCKET_FD + 1, protection.namespaces)
            os.close(_SOCKET_FD + 1)
            os.chdir("/")
            libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
            protection.take_on()
        except (OSError, ValueError) as error:
            # A ValueError is a limit that can't be set any more, because somebody inside has set it lower
            sock.send(frame(READY, value=getattr(error, "errno", errno.EPERM) or -1))
            os._exit(1)
        DoorLoop(sock, protection).serve()
    finally:
        os._exit(1)


def _heed_signals() -> None:
    """Let signals do what they do to any program: no handler of the spawner's or its caller's is called here."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


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


def take_name(name: bytes) -> None:
    """Have this process's name for its command line, which may be the person's own: anybody inside can read a door's.

    The spawner has a neutral one before it forks a door, which is seen inside from then on.
    """
    with open("/proc/self/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    # The first two fields are cut off
    start, end = int(words[_ARG_START - 2]), int(words[_ARG_END - 2])
    libc.overwrite(start, name[: end - start - 1].ljust(end - start, b"\0"))
    libc.set_name(name)


class DoorLoop:
    """The loop of the door process."""

    def __init__(self, sock: Socket, protection: Protection) -> None:
        self._sock = sock
        # By the descriptor of its process, and by that of its socket
        self._commands: dict[int, JoinedCommand] = {}
        self._sockets: dict[int, JoinedCommand] = {}
        self._ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
        self._poll = select.poll()
        self._poll.register(_SOCKET_FD, select.POLLIN)
        self._before = protection.standing
        self._processors = protection.processors

    def serve(self) -> None:
        """Do what is asked for, until the caller's end is closed."""
        self._sock.send(frame(READY))
        while True:
            for fd, _event in self._poll.poll():
                if fd in self._commands:
                    self._end(self._commands[fd])
                elif fd in self._sockets:
                    self._obey(self._sockets[fd])
                elif fd == _SOCKET_FD and not self._listen():
                    return

    def _listen(self) -> bool:
        message = receive(self._sock)
        if message is None:
            return False
        words, descriptors = message
        if not descriptors:
            return True  # the kernel drops what does not fit; then the caller's end is closed
        answer = Socket(fileno=descriptors[0])
        try:
            match words:
                case ("run", argv, environ, cwd, umask):
                    actions = _dup_all(descriptors[1:])
                    self._start(answer, argv, dict(environ), cwd, umask, actions)
                case ("terminal", argv, environ, cwd, umask, rows, columns):
                    self._start_on_terminal(answer, argv, dict(environ), cwd, umask, (rows, columns), descriptors[1:])
                case ("connect", port, is_ipv6):
                    _pass_socket(answer, lambda: begin_connection(port, is_ipv6=is_ipv6))
                case ("listen", port):
                    _pass_socket(answer, lambda: listen_inside(port))
                case ("clear",):
                    self._clear(answer)
        finally:
            for fd in descriptors[1:]:
                os.close(fd)
        return True

    def _start_on_terminal(
        self,
        answer: Socket,
        argv: tuple[bytes, ...],
        environ: dict[bytes, bytes],
        cwd: bytes,
        umask: int,
        size: tuple[int, int],
        descriptors: list[int],
    ) -> None:
        """Start a command that leads a session on a new terminal, and give the terminal's master away."""
        try:
            master, name = open_terminal(*size)
        except OSError as error:
            _tell_last(answer, FAILED, error.errno or -1, NO_TERMINAL)
            return
        # A session leader without a terminal gets the one that it opens
        actions = [(os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0), *_dup_all([0, 0, *descriptors], first=1)]
        try:
            self._start(answer, argv, environ, cwd, umask, actions, master)
        finally:
            os.close(master)

    def _start(
        self,
        answer: Socket,
        argv: tuple[bytes, ...],
        environ: dict[bytes, bytes],
        cwd: bytes,
        umask: int,
        actions: list[FileAction],
        master: int | None = None,
    ) -> None:
        if self._is_changed():
            _tell_last(answer, FAILED, more=NOT_AS_BEFORE)
            return
        try:
            os.chdir(cwd)
        except OSError as error:
            _tell_last(answer, FAILED, error.errno or -1, NO_DIRECTORY)
            return
        try:
            os.umask(umask)
            pid = self._spawn(argv, environ, actions)
            fd = os.pidfd_open(pid)
        except OSError as error:
            _tell_last(answer, FAILED, error.errno or -1, NO_PROGRAM)
            return
        finally:
            # What is mounted there is exchanged between commands
            os.chdir("/")
        command = JoinedCommand(pid, fd, answer)
        self._commands[fd] = self._sockets[answer.fileno()] = command
        for waited in (fd, answer.fileno()):
            self._poll.register(waited, select.POLLIN)
        _tell(answer, STARTED, descriptor=master)

    def _obey(self, command: JoinedCommand) -> None:
        """Do what the caller wants of one command; whoever has closed its end wants it killed."""
        try:
            message = receive(command.sock)
        except (OSError, EOFError, TypeError, ValueError):
            message = None
        match message:
            case (("signal", number), _):
                command.signal(number)
            case (("kill",), _):
                command.kill()
            case None:
                # Its end is not told any more, but it still has to be reaped
                self._poll.unregister(command.sock.fileno())
                del self._sockets[command.sock.fileno()]
                command.sock.close()
                command.kill()

    def _spawn(self, argv: tuple[bytes, ...], environ: Mapping[bytes, bytes], actions: list[FileAction]) -> int:
        """Start a program as execvp(3) would find it, by the PATH that it will have."""
        name = argv[0]
        if b"/" in name:
            return self._spawn_at(name, argv, environ, actions)
        problem = errno.ENOENT
        for directory in environ.get(b"PATH", _DEFAULT_PATH).split(b":"):
            try:
                path = os.path.join(directory or b".", name)
                # To find that out by starting it costs a process each time
                os.stat(path)
                return self._spawn_at(path, argv, environ, actions)
            except OSError as error:
                if error.errno not in _SEARCHED_ON:
                    raise
                # One that may not be executed is worth telling of, where none is found further on
                problem = errno.EACCES if error.errno == errno.EACCES else problem
        raise OSError(problem, os.strerror(problem))

    def _spawn_at(
        self, path: bytes, argv: tuple[bytes, ...], environ: Mapping[bytes, bytes], actions: list[FileAction]
    ) -> int:
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

    def _end(self, command: JoinedCommand) -> None:
        status = os.waitpid(command.pid, 0)[1]
        self._forget(command)
        found = HAS_OTHERS * (not self._is_quiet()) | IS_CHANGED * self._is_changed()
        _tell_last(command.sock, ENDED, _code_of(status), found)

    def _is_changed(self) -> bool:
        """Tell whether somebody has changed the limits or the priority of this process.

        The host may change its processors as well, so those are only set again.
        """
        if os.sched_getaffinity(0) != self._processors:
            _set_processors(self._processors)
        return _read_standing() != self._before

    def _forget(self, command: JoinedCommand) -> None:
        del self._commands[command.fd]
        self._poll.unregister(command.fd)
        os.close(command.fd)
        if self._sockets.pop(command.sock.fileno(), None) is not None:
            self._poll.unregister(command.sock.fileno())

    def _is_quiet(self) -> bool:
        """Reap what was left to this process, and tell whether none of what commands started is alive.

        Whoever loses its parent comes here, so without a child there is no descendant either.
        """
        known = {command.pid for command in self._commands.values()}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, _WAIT | os.WNOWAIT)
            except ChildProcessError:
                return True
            if found is None or found.si_pid in known:
                return False
            os.waitpid(found.si_pid, 0)

    def _clear(self, answer: Socket) -> None:
        """Kill everything inside but pid 1 and this process; tell when it is gone, then how the commands ended."""
        known = {command.pid: command for command in self._commands.values()}
        ended: list[tuple[JoinedCommand, int]] = []
        for _ in range(_TRIES):
            _kill_all()
            if self._reap_all(known, ended):
                break
            time.sleep(_PAUSE_S)
        for command, code in ended:
            _tell_last(command.sock, ENDED, code)
        _tell_last(answer, QUIET, len(known), int(self._is_changed()))

    def _reap_all(self, known: dict[int, JoinedCommand], ended: list[tuple[JoinedCommand, int]]) -> bool:
        """Reap who is dead, and tell whether nobody is left; commands go from `known` to `ended`."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return False
            if pid in known:
                command = known.pop(pid)
                self._forget(command)
                ended.append((command, _code_of(status)))


class JoinedCommand:
    """A command that the door has started: its process, and the socket to whoever asked for it."""

    def __init__(self, pid: int, fd: int, sock: Socket) -> None:
        self.pid = pid
        self.fd = fd
        self.sock = sock

    def signal(self, number: int) -> None:
        """Send a signal to its process group, as a terminal would."""
        try:
            os.killpg(self.pid, number)
        except OSError:
            return  # it has ended; only its end is not told yet

    def kill(self) -> None:
        """Kill all of its session, and all that descends from it. What has left both goes with the sandbox.

        Who was forked meanwhile is found by the next look; a killed process forks no more.
        """
        killed: set[tuple[int, int]] = set()
        while found := _find_session(self.pid) - killed:
            for pid, start in found:
                _kill(pid, start)
            killed |= found


def _read_standing() -> tuple[object, ...]:
    """Return what a command gets from this process, and others may change."""
    return (*map(resource.getrlimit, _LIMITS), *libc.read_scheduling())


def _set_processors(wanted: set[int]) -> None:
    try:
        os.sched_setaffinity(0, wanted)
    except OSError:
        return  # the host has taken them all away


def _find_session(leader: int) -> set[tuple[int, int]]:
    """Return the living processes of a session, and their descendants, each with when it was started.

    All are of one pid namespace, which is ours.
    """
    parents: dict[int, int] = {}
    starts: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        words = _read_stat(int(name))
        if not words or words[0] in (b"Z", b"X"):
            continue
        parents[int(name)] = int(words[_PARENT])
        starts[int(name)] = int(words[_START])
        if int(words[_SESSION]) == leader:
            found.add(int(name))
    for pid in parents:
        line = [pid]
        while line[-1] in parents and line[-1] not in found:
            line.append(parents[line[-1]])
        if line[-1] in found or line[-1] == leader:
            found.update(line)
    return {(pid, starts[pid]) for pid in found & parents.keys()}


def _read_stat(pid: int) -> list[bytes]:
    """Return what the kernel says of a process from its state on; nothing of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _kill(pid: int, start: int) -> None:
    """Kill a process, if its pid is still its own."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        words = _read_stat(pid)
        if words and int(words[_START]) == start:
            libc.kill_pidfd(fd)
    finally:
        os.close(fd)


def _dup_all(descriptors: list[int], first: int = 0) -> list[FileAction]:
    return [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(descriptors, start=first)]


def open_terminal(rows: int, columns: int) -> tuple[int, bytes]:
    """Return the master of a new terminal of a size, and where its other side is."""
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, bytes(4))
        number = int.from_bytes(fcntl.ioctl(master, _TIOCGPTN, bytes(4)), sys.byteorder)
        set_size(master, rows, columns)
    except OSError:
        os.close(master)
        raise
    return master, b"/dev/pts/%d" % number


def begin_connection(port: int, *, is_ipv6: bool) -> Socket:
    """Return a socket that connects to a port of the sandbox's own loopback. Whoever gets it waits for that, not we."""
    sock = Socket(AF_INET6 if is_ipv6 else AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
    problem = sock.connect_ex(("::1" if is_ipv6 else "127.0.0.1", port))
    if problem not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(problem, os.strerror(problem))
    return sock


def listen_inside(port: int) -> Socket:
    """Return a socket that listens on a port of the sandbox's own loopback."""
    sock = Socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
    try:
        sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _pass_socket(answer: Socket, make: Callable[[], Socket]) -> None:
    try:
        made = make()
    except OSError as error:
        _tell_last(answer, FAILED, error.errno or -1, NO_SOCKET)
        return
    _tell(answer, PASSED, descriptor=made.fileno())
    made.close()
    answer.close()


def set_size(fd: int, rows: int, columns: int) -> None:
    """Give a terminal a size; the kernel tells the programs on it."""
    words = b"".join(number.to_bytes(2, sys.byteorder) for number in (rows, columns, 0, 0))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, words)


def _tell(to: Socket, kind: int, value: int = 0, more: int = 0, descriptor: int | None = None) -> None:
    rights = [] if descriptor is None else [(SOL_SOCKET, SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))]
    try:
        to.sendmsg([frame(kind, value, more)], rights)
    except OSError:
        return  # the caller does not wait for it any more


def _tell_last(to: Socket, kind: int, value: int = 0, more: int = 0) -> None:
    _tell(to, kind, value, more)
    to.close()


def _kill_all() -> None:
    try:
        os.kill(-1, libc.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left, or only who has to be reaped


def _code_of(status: int) -> int:
    """Return an exit code as bwrap tells it: 128 and more for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
