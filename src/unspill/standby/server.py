# SPDX-License-Identifier: Apache-2.0
"""The standby: a process of the person's own that is unspill, already started, for the hooks of their coding agents.

Starting Python and reading its modules takes longer than sealing a short command. So the first hook leaves a standby
behind. It has all modules, and forks a worker for each client that comes while the others are busy. A worker does what
the whole program would have done: the same words, in the client's directory, with its variables, umask and streams. It
reads the configuration anew each time. Between runs it only keeps the sandbox, which shows the next command nothing
that another one left (`Sandbox.run` with `reuse`).

It serves processes of its own user that the kernel treats as it treats the standby itself: in the same namespaces, with
the same rights and limits. Whoever is confined in any other way has to use the whole program. It ends with the agent
that it was started for, when nobody came for a while, and when unspill is replaced.

A client begins with a length, and then, divided by zeros: umask, directory, number of words, words, variables. The
worker accepts, the client says go and sends its streams along; from then on each byte is a signal for the worker, and
the end of the connection is one too. The answer is one byte, the exit code.

`python -m unspill.standby.server` is the standby; with words it leaves one behind, and is then the command line.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time

from unspill.cli import hook, hook_edits, output
from unspill.cli import run as running
from unspill.cli.main import STOPPED, main, run_words
from unspill.errors import UnspillError
from unspill.host.dirfd import make_pipe
from unspill.layers.locks import standby_files
from unspill.runner.launcher import get_launcher, stop_launchers
from unspill.sandbox.keeper import is_own_peer, receive_whole
from unspill.sandbox.project import find_own_locations
from unspill.standby.handover import ACCEPTED, GO
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import TextIOWrapper
    from typing import Any, Literal, NoReturn

# Loaded before the first client comes
_LOADED = (hook, hook_edits, output)
_LOADED_LATE = ("unspill.sandbox.live", "unspill.sandbox.apply", "unspill.sandbox.result", "unspill.policy.merge")
IDLE_S = 600.0
_LOOK_S = 5.0
# An agent may want some things at once, and again soon
_MOST_WORKERS, _MOST_IDLE = 16, 4
_QUIET_S = 60.0
_LENGTH_BYTES, _LONGEST_REQUEST = 4, 32 << 20
# How long a client may take to say what it wants
_PATIENCE_S = 2.0
_IDLE = b"i"
_STREAMS = 3
_SERVED = ("hook", "run")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
# What the kernel says of a process that decides what it may do
_TEXTS = ("limits", "cgroup")
_RIGHTS = (b"Uid:", b"Gid:", b"Groups:", b"Cap", b"NoNewPrivs:", b"Seccomp")
# Landlock is seen nowhere, but comes with this
_CONFINED = b"NoNewPrivs:\t1"
# Python takes the first of these that says anything, and for the names of no language UTF-8 too
_LOCALE = (b"LC_ALL", b"LC_CTYPE", b"LANG")
_NO_LANGUAGE = ("c", "posix", "")
_SHELLS = (b"sh", b"bash", b"dash", b"zsh", b"busybox")
_AGENT_VARIABLE = "UNSPILL_STANDBY_AGENT"


def start_standby() -> None:
    """Leave a standby behind, unless there is one or there can be none. It is no reason to fail if that fails."""
    try:
        state = find_own_locations().state
        lock_path, _socket_path = standby_files(state)
        if not os.path.isdir(os.path.dirname(lock_path)):
            Store.open(state).close()
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (OSError, UnspillError):
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # One that was killed has left its number
        os.ftruncate(lock, 0)
        if not _is_confined() and _speaks_utf8(os.environb):
            _spawn(lock)
    except OSError:
        return  # there is one, or no process can be had
    finally:
        os.close(lock)


def _spawn(lock: int) -> None:
    argv = [sys.executable, "-E", "-P", "-m", "unspill.standby.server"]
    high = fcntl.fcntl(lock, fcntl.F_DUPFD_CLOEXEC, 10)
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, high, 3)]
    environ = {**os.environ, _AGENT_VARIABLE: str(_find_agent())}
    numbers = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
    try:
        os.posix_spawn(sys.executable, argv, environ, file_actions=actions, setsid=True, setsigdef=numbers)
    finally:
        os.close(high)


def _find_agent() -> int:
    """Return the process for which this one was started: the nearest above it that is no shell."""
    pid = os.getppid()
    while pid > 1:
        before, _bracket, after = _read(f"/proc/{pid}/stat").rpartition(b")")
        if before.partition(b"(")[2] not in _SHELLS:
            return pid
        pid = int(after.split()[1])
    return 0


def _is_confined() -> bool:
    return _CONFINED in _read("/proc/self/status")


def serve() -> NoReturn:
    """Be the standby, until it is not needed any more. Descriptor 3 is the lock."""
    os.set_inheritable(3, False)
    os.chdir("/")
    for name in _LOADED_LATE:
        __import__(name)
    # What is loaded stays: no worker has to look at it, or to have copies of its own
    gc.freeze()
    agent = int(os.environ.pop(_AGENT_VARIABLE, "0"))
    try:
        _Standby(find_own_locations().state, agent).loop()
    finally:
        os._exit(0)


class _Likeness:
    """What the kernel says of a process and how it is confined, to be compared."""

    def __init__(self) -> None:
        self._own = self._look("self")

    def is_of(self, pid: int) -> bool:
        """Tell whether it says the same of another process, and that neither is confined by what it does not say."""
        try:
            other = self._look(str(pid))
        except OSError:
            return False
        return other == self._own and _CONFINED not in other[1]

    def _look(self, pid: str) -> tuple[Any, ...]:
        spaces = [os.stat(f"/proc/{pid}/ns/{name}").st_ino for name in _NAMESPACES]
        root = os.stat(f"/proc/{pid}/root")
        rights = [line for line in _read(f"/proc/{pid}/status").split(b"\n") if line.startswith(_RIGHTS)]
        try:
            label = _read(f"/proc/{pid}/attr/current")
        except OSError:
            # There is none without a security module
            label = b""
        return spaces, rights, (root.st_dev, root.st_ino), label, *(_read(f"/proc/{pid}/{name}") for name in _TEXTS)


def _read(path: str) -> bytes:
    """Return a text of the kernel's, which is short."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


