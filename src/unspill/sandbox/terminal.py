# SPDX-License-Identifier: Apache-2.0
"""A command of a live sandbox on a terminal, for callers of the library: `with live.shell() as terminal: ...`.

A keeper has terminals that go on while nobody is at them: what is printed then is kept for whoever comes next.
"""

from __future__ import annotations

import os
import select
import signal
import threading

from unspill.errors import UsageError
from unspill.host.dirfd import make_pipe
from unspill.host.door import set_size
from unspill.runner.background import MEMORY_BYTES, OutputRing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from unspill.model.run import Run
    from unspill.runner.watch import AttachedTerminal
    from unspill.sandbox.result import RunResult


_CHUNK = 1 << 16
_MOST_CELLS = 0xFFFF


class Terminal:
    """A command on a terminal: what it prints can be read as it is, and what is written is typed.

    One thread may read while others write. Use it in a `with` block, or close it: what still runs then is ended.
    """

    def __init__(
        self,
        run: Callable[[AttachedTerminal, int], RunResult],
        size: tuple[int, int],
        side: _CallersSide | None = None,
    ) -> None:
        """Have `run` start a command in a thread, and return when it has its terminal."""
        self._side = side or _CallersSide()
        self._side.size = _checked(size)
        self._given_up, self._give_up = make_pipe()
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._follow, args=(run,), name="unspill-terminal", daemon=True)
        self._thread.start()
        self._side.is_known.wait()
        self._raise_failure()

    def _follow(self, run: Callable[[AttachedTerminal, int], RunResult]) -> None:
        try:
            self._result = run(self._side, self._given_up)
        except BaseException as error:
            self._error = error
        finally:
            self._side.is_known.set()

    def _raise_failure(self) -> None:
        """Raise what kept the run from beginning or from ending."""
        if self._error is not None:
            self.close()
            raise self._error

    def fileno(self) -> int:
        """Return the descriptor that is readable when something was printed; -1 if the command never started."""
        return self._side.master

    def read(self, most: int = _CHUNK, *, timeout: float | None = None) -> bytes:
        """Return what was printed, at least one byte; nothing once no program has the terminal any more.

        Raises:
            TimeoutError: nothing was printed for so many seconds.
        """
        while self._side.master >= 0:
            self._wait_for(select.POLLIN, timeout)
            try:
                return os.read(self._side.master, most)
            except BlockingIOError:
                continue
            except OSError:
                break
        return b""

    def write(self, data: bytes, *, timeout: float | None = None) -> None:
        """Type something: `b"ls\\r"`, `b"\\x03"` for Ctrl-C.

        Raises:
            UsageError: no program has the terminal any more.
            TimeoutError: for so many seconds no program took it.
        """
        left = memoryview(data)
        while left:
            # The kernel would take what no program can read any more
            if self._side.master < 0 or self._wait_for(select.POLLOUT, timeout) & select.POLLHUP:
                raise UsageError("this terminal has ended", remedy="`wait` returns how.")
            try:
                left = left[os.write(self._side.master, left) :]
            except BlockingIOError:
                continue

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the programs on it are told."""
        rows, columns = _checked((rows, columns))
        if self._side.master >= 0:
            set_size(self._side.master, rows, columns)

    def wait(self, timeout: float | None = None) -> RunResult:
        """Return how it ended, when what it changed is applied or held. Read what it prints first, or it may never end.

        Raises:
            TimeoutError: it has not ended in so many seconds.
            UnspillError: as `Live.run`.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the command has not ended in {timeout} s")
        self._raise_failure()
        assert self._result is not None
        return self._result

    def is_alive(self) -> bool:
        """Tell whether it has not ended."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end, whatever it is."""
        self._thread.join()

    def close(self) -> None:
        """End the command if it is still alive, as a cancelled one, and let go of the terminal."""
        if self._give_up < 0:
            return
        # The end of a pipe that nobody can write to any more is what the run waits for
        os.close(self._give_up)
        self._give_up = -1
        self._thread.join()
        os.close(self._given_up)
        self._side.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()

    def _wait_for(self, event: int, timeout: float | None) -> int:
        poll = select.poll()
        poll.register(self._side.master, event)
        for _fd, found in poll.poll(None if timeout is None else timeout * 1000):
            return found
        raise TimeoutError(f"nothing happened on the terminal for {timeout} s")


