# SPDX-License-Identifier: Apache-2.0
"""Waits for one run: reads its output, feeds its input, kills it when a bound, a deadline or the caller says so.

Returns only when the spawner has said that every process is dead (or is dead itself, and with it the run). Processes,
memory and open files are bounded by the kernel: by a control group, else by rlimits on the child that is held back.
What a run takes of the disk, of directories in memory, and without a control group of the host's memory, is measured
while it goes on.

bwrap writes `exit-code` to its status descriptor only if the command was really executed: this, not a guess from the
output, tells our failure from the command's.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import sys
import time

from unspill.changes.walk import has_fresh, measure
from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import DESCRIPTORS_REMEDY, above_standard, make_pipe
from unspill.host.job import is_dead
from unspill.host.libc import DeferredSignals
from unspill.host.places import listening_ports
from unspill.layers.locks import started_at
from unspill.model.run import (
    Cancelled,
    Exited,
    LimitReached,
    NeverStarted,
    Output,
    OutputChunk,
    Remains,
    Signalled,
    Started,
    TimedOut,
)
from unspill.plan.build import UNMOUNT_REMEDY
from unspill.policy.paths import show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from unspill.model.policy import Limits
    from unspill.model.run import Event, LimitName, Outcome, RunId, StreamName

    class Followed(Protocol):
        """A run as a Watch follows it: one in the spawner, or one in a live sandbox."""

        own_namespace: bool
        # pid 1 of its sandbox and when that was started, where it is known before
        init: tuple[int, int] | None

        @property
        def deadline(self) -> float | None:
            """When whoever was asked for something must have done it; then `give_up` is called."""

        def fileno(self) -> int: ...
        def message(self) -> tuple[Any, list[int]] | None: ...
        def kill(self) -> None: ...
        def give_up(self) -> None: ...
        def wait_for_spawner(self, run: str) -> None: ...

    class AttachedTerminal(Protocol):
        """Who is at the other end of a command's terminal. `size` is rows and columns; `begin` gives the master away.

        `wanted` says what to wait for, by descriptor; when one of these is ready `turn` does what can be done without
        waiting. Both it and `rest`, called when the command has ended, return what the command has printed. `end` comes
        last, whatever happened.
        """

        size: tuple[int, int]

        def begin(self, master: int) -> None: ...
        def wanted(self) -> dict[int, int]: ...
        def turn(self, fd: int, events: int) -> bytes: ...
        def rest(self) -> bytes: ...
        def end(self) -> None: ...
        def was_interrupted(self) -> bool: ...


NO_DIRECTORY = "the working directory does not exist"
NOT_A_DIRECTORY = "the working directory is not a directory"
MOUNT_REMEDIES = {
    errno.EINVAL: (
        "something is mounted inside it, and the kernel lets no ordinary user put an overlay over that",
        UNMOUNT_REMEDY,
    ),
    errno.EPERM: ("the kernel does not let this user mount an overlay", "Run `unspill doctor`."),
    errno.ENOENT: ("it no longer exists", "Check that the directory still exists."),
    errno.ELOOP: (
        "a directory on this path is now a symlink",
        "An earlier run replaced it: see `unspill changes`.",
    ),
    errno.E2BIG: ("it has more layers than this kernel supports", "Apply or discard the held changes."),
}
_EXIT_KEY = b'"exit-code":'
_SIGNALS = 64
# bwrap runs without a locale; os.strerror would speak the caller's language
_ENOENT, _ENOTDIR, _EACCES = "No such file or directory", "Not a directory", "Permission denied"
_NO_SUCH_PLACE = "Choose a directory that exists."
_CLOSED = (
    "If a command in this sandbox removed your permission to enter it, `unspill changes` lists that and "
    "`unspill discard` undoes it. Otherwise choose another directory."
)

_CROWDED = "There are too many processes (`limits.processes`): end some, or wait until they have ended."

# What a run may not eat: a machine without free space or memory hurts more than a run that is ended
FREE_SPACE_KEPT = 256 * 1024 * 1024
FREE_INODES_KEPT = 10_000
FREE_MEMORY_KEPT = 256 * 1024 * 1024
_CHUNK = 1 << 16
# Keeps the loop from turning without end where a question is under way and nothing is left of the time
_LOOK_AGAIN_S = 0.1
# How bwrap begins what it says of itself, and how much of that is kept back
_BWRAP_SAYS = b"bwrap: "
_MOST_WITHHELD = 4096
_NULL = os.O_RDONLY | os.O_CLOEXEC
_PIPE_READ, _PIPE_WRITE = 0, 1
# Of the file beside a stream's head and tail, where the output has no bound
_FILE_CAP = 1 << 30
_SIGXFSZ = 25
# Who runs for so long may be a server; the first of the ports that the kernel chooses by itself
_SERVING_S = 2.0
_GIVEN_OUT = 32_768
# Between two looks; a walk takes at most one part in so many of the time
_LOOK_S = 0.5
_LONGEST_PAUSE_S = 2.0
_SHARE = 20
# A run that only tidies a playground that is too large must be let alone
_GROWN_BYTES, _GROWN_ENTRIES = 1 << 20, 100
# The clock that files are stamped by may be behind by one tick, which is 10 ms at most
_TICK_NS = 10_000_000
# A run that went on while nothing of it was taken is not the reason
_TAKEN_MEANWHILE = 256 * 1024 * 1024
_COUNTED = (b"MemAvailable:", b"SwapFree:")


def outcome_from(status: bytes, stderr: bytes) -> Outcome:
    """Return the outcome of a run that ended by itself, from bwrap's status text."""
    start = status.rfind(_EXIT_KEY)
    if start < 0:
        return _never_started(stderr)
    code = int(status[start + len(_EXIT_KEY) :].split(b"}")[0])
    if 128 < code <= 128 + _SIGNALS:
        return Signalled(signal=code - 128)
    return Exited(code=code)


