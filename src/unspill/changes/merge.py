# SPDX-License-Identifier: Apache-2.0
"""Three-way merging of texts: what two sides have made of one base, as `git merge-file` does it.

Edits that neither overlap nor touch are all taken, and so is one that both sides made alike. Anything else is a
conflict. Where a line is one of several alike, an edit is moved as git moves it, so that both sides mean the same one.

The texts are a stranger's, so the time is bounded as for `changes.diff`: beyond its bound of edits a side counts as one
edit from its first to its last difference, and whatever the other side did there is in conflict.
"""

from __future__ import annotations

from hashlib import blake2b

from unspill.changes.diff import is_binary, line_edits, split_lines, with_line_feed
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unspill.changes.diff import Edit
    from unspill.model.change import Side

    Lines = list[bytes]

LARGEST_TEXT = 1 << 18
_MOST_NAMED = 3


class Clash(Record):
    """Lines that both sides changed, each in its own way. `line` is where it begins in our text, counted from 1."""

    line: int
    base: tuple[bytes, ...]
    ours: tuple[bytes, ...]
    theirs: tuple[bytes, ...]


class Merge(Record):
    """What came of a merge: lines that are agreed on, and clashes, in their order."""

    parts: tuple[Lines | Clash, ...]

    @property
    def clashes(self) -> tuple[Clash, ...]:
        """What is in conflict."""
        return tuple(part for part in self.parts if isinstance(part, Clash))

    def text(self, side: Side | Sequence[Side] = "markers") -> bytes:
        """Return the whole text, with one side of each clash, or both between marks; the same for all, or by clash."""
        sides = iter([side] * len(self.clashes) if isinstance(side, str) else side)
        found = (_of_side(part, next(sides)) if isinstance(part, Clash) else part for part in self.parts)
        return b"".join(line for lines in found for line in lines)

    def where(self) -> str:
        """Say in which lines of our text the clashes begin."""
        numbers = [str(clash.line) for clash in self.clashes]
        named, more = numbers[:_MOST_NAMED], len(numbers) - _MOST_NAMED
        last = f"{more} more" if more > 0 else named.pop()
        return f"lines {', '.join(named)} and {last}" if named else f"line {last}"


def merge_texts(base: bytes, ours: bytes, theirs: bytes) -> Merge | None:
    """Merge two descendants of a base; None where one of the three is no text, or too large."""
    texts = (base, ours, theirs)
    if any(len(text) > LARGEST_TEXT or is_binary(text) for text in texts):
        return None
    old, mine, other = map(split_lines, texts)
    return Merge(parts=tuple(_parts(old, mine, other)))


def digest_of_merge(base: bytes, ours: bytes, theirs: bytes) -> str:
    """Return what stands for three texts."""
    digest = blake2b(b"merge %d %d " % (len(base), len(ours)), digest_size=32)
    for text in (base, ours, theirs):
        digest.update(text)
    return digest.hexdigest()


def _of_side(clash: Clash, side: Side) -> Sequence[bytes]:
    if side == "markers":
        # Those that git and editors know
        return [
            b"<<<<<<< yours\n",
            *map(with_line_feed, clash.ours),
            b"=======\n",
            *map(with_line_feed, clash.theirs),
            b">>>>>>> the run's\n",
        ]
    return clash.ours if side == "ours" else clash.theirs


def _parts(base: Lines, ours: Lines, theirs: Lines) -> Iterator[Lines | Clash]:
    edits_of = [_settled(line_edits(base, side), base, side) for side in (ours, theirs)]
    at = 0  # in the base
    # How far our side is ahead of the base
    ahead = 0
    for start, end, edits in _regions(*edits_of):
        yield base[at:start]
        at = end
        mine = _made_of(base, ours, edits[0], start, end)
        other = _made_of(base, theirs, edits[1], start, end)
        if not edits[1] or mine == other:
            yield mine
        elif not edits[0]:
            yield other
        else:
            yield from _narrowed(base[start:end], mine, other, start + ahead)
        ahead += len(mine) - (end - start)
    yield base[at:]


def _regions(ours: list[Edit], theirs: list[Edit]) -> Iterator[tuple[int, int, tuple[list[Edit], list[Edit]]]]:
    """Yield parts of the base that edits lie in which overlap or touch, with those of each side."""
    every = sorted([(edit, 0) for edit in ours] + [(edit, 1) for edit in theirs])
    found: tuple[list[Edit], list[Edit]] = ([], [])
    start = end = 0
    for edit, side in every:
        if (found[0] or found[1]) and edit[0] > end:
            yield start, end, found
            found = ([], [])
        if not (found[0] or found[1]):
            start, end = edit[0], edit[1]
        end = max(end, edit[1])
        found[side].append(edit)
    if found[0] or found[1]:
        yield start, end, found