class _Standby:
    """Takes clients and hands each to a worker. It has one thread and no sandbox, so it can fork."""

    def __init__(self, state: bytes, agent: int) -> None:
        self._likeness = _Likeness()
        self._version = _version()
        self._agent = _open_process(agent)
        self._path = standby_files(state)[1]
        self._listener = _listen(self._path)
        self._socket = _identity(self._path)
        os.ftruncate(3, 0)
        os.pwrite(3, b"%d" % os.getpid(), 0)
        # By the descriptor at which a worker says that it is idle again
        self._workers: dict[int, socket.socket] = {}
        self._idle: list[int] = []
        self._last = time.monotonic()
        self._news, self._wake_fd = make_pipe()
        os.set_blocking(self._wake_fd, False)
        # The agent may be gone already
        self._is_ending = bool(agent) and self._agent < 0

    def loop(self) -> None:
        """Serve until it is time to end, and then those who are being served."""
        signal.signal(signal.SIGTERM, self._stop_soon)
        self._fork()
        poll = select.poll()
        while not self._is_over():
            for fd in (self._listener.fileno(), self._news, *self._workers):
                poll.register(fd, select.POLLIN)
            if self._agent >= 0:
                poll.register(self._agent, select.POLLIN)
            ready = [fd for fd, _events in poll.poll(_LOOK_S * 1000)]
            # First those who are idle again
            for fd in [fd for fd in ready if fd in self._workers]:
                self._hear(fd, poll)
            if self._listener.fileno() in ready:
                self._welcome()
            self._is_ending = self._is_ending or self._agent in ready
            if len(self._idle) > 1 and time.monotonic() - self._last > _QUIET_S:
                self._dismiss(self._idle.pop(0), poll)
            self._reap()
        self._end()

    def _stop_soon(self, _number: int, _frame: object) -> None:
        self._is_ending = True
        os.write(self._wake_fd, b"x")

    def _is_over(self) -> bool:
        is_busy = len(self._idle) < len(self._workers)
        is_late = not is_busy and time.monotonic() - self._last > IDLE_S
        return self._is_ending or is_late or _identity(self._path) != self._socket or not self._is_current()

    def _is_current(self) -> bool:
        return _version() == self._version

    def _end(self) -> None:
        """Let nobody else come, and wait for those who are being served; another standby may begin meanwhile."""
        if _identity(self._path) == self._socket:
            os.unlink(self._path)
        self._listener.close()
        os.close(3)
        for worker in self._workers.values():
            worker.shutdown(socket.SHUT_WR)
        for worker in self._workers.values():
            # Until it is gone
            while worker.recv(1):
                continue

    def _welcome(self) -> None:
        client, _address = self._listener.accept()
        with client:
            self._last = time.monotonic()
            is_welcome = self._is_current() and is_own_peer(client) and self._likeness.is_of(_pid_of(client))
            if not is_welcome or (not self._idle and not self._fork()):
                return
            fd = self._idle.pop()
            try:
                socket.send_fds(self._workers[fd], [b"c"], [client.fileno()])
            except OSError:
                return  # it was killed; the client does it itself

    def _hear(self, fd: int, poll: select.poll) -> None:
        """Note that a worker is idle again, or gone."""
        if self._workers[fd].recv(1) and len(self._idle) < _MOST_IDLE:
            self._idle.append(fd)
        else:
            self._dismiss(fd, poll)

    def _dismiss(self, fd: int, poll: select.poll) -> None:
        """Let go of a worker, which then ends."""
        poll.unregister(fd)
        self._workers.pop(fd).close()
        self._idle = [idle for idle in self._idle if idle != fd]

    def _reap(self) -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return

    def _fork(self) -> bool:
        if len(self._workers) >= _MOST_WORKERS:
            return False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.fork() == 0:
            try:
                for other in (ours, self._listener, *self._workers.values()):
                    other.close()
                for fd in (3, self._news, self._wake_fd, self._agent):
                    if fd >= 0:
                        os.close(fd)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _Worker(theirs).loop()
            finally:
                os._exit(0)
        theirs.close()
        self._workers[ours.fileno()] = ours
        self._idle.append(ours.fileno())
        return True


