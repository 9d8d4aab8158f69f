# SPDX-License-Identifier: Apache-2.0
"""Lets signals wait while something must not be interrupted, and makes the ones that end a process raise.

In Python it is the handler of a signal that raises KeyboardInterrupt, between any two instructions of the main thread.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn, Self
else:
    # The module around it makes enums of all its numbers, which costs more than all of this
    import _signal as signal

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_interrupts() -> None:
    """Let another Ctrl-C do nothing: this process says its last words."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class RaisingSignals:
    """A block in which SIGTERM and SIGHUP raise `Terminated`, as Ctrl-C raises, instead of killing this program."""

    __slots__ = ("_numbers",)

    def __enter__(self) -> None:
        # Whoever started this program may have had one ignored, as nohup does
        self._numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
        for number in self._numbers:
            signal.signal(number, _raise)

    def __exit__(self, *_rest: object) -> None:
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, _frame: object) -> NoReturn:
    raise Terminated(number)


class DeferredSignals:
    """A block that no handler of these signals interrupts: `with DeferredSignals(): ...`. They are called after it.

    Without effect in other threads than the main one, where none is called, and for a signal whose handler is not one
    of Python's: that one kills the process, or does nothing.
    """

    __slots__ = ("_handlers", "_seen")

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._seen: dict[int, None] = {}

    def __enter__(self) -> Self:
        try:
            for number in _NUMBERS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except ValueError:
            self._handlers.clear()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_rest: object) -> None:
        handlers = dict(self._handlers)
        self._restore()
        for number in self._seen:
            handlers[number](number, None)

    def _note(self, number: int, _frame: object) -> None:
        self._seen[number] = None

    def _restore(self) -> None:
        """Give each signal its handler back, whichever of them is called already meanwhile."""
        try:
            if self._handlers:
                signal.signal(*self._handlers.popitem())
        finally:
            if self._handlers:
                self._restore()
