# SPDX-License-Identifier: Apache-2.0
"""What the review screen shows and what is picked in it: lists, marks and the choice that comes of them. Pure.

Nothing is read here and nothing drawn. A list may have a hundred thousand entries, so what is known of all of them lies
in byte arrays, and what is known of few in dictionaries by the entry's place in the list.
"""

from __future__ import annotations

import os

from unspill.changes.diff import NO_NEWLINE, numbered_lines
from unspill.changes.render import without_own_files
from unspill.changes.select import with_parents
from unspill.git.files import repository_of
from unspill.model.change import ChangeSet, Hunks, Resolution, RootChanges, Selection
from unspill.policy.paths import show_line
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import Any, Literal, Self

    from unspill.changes.diff import DiffLine
    from unspill.changes.merge import Merge
    from unspill.model.change import Change, Consent, Side

RESOLVED: dict[Side, str] = {"ours": "yours", "theirs": "the run's", "markers": "both, between markers"}
_NO_BOUND = 1 << 20
# A new directory with more in it is shown folded
MOST_UNFOLDED = 200
NOT, WHOLE, PARTLY = range(3)


class ListEntry:
    """One line of the list: a change, or what stands for all that git keeps for itself. `below` next ones lie in it."""

    __slots__ = ("below", "change", "group", "path", "root")

    def __init__(self, root: bytes, path: bytes, change: Change | None, group: int = 0) -> None:
        self.root = root
        self.path = path
        self.change = change
        # Of a session, the number of the operation
        self.group = group
        self.below = 0

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory, or stands for one."""
        change = self.change
        if change is None:
            return True
        return (change.base_kind if change.entry is None else change.entry.kind) == "dir"

    @property
    def has_lines(self) -> bool:
        """Whether single lines of it can be picked, if it is a text."""
        return self.change is not None and self.change.kind == "modified" and self.change.base_kind == "file"


class Detail(Record):
    """What is shown of one entry.

    `notes` describe it. `lines` are what differs; `is_whole` if that is all of it. `digest` stands for both texts of a
    file of which lines can be picked. `merge` is of a file that the person edited too: `ours` is their text, and
    `merge_digest` stands for all three; `conflict` says why there is none. `consent` is what a yes to a held entry is
    for, and `covers` the paths that it lets in. `live` is what the project has there.
    """

    notes: tuple[str, ...] = ()
    lines: tuple[DiffLine, ...] = ()
    is_whole: bool = True
    digest: str = ""
    merge: Merge | None = None
    ours: bytes = b""
    merge_digest: str = ""
    conflict: str = ""
    consent: Consent | None = None
    covers: frozenset[bytes] = frozenset()
    live: tuple[int, ...] = ()

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of all lines that can be picked; none where only the whole can."""
        return frozenset(line.number for line in self.lines if line.number) if self.digest else frozenset()

    def numbers_of(self, hunk: int) -> frozenset[int]:
        """Return the numbers of the lines of one hunk."""
        return frozenset(line.number for line in self.lines if line.number and line.hunk == hunk)


class Shown(Record):
    """One line of what is shown of an entry, safe to print. `kind` says what it is.

    `mark` and the numbers are those of a line of a text; a `part` is a hunk, or a conflict, counted from 1.
    """

    kind: Literal["note", "hunk", "text", "clash", "side"]
    text: str
    part: int = 0
    mark: str = ""
    number: int = 0
    old: int = 0
    new: int = 0


def shown_lines(detail: Detail, sides: Sequence[Side | None] = ()) -> list[Shown]:
    """Return what is shown of an entry, line by line; of a merge also what comes of the sides that are chosen."""
    notes = [*detail.notes, *([detail.conflict] if detail.conflict else [])]
    found = [Shown(kind="note", text=show_line(os.fsencode(note), _NO_BOUND)) for note in notes]
    lines: Iterable[DiffLine] = detail.lines
    if detail.merge is not None:
        found += _shown_clashes(detail.merge, sides)
        lines = numbered_lines(detail.ours, detail.merge.text([side or "markers" for side in sides]))
        is_open = None in sides
        found.append(Shown(kind="note", text="What you would get, so far:" if is_open else "What you get:"))
    hunk = 0
    for line in lines:
        if line.hunk != hunk:
            hunk = line.hunk
            where = f"line {line.old or line.new}"
            found.append(Shown(kind="hunk", text=f"@@ hunk {hunk}, {where}", part=hunk))
        text = show_line(line.text.removesuffix(b"\n"))
        found.append(
            Shown(kind="text", text=text, part=hunk, mark=line.mark, number=line.number, old=line.old, new=line.new)
        )
        if not line.text.endswith(b"\n"):
            found.append(Shown(kind="note", text=NO_NEWLINE))
    return found


