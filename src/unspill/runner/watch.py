# SPDX-License-Identifier: Apache-2.0
"""Waits for one run: reads its output, feeds its input, and kills it when a bound, a deadline or the caller says so.

Returns only when the spawner has said that every process is dead (or is dead itself, and with it the run).
"""

from __future__ import annotations

import errno
import os
import select
import time

from unspill.errors import SandboxUnavailable
from unspill.host.job import is_dead
from unspill.host.signals import DeferredSignals
from unspill.model.event import OutputChunk, Started
from unspill.model.run import Cancelled, LimitReached, NeverStarted, Remains, TimedOut
from unspill.runner.outcome import mount_refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.policy import Limits
    from unspill.model.run import Outcome, StreamName
    from unspill.runner.budget import Budget
    from unspill.runner.launcher import Launched
    from unspill.runner.pipes import Pipes
    from unspill.runner.streams import Collector
    from unspill.runner.wishes import Wishes

_CHUNK = 1 << 16
_STDIN_CHUNK = 1 << 16
# Keeps the loop from turning without end where a question is under way and nothing is left of the time
_LOOK_AGAIN_S = 0.1

# How bwrap begins what it says of itself, and how much of that is kept back
_BWRAP_SAYS = b"bwrap: "
_MOST_WITHHELD = 4096