def not_executed(program: bytes, code: int) -> NeverStarted:
    """Return the outcome of a command that execve(2) refused with an errno."""
    reason = f"{show(program)}: {os.strerror(code)}"
    if code == errno.EAGAIN:
        return NeverStarted(reason=reason, remedy=_CROWDED)
    return _not_executed(reason, is_missing=code == errno.ENOENT)


def not_entered(code: int) -> NeverStarted:
    """Return the outcome of a command whose working directory chdir(2) refused with an errno."""
    reasons = {errno.ENOENT: NO_DIRECTORY, errno.ENOTDIR: NOT_A_DIRECTORY}
    reason = reasons.get(code, f"the working directory can't be entered: {os.strerror(code)}")
    return NeverStarted(reason=reason, remedy=_CLOSED if code == errno.EACCES else _NO_SUCH_PLACE)


def mount_refused(dest: bytes, code: int, text: str) -> NeverStarted:
    """Return the outcome of a run whose overlay could not be mounted."""
    reason, remedy = MOUNT_REMEDIES.get(code, (text, "Run `unspill doctor`."))
    return NeverStarted(reason=f"can't mount an overlay over {show(dest)!r}: {reason}", remedy=remedy)


def _never_started(stderr: bytes) -> NeverStarted:
    text = show(stderr.strip()) or "bwrap ended without a message"
    if "bwrap: execvp" in text:
        reason = text.rpartition("bwrap: execvp ")[2]
        return _not_executed(reason, is_missing=_ENOENT in text)
    if "Can't chdir to" in text:
        for words, reason in ((_ENOENT, NO_DIRECTORY), (_ENOTDIR, NOT_A_DIRECTORY)):
            if words in text:
                return NeverStarted(reason=reason, remedy=_NO_SUCH_PLACE)
        if _EACCES in text:
            return not_entered(errno.EACCES)
    return NeverStarted(reason=text, remedy="Run `unspill doctor`.")


def _not_executed(reason: str, *, is_missing: bool) -> NeverStarted:
    remedy = "Check that it is installed in a directory that the sandbox shows (see `--explain`)."
    if _EACCES in reason:
        remedy = "Make it executable (`chmod +x`), or run it by its interpreter: `sh FILE`."
    return NeverStarted(reason=reason, remedy=remedy, exit_code=127 if is_missing else 126)


