# SPDX-License-Identifier: Apache-2.0
"""The oracle's operations: which entries change hands in an apply, and which go back when it is taken back."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tests.kernel.round_trip_tree import ROOT, Difference, Layer, Node, Tree, ancestors, below, fill, has_moved, parent


@dataclass(frozen=True)
class Hand:
    """One entry that changed hands. `is_dress`: a directory that stayed and looks otherwise."""

    path: bytes
    before: Node | None
    after: Node | None
    group: int
    is_dress: bool = False


@dataclass(eq=False)
class Done:
    """One operation; `of` is the one that it reverses, `closed` are directories that it opened and closed again.

    `layers` are those that it took out of the stack, `rest` the one that holds what stayed. `is_asked`: a person asked
    for it, so undo holds its changes again. `dropped` are the paths of a discard, None for all. `again` is held since.
    """

    number: int
    hands: list[Hand]
    closed: dict[bytes, Node]
    of: "Done | None" = None
    left: set[bytes] = field(default_factory=set)
    layers: list[Layer] = field(default_factory=list)
    rest: Layer | None = None
    is_asked: bool = False
    is_discard: bool = False
    dropped: set[bytes] | None = None
    again: list[Layer] = field(default_factory=list)

    @property
    def first(self) -> "Done":
        """The operation that this one, or what it reverses, began with."""
        return self if self.of is None else self.of.first

    @property
    def origin(self) -> int:
        """The number of the operation in whose place the displaced entries lie."""
        return self.number if self.of is None else self.of.origin

    @property
    def is_undo(self) -> bool:
        """Tell whether it took something back that was not taken back before."""
        return self.of is not None and not self.of.is_undo


class ApplyHands:
    """The hands of one apply, decided before the first of them is played. `moved` are changes in other directories."""

    def __init__(
        self, live: Tree, mark_of: Callable[[bytes], int], overwrite: frozenset[bytes], moved: Collection[bytes]
    ) -> None:
        self._live = live
        self._mark_of = mark_of
        self._overwrite = overwrite
        self._moved = moved
        self._gone: set[bytes] = set()
        self._made: set[bytes] = set()
        self._blocked: set[bytes] = set()
        self._group = 0
        self._takes: list[Hand] = []
        self._puts: list[Hand] = []
        self._dresses: list[Hand] = []
        self.left: set[bytes] = set()

    @property
    def hands(self) -> list[Hand]:
        return [*self._takes, *self._puts, *self._dresses]

    def add(self, change: Difference) -> None:
        self._group += 1
        path, new = change.path, change.new
        if any(above in self._blocked for above in ancestors(path)) or not self._has_place(path):
            self.left.add(path)
        elif new is None:
            self._delete(path)
        elif new.kind == "special":
            self.left.add(path)
        elif new.is_dir:
            self._directory(path, new)
        else:
            self._leaf(path, new)

    def play(self, now: int) -> None:
        for hand in self.hands:
            if hand.after is None:
                del self._live[hand.path]
            else:
                self._live[hand.path] = hand.after
                hand.after.changed = now
                if hand.after.is_dir and not hand.is_dress:
                    hand.after.made = hand.after.filled = now
        for hand in self.hands:
            above = self._live.get(parent(hand.path))
            if above is not None and not hand.is_dress:
                fill(above, now)
        for hand in self.hands:
            if hand.is_dress:
                self._live[hand.path].filled = now - 1

    def _has_place(self, path: bytes) -> bool:
        above = parent(path)
        if path == ROOT or above in self._made:
            return True
        return above in self._live and self._live[above].is_dir

    def _find(self, path: bytes) -> Node | None:
        return None if path in self._gone else self._live.get(path)

    def _is_edited(self, path: bytes) -> bool:
        return self._live[path].changed > self._mark_of(path) and not is_below_any(path, self._overwrite)

    def _is_moved(self, path: bytes) -> bool:
        return path in self._moved and not is_below_any(path, self._overwrite)

    def _edited_in(self, path: bytes) -> set[bytes]:
        """Return what is not older of a live directory and all in it; of filled directories those that were moved."""
        there = [path, *below(self._live, path)]
        edited = {inner for inner in there if self._is_edited(inner)}
        filled = {parent(inner) for inner in there}
        moved = {inner for inner in edited & filled if has_moved(self._live[inner], self._mark_of(inner))}
        return (edited - filled) | {inner for inner in there if is_below_any(inner, moved)}

    def _take(self, path: bytes) -> None:
        self._takes.append(Hand(path, self._live[path], None, self._group))
        self._gone.add(path)

    def _delete(self, path: bytes) -> None:
        found = self._find(path)
        if found is None:
            return
        if self._is_moved(path):
            self.left.add(path)
            return
        kept: set[bytes] = set()
        edited = self._edited_in(path)
        for inner in reversed([path, *(below(self._live, path) if found.is_dir else ())]):
            self._group += 1
            if inner not in kept and inner not in edited:
                self._take(inner)
                continue
            if inner not in kept:
                self.left.add(inner)
            kept |= set(ancestors(inner))

    def _leaf(self, path: bytes, new: Node) -> None:
        found = self._find(path)
        after = new.copy(mode=new.mode & 0o777)
        if found is not None and self._is_moved(path):
            self.left.add(path)
            return
        if found is not None and found.is_dir:
            if self._edited_in(path):
                self.left.add(path)
                return
            for inner in reversed([path, *below(self._live, path)]):
                self._take(inner)
            found = None
        elif found is not None and self._is_edited(path):
            self.left.add(path)
            return
        self._puts.append(Hand(path, found, after, self._group))

    def _directory(self, path: bytes, new: Node) -> None:
        found = self._find(path)
        if found is not None and found.is_dir:
            mode = new.mode & 0o777 | found.mode & 0o7000
            after = found.edited(found.changed, mode=mode, attributes=dict(new.attributes))
            if not self._is_edited(path) and not self._is_moved(path):
                self._dresses.append(Hand(path, found, after, self._group, is_dress=True))
            elif after.look() != found.look():
                self.left.add(path)
            return
        if found is not None:
            if self._is_edited(path) or self._is_moved(path):
                self.left.add(path)
                self._blocked.add(path)
                return
            self._take(path)
        self._puts.append(Hand(path, None, new.copy(mode=new.mode & 0o777), self._group))
        self._made.add(path)


class ReversedHands:
    """The hands of an operation, played backwards as far as nothing else was done there since."""

    def __init__(self, live: Tree, backup: set[tuple[int, Node]], done: Done, now: int, *, has_copies: bool) -> None:
        self._origin = done.origin
        self._has_copies = has_copies
        self._live = live
        self._open = {path for path, node in done.closed.items() if path in live and is_same_dir(live[path], node)}
        self._backup = backup
        self._now = now
        self._failed: set[int] = set()
        # Directories that were tried, with whether they had only been filled before
        self.attempted: list[tuple[Node, bool]] = []
        self.hands: list[Hand] = []
        self.left: set[bytes] = set()

    def play(self, hand: Hand) -> None:
        if hand.group in self._failed:
            return
        if hand.is_dress and _look_same(hand):
            return
        if not self._fits(hand):
            self._note_attempt(hand)
            self._failed.add(hand.group)
            self.left.add(hand.path)
            for other in [other for other in reversed(self.hands) if other.group == hand.group]:
                self._put(other.path, other.before, is_dress=other.is_dress)
                self.hands.remove(other)
            return
        there = self._live.get(hand.path)
        back = hand.before
        if hand.is_dress:
            assert there is not None
            assert back is not None
            back = there.edited(self._now, mode=back.mode, attributes=dict(back.attributes))
        self._put(hand.path, back, is_dress=hand.is_dress)
        if hand.is_dress:
            self._open.add(hand.path)
        self.hands.append(Hand(hand.path, there, back, hand.group, hand.is_dress))

    def _fits(self, hand: Hand) -> bool:
        path, there, after = hand.path, self._live.get(hand.path), hand.after
        # Another reversal may have brought it back already, unless what it brings back are copies
        if hand.before is not None and not hand.is_dress and not self._is_kept(hand.before) and not self._has_copies:
            return False
        above = self._live.get(parent(path)) if path != ROOT else self._live[ROOT]
        if above is None or not above.is_dir or (is_closed(above) and not hand.is_dress and not self._can_open(path)):
            return False
        if after is None or there is None:
            return after is there
        if not after.is_dir:
            return there is after
        return is_same_dir(there, after) and (hand.is_dress or not below(self._live, path))

    def _is_kept(self, node: Node) -> bool:
        """Tell whether an entry lies where the operation has put it aside."""
        return (self._origin, node) in self._backup

    def _note_attempt(self, hand: Hand) -> None:
        """A directory that turns out not to be empty was undressed by then, and the one above it opened."""
        there, above = self._live.get(hand.path), self._live.get(parent(hand.path))
        if hand.after is None or there is None or above is None or not is_same_dir(there, hand.after):
            return
        self._attempt(there)
        if is_closed(above) and self._can_open(hand.path):
            self._attempt(above)

    def _attempt(self, directory: Node) -> None:
        self.attempted.append((directory, directory.changed == directory.filled))
        directory.changed = self._now

    def _can_open(self, path: bytes) -> bool:
        """Tell whether the operation itself had opened the directory of an entry, and nobody changed it since."""
        return parent(path) in self._open

    def _put(self, path: bytes, node: Node | None, *, is_dress: bool) -> None:
        if not is_dress:
            there = self._live.get(path)
            if there is not None:
                self._backup.add((self._origin, there))
            if node is not None:
                self._backup.discard((self._origin, node))
        if node is None:
            del self._live[path]
        else:
            self._live[path] = node
            node.changed = self._now
            if node.is_dir and not is_dress:
                self._open.add(path)
        if not is_dress:
            fill(self._live[parent(path)], self._now)


def is_closed(node: Node) -> bool:
    """Tell whether a directory is one that its owner may not change."""
    return node.is_dir and node.mode & 0o300 != 0o300


def is_same_dir(first: Node, second: Node) -> bool:
    return first.is_dir and first.inode == second.inode and first.look() == second.look()


def _look_same(hand: Hand) -> bool:
    return hand.before is not None and hand.after is not None and hand.before.look() == hand.after.look()


def is_below_any(path: bytes, tops: Collection[bytes]) -> bool:
    return path in tops or ROOT in tops or any(above in tops for above in ancestors(path))
