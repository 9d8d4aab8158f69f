# SPDX-License-Identifier: Apache-2.0
"""Outcomes as four columns and back: kind, number, text, remedy.

The mapping is spelt out, so that a new kind of outcome fails the type check here before it is lost.
"""

from __future__ import annotations

from unspill.errors import StoreDamaged
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Signalled, TimedOut
from unspill.store.cells import as_float, as_int, as_text, to_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.run import LimitName, Outcome
    from unspill.store.cells import Cell

    OutcomeCells = tuple[str, int | float | None, str | None, str | None]

LIMITS: tuple[LimitName, ...] = (
    "output",
    "layer_bytes",
    "layer_entries",
    "playground_bytes",
    "playground_entries",
    "tmp_entries",
    "free_space",
    "free_inodes",
    "free_memory",
    "file_bytes",
    "processes",
    "memory",
    "open_files",
)


def to_cells(outcome: Outcome) -> OutcomeCells:
    """Return the columns of an outcome."""
    match outcome:
        case Exited():
            return "exited", outcome.code, None, None
        case Signalled():
            return "signalled", outcome.signal, None, None
        case TimedOut():
            return "timed-out", outcome.after_s, None, None
        case Cancelled():
            return "cancelled", None, None, None
        case LimitReached():
            return "limit-reached", outcome.bound, outcome.limit, None
        case NeverStarted():
            return "never-started", outcome.exit_code, to_text(outcome.reason), to_text(outcome.remedy)


def to_outcome(kind: Cell, number: Cell, text: Cell, remedy: Cell) -> Outcome | None:
    """Return the outcome of four columns; None for a run that has none.

    Raises:
        StoreDamaged: there is no such outcome.
    """
    match kind:
        case None:
            return None
        case "exited":
            return Exited(code=as_int(number))
        case "signalled":
            return Signalled(signal=as_int(number))
        case "timed-out":
            return TimedOut(after_s=as_float(number))
        case "cancelled":
            return Cancelled()
        case "limit-reached":
            return LimitReached(limit=_to_limit(text), bound=as_int(number))
        case "never-started":
            return NeverStarted(reason=as_text(text), remedy=as_text(remedy), exit_code=as_int(number))
        case _:
            raise StoreDamaged(f"The store holds an outcome that does not exist: {kind!r}.")


def _to_limit(text: Cell) -> LimitName:
    for limit in LIMITS:
        if text == limit:
            return limit
    raise StoreDamaged(f"The store holds a limit that does not exist: {text!r}.")