class RunControl(Record):
    """What the caller wants of one run besides the plan.

    `stdin` is bytes, a descriptor to read from, or None for /dev/null; `cancel_fd` becomes readable to give up. Without
    a `spill_dir` only head and tail of the output are kept.
    `on_listener` is given the listening socket of a plan with a proxy, before the command is let go, and owns it.
    `waited_s` says how long the command has waited for a person's answer so far, which is not its own time.
    `returns_raised`: an exception that cancels the run, of the caller's own or a Ctrl-C, is returned and not raised.
    `terminal` is who is at the terminal of a command in a live sandbox that has one, and no pipes.
    """

    run: RunId
    spill_dir: bytes
    stdin: bytes | int | None = None
    on_event: Callable[[Event], None] | None = None
    cancel_fd: int | None = None
    on_listener: Callable[[int], None] | None = None
    may_fork: bool = False
    waited_s: Callable[[], float] | None = None
    returns_raised: bool = False
    terminal: AttachedTerminal | None = None


class Watch:
    """The loop around one run."""

    def __init__(
        self,
        launched: Followed,
        pipes: RunPipes,
        collectors: list[Collector],
        usage: UsageWatch,
        limits: Limits,
        control: RunControl,
        *,
        own_network: bool = False,
    ) -> None:
        """Prepare; `own_network`: what listens in it does so for this sandbox alone, and could be published."""
        self._launched = launched
        self._pipes = pipes
        self._outputs = {pipes.stdout: collectors[0], pipes.stderr: collectors[1]}
        self._usage = usage
        self._limits = limits
        self._control = control
        self._begun = time.monotonic()
        self._stopped: Outcome | None = None
        self._dead = False
        self._init: tuple[int, int] | None = None
        self._init_fd: int | None = None
        self.status = b""  # what bwrap said of the command; known at the end
        self._pending = memoryview(control.stdin if isinstance(control.stdin, bytes) else b"")
        self._source = control.stdin if isinstance(control.stdin, int) else None
        self._open = set(self._outputs)
        self._withheld: bytes | None = b""
        self.remains = Remains()
        self._own_network = own_network
        # Ports that somebody inside listened on
        self.servers: set[int] = set()
        self._poll = select.poll()
        self._terminal = control.terminal
        self._of_terminal: dict[int, int] = {}

    def until_dead(self) -> Outcome | None:
        """Wait; return why we stopped the run, None if it ended by itself.

        Raises:
            SandboxUnavailable: the spawner died.
        """
        try:
            self._register()
            while not self._dead:
                self._turn()
            # All writers are dead, so this ends; a pipe holds 64 KiB
            for fd in sorted(self._open):
                while self._read(fd):
                    continue
            if self._terminal is not None:
                self._keep(self._terminal.rest())
        except BaseException:
            # Nor is a second Ctrl-C a reason not to wait: something might still write
            with DeferredSignals():
                self._launched.kill()
                self._wait_for_end()
                self._wait_for_init()
            raise
        self._wait_for_init()
        return self._stopped

    def release(self) -> None:
        """Show what was withheld: the command was started, so it was the command's own."""
        if self._withheld and self._control.on_event is not None:
            self._control.on_event(OutputChunk(stream="stderr", chunk=self._withheld))
        self._withheld = None

    def _register(self) -> None:
        for fd in (self._launched.fileno(), *self._outputs):
            self._poll.register(fd, select.POLLIN)
        if self._control.cancel_fd is not None:
            self._poll.register(self._control.cancel_fd, select.POLLIN)
        self._feed_when_possible()

    def _turn(self) -> None:
        if self._terminal is not None:
            self._poll_terminal(self._terminal.wanted())
        for fd, event in self._poll.poll(self._timeout_ms()):
            if self._terminal is not None and fd in self._of_terminal:
                self._keep(self._terminal.turn(fd, event))
            elif fd in self._outputs:
                self._read(fd)
            elif fd == self._launched.fileno():
                self._listen()
            elif fd == self._control.cancel_fd:
                self._poll.unregister(fd)
                self._stop(Cancelled())
            elif fd == self._pipes.stdin:
                self._feed()
            elif fd == self._source:
                self._take_input()
        self._check_clock()

    def _poll_terminal(self, wanted: dict[int, int]) -> None:
        """Wait for what a terminal can go on with now, which changes from turn to turn."""
        for fd in self._of_terminal.keys() - wanted.keys():
            self._poll.unregister(fd)
        for fd, events in wanted.items():
            if self._of_terminal.get(fd) != events:
                self._poll.register(fd, events)
        self._of_terminal = wanted

    def _keep(self, printed: bytes) -> None:
        """Keep what was printed on a terminal, where it has no bound, as part of the one stream that it has."""
        if printed:
            self._outputs[self._pipes.stdout].add(printed)

    def _timeout_ms(self) -> float | None:
        moments = [] if self._launched.deadline is None else [self._launched.deadline]
        if self._stopped is None:
            moments.append(self._usage.next_check)
            if self._limits.wall_s is not None:
                moments.append(self._last_moment())
        return max(0.0, (min(moments) - time.monotonic()) * 1000 + 1) if moments else None

    def _last_moment(self) -> float:
        """Return when the wall time is over: while a person thinks it moves on, and is looked at now and then."""
        assert self._limits.wall_s is not None
        waited_s = 0.0 if self._control.waited_s is None else self._control.waited_s()
        return self._begun + self._limits.wall_s + (waited_s and waited_s + _LOOK_AGAIN_S)

    def _check_clock(self) -> None:
        now = time.monotonic()
        if not self._dead and self._launched.deadline is not None and now >= self._launched.deadline:
            self._launched.give_up()
        if self._stopped is not None or self._dead:
            return
        if self._limits.wall_s is not None and now >= self._last_moment():
            self._stop(TimedOut(after_s=self._limits.wall_s))
        elif now >= self._usage.next_check:
            if reached := self._usage.check(self._init):
                self._stop(reached)
            elif self._own_network and now - self._begun >= _SERVING_S:
                self._look_for_servers()

    def _look_for_servers(self) -> None:
        if self._init is not None:
            pid, started = self._init
            found = find_servers(pid)
            # If it has ended, its number may be another's
            if started_at(pid) == started:
                self.servers |= set(found)

    def _stop(self, why: Outcome) -> None:
        if self._stopped is None:
            self._stopped = why
        self._launched.kill()

    def _listen(self) -> None:
        message = self._launched.message()
        if message is None:
            raise SandboxUnavailable(
                "the spawner process was killed, which ended the run", remedy="Run the command again."
            )
        words, descriptors = message
        match words:
            case ("started",):
                self._know_init(descriptors)
                if self._control.on_listener is not None:
                    self._pass_listener(self._control.on_listener, descriptors[1:])
                if self._control.on_event is not None:
                    self._control.on_event(Started(run=self._control.run))
            case ("refused", dest, code, text):
                self._blame(mount_refused(dest, code, text))
            case ("failed", text):
                is_full = os.strerror(errno.EMFILE) in text
                remedy = DESCRIPTORS_REMEDY if is_full else "Run `unspill doctor`."
                self._blame(NeverStarted(reason=text, remedy=remedy))
            case ("ended", status, (lost, paths), (killed, commands)):
                self._dead = True
                self.status = status
                self._keep_init(descriptors)
                self.remains = Remains(lost=lost, paths=tuple(paths), killed=killed, commands=tuple(commands))

    def _know_init(self, descriptors: list[int]) -> None:
        """Take the descriptor of the sandbox's pid 1, which comes again with the end. Hundreds of runs may be alive.

        It is kept where the spawner has no pid namespace of its own, and may die without the run.
        """
        if self._launched.init is not None:
            self._init = self._launched.init
            for fd in descriptors[:1]:
                os.close(fd)
            return
        if not descriptors:
            raise SandboxUnavailable("no descriptor is left for the run", remedy=DESCRIPTORS_REMEDY)
        self._init = identify(descriptors[0])
        if self._launched.own_namespace:
            os.close(descriptors[0])
        else:
            self._init_fd = descriptors[0]

    def _keep_init(self, descriptors: list[int]) -> None:
        """Take the descriptor of the sandbox's pid 1 that comes with its end, unless there is one already."""
        for fd in descriptors[:1]:
            if self._init_fd is None:
                self._init_fd = fd
            else:
                os.close(fd)

    def _pass_listener(self, to: Callable[[int], None], descriptors: list[int]) -> None:
        if not descriptors:
            # The kernel drops what a process without free descriptors is sent
            raise SandboxUnavailable("no file descriptor is left for the proxy", remedy=DESCRIPTORS_REMEDY)
        to(descriptors[0])

    def _blame(self, failure: NeverStarted) -> None:
        """Take a failure for the outcome, unless it comes from our own killing of a run that was starting up."""
        if self._stopped is None:
            self._stopped = failure

    def _read(self, fd: int) -> bool:
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._poll.unregister(fd)
            self._open.discard(fd)
            return False
        collector = self._outputs[fd]
        collector.add(chunk)
        # A flood goes on until its processes are dead, which on a busy machine takes a while
        if self._stopped is None or not _is_too_much(self._stopped):
            self._pass_on("stdout" if fd == self._pipes.stdout else "stderr", chunk)
        bound = self._limits.output_bytes
        if bound is not None and collector.total > bound and self._stopped is None:
            self._stop(LimitReached(limit="output", bound=bound))
        return True

    def _pass_on(self, name: StreamName, chunk: bytes) -> None:
        """Show output to the caller, but not what may be bwrap's: whether it could start the command is known last."""
        if self._control.on_event is None:
            return
        if name == "stderr" and self._withheld is not None:
            self._withheld += chunk
            if self._withheld.startswith(_BWRAP_SAYS) and len(self._withheld) < _MOST_WITHHELD:
                return
            chunk, self._withheld = self._withheld, None
        self._control.on_event(OutputChunk(stream=name, chunk=chunk))

    def _feed_when_possible(self) -> None:
        if self._pipes.stdin is None:
            return
        if self._pending:
            self._poll.register(self._pipes.stdin, select.POLLOUT)
        elif self._source is not None:
            self._poll.register(self._source, select.POLLIN)
        else:
            self._pipes.close_stdin()

    def _feed(self) -> None:
        assert self._pipes.stdin is not None
        try:
            self._pending = self._pending[os.write(self._pipes.stdin, self._pending[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            # The command does not read any more; that is its right
            self._pending, self._source = memoryview(b""), None
        if not self._pending:
            self._poll.unregister(self._pipes.stdin)
            self._feed_when_possible()

    def _take_input(self) -> None:
        assert self._source is not None
        try:
            self._pending = memoryview(os.read(self._source, _CHUNK))
        except BlockingIOError:
            return
        except OSError:
            # One that can't be read, or whose other end broke off, has no more to give
            self._pending = memoryview(b"")
        self._poll.unregister(self._source)
        if not self._pending:
            self._source = None
        self._feed_when_possible()

    def _wait_for_end(self) -> None:
        """Wait for the death of a run that was killed, whatever it or the spawner still has to say."""
        while not self._dead:
            message = self._launched.message()
            if message is None:
                self._launched.wait_for_spawner(self._control.run)
                return
            words, descriptors = message
            self._dead = words[0] == "ended"
            self._keep_init(descriptors)
            for listener in descriptors[1:]:
                os.close(listener)

    def _wait_for_init(self) -> None:
        """Nothing is scanned before the kernel itself says that the sandbox's pid 1 is gone."""
        if self._init_fd is not None:
            is_dead(self._init_fd)
            os.close(self._init_fd)
            self._init_fd = None


class RunPipes:
    """The pipes of one run: a command never gets a terminal, a file or a socket of the caller's.

    Our ends are read or written here; `theirs` go to the command and are closed here.
    """

    def __init__(self, has_stdin: bool) -> None:
        pipes: list[tuple[int, int]] = []
        try:
            while len(pipes) < (3 if has_stdin else 2):
                pipes.append(make_pipe())
            stdin = pipes[2][_PIPE_READ] if has_stdin else above_standard(os.open(os.devnull, _NULL))
        except OSError:
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
            raise
        self.stdout, self.stderr = (pipe[_PIPE_READ] for pipe in pipes[:2])
        self.stdin: int | None = pipes[2][_PIPE_WRITE] if has_stdin else None
        self.theirs = [stdin, *(pipe[_PIPE_WRITE] for pipe in pipes[:2])]
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
        if self.stdin is not None:
            os.set_blocking(self.stdin, False)

    def close_theirs(self) -> None:
        while self.theirs:
            os.close(self.theirs.pop())

    def close_stdin(self) -> None:
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def close(self) -> None:
        self.close_theirs()
        self.close_stdin()
        for fd in (self.stdout, self.stderr):
            os.close(fd)


class Collector:
    """Keeps one stream of a command as it comes: its head and tail in memory, more of it in a capped file.

    Memory stays bounded whatever is printed; no byte is changed or decoded.
    """

    def __init__(self, file: bytes, *, kept_bytes: int, file_cap: int | None) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._kept = kept_bytes
        self._path = file
        self._cap = 0 if not file else _FILE_CAP if file_cap is None else file_cap
        self._fd: int | None = None
        self._is_spilled = False
        self._in_file = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        """Take one chunk."""
        self.total += len(chunk)
        if self._is_spilled:
            self._spill(chunk)
        room = self._kept - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > self._kept and not self._is_spilled and self._cap:
            self._open()
        if len(self._tail) > 2 * self._kept:
            self._cut_tail()

    def finish(self) -> Output:
        """Return what was kept; nothing may be added after."""
        has_file = self._fd is not None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._cut_tail()
        return Output(
            head=bytes(self._head),
            tail=bytes(self._tail),
            left_out=self.total - len(self._head) - len(self._tail),
            file=self._path if has_file else None,
        )

    def _cut_tail(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._kept)]

    def _open(self) -> None:
        """Begin the file with all there was; so far nothing of it has been let go."""
        self._is_spilled = True
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # head and tail are kept all the same
        self._spill(bytes(self._head + self._tail))

    def _spill(self, chunk: bytes) -> None:
        view = memoryview(chunk)[: max(0, self._cap - self._in_file)]
        while view and self._fd is not None:
            try:
                written = os.write(self._fd, view)
            except OSError:
                # A full disk must not stop the reading: the kill path depends on it
                self._cap = 0
                return
            self._in_file += written
            view = view[written:]


def make_collectors(spill_dir: bytes, limits: Limits, *, has_terminal: bool = False) -> list[Collector]:
    """Return what keeps the two streams of a run; of a terminal, which redraws itself, nothing goes to a file."""
    return [
        Collector(
            b"" if has_terminal or not spill_dir else spill_dir + b"/" + name,
            kept_bytes=limits.kept_bytes,
            file_cap=limits.output_bytes,
        )
        for name in (b"stdout", b"stderr")
    ]


class UsageWatch:
    """What one run takes of the disk and of the directories in memory.

    Asks file systems how full they are at every look, and walks the layers now and then. A command can hide what it
    wrote from a walk, in directories closed to its owner or in deleted files; it can't hide it from the file system.
    `uppers` are its layers, `kept` the playground and other directories that outlive it, `fresh` the places of
    directories in memory, of which the kernel bounds the bytes but not the entries; `memory` is for a run that no
    control group bounds.
    """

    def __init__(
        self,
        limits: Limits,
        uppers: tuple[bytes, ...],
        kept: tuple[bytes, ...] = (),
        fresh: tuple[bytes, ...] = (),
        memory: MemoryWatch | None = None,
    ) -> None:
        self._limits = limits
        self._uppers = uppers
        self._kept = kept
        self._fresh = fresh
        self._memory = memory
        self._disk = next(iter((*uppers, *kept)), None)
        self._room = _room(self._disk) if self._disk is not None else (0, 0)
        self._last_walk = (0.0, 0, 0)
        self._begun = time.monotonic()
        self._begun_ns = time.time_ns() - _TICK_NS
        self.next_check = self._next_walk = self._begun + _LOOK_S

    def check(self, init: tuple[int, int] | None = None) -> LimitReached | None:
        """Return the bound that is exceeded, if any, and choose the next moment to look.

        `init` is the sandbox's pid 1, through which its own directories are seen, and when it was started.
        """
        grown = (0, 0)
        if self._disk is not None:
            room = _room(self._disk)
            if room[0] < FREE_SPACE_KEPT:
                return LimitReached(limit="free_space", bound=FREE_SPACE_KEPT)
            if room[1] < FREE_INODES_KEPT:
                return LimitReached(limit="free_inodes", bound=FREE_INODES_KEPT)
            grown = (self._room[0] - room[0], self._room[1] - room[1])
        reached = None if self._memory is None else self._memory.check()
        reached = reached or self._fresh_excess(init)
        if reached is None and self._is_time_to_walk(grown):
            reached = self._walk(grown)
        # Hundreds of runs that only wait must not spend their time on being looked at
        age = time.monotonic() - self._begun
        self.next_check = time.monotonic() + min(max(_LOOK_S, age / 10), _LONGEST_PAUSE_S)
        return reached

    def _is_time_to_walk(self, grown: tuple[int, int]) -> bool:
        now = time.monotonic()
        if now >= self._next_walk:
            return True
        # Many small files make a walk, and so the pause after it, long: nobody may fill the disk meanwhile
        took, grown_bytes, grown_entries = self._last_walk
        is_suspect = _exceeds(grown[0] - grown_bytes, self._limits.layer_bytes) or _exceeds(
            grown[1] - grown_entries, self._limits.layer_entries
        )
        return is_suspect and now >= self._next_walk - took * (_SHARE - 1)

    def _walk(self, grown: tuple[int, int]) -> LimitReached | None:
        begun = time.monotonic()
        closed: list[bytes] = []
        reached = find_excess(self._limits, self._uppers, closed=closed)
        if reached is None and closed:
            reached = self._named("layer_bytes", grown[0], self._limits.layer_bytes)
            reached = reached or self._named("layer_entries", grown[1], self._limits.layer_entries)
        # Whoever else removes something from this file system hides what a run adds to it, but not that it changes
        if reached is None and (abs(grown[0]) > _GROWN_BYTES or abs(grown[1]) > _GROWN_ENTRIES):
            has_grown = grown[0] > _GROWN_BYTES or grown[1] > _GROWN_ENTRIES
            found = (self._playground_excess(place, has_grown=has_grown) for place in self._kept)
            reached = next(filter(None, found), None)
        took = time.monotonic() - begun
        self._last_walk = (took, *grown)
        self._next_walk = time.monotonic() + max(_LOOK_S, took * _SHARE)
        return reached

    def _playground_excess(self, playground: bytes, *, has_grown: bool) -> LimitReached | None:
        excess = find_excess(self._limits, (playground,))
        if excess is None or not (has_grown or self._wrote_into(playground)):
            return None
        name: LimitName = "playground_bytes" if excess.limit == "layer_bytes" else "playground_entries"
        return LimitReached(limit=name, bound=excess.bound)

    def _wrote_into(self, playground: bytes) -> bool:
        return has_fresh(playground, self._begun_ns, over_bytes=_GROWN_BYTES, over_entries=_GROWN_ENTRIES)

    def _fresh_excess(self, init: tuple[int, int] | None) -> LimitReached | None:
        bound = self._limits.layer_entries
        # A pid that was given to another process since has another time
        if init is None or bound is None or started_at(init[0]) != init[1]:
            return None
        for place in self._fresh:
            inside = b"/proc/%d/root%b" % (init[0], place)
            try:
                # While bwrap is still at work its root is the host's, and so is what is there; it never goes back
                if os.stat(inside).st_dev == _device_of(place):
                    continue
                found = os.statvfs(inside)
            except OSError:
                continue  # it is just ending, or not ours to look into
            if reached := self._named("tmp_entries", found.f_files - found.f_ffree, bound):
                return reached
        return None

    @staticmethod
    def _named(name: LimitName, used: int, bound: int | None) -> LimitReached | None:
        return LimitReached(limit=name, bound=bound) if bound is not None and used > bound else None


class MemoryWatch:
    """The host's memory from the start of one run on that no control group bounds.

    An rlimit counts what a process maps for itself alone. It does not count shared memory, files in memory, pipes and
    sockets: of those only the host as a whole can tell. If it is nearly out of memory, this run is the first to go.
    """

    def __init__(self) -> None:
        self._before = free_memory()

    def check(self) -> LimitReached | None:
        """Return the bound if the host is nearly out of memory, and was not when the run began."""
        free = free_memory()
        if free >= FREE_MEMORY_KEPT or self._before - free < _TAKEN_MEANWHILE:
            return None
        return LimitReached(limit="free_memory", bound=FREE_MEMORY_KEPT)


def rlimits(limits: Limits, *, has_group: bool) -> tuple[tuple[int, int], ...]:
    """Return (resource, bound) pairs for the held child.

    Memory is RLIMIT_DATA, not RLIMIT_AS: runtimes reserve far more address space than they use.
    """
    wanted = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, None if has_group else limits.processes),
        (resource.RLIMIT_DATA, None if has_group else limits.memory_bytes),
    )
    return tuple((kind, bound) for kind, bound in wanted if bound is not None)


