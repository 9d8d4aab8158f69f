# SPDX-License-Identifier: Apache-2.0
"""The beginning and the end of what a command printed, within bounds, and the words for what lies between them.

Most tools say at the end what went wrong, so the end has the larger share of both bounds.
"""

from __future__ import annotations

from unspill.adapters.window import many, whole_characters
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.run import Output

MARK = "[...]"
# Of what is not UTF-8 each byte is shown as four
_WIDEST = 4
_CONTINUED = bytes(range(0x80, 0xC0))


class Clip(Record):
    """What is shown: all of it as `head`, or that and `tail`, with `left_out` bytes between them.

    `total` is the number of lines, None where there is more than was kept. `is_apart`: the tail begins with a line.
    """

    head: bytes
    tail: bytes = b""
    left_out: int = 0
    total: int | None = None
    is_apart: bool = True

    @property
    def text(self) -> str:
        """What is shown, with a mark where something is not: in a line of its own between whole lines."""
        if not self.left_out:
            return shown_as(self.head)
        end = "\n" if self.is_apart else ""
        return f"{shown_as(self.head)}{MARK}{end}{shown_as(self.tail)}"

    def told(self) -> str:
        """Say where the mark is, which nothing that a command prints can move, and what it stands for."""
        is_whole = not self.head or self.head.endswith(b"\n")
        line = _count(self.head)
        place = ("after" if is_whole else "in") + f" line {line}" if line else "before its end"
        left_out = many(self.left_out, "byte")
        if self.total is not None and is_whole and self.is_apart:
            left_out = f"{self.total - line - _count(self.tail)} of {many(self.total, 'line')}"
        return f'the output is cut {place}, at "{MARK}": {left_out} left out'


def clip(streams: Sequence[Output], lines: int, size: int) -> Clip:
    """Return what is shown of streams, one after the other: at most so many lines, and bytes as they are shown."""
    before, after, missing = _around_the_gap(streams)
    total = None if missing else _count(before)
    if total is not None and total <= lines and _width(before) <= size:
        return Clip(head=before, total=total)
    found = _ends(before, after, lines, size * len(before + after) // max(1, _width(before + after)))
    if _width(found[0]) + _width(found[1]) > size:
        found = _ends(before, after, lines, size // _WIDEST)
    head, tail = found
    between = len(before) - len(head) + (len(after) if missing else 0) - len(tail) + missing
    is_apart = not tail or after.endswith(b"\n" + tail)
    return Clip(head=head, tail=tail, left_out=between, total=total, is_apart=is_apart)


def _ends(before: bytes, after: bytes, lines: int, size: int) -> tuple[bytes, bytes]:
    begins = max(min(1, lines - 1), lines * 2 // 5)
    tail = _last(after, lines - begins, size - size * 2 // 5)
    return _first(before, lines - _count(tail), size - len(tail)), tail


def shown_as(raw: bytes) -> str:
    """Return bytes of a command as text."""
    return raw.decode("utf-8", "backslashreplace")


def _around_the_gap(streams: Sequence[Output]) -> tuple[bytes, bytes, int]:
    """Return what was kept before the first gap and after the last one, and how much is missing between the two.

    Without a gap both are everything.
    """
    gaps = [index for index, stream in enumerate(streams) if stream.left_out]
    if not gaps:
        whole = _joined(*(stream.kept() for stream in streams))
        return whole, whole, 0
    first, last = gaps[0], gaps[-1]
    head, tail = whole_characters(streams[first].head), _from_a_character(streams[last].tail)
    before = _joined(*(stream.kept() for stream in streams[:first]), head)
    after = _joined(tail, *(stream.kept() for stream in streams[last + 1 :]))
    return before, after, sum(stream.total for stream in streams[first : last + 1]) - len(head) - len(tail)


def _joined(*parts: bytes) -> bytes:
    """Return parts one after the other, each beginning with a line of its own."""
    whole = b""
    for part in filter(None, parts):
        whole += (b"\n" if whole and not whole.endswith(b"\n") else b"") + part
    return whole


def _first(raw: bytes, lines: int, size: int) -> bytes:
    return whole_characters(b"".join(_lines(raw)[: max(0, lines)])[: max(0, size)])


def _last(raw: bytes, lines: int, size: int) -> bytes:
    found = b"".join(_lines(raw)[-lines:]) if lines > 0 else b""
    if len(found) <= size:
        return found
    return _from_a_character(found[-size:]) if size > 0 else b""


def _from_a_character(raw: bytes) -> bytes:
    """Return it without the end of a character at its beginning, where it was cut."""
    beginning = raw[:3]
    return raw[len(beginning) - len(beginning.lstrip(_CONTINUED)) :]


def _lines(raw: bytes) -> list[bytes]:
    *whole, rest = raw.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def _count(raw: bytes) -> int:
    return raw.count(b"\n") + (not raw.endswith(b"\n") if raw else 0)


def _width(raw: bytes) -> int:
    return len(shown_as(raw).encode())