def _made_of(base: Lines, side: Lines, edits: list[Edit], start: int, end: int) -> Lines:
    """Return what a side made of a part of the base."""
    made: Lines = []
    for old_start, old_end, new_start, new_end in edits:
        made += base[start:old_start] + side[new_start:new_end]
        start = old_end
    return made + base[start:end]


def _narrowed(base: Lines, ours: Lines, theirs: Lines, line: int) -> Iterator[Lines | Clash]:
    """Yield a clash without what both sides begin or end it with alike."""
    start, end = 0, 0
    most = min(len(ours), len(theirs))
    while start < most and ours[start] == theirs[start]:
        start += 1
    while end < most - start and ours[-1 - end] == theirs[-1 - end]:
        end += 1
    yield ours[:start]
    mine, other = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
    yield Clash(line=line + start + 1, base=tuple(base), ours=tuple(mine), theirs=tuple(other))
    yield ours[len(ours) - end :]


def _settled(edits: list[Edit], base: Lines, side: Lines) -> list[Edit]:
    """Return edits of which each lies where it would, whatever else its side has changed.

    A line that is one of several alike may have come or gone at any of their places.
    """
    old, new = bytearray(len(base)), bytearray(len(side))
    for start, end, new_start, new_end in edits:
        old[start:end] = b"\1" * (end - start)
        new[new_start:new_end] = b"\1" * (new_end - new_start)
    _settle(base, old, new)
    _settle(side, new, old)
    return list(_edits_of(old, new))


def _edits_of(old: bytearray, new: bytearray) -> Iterator[Edit]:
    """Yield what differs between two sides, given which lines of each do."""
    at, to = 0, 0
    while at < len(old) or to < len(new):
        start, new_start = at, to
        at, to = _end_of(old, at), _end_of(new, to)
        if at > start or to > new_start:
            yield start, at, new_start, to
        at, to = at + 1, to + 1


def _end_of(marks: bytearray, start: int) -> int:
    end = marks.find(0, start)
    return len(marks) if end < 0 else end


def _settle(lines: Lines, marks: bytearray, others: bytearray) -> None:
    """Move runs of lines that one side alone has, which `marks` say, as `git` moves them.

    Up as far as possible, then down, each time with those that it comes to touch; at last to where the other side has
    changed something too, if it has come by such a place.
    """
    run = _Run(lines, marks, others)
    while run.find_next():
        size = -1
        while size != run.end - run.start:
            size = run.end - run.start
            while run.move_up():
                continue
            highest = run.end
            meeting = run.end if run.is_met() else -1
            while run.move_down():
                meeting = run.end if run.is_met() else meeting
        if run.end != highest and meeting >= 0:
            while not run.is_met():
                run.move_up()


class _Run:
    """A run of lines that one side alone has; and the place on the other side, which may have a run of its own."""

    def __init__(self, lines: Lines, marks: bytearray, others: bytearray) -> None:
        self._lines = lines
        self._marks = marks
        self._others = others
        self.start, self.end = 0, _end_of(marks, 0)
        self._other_start, self._other_end = 0, _end_of(others, 0)
        self._is_first = True

    def find_next(self) -> bool:
        """Go to the next run that has lines; tell whether there is one."""
        if self._is_first:
            self._is_first = False
            if self.start < self.end:
                return True
        while self.end < len(self._lines):
            self.start = self.end + 1
            self.end = _end_of(self._marks, self.start)
            self._next_other()
            if self.start < self.end:
                return True
        return False

    def is_met(self) -> bool:
        """Tell whether the other side has changed something at this place."""
        return self._other_start < self._other_end

    def move_up(self) -> bool:
        """Move up by a line, if the text stays what it is."""
        if not self.start or self._lines[self.start - 1] != self._lines[self.end - 1]:
            return False
        self.start, self.end = self.start - 1, self.end - 1
        self._marks[self.start], self._marks[self.end] = 1, 0
        self.start = self._marks.rfind(0, 0, self.start) + 1
        self._other_end = self._other_start - 1
        self._other_start = self._others.rfind(0, 0, self._other_end) + 1
        return True

    def move_down(self) -> bool:
        """Move down by a line, if the text stays what it is."""
        if self.end >= len(self._lines) or self._lines[self.start] != self._lines[self.end]:
            return False
        self._marks[self.start], self._marks[self.end] = 0, 1
        self.start, self.end = self.start + 1, _end_of(self._marks, self.end + 1)
        self._next_other()
        return True

    def _next_other(self) -> None:
        self._other_start = self._other_end + 1
        self._other_end = _end_of(self._others, self._other_start)