def name_limit(outcome: Outcome, reached: LimitName | None, limits: Limits) -> Outcome:
    """Say which bound ended a run where the kernel tells: by the group's counters, or by its own signal."""
    if outcome == Exited(code=0) or not isinstance(outcome, Exited | Signalled):
        return outcome
    if outcome == Signalled(signal=_SIGXFSZ) and limits.file_bytes is not None:
        return LimitReached(limit="file_bytes", bound=limits.file_bytes)
    if reached == "memory" and limits.memory_bytes is not None:
        return LimitReached(limit="memory", bound=limits.memory_bytes)
    if reached == "processes" and limits.processes is not None:
        return LimitReached(limit="processes", bound=limits.processes)
    return outcome


def find_excess(
    limits: Limits, uppers: tuple[bytes, ...], *, is_over: bool = False, closed: list[bytes] | None = None
) -> LimitReached | None:
    """Return the bound that what lies in these directories exceeds, if any.

    `is_over`: every process is dead, so what the command closed to its owner can be opened and measured too.
    Before that such directories are passed over, and their names added to `closed`.
    """
    used, entries = 0, 0
    for upper in uppers:
        more_bytes, more_entries = measure(
            upper, bytes_cap=limits.layer_bytes, entries_cap=limits.layer_entries, unlock=is_over, closed=closed
        )
        used, entries = used + more_bytes, entries + more_entries
    if limits.layer_bytes is not None and used > limits.layer_bytes:
        return LimitReached(limit="layer_bytes", bound=limits.layer_bytes)
    if limits.layer_entries is not None and entries > limits.layer_entries:
        return LimitReached(limit="layer_entries", bound=limits.layer_entries)
    return None


