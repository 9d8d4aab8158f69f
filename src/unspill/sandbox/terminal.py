# SPDX-License-Identifier: Apache-2.0
"""A command of a live sandbox on a terminal, for callers of the library: `with live.shell() as terminal: ...`."""

from __future__ import annotations

import os
import select
import threading

from unspill.errors import UsageError
from unspill.host.dirfd import make_pipe
from unspill.host.door import set_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from unspill.runner.watch import AttachedTerminal
    from unspill.sandbox.result import RunResult


_CHUNK = 1 << 16
_MOST_CELLS = 0xFFFF


class Terminal:
    """A command on a terminal: what it prints can be read as it is, and what is written is typed.

    One thread may read while others write. Use it in a `with` block, or close it: what still runs then is ended.
    """

    def __init__(self, run: Callable[[AttachedTerminal, int], RunResult], size: tuple[int, int]) -> None:
        """Have `run` start a command in a thread, and return when it has its terminal."""
        self._side = _CallersSide(_checked(size))
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
        if self._side.master >= 0:
            os.close(self._side.master)
            self._side.master = -1

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

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
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


def _checked(size: tuple[int, int]) -> tuple[int, int]:
    rows, columns = size
    if not (0 < rows <= _MOST_CELLS and 0 < columns <= _MOST_CELLS):
        raise UsageError(f"not a size of a terminal: {rows} rows, {columns} columns", remedy="For example: (24, 80).")
    return rows, columns
