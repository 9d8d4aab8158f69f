# SPDX-License-Identifier: Apache-2.0
"""A command that runs while its caller does something else: its output so far, its input, its end."""

from __future__ import annotations

import os
import signal
from threading import Condition, Thread
from time import monotonic

from unspill.errors import UsageError
from unspill.host.dirfd import make_pipe
from unspill.model.run import OutputChunk, Started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from typing import Any, Protocol, TypeVar

    from unspill.model.run import Event, Run

    class Ending(Protocol):
        """What is used of a run to end it: by `first_signal` it is asked to."""

        first_signal: int

        def signal(self, number: int) -> None: ...
        def kill(self) -> None: ...
        def is_over(self, timeout: float) -> bool: ...
        def is_alive(self) -> bool: ...

    AnyRun = TypeVar("AnyRun", bound=Ending)

# How long a command may take to end by itself, and how long to die
GRACE_S = 2.0
DEATH_S = 5.0
MOST_ENDED = 20
MEMORY_BYTES = 1 << 20
FILE_BYTES = 64 << 20


class OutputRing:
    """The last part of an output, by offset from its start: the newest in memory, older in a file without a name.

    Memory and file have their bounds; what no longer fits is gone, and counted when somebody asks for it.
    """

    def __init__(self, directory: bytes, memory: int = MEMORY_BYTES, file: int = FILE_BYTES) -> None:
        """Make one; its file is in a directory, but has no name there."""
        self._directory = directory
        self._memory = memory
        self._bound = file
        self._recent = bytearray()
        self._file = -1
        # Offsets: where the file and the recent part begin, and where all ends
        self._file_start = 0
        self._recent_start = 0
        self.end = 0

    def add(self, chunk: bytes) -> None:
        """Take one more piece."""
        self._recent += chunk
        self.end += len(chunk)
        # In large steps: each one moves what stays
        if len(self._recent) > 2 * self._memory:
            self._spill(len(self._recent) - self._memory)

    def _spill(self, count: int) -> None:
        old = bytes(self._recent[:count])
        del self._recent[:count]
        try:
            if self._file < 0:
                self._file = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            for start in range(0, len(old), self._bound):
                self._write(old[start : start + self._bound], self._recent_start + start)
        except OSError:
            # A full disk: what was to go there is lost, and counted so
            self._file_start = self._recent_start + count
        self._recent_start += count

    def _write(self, piece: bytes, offset: int) -> None:
        """Write to where an offset lies in the file, which begins again at its bound."""
        at = offset % self._bound
        first = piece[: self._bound - at]
        self._write_whole(first, at)
        self._write_whole(piece[len(first) :], 0)
        self._file_start = max(self._file_start, offset + len(piece) - self._bound)

    def _write_whole(self, piece: bytes, at: int) -> None:
        # A disk that is nearly full takes a part, and says only next time that it is full
        while piece:
            count = os.pwrite(self._file, piece, at)
            piece, at = piece[count:], at + count

    def read(self, offset: int, most: int) -> tuple[bytes, int, int]:
        """Return what there is from an offset on, the offset after it, and how many bytes before it are lost."""
        start = min(max(offset, self._file_start), self.end)
        lost = max(0, start - offset)
        if start >= self._recent_start:
            at = start - self._recent_start
            found = bytes(self._recent[at : at + most])
        else:
            found = self._read(start, min(most, self._recent_start - start))
        return found, start + len(found), lost

    def _read(self, start: int, count: int) -> bytes:
        at = start % self._bound
        first = os.pread(self._file, min(count, self._bound - at), at)
        return first + os.pread(self._file, count - len(first), 0)

    def close(self) -> None:
        """Let go of the file; what is in memory can still be read."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._file_start = self._recent_start

    def __del__(self) -> None:
        self.close()


class BackgroundRun:
    """A command of a live sandbox that goes on by itself. Threads may share it."""

    first_signal: int = signal.SIGTERM

    def __init__(self, directory: bytes) -> None:
        """Make its input and room for its output, in a directory where that is much; `begin` starts it."""
        self.stdin, self._input = make_pipe()
        self._ring = OutputRing(directory)
        self._news = Condition()
        self._run: Run
        self._thread: Thread | None = None
        self._order: Callable[..., None] = lambda *_words: None
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_started = False
        self._is_over = False

    def begin(self, run: Run, follow: Callable[[], Any], order: Callable[..., None]) -> None:
        """Follow the run in a thread of its own, and return when its command is started, or can't be.

        `order` has something done with the command.
        """
        self._run, self._order = run, order
        # A caller that ends takes all of it along; nothing waits for this thread
        self._thread = Thread(target=self._follow, args=(follow,), name=f"unspill-run-{run.number}", daemon=True)
        self._thread.start()
        with self._news:
            self._news.wait_for(lambda: self._is_started or self._is_over)

    def _follow(self, follow: Callable[[], Any]) -> None:
        try:
            self._result = follow()
        except BaseException as error:
            self._error = error
        finally:
            self.close()
            with self._news:
                self._is_over = True
                self._news.notify_all()

    def take(self, event: Event) -> None:
        """Take what the run tells: its output is kept."""
        with self._news:
            match event:
                case OutputChunk():
                    self._ring.add(event.chunk)
                case Started():
                    self._is_started = True
            self._news.notify_all()

    @property
    def id(self) -> str:
        """What the store knows the run by."""
        return self._run.id

    @property
    def number(self) -> int:
        """Its number among the runs of its sandbox."""
        return self._run.number

    @property
    def argv(self) -> tuple[bytes, ...]:
        """The command."""
        return self._run.argv

    @property
    def started_ns(self) -> int:
        """When it was begun, in nanoseconds since 1970."""
        return self._run.started_ns

    def output(self, offset: int = 0, most: int = MEMORY_BYTES, *, timeout: float = 0.0) -> tuple[bytes, int, int]:
        """Return output from an offset on, where to go on, and how many bytes in between are lost.

        Both streams are one here, in the order in which they came. Without anything new it waits until the timeout.
        """
        with self._news:
            if timeout:
                self._news.wait_for(lambda: self._ring.end > offset or self._is_over, timeout)
            return self._ring.read(offset, most)

    @property
    def output_end(self) -> int:
        """The offset at which its output ends so far."""
        return self._ring.end

    def write(self, data: bytes) -> None:
        """Give the command input; nothing ends it but `close_input`.

        Raises:
            UsageError: it does not read any more.
        """
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._input, view) :]
        except OSError as error:
            raise UsageError(f"run {self.number} takes no more input: {error.strerror}") from error

    def close_input(self) -> None:
        """Let the command come to the end of its input."""
        with self._news:
            fd, self._input = self._input, -1
        if fd >= 0:
            os.close(fd)

    def signal(self, number: int) -> None:
        """Send a signal to the command and its process group."""
        self._order("signal", int(number))

    def kill(self) -> None:
        """Kill the command and its process group; `wait` returns when that is done.

        Where no other command is alive, all that it started dies too. Beside others, what has left its group goes on
        until the last of them ends, or the sandbox does.
        """
        self._order("kill")

    def wait(self, timeout: float | None = None) -> Any:
        """Return the RunResult when the command has ended; None if it has not in time.

        Raises:
            UnspillError: we failed, not the command.
        """
        with self._news:
            if not self._news.wait_for(lambda: self._is_over, timeout):
                return None
        if self._error is not None:
            raise self._error
        return self._result

    def is_over(self, timeout: float) -> bool:
        """Tell whether it ends in time, whatever its end is."""
        with self._news:
            return self._news.wait_for(lambda: self._is_over, timeout)

    def is_alive(self) -> bool:
        """Tell whether it has not ended."""
        return not self._is_over

    def join(self) -> None:
        """Wait for its end, whatever it is."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Let go of its input."""
        self.close_input()
        fd, self.stdin = self.stdin, -1
        if fd >= 0:
            os.close(fd)


def end_runs(runs: Sequence[Ending]) -> bool:
    """End runs: by a signal that they can handle, and after a moment for good. Tell whether all have ended in time.

    One whose command is dead has not ended before its changes are applied or held, which may take longer.
    """
    for one in runs:
        one.signal(one.first_signal)
    deadline = monotonic() + GRACE_S
    for one in [one for one in runs if not one.is_over(max(0.0, deadline - monotonic()))]:
        one.kill()
    deadline = monotonic() + DEATH_S
    return all(one.is_over(max(0.0, deadline - monotonic())) for one in runs)


def forget_ended(runs: dict[int, AnyRun], needed: Container[AnyRun] = ()) -> None:
    """Remove the oldest of the runs that have ended, where there are many, except for those that are needed."""
    ended = [number for number, one in runs.items() if not one.is_alive() and one not in needed]
    for number in ended[: max(0, len(ended) - MOST_ENDED)]:
        del runs[number]