class _Worker:
    """Does what one client after another wants, as the program that the client would have been."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._client: socket.socket | None = None
        self._is_spent = False

    def loop(self) -> None:
        """Serve until the standby ends, or until this process is not as it was any more."""
        signal.signal(signal.SIGIO, self._hear)
        running.keep_sandbox()
        # Before any client's streams are here: the spawner must not have them
        get_launcher(own_namespace=True, may_fork=True)
        try:
            while not self._is_spent:
                content, descriptors, _flags, _address = socket.recv_fds(self._parent, 1, 1)
                if not content:
                    break
                with socket.socket(fileno=descriptors[0]) as client:
                    code = self._serve(client)
                    # Before the client ends: the next one may be there at once
                    if not self._is_spent:
                        self._parent.send(_IDLE)
                    if code is not None:
                        self._answer(client, code)
        finally:
            running.drop_kept()
            stop_launchers()

    def _serve(self, client: socket.socket) -> int | None:
        """Do what a client wants, and return the exit code; None if it is to do so itself, or is gone."""
        client.settimeout(_PATIENCE_S)
        try:
            request = _read_request(client)
            if request is None or not self._take_on(request):
                return None
            client.sendall(ACCEPTED)
            said, streams, _flags, _address = socket.recv_fds(client, 1, _STREAMS)
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
                os.close(fd)
            if said != GO or len(streams) != _STREAMS:
                return None
            client.settimeout(None)
            return self._do(client, request.words)
        except OSError:
            return None  # it gave up, or is gone
        finally:
            # Before the code is told: whoever reads the streams to their end waits for that
            self._let_go()

    def _answer(self, client: socket.socket, code: int) -> None:
        try:
            client.sendall(bytes([code & 0xFF]))
        except OSError:
            return  # nobody hears it

    def _take_on(self, request: _Request) -> bool:
        """Become what the client is; False where that can't be."""
        if request.words[:1] not in ([word] for word in _SERVED):
            return False
        if not _speaks_utf8(request.environ):
            return False
        try:
            os.chdir(request.directory)
        except OSError:
            return False
        os.umask(request.umask)
        os.environ.clear()
        os.environb.update(request.environ)
        time.tzset()
        return True

    def _do(self, client: socket.socket, words: list[str]) -> int:
        sys.stdin = _stream(0, "r", "strict")
        sys.stdout = _stream(1, "w", "strict")
        sys.stderr = _stream(2, "w", "backslashreplace")
        sys.stderr.reconfigure(line_buffering=True)
        self._client = client
        fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
        self._hear(signal.SIGIO, None)
        code = run_words(words)
        self._client = None
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            code = code or 141
        return STOPPED if words[0] == "hook" and code else code

    def _hear(self, _number: int, _frame: object) -> None:
        """Have the signals that the client passes on; that it is gone is one too."""
        client = self._client
        if client is None:
            return
        try:
            found = client.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        self._is_spent = True
        for number in found or bytes([signal.SIGTERM]):
            if number in _PASSED_ON:
                signal.raise_signal(number)

    def _let_go(self) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in range(3):
            os.dup2(null, number)
        os.close(null)
        os.chdir("/")