def _shown_clashes(merge: Merge, sides: Sequence[Side | None]) -> Iterator[Shown]:
    """Yield what is in conflict, with the three versions of each."""
    clashes = merge.clashes
    if not clashes:
        yield Shown(kind="note", text="You changed it too. Both changes go together: they are merged.")
    for number, (clash, side) in enumerate(zip(clashes, sides, strict=True), 1):
        state = "not resolved" if side is None else RESOLVED[side]
        text = f"conflict {number} of {len(clashes)}, line {clash.line} of your file: {state}"
        yield Shown(kind="clash", text=text, part=number)
        for name, mark, lines in (
            ("yours", "o", clash.ours),
            ("before", "b", clash.base),
            ("run's", "t", clash.theirs),
        ):
            for line in lines or (None,):
                text = "(nothing)" if line is None else show_line(line.removesuffix(b"\n"))
                yield Shown(kind="side", text=f"{name:>6} {text}", part=number, mark=mark)


class PickedChanges(Record):
    """What is picked, as an apply takes it: of which changes, and what of them."""

    reviewed: ChangeSet
    selection: Selection
    # What a discard takes: the same by path
    dropped: Selection
    count: int


def entries_of(changes: ChangeSet, group: int = 0) -> list[ListEntry]:
    """Return the list of some changes: a directory before what is in it, what git keeps for itself as one."""
    found: list[ListEntry] = []
    for part in changes.roots:
        worth = [change for change in part.changes if not change.is_mere_touch]
        found += (
            _with_git(part.root, worth, group)
            if any(b".git/" in one.path for one in worth)
            else [ListEntry(part.root, change.path, change, group) for change in worth]
        )
    _count_below(found)
    return found


def _with_git(root: bytes, changes: Sequence[Change], group: int) -> Iterator[ListEntry]:
    """Yield entries; before the files that git keeps for itself, one that stands for those of their repository."""
    shown = set(map(id, without_own_files(changes)))
    known: set[bytes] = set()
    own: dict[bytes, list[Change]] = {}
    for change in changes:
        top = None if id(change) in shown else repository_of(change.path)
        if top is not None:
            own.setdefault(top, []).append(change)
    tops = {change.path for change in changes if id(change) in shown}
    for change in changes:
        top = repository_of(change.path)
        if id(change) in shown or top is None:
            yield ListEntry(root, change.path, change, group)
        if top in own and top not in known and (top not in tops or change.path == top):
            known.add(top)
            if top not in tops:
                standing = ListEntry(root, top, None, group)
                standing.below = len(own[top])
                yield standing
            for inner in own[top]:
                yield ListEntry(root, inner.path, inner, group)


def _count_below(entries: Sequence[ListEntry]) -> None:
    above: list[int] = []
    for at, entry in enumerate(entries):
        while above and not _lies_below(entry, entries[above[-1]]):
            top = above.pop()
            entries[top].below = at - top - 1
        # What stands for git's own files has counted them
        if entry.is_directory and entry.change is not None:
            above.append(at)
    for top in above:
        entries[top].below = len(entries) - top - 1


def _is_long(entry: ListEntry) -> bool:
    """Tell whether a list is easier to read without what lies in an entry."""
    return entry.change is None or entry.below > MOST_UNFOLDED or entry.path.endswith(b".git")


def _lies_below(entry: ListEntry, above: ListEntry) -> bool:
    is_same = (entry.root, entry.group) == (above.root, above.group)
    return is_same and (above.path == b"." or entry.path.startswith(above.path + b"/"))


