# SPDX-License-Identifier: Apache-2.0
"""How far something is, on standard error: a line with a bar on a terminal, a line now and then elsewhere.

Standard output is for the result alone.
"""

from __future__ import annotations

import os
import sys
import time

from unspill.changes.render import safe_text
from unspill.cli.telling import count_text, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from unspill.model.rootfs import Progress

_CLEAR = "\r\x1b[K"
_PAUSE_S = 0.1
_QUIET_S = 10.0
_WIDTH = 24
_NARROWEST = 20
_USUAL = 80


class ProgressLine:
    """Takes every step and shows what is worth showing; leaving the block leaves the terminal clean."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = not is_quiet and os.isatty(2)
        self._step = ""
        self._shown_at = 0.0
        self._is_open = False
        self.has_told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        if self._is_open:
            self._write(_CLEAR)
            self._is_open = False

    def take(self, progress: Progress) -> None:
        """Show a step, unless the last one was shown a moment ago."""
        now = time.monotonic()
        is_new = progress.step != self._step
        pause = _PAUSE_S if self._is_terminal else _QUIET_S
        is_end = bool(progress.total) and progress.done >= progress.total and self._is_terminal
        if self._is_quiet or not (is_new or is_end or now - self._shown_at >= pause):
            return
        self._step, self._shown_at, self.has_told = progress.step, now, True
        text = progress_text(progress, has_bar=self._is_terminal, is_first=is_new and not self._is_terminal)
        if self._is_terminal:
            self._is_open = True
            self._write(_CLEAR + text[: _columns() - 1])
        else:
            self._write(f"unspill: {text}\n")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._is_quiet = True  # nobody looks; what is made is made all the same


def progress_text(progress: Progress, *, has_bar: bool, is_first: bool = False) -> str:
    """Return one step in words: what a server wrote in it can't speak to the terminal.

    The first line of a step says how much it is, not how far: where no other line follows, that would stay there.
    """
    step, unit = safe_text(progress.step), progress.unit
    done, total = progress.done, progress.total
    if is_first:
        return f"{step} ({_amount(total, unit)})" if total else step
    if not total:
        return f"{step}: {_amount(done, unit)}" if done else step
    done = min(done, total)
    percent = f"{100 * done // total:3d}%" if has_bar else f"{100 * done // total}%"
    bar = f" [{'#' * (_WIDTH * done // total):<{_WIDTH}}]" if has_bar else ""
    return f"{step}{bar if has_bar else ':'} {percent} of {_amount(total, unit)}"


def _amount(count: int, unit: str) -> str:
    return count_text(count, unit) if unit else size_text(count)


def _columns() -> int:
    try:
        # A terminal that does not know its size says 0
        return max(os.get_terminal_size(2).columns or _USUAL, _NARROWEST)
    except OSError:
        return _USUAL