def free_bytes(path: bytes) -> int:
    """Return what an ordinary user may still write to the filesystem of a path."""
    return _room(path)[0]


def free_memory() -> int:
    """Return the bytes that programs can still have, without others being hurt."""
    fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, _CHUNK)
    finally:
        os.close(fd)
    found = (text.partition(key)[2] for key in _COUNTED)
    return sum(int(after.split(None, 1)[0]) * 1024 for after in found if after)


def _is_too_much(stopped: Outcome) -> bool:
    return isinstance(stopped, LimitReached) and stopped.limit == "output"


def _device_of(place: bytes) -> int | None:
    """Return where the host has a place, None if it has no such place at all."""
    try:
        return os.stat(place).st_dev
    except OSError:
        return None


def _exceeds(used: int, bound: int | None) -> bool:
    return bound is not None and used > bound


def _room(path: bytes) -> tuple[int, int]:
    """Return the bytes and the entries that an ordinary user may still make on the file system of a path."""
    found = os.statvfs(path)
    # btrfs has no fixed number of them and says 0
    entries = found.f_favail if found.f_files else sys.maxsize
    return found.f_bavail * found.f_frsize, entries


def find_servers(pid: int) -> tuple[int, ...]:
    """Return the ports that servers in the network of a process listen on, as far as they are likely meant for others.

    The kernel gives out the high ones by itself: those are what a program's own parts talk through.
    """
    return tuple(sorted(port for port in listening_ports(pid) if port < _GIVEN_OUT))


def identify(pidfd: int) -> tuple[int, int] | None:
    """Return the pid behind a descriptor, and when that process was started; None if it is out of sight."""
    pid = pid_of(pidfd)
    started = None if pid is None else started_at(pid)
    return None if pid is None or started is None else (pid, started)


def pid_of(pidfd: int) -> int | None:
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        for line in file:
            if line.startswith(b"Pid:"):
                pid = int(line.split()[1])
                return pid if pid > 0 else None
    return None