class _CallersSide:
    """The other end of a command's terminal where the caller reads and writes it, in threads of their own."""

    size: tuple[int, int]

    def __init__(self) -> None:
        self.master = -1
        self.is_known = threading.Event()

    def begin(self, master: int) -> None:
        os.set_blocking(master, False)
        self.master = master
        self.is_known.set()

    def wanted(self) -> dict[int, int]:
        return {}

    def turn(self, _fd: int, _events: int) -> bytes:
        return b""

    def rest(self) -> bytes:
        return b""

    def end(self) -> None:
        return

    def was_interrupted(self) -> bool:
        return False

    def let_go(self) -> None:
        """Close the descriptor, when the command has ended."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


class KeptTerminal(Terminal):
    """A command on a terminal that somebody may leave and come back to, or another take over.

    It has the words of a background run; its output is what was printed while nobody was there.
    """

    # Shells that somebody types to ignore SIGTERM
    first_signal: int = signal.SIGHUP

    def __init__(
        self, side: KeptSide, run: Callable[[AttachedTerminal, int], RunResult], size: tuple[int, int]
    ) -> None:
        """Start a command; it is entered, or has failed, when this returns."""
        self._kept = side
        super().__init__(run, size, side)
        self._closing = threading.Lock()
        # Whether it goes on when whoever is there is gone without a word
        self.is_kept = False

    @property
    def number(self) -> int:
        """Its number among the runs of its sandbox."""
        return self._kept.run.number

    @property
    def argv(self) -> tuple[bytes, ...]:
        """The command."""
        return self._kept.run.argv

    @property
    def started_ns(self) -> int:
        """When it was begun, in nanoseconds since 1970."""
        return self._kept.run.started_ns

    @property
    def is_attached(self) -> bool:
        """Whether somebody is at it."""
        return self._kept.seat is not None

    def output(self, offset: int = 0, most: int = MEMORY_BYTES, *, timeout: float = 0.0) -> tuple[bytes, int, int]:
        """Return what was printed while nobody was there, as `BackgroundRun.output` does."""
        return self._kept.output(offset, most, timeout, self.is_alive)

    @property
    def output_end(self) -> int:
        """The offset at which that ends so far."""
        return self._kept.output_end

    def signal(self, number: int) -> None:
        """Send a signal to the command and its process group."""
        self._kept.order("signal", int(number))

    def kill(self) -> None:
        """Kill the command and its process group, as `BackgroundRun.kill` does."""
        self._kept.order("kill")

    def is_over(self, timeout: float) -> bool:
        """Tell whether it ends in time, whatever its end is."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def sit_down(self) -> Seat | None:
        """Take the terminal, from whoever has it; None if no program has it any more."""
        return self._kept.sit_down()

    def finish(self) -> None:
        """Tell who is at it or waits for its output that it has ended, and let go of it."""
        self._kept.finish()
        self.close()

    def close(self) -> None:
        """End the command if it is still alive, as a cancelled one, and let go of the terminal."""
        with self._closing:
            super().close()


class Seat:
    """Having a terminal: `master` is the caller's to close, `fileno` is readable when it is over, or taken by another.

    `modes` are those that the terminal was left with, `printed` is what was printed since then and `lost` what is not
    kept of that. The first to sit down finds a terminal that nobody has left.
    """

    def __init__(self, side: KeptSide, master: int, printed: bytes, lost: int) -> None:
        self._side = side
        self._news, self._end = make_pipe()
        self.master = master
        self.modes = side.modes
        self.printed = printed
        self.lost = lost
        self.is_first = not side.was_used
        self.is_taken = False

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._news

    def end(self, *, is_taken: bool) -> None:
        """Say that it is over; the terminal's lock is held."""
        self.is_taken = is_taken
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def stand_up(self, modes: bytes = b"") -> None:
        """Leave the terminal, with modes that the next one needs, unless another has it already."""
        self._side.stand_up(self, modes)

    def close(self) -> None:
        """Let go of the descriptors."""
        self.stand_up()
        os.close(self._news)
        os.close(self.master)


