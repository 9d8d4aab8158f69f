# SPDX-License-Identifier: Apache-2.0
"""A part of a long text for a model: whole lines from one on, within bounds, and the words for what is left out."""

from __future__ import annotations

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Window(Record):
    """Lines of a text, from line `offset` (the first is 0) on. `next_offset` is None where these are the last.

    `is_cut`: the only line is longer than the bound, so the end of it is missing.
    """

    lines: tuple[str, ...]
    offset: int
    total: int
    next_offset: int | None
    is_cut: bool = False

    def notes(self, tool: str) -> list[str]:
        """Return what a model is told before the lines, if they are not all; `tool` is what shows the rest."""
        if not self.lines:
            return [f"Note: there is nothing from line {self.offset + 1} on: there are {self.total} lines."]
        if not self.offset and self.next_offset is None and not self.is_cut:
            return []
        lines = f"lines {self.offset + 1} to {self.offset + len(self.lines)} of {self.total} follow"
        lines += ", and the end of the last one is left out because it is too long" if self.is_cut else ""
        return [f"Note: {lines}.{rest_from(tool, self.next_offset)}"]


def rest_from(tool: str, offset: int | None) -> str:
    """Return the words for where the rest is."""
    return "" if offset is None else f" For the rest call `{tool}` with `offset` {offset}."


def window(lines: Sequence[str], offset: int, most_lines: int, most_bytes: int) -> Window:
    """Return as many lines as the bounds permit, at least a part of one."""
    shown: list[str] = []
    left, is_cut = most_bytes, False
    for line in lines[offset : offset + most_lines]:
        raw = line.encode("utf-8", "surrogatepass")
        if len(raw) >= left:
            if not shown:
                shown.append(raw[:most_bytes].decode("utf-8", "ignore"))
                is_cut = True
            break
        shown.append(line)
        left -= len(raw) + 1
    following = offset + len(shown)
    return Window(
        lines=tuple(shown),
        offset=offset,
        total=len(lines),
        next_offset=following if shown and following < len(lines) else None,
        is_cut=is_cut,
    )


def many(count: int, what: str) -> str:
    """Return how many there are, as `1 byte` or `2 bytes`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def offset_schema() -> dict[str, Any]:
    """Return the schema of the argument `offset`."""
    return {
        "type": "integer",
        "minimum": 0,
        "maximum": (1 << 53) - 1,
        "default": 0,
        "description": "How many lines to skip.",
    }