class Watch:
    """The loop around one run."""

    def __init__(
        self,
        launched: Launched,
        streams: Pipes,
        collectors: list[Collector],
        budget: Budget,
        limits: Limits,
        wishes: Wishes,
    ) -> None:
        self._launched = launched
        self._streams = streams
        self._outputs = {streams.stdout: collectors[0], streams.stderr: collectors[1]}
        self._budget = budget
        self._limits = limits
        self._wishes = wishes
        self._begun = time.monotonic()
        self._stopped: Outcome | None = None
        self._dead = False
        self._init_fd: int | None = None
        self._pending = memoryview(wishes.stdin if isinstance(wishes.stdin, bytes) else b"")
        self._source = wishes.stdin if isinstance(wishes.stdin, int) else None
        self._open = set(self._outputs)
        self._withheld: bytes | None = b""
        self.remains = Remains()
        self._poll = select.poll()

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
        except BaseException:
            # Nor is a second Ctrl-C a reason not to wait: something might still write
            with DeferredSignals():
                self._launched.kill()
                self._wait_for_end()
                self._wait_for_init()
            raise
        self._wait_for_init()
        return self._stopped

    def _register(self) -> None:
        for fd in (self._launched.fileno(), *self._outputs):
            self._poll.register(fd, select.POLLIN)
        if self._wishes.cancel_fd is not None:
            self._poll.register(self._wishes.cancel_fd, select.POLLIN)
        self._feed_when_possible()

    def _turn(self) -> None:
        for fd, _event in self._poll.poll(self._timeout_ms()):
            if fd in self._outputs:
                self._read(fd)
            elif fd == self._launched.fileno():
                self._listen()
            elif fd == self._wishes.cancel_fd:
                self._poll.unregister(fd)
                self._stop(Cancelled())
            elif fd == self._streams.stdin:
                self._feed()
            elif fd == self._source:
                self._take_input()
        self._check_clock()

    def _timeout_ms(self) -> float | None:
        if self._stopped is not None:
            return None
        moments = [self._budget.next_check]
        if self._limits.wall_s is not None:
            moments.append(self._last_moment())
        return max(0.0, (min(moments) - time.monotonic()) * 1000 + 1)

    def _last_moment(self) -> float:
        """Return when the wall time is over: while a person thinks it moves on, and is looked at now and then."""
        assert self._limits.wall_s is not None
        waited_s = 0.0 if self._wishes.waited_s is None else self._wishes.waited_s()
        return self._begun + self._limits.wall_s + (waited_s and waited_s + _LOOK_AGAIN_S)

    def _check_clock(self) -> None:
        now = time.monotonic()
        if self._stopped is not None or self._dead:
            return
        if self._limits.wall_s is not None and now >= self._last_moment():
            self._stop(TimedOut(after_s=self._limits.wall_s))
        elif now >= self._budget.next_check and (reached := self._budget.check(self._init_fd)):
            self._stop(reached)

    def _stop(self, why: Outcome) -> None:
        if self._stopped is None:
            self._stopped = why
        self._launched.kill()

    def _listen(self) -> None:
        message = self._launched.message()
        if message is None:
            raise SandboxUnavailable(
                "the spawner process was killed, and the run with it", remedy="Run the command again."
            )
        words, descriptors = message
        match words:
            case ("started",):
                self._init_fd = descriptors[0]
                if self._wishes.on_listener is not None:
                    self._pass_listener(self._wishes.on_listener, descriptors[1:])
                if self._wishes.on_event is not None:
                    self._wishes.on_event(Started(run=self._wishes.run))
            case ("refused", dest, code, text):
                self._blame(mount_refused(dest, code, text))
            case ("failed", text):
                self._blame(NeverStarted(reason=text, remedy="Run `unspill doctor`."))
            case ("ended", _status, (lost, paths), (killed, commands)):
                self._dead = True
                self.remains = Remains(lost=lost, paths=tuple(paths), killed=killed, commands=tuple(commands))

    def _pass_listener(self, to: Callable[[int], None], descriptors: list[int]) -> None:
        if not descriptors:
            # The kernel drops what a process without free descriptors is sent
            raise SandboxUnavailable(
                "no descriptor is left for the proxy", remedy="Close some files, or raise `ulimit -n`."
            )
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
            self._pass_on("stdout" if fd == self._streams.stdout else "stderr", chunk)
        bound = self._limits.output_bytes
        if bound is not None and collector.total > bound and self._stopped is None:
            self._stop(LimitReached(limit="output", bound=bound))
        return True

    def _pass_on(self, name: StreamName, chunk: bytes) -> None:
        """Show output to the caller, but not what may be bwrap's: whether it could start the command is known last."""
        if self._wishes.on_event is None:
            return
        if name == "stderr" and self._withheld is not None:
            self._withheld += chunk
            if self._withheld.startswith(_BWRAP_SAYS) and len(self._withheld) < _MOST_WITHHELD:
                return
            chunk, self._withheld = self._withheld, None
        self._wishes.on_event(OutputChunk(stream=name, chunk=chunk))

    def release(self) -> None:
        """Show what was withheld: the command was started, so it was the command's own."""
        if self._withheld and self._wishes.on_event is not None:
            self._wishes.on_event(OutputChunk(stream="stderr", chunk=self._withheld))
        self._withheld = None

    def _feed_when_possible(self) -> None:
        if self._streams.stdin is None:
            return
        if self._pending:
            self._poll.register(self._streams.stdin, select.POLLOUT)
        elif self._source is not None:
            self._poll.register(self._source, select.POLLIN)
        else:
            self._streams.close_stdin()

    def _feed(self) -> None:
        assert self._streams.stdin is not None
        try:
            self._pending = self._pending[os.write(self._streams.stdin, self._pending[:_STDIN_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            # The command does not read any more; that is its right
            self._pending, self._source = memoryview(b""), None
        if not self._pending:
            self._poll.unregister(self._streams.stdin)
            self._feed_when_possible()

    def _take_input(self) -> None:
        assert self._source is not None
        try:
            self._pending = memoryview(os.read(self._source, _STDIN_CHUNK))
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
                self._launched.wait_for_spawner(self._wishes.run)
                return
            words, descriptors = message
            self._dead = words[0] == "ended"
            if descriptors:
                self._init_fd = descriptors[0]
            for listener in descriptors[1:]:
                os.close(listener)

    def _wait_for_init(self) -> None:
        """Nothing is scanned before the kernel itself says that the sandbox's pid 1 is gone."""
        if self._init_fd is not None:
            is_dead(self._init_fd)
            os.close(self._init_fd)
            self._init_fd = None


def _is_too_much(stopped: Outcome) -> bool:
    return isinstance(stopped, LimitReached) and stopped.limit == "output"
