# SPDX-License-Identifier: Apache-2.0
"""The beginning and the end of what a command printed, within bounds, and the words for what lies between them.

Most tools say at the end what went wrong, so the end has the larger share of both bounds.
"""

from __future__ import annotations

from unspill.adapters.window import many, whole_characters
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.model.run import Output

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
    def mark(self) -> str:
        """What stands for what is left out: nothing that is shown has it."""
        dots = 3
        while b"[%b]" % (b"." * dots) in self.head + b" " + self.tail:
            dots += 1
        return f"[{'.' * dots}]"

    @property
    def text(self) -> str:
        """What is shown, with a mark where something is not: in a line of its own between whole lines."""
        if not self.left_out:
            return shown_as(self.head)
        end = "\n" if self.is_apart else ""
        return f"{shown_as(self.head)}{self.mark}{end}{shown_as(self.tail)}"

    def told(self, what: str = "the output") -> str:
        """Say where the mark is, and what it stands for."""
        is_whole = not self.head or self.head.endswith(b"\n")
        line = _count(self.head)
        place = ("after" if is_whole else "in") + f" line {line}" if line else "before its end"
        left_out = many(self.left_out, "byte")
        if self.total is not None and is_whole and self.is_apart:
            left_out = f"{self.total - line - _count(self.tail)} of {many(self.total, 'line')}"
        return f'{what} is cut {place}, at "{self.mark}": {left_out} left out'


class _Joined(Record):
    """Parts one after the other, each from the beginning of a line on; `ours` is where a line had to be ended."""

    raw: bytes
    ours: tuple[int, ...]


def clip(streams: Sequence[Output], lines: int, size: int) -> Clip:
    """Return what is shown of streams, one after the other: at most so many lines, and bytes as they are shown."""
    before, after, missing = _around_the_gap(streams)
    total = None if missing else _count(before.raw)
    if total is not None and total <= lines and _fits(before, size):
        return Clip(head=before.raw, total=total)
    head, tail = _ends(before.raw, after.raw, lines, size)
    left_out = missing + len(before.raw) - len(head) - sum(place >= len(head) for place in before.ours)
    if missing:
        left_out += len(after.raw) - len(tail) - sum(place < len(after.raw) - len(tail) for place in after.ours)
    else:
        left_out -= len(tail) - sum(place >= len(before.raw) - len(tail) for place in before.ours)
    is_apart = not tail or after.raw.endswith(b"\n" + tail)
    return Clip(head=head, tail=tail, left_out=left_out, total=total, is_apart=is_apart)


def shown_as(raw: bytes) -> str:
    """Return bytes of a command as text."""
    return raw.decode("utf-8", "backslashreplace")


def _ends(before: bytes, after: bytes, lines: int, size: int) -> tuple[bytes, bytes]:
    # Nothing but these can be shown, and there may be megabytes between them
    before, after = before[: size + 1], after[-size - 1 :]
    narrow = size * len(before + after) // max(1, _width(before) + _width(after))
    for most in (narrow, size // _WIDEST):
        begins = max(min(1, lines - 1), lines * 2 // 5)
        tail = _last(after, lines - begins, most - most * 2 // 5)
        head = _first(before, lines - _count(tail), most - len(tail))
        if _width(head) + _width(tail) <= size:
            break
    return head, tail


def _around_the_gap(streams: Sequence[Output]) -> tuple[_Joined, _Joined, int]:
    """Return what was kept before the first gap and after the last one, and how much is missing between the two.

    Without a gap both are everything.
    """
    gaps = [index for index, stream in enumerate(streams) if stream.left_out]
    if not gaps:
        whole = _join(stream.kept() for stream in streams)
        return whole, whole, 0
    first, last = gaps[0], gaps[-1]
    head, tail = whole_characters(streams[first].head), _from_a_character(streams[last].tail)
    before = _join((*(stream.kept() for stream in streams[:first]), head))
    after = _join((tail, *(stream.kept() for stream in streams[last + 1 :])))
    return before, after, sum(stream.total for stream in streams[first : last + 1]) - len(head) - len(tail)


def _join(parts: Iterable[bytes]) -> _Joined:
    whole, ours = b"", []
    for part in filter(None, parts):
        if whole and not whole.endswith(b"\n"):
            ours.append(len(whole))
            whole += b"\n"
        whole += part
    return _Joined(raw=whole, ours=tuple(ours))


def _fits(joined: _Joined, size: int) -> bool:
    return len(joined.raw) - len(joined.ours) <= size and _width(joined.raw) - len(joined.ours) <= size


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