class Picks:
    """The list with what is picked of it. Places in it are counted from 0."""

    def __init__(self, changes: ChangeSet, entries: list[ListEntry] | None = None) -> None:
        self.changes = changes
        self.entries = entries_of(changes) if entries is None else entries
        self.state = bytearray(len(self.entries))
        self.kept = bytearray(len(self.entries))
        self.lines: dict[int, set[int]] = {}
        self.digests: dict[int, str] = {}
        # Why an entry is held or flagged
        self.held: dict[int, str] = {}
        self.flagged: dict[int, str] = {}
        self.consents: dict[int, Consent] = {}
        # What the person edited too: a side for each conflict that there is between the two, None where none is chosen
        self.edited: set[int] = set()
        self.sides: dict[int, list[Side | None]] = {}
        self.merges: dict[int, str] = {}
        self.overwritten: set[int] = set()
        # What is not as it was when it was shown
        self.changed: set[int] = set()
        self.folded = {at for at, one in enumerate(self.entries) if one.below and _is_long(one)}
        self.visible: Sequence[int] = ()
        self._lowered: list[bytes] | None = None
        self.refold()

    @classmethod
    def empty(cls) -> Self:
        """Return a list with nothing in it."""
        return cls(ChangeSet(roots=()), [])

    def only(self, *places: int) -> Picks:
        """Return the same list, of which these entries alone are picked, with all in them."""
        alone = Picks(self.changes, self.entries)
        for at in places:
            span = alone.span(at)
            alone.state[span.start : span.stop] = b"\1" * len(span)
        return alone

    def __len__(self) -> int:
        return len(self.entries)

    def place_of(self) -> dict[tuple[bytes, bytes], int]:
        """Return the places of all entries by root and path."""
        return {(one.root, one.path): at for at, one in enumerate(self.entries)}

    def span(self, at: int) -> range:
        """Return the places of an entry and of all that lie in it."""
        entry = self.entries[at]
        # Other bits of a directory have nothing to do with what is in it
        is_alone = entry.change is not None and entry.change.kind in ("metadata", "modified")
        return range(at, at + 1 + (0 if is_alone else entry.below))

    def mark_of(self, at: int) -> int:
        """Return whether an entry is picked: not, whole, or partly."""
        span = self.span(at)
        if len(span) == 1:
            return self.state[at]
        whole = self.state.count(WHOLE, span.start, span.stop)
        if whole == len(span):
            return WHOLE
        return PARTLY if whole or self.state.count(PARTLY, span.start, span.stop) else NOT

    def why_not(self, at: int) -> str:
        """Return why an entry can't be picked as it is, nothing where it can."""
        if at in self.held and at not in self.consents:
            return "held"
        if at in self.sides and None in self.sides[at]:
            return "conflict"
        return ""

    def toggle(self, at: int) -> bool:
        """Pick an entry with all in it, or none of it; tell whether it is picked then, as far as it can be."""
        span = self.span(at)
        whole = self.mark_of(at) != WHOLE
        self.set_all(span, picked=whole)
        return whole

    def toggle_all(self) -> bool:
        """Pick all but what needs a closer look, or nothing where that is picked already."""
        before = self.state.count(WHOLE)
        self.set_all(range(len(self.entries)), picked=True)
        for at in [place for place, keep in enumerate(self.kept) if keep]:
            self.state[at] = NOT
        if self.state.count(WHOLE) == before:
            self.set_all(range(len(self.entries)), picked=False)
            return False
        return True

    def set_all(self, span: range, *, picked: bool) -> None:
        """Pick what can be picked of some entries, or nothing of them."""
        self.state[span.start : span.stop] = (b"\1" if picked else b"\0") * len(span)
        for at in [place for place in self.lines if place in span]:
            del self.lines[at]
        if picked:
            for at in (*self.held, *self.sides):
                if at in span and self.why_not(at):
                    self.state[at] = NOT

    def toggle_lines(self, at: int, numbers: Collection[int], detail: Detail) -> None:
        """Pick lines of an entry, or drop them where all of them are picked."""
        every = detail.numbers
        picked = set(every) if self.state[at] == WHOLE else self.lines.get(at, set())
        picked = picked - set(numbers) if picked.issuperset(numbers) else picked | set(numbers)
        self.lines.pop(at, None)
        self.state[at] = NOT if not picked else WHOLE if picked == every else PARTLY
        if self.state[at] == PARTLY:
            self.lines[at] = picked
            self.digests[at] = detail.digest
        if self.state[at] and self.why_not(at):
            self.drop(at)

    def is_number_picked(self, at: int, number: int) -> bool:
        """Tell whether a line of an entry is picked."""
        return self.state[at] == WHOLE or number in self.lines.get(at, ())

    def drop(self, at: int) -> None:
        """Pick nothing of an entry any more."""
        self.state[at] = NOT
        self.lines.pop(at, None)

    def keep(self, at: int) -> None:
        """Leave an entry with all in it held: nothing of it is picked, and picking everything leaves it out."""
        span = self.span(at)
        self.set_all(span, picked=False)
        self.kept[span.start : span.stop] = b"\1" * len(span)

    def resolve(self, at: int, side: Side, clash: int | None = None) -> None:
        """Choose a side for a conflict of an entry, for all of them without a number."""
        sides = self.sides[at]
        for number in range(len(sides)) if clash is None else (clash,):
            sides[number] = side

    def fold(self, at: int, *, folded: bool) -> None:
        """Hide what lies in a directory, or show it."""
        if self.entries[at].below:
            (self.folded.add if folded else self.folded.discard)(at)
            self.refold()

    def refold(self) -> None:
        """Find out what is to be seen."""
        if not self.folded:
            self.visible = range(len(self.entries))
            return
        visible: list[int] = []
        at = 0
        for top in sorted(self.folded):
            if top >= at:
                visible += range(at, top + 1)
                at = top + self.entries[top].below + 1
        visible += range(at, len(self.entries))
        self.visible = visible

    def find(self, text: str, start: int, step: int) -> int | None:
        """Return the next place, going round from one of the visible, whose path has a text in it; the case is free."""
        wanted = text.encode("utf-8", "surrogateescape").lower()
        if self._lowered is None:
            self._lowered = [entry.path.lower() for entry in self.entries]
        count = len(self.entries)
        for number in range(1, count + 1):
            at = (start + step * number) % count
            if wanted in self._lowered[at]:
                return at
        return None

    def reveal(self, at: int) -> int:
        """Unfold what hides an entry; return its place among the visible."""
        hiding = {top for top in self.folded if top < at <= top + self.entries[top].below}
        if hiding:
            self.folded -= hiding
            self.refold()
        return self.visible.index(at)

    def picked(self) -> list[int]:
        """Return the places of all that is picked, whole or partly."""
        return [at for at, state in enumerate(self.state) if state]

    def counts(self) -> tuple[int, int]:
        """Return how many entries are picked whole, and how many partly."""
        return self.state.count(WHOLE), self.state.count(PARTLY)

    def choice(self) -> PickedChanges:
        """Return what is picked, for an apply or a discard."""
        places = self.picked()
        chosen: dict[bytes, set[bytes]] = {part.root: set() for part in self.changes.roots}
        for at in places:
            entry = self.entries[at]
            if entry.change is not None:
                chosen[entry.root].add(entry.path)
        if len(places) == len(self.entries) and not self.lines:
            # Then what is not listed comes along: times
            reviewed = self.changes
        else:
            reviewed = _only(self.changes, with_parents(self.changes, chosen))
        hunks = tuple(
            Hunks(
                path=_absolute(self.entries[at]),
                numbers=(),
                digest=self.digests[at],
                lines=tuple(sorted(self.lines[at])),
            )
            for at in places
            if self.state[at] == PARTLY
        )
        # With hunks, all that is reviewed has to be named beside them
        everything = Selection(paths=(b".",) if hunks else (), hunks=hunks)
        return PickedChanges(
            # A set that is not all that is held must not be taken for that
            reviewed=reviewed.replace(layers=()),
            selection=everything.replace(
                consents=tuple(self.consents[at] for at in places if at in self.consents),
                overwrite=tuple(_absolute(self.entries[at]) for at in places if at in self.overwritten),
                resolutions=tuple(self._resolutions(places)),
            ),
            dropped=self._dropped(places, hunks),
            count=len(places),
        )

    def _resolutions(self, places: Iterable[int]) -> Iterator[Resolution]:
        for at in places:
            sides = tuple(side for side in self.sides.get(at, ()) if side is not None)
            if sides and at in self.merges:
                yield Resolution(path=_absolute(self.entries[at]), sides=sides, digest=self.merges[at])

    def _dropped(self, places: Sequence[int], hunks: tuple[Hunks, ...]) -> Selection:
        """Return what is picked by path: a directory of which something stays by a pattern, which is for it alone."""
        if len(places) == len(self.entries) and not hunks:
            return Selection()
        paths: list[bytes] = []
        globs: list[bytes] = []
        for at in places:
            entry = self.entries[at]
            if entry.change is None or self.state[at] == PARTLY:
                continue
            is_all = self.state.count(WHOLE, at, at + entry.below + 1) == entry.below + 1
            (paths if is_all else globs).append(_absolute(entry) if is_all else _literally(_absolute(entry)))
        return Selection(paths=tuple(paths), globs=tuple(globs), hunks=hunks)


def _absolute(entry: ListEntry) -> bytes:
    return entry.root if entry.path == b"." else entry.root + b"/" + entry.path


def _literally(path: bytes) -> bytes:
    return b"".join(b"[%c]" % byte if byte in b"*?[" else bytes([byte]) for byte in path)


def _only(changes: ChangeSet, paths: dict[bytes, set[bytes]]) -> ChangeSet:
    return changes.replace(
        roots=tuple(
            RootChanges(root=part.root, changes=tuple(one for one in part.changes if one.path in paths[part.root]))
            for part in changes.roots
        )
    )


def carry(old: Picks, new: Picks, same: Iterable[tuple[int, int]]) -> None:
    """Take over what was picked in one list into another, for entries that are the same in both."""
    for before, after in same:
        new.state[after] = old.state[before]
        new.kept[after] = old.kept[before]
        for found, to in _by_place(old, new):
            if before in found:
                to[after] = found[before]
        if before in old.overwritten:
            new.overwritten.add(after)


def _by_place(old: Picks, new: Picks) -> Iterator[tuple[dict[int, Any], dict[int, Any]]]:
    yield old.lines, new.lines
    yield old.digests, new.digests
    yield old.consents, new.consents
    yield old.sides, new.sides
    yield old.merges, new.merges