class _Request:
    __slots__ = ("directory", "environ", "umask", "words")

    def __init__(self, content: bytes) -> None:
        """Take what a client says. A ValueError if it is nothing that one would say."""
        umask, self.directory, count, *rest = content.split(b"\0")
        self.umask = int(umask)
        self.words = [os.fsdecode(word) for word in rest[: int(count)]]
        self.environ = dict(pair.split(b"=", 1) for pair in rest[int(count) :])


def _read_request(client: socket.socket) -> _Request | None:
    """Return what a client wants, None if it says nothing that one would say."""
    length = int.from_bytes(receive_whole(client, _LENGTH_BYTES), "big")
    content = receive_whole(client, length) if length <= _LONGEST_REQUEST else b""
    try:
        return _Request(content)
    except ValueError:
        return None


def _stream(number: int, mode: Literal["r", "w"], errors: str) -> TextIOWrapper:
    """Return one of Python's standard streams, as a Python that starts now would have it."""
    return open(number, mode, encoding="utf-8", errors=errors, closefd=False)


def _speaks_utf8(environ: Mapping[bytes, bytes]) -> bool:
    """Tell whether a Python that starts with these variables would write UTF-8, as this one does."""
    found = next(filter(None, map(environ.get, _LOCALE)), b"").decode("latin-1").lower().replace("-", "")
    return found.partition(".")[2].partition("@")[0] == "utf8" or found in _NO_LANGUAGE


def _listen(path: bytes) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # One that was killed has left its own; nobody else can have one now
    if os.path.lexists(path):
        os.unlink(path)
    listener.bind(b"/proc/self/fd/%d/%b" % (directory, os.path.basename(path)))
    os.close(directory)
    os.chmod(path, 0o600)
    listener.listen(_MOST_WORKERS)
    return listener


def _identity(path: str | bytes) -> tuple[int, ...]:
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _version() -> tuple[int, ...]:
    """Return what is another when unspill has been replaced: every installer writes this file anew."""
    return _identity(sys.modules["unspill"].__file__ or "")


def _open_process(pid: int) -> int:
    try:
        return os.pidfd_open(pid) if pid else -1
    except OSError:
        return -1


def _pid_of(client: socket.socket) -> int:
    return int.from_bytes(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # For the next: this one does what it is told itself
        start_standby()
        main()
    serve()