class KeptSide(_CallersSide):
    """The other end of a terminal: read by whoever sits at it, and else by the loop around the run, into a ring."""

    run: Run
    order: Callable[..., None]

    def __init__(self, directory: bytes) -> None:
        """Make one; much output lies in a directory."""
        super().__init__()
        self._ring = OutputRing(directory)
        self._news = threading.Condition()
        self._woken, self._wake = make_pipe()
        os.set_blocking(self._wake, False)
        self._is_hung_up = self._is_over = False
        self.seat: Seat | None = None
        self.was_used = False
        self.modes = b""
        # Where the one who left last has seen it to
        self._seen = 0

    def is_awaited(self) -> bool:
        """Tell whether somebody is at it, or is still to come: a command may end before whoever started it is there."""
        return self.seat is not None or not self.was_used

    def wanted(self) -> dict[int, int]:
        is_read = self.seat is None and self.master >= 0 and not self._is_hung_up
        return {self._woken: select.POLLIN} | ({self.master: select.POLLIN} if is_read else {})

    def turn(self, fd: int, _events: int) -> bytes:
        if fd == self._woken:
            os.read(fd, _CHUNK)
            return b""
        return self._read()

    def rest(self) -> bytes:
        found = bytearray()
        while chunk := self._read():
            found += chunk
        return bytes(found)

    def _read(self) -> bytes:
        with self._news:
            if self.seat is not None or self.master < 0 or self._is_hung_up:
                return b""
            try:
                chunk = os.read(self.master, _CHUNK)
            except BlockingIOError:
                return b""
            except OSError:
                chunk = b""
            # No program has the other side any more
            self._is_hung_up = not chunk
            self._ring.add(chunk)
            self._news.notify_all()
            return chunk

    def output(self, offset: int, most: int, timeout: float, is_alive: Callable[[], bool]) -> tuple[bytes, int, int]:
        with self._news:
            if timeout:
                self._news.wait_for(lambda: self._ring.end > offset or not is_alive(), timeout)
            return self._ring.read(offset, most)

    @property
    def output_end(self) -> int:
        return self._ring.end

    def sit_down(self) -> Seat | None:
        with self._news:
            if self.master < 0 or self._is_over:
                return None
            if self.seat is not None:
                self.seat.end(is_taken=True)
            start = max(self._seen, self._ring.end - MEMORY_BYTES)
            printed, _next, lost = self._ring.read(start, MEMORY_BYTES)
            self.seat = Seat(self, os.dup(self.master), printed, lost + start - self._seen)
            self.was_used = True
            self._wake_loop()
            return self.seat

    def stand_up(self, seat: Seat, modes: bytes) -> None:
        with self._news:
            if self.seat is not seat:
                return
            seat.end(is_taken=False)
            self.seat, self.modes, self._seen = None, modes, self._ring.end
            self._wake_loop()

    def finish(self) -> None:
        """Say that the command has ended."""
        with self._news:
            self._is_over = True
            if self.seat is not None:
                self.seat.end(is_taken=False)
            self._news.notify_all()

    def _wake_loop(self) -> None:
        if self._wake < 0:
            return
        try:
            os.write(self._wake, b"x")
        except BlockingIOError:
            return  # it will wake up anyway

    def let_go(self) -> None:
        with self._news:
            super().let_go()
            for fd in (self._woken, self._wake):
                os.close(fd)
            self._woken = self._wake = -1


def _checked(size: tuple[int, int]) -> tuple[int, int]:
    rows, columns = size
    if not (0 < rows <= _MOST_CELLS and 0 < columns <= _MOST_CELLS):
        raise UsageError(f"not a size of a terminal: {rows} rows, {columns} columns", remedy="For example: (24, 80).")
    return rows, columns
