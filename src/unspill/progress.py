# SPDX-License-Identifier: Apache-2.0
"""How far a long step is, for whoever shows it: what is done now, how much of it is over, and of how much.

Whoever works through many files counts them here, which costs next to nothing. There is one count in a process: the
command line does one thing after another, and nobody else looks.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Count:
    """What is counted: `what` is empty where only the one who shows it knows a word for it.

    `on_begin` is called when something begins, once.
    """

    __slots__ = ("done", "on_begin", "total", "unit", "what")

    def __init__(self) -> None:
        self.what, self.unit, self.done, self.total = "", "file", 0, 0
        self.on_begin: Callable[[], None] | None = None

    def begin(self, what: str, total: int = 0, unit: str = "file") -> None:
        """Begin to count something; where that has begun already, go on. A `total` of 0 is not known."""
        told, self.on_begin = self.on_begin, None
        if told is not None:
            told()
        if what and what == self.what:
            self.total += total
            return
        self.what, self.unit, self.done, self.total = what, unit, 0, total

    def text(self) -> str:
        """Return how far it is, in words; nothing before the first."""
        if not (self.done or self.total):
            return ""
        most = self.total or self.done
        of = f" of {self.total:,}" if self.total else ""
        return f"{min(self.done, most):,}{of} {self.unit}{'' if most == 1 else 's'}"


COUNT = Count()
