# SPDX-License-Identifier: Apache-2.0
"""A part of a long text for a model: whole lines from one on, within bounds, and the words for what is left out."""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Window(Record):
    """Lines of a text, from line `offset` (the first is 0) on. `next_offset` is None where these are the last.

    `left_out`: the only line is longer than the bound, so this many bytes at the end of it are missing.
    """

    lines: tuple[str, ...]
    offset: int
    total: int
    next_offset: int | None
    left_out: int = 0

    def notes(self, tool: str) -> list[str]:
        """Return what a model is told before the lines, if they are not all; `tool` is what shows the rest."""
        if not self.lines:
            return [f"Note: there is nothing from line {self.offset + 1} on: there are {self.total} lines."]
        if not self.offset and self.next_offset is None and not self.left_out:
            return []
        lines = f"lines {self.offset + 1} to {self.offset + len(self.lines)} of {self.total} follow"
        if self.left_out:
            lines += f", and of the last one {many(self.left_out, 'byte')} at the end are left out: it is too long"
        return [f"Note: {lines}.{rest_from(tool, self.next_offset)}"]


def rest_from(tool: str, offset: int | None) -> str:
    """Return the words for where the rest is."""
    return "" if offset is None else f" For the rest call `{tool}` with `offset` {offset}."


def window(lines: Sequence[str], offset: int, most_lines: int, most_bytes: int) -> Window:
    """Return as many lines as the bounds permit, at least a part of one."""
    shown: list[str] = []
    left, left_out = most_bytes, 0
    for line in lines[offset : offset + most_lines]:
        raw = line.encode("utf-8", "surrogatepass")
        if len(raw) >= left:
            if not shown:
                part = whole_characters(raw[:most_bytes])
                shown.append(part.decode("utf-8", "surrogatepass"))
                left_out = len(raw) - len(part)
            break
        shown.append(line)
        left -= len(raw) + 1
    following = offset + len(shown)
    return Window(
        lines=tuple(shown),
        offset=offset,
        total=len(lines),
        next_offset=following if shown and following < len(lines) else None,
        left_out=left_out,
    )


def whole_characters(raw: bytes) -> bytes:
    """Return it without the beginning of a character at its end, where it was cut."""
    for count, byte in enumerate(reversed(raw[-3:]), 1):
        if 0xC2 <= byte <= 0xF4:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return raw[:-count] if count < length else raw
        if not 0x80 <= byte < 0xC0:
            break
    return raw


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
