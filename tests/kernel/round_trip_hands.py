# SPDX-License-Identifier: Apache-2.0
"""The oracle's operations: which entries change hands in an apply, and which go back when it is taken back."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tests.kernel.round_trip_tree import (
    ANY_TIME,
    ROOT,
    Difference,
    Layer,
    Node,
    Tree,
    ancestors,
    are_same,
    below,
    parent,
)
from tests.model.model import Conflict, merge_data

Bases = dict[bytes, Node | None]


@dataclass(frozen=True)
class Hand:
    """One entry that changed hands. `is_dress`: a directory that stayed and looks otherwise."""

    path: bytes
    before: Node | None
    after: Node | None
    group: int
    is_dress: bool = False


@dataclass(frozen=True)
class Held:
    """A held change: what it makes of a path, None for a deletion, and from what; `bases` are also of what is in it.

    A directory that runs only wrote in has no base.
    """

    path: bytes
    node: Node | None
    bases: Bases

    @property
    def is_back(self) -> bool:
        """Tell whether it makes what it was made from, so that there is nothing to hold."""
        is_dir = self.node is not None and self.node.is_dir
        return self.path in self.bases and not is_dir and are_same(self.node, self.bases[self.path])


@dataclass(eq=False)
class Done:
    """One operation; `of` is the one that it reverses, `closed` are directories that it opened and closed again.

    `held` is what was held before it and after it, by path, where that differs. `layers` are those that it took out of
    the stack, and `rest` is the one that it made. `is_asked`: a person asked for this apply, so later edits are in its
    way. `is_whole`: it took layers as they are, with `bases`, or put those back that are in `again`.
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
    is_whole: bool = False
    bases: Bases = field(default_factory=dict)
    again: list[Layer] = field(default_factory=list)
    held: dict[bytes, tuple[Held | None, Held | None]] = field(default_factory=dict)

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
    """The hands of one apply, decided before the first of them is played. `bases` are what the runs saw."""

    def __init__(self, live: Tree, bases: Mapping[bytes, Node | None], overwrite: frozenset[bytes]) -> None:
        self._live = live
        self._bases = bases
        self._overwrite = overwrite
        self._gone: set[bytes] = set()
        self._made: set[bytes] = set()
        # Directories that runs only wrote in, and that are gone: made again for what goes into them
        self._deleted: dict[bytes, Node] = {}
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

    def play(self) -> None:
        for hand in self.hands:
            if hand.after is None:
                del self._live[hand.path]
            else:
                self._live[hand.path] = hand.after

    def _has_place(self, path: bytes) -> bool:
        above = parent(path)
        if path == ROOT or above in self._made or above in self._deleted:
            return True
        return above in self._live and self._live[above].is_dir

    def _find(self, path: bytes) -> Node | None:
        return None if path in self._gone else self._live.get(path)

    def _wins(self, path: bytes) -> bool:
        return is_below_any(path, self._overwrite)

    def _is_base(self, path: bytes) -> bool:
        """Tell whether a live entry is what the first of the runs saw."""
        return self._wins(path) or (path in self._bases and are_same(self._live[path], self._bases[path]))

    def _edited_in(self, path: bytes) -> set[bytes]:
        """Return what is not as the runs saw it of a live directory and all in it."""
        return {inner for inner in (path, *below(self._live, path)) if not self._is_base(inner)}

    def _take(self, path: bytes) -> None:
        self._takes.append(Hand(path, self._live[path], None, self._group))
        self._gone.add(path)

    def _put(self, path: bytes, before: Node | None, after: Node) -> None:
        for above in reversed(ancestors(path)):
            if above in self._deleted:
                self._puts.append(Hand(above, None, self._deleted.pop(above), self._group))
                self._made.add(above)
        self._puts.append(Hand(path, before, after, self._group))

    def _delete(self, path: bytes) -> None:
        found = self._find(path)
        if found is None:
            return
        base = self._bases.get(path)
        if not self._wins(path) and (base is None or (found.is_dir and not base.is_dir)):
            self.left.add(path)
            return
        kept: set[bytes] = set()
        edited = self._edited_in(path) if found.is_dir else {path} if not self._is_base(path) else set()
        for inner in reversed([path, *(below(self._live, path) if found.is_dir else ())]):
            self._group += 1
            if inner not in kept and inner not in edited:
                self._take(inner)
                continue
            if inner not in kept:
                self.left.add(inner)
            kept |= set(ancestors(inner))

    def _leaf(self, path: bytes, new: Node) -> None:
        found, base = self._find(path), self._bases.get(path, new)
        after = new.copy(mode=new.mode & 0o777)
        if found is None:
            if base is not None and not self._wins(path):
                self.left.add(path)
                return
        elif found.is_dir:
            if self._edited_in(path):
                self.left.add(path)
                return
            for inner in reversed([path, *below(self._live, path)]):
                self._take(inner)
            found = None
        elif not self._is_base(path):
            merged = after if are_same(found, after) else merge(base, found, after)
            if merged is None or are_same(merged, found):
                self.left |= {path} if merged is None else set()
                return
            after = merged
        self._put(path, found, after)

    def _directory(self, path: bytes, new: Node) -> None:
        found, base = self._find(path), self._bases.get(path)
        if found is not None and found.is_dir:
            mode = new.mode & 0o777 | found.mode & 0o7000
            after = found.edited(mode=mode, attributes=dict(new.attributes))
            if self._is_base(path):
                self._dresses.append(Hand(path, found, after, self._group, is_dress=True))
            elif after.look() != found.look():
                self.left.add(path)
            return
        made = new.copy(mode=new.mode & 0o777)
        if found is None and path not in self._bases:
            self._deleted[path] = made
            return
        is_deleted = found is None and base is not None and base.is_dir and not self._wins(path)
        if is_deleted or (found is not None and not self._is_base(path)):
            self.left.add(path)
            self._blocked.add(path)
            return
        if found is not None:
            self._take(path)
        self._put(path, None, made)
        self._made.add(path)


def merge(base: Node | None, ours: Node, theirs: Node) -> Node | None:
    """Return what a file gets of both sides, bits and content each on their own; None where that can't be."""
    if base is None or {base.kind, ours.kind, theirs.kind} != {"file"} or ours.attributes != theirs.attributes:
        return None
    if ours.mode in (base.mode, theirs.mode):
        mode = theirs.mode
    elif theirs.mode == base.mode & 0o777:
        mode = ours.mode
    else:
        return None
    try:
        content = merge_data("file", base.content, ours.content, theirs.content, "")
    except Conflict:
        return None
    return theirs.copy(mode=mode, content=content, mtime=ANY_TIME)


class ReversedHands:
    """The hands of an operation, played backwards as far as nothing else was done there since."""

    def __init__(self, live: Tree, backup: set[tuple[int, Node]], done: Done, *, has_copies: bool) -> None:
        self._origin = done.origin
        self._has_copies = has_copies
        self._live = live
        self._open = {path for path, node in done.closed.items() if path in live and is_same_dir(live[path], node)}
        self._backup = backup
        self._may_merge = not done.first.is_asked
        # What a person asked for is held again by an undo, so it must be there
        self._may_be_done = self._may_merge or done.is_undo
        self._failed: set[int] = set()
        # The first path of each group of which somebody else has done something already
        self._settled: dict[int, bytes] = {}
        self.hands: list[Hand] = []
        self.left: set[bytes] = set()
        self._is_empty = not done.hands

    @property
    def is_needless(self) -> bool:
        """Tell whether somebody else has done some of it already, or there was nothing to do."""
        return self._is_empty or bool(self._settled)

    def play(self, hand: Hand) -> None:
        if hand.group in self._failed or (hand.is_dress and _look_same(hand)):
            return
        there, back = self._live.get(hand.path), hand.before
        is_done, fits = self._is_done(hand), self._fits(hand)
        if not fits and not is_done:
            back = self._merged(hand)
            is_done = back is not None and are_same(back, there)
        is_begun = any(other.group == hand.group for other in self.hands)
        if is_done and not is_begun:
            self._settled.setdefault(hand.group, hand.path)
            return
        if is_done or hand.group in self._settled or (not fits and back is None):
            # All of a group is to be done, or nothing
            self.left.add(self._settled.pop(hand.group, hand.path))
            self._give_up(hand)
            return
        if hand.is_dress:
            assert there is not None
            assert back is not None
            back = there.edited(mode=back.mode, attributes=dict(back.attributes))
        self._put(hand.path, back, is_dress=hand.is_dress)
        if hand.is_dress:
            self._open.add(hand.path)
        self.hands.append(Hand(hand.path, there, back, hand.group, hand.is_dress))

    def _give_up(self, hand: Hand) -> None:
        """Leave all that changed hands together with an entry."""
        self._failed.add(hand.group)
        for other in [other for other in reversed(self.hands) if other.group == hand.group]:
            self._put(other.path, other.before, is_dress=other.is_dress)
            self.hands.remove(other)

    def _is_done(self, hand: Hand) -> bool:
        """Tell whether the project has already what the reversal would put there, or lacks what it would remove."""
        there, before, after = self._live.get(hand.path), hand.before, hand.after
        if hand.is_dress or (after is not None and are_same(there, after)):
            return False
        if before is not None and before.is_dir:
            return after is None and there is not None and there.is_dir
        return (after is None or self._may_be_done) and after is not before and are_same(there, before)

    def _fits(self, hand: Hand) -> bool:
        path, there, after = hand.path, self._live.get(hand.path), hand.after
        if not self._has_place(hand):
            return False
        if after is None or there is None:
            return after is there
        if after.kind == "symlink":
            return there is after
        if not after.is_dir:
            # Attributes that somebody took away are nobody's text
            return are_same(there, after) or (not there.attributes and are_same(there, after.copy(attributes={})))
        return is_same_dir(there, after) and (hand.is_dress or not below(self._live, path))

    def _has_place(self, hand: Hand) -> bool:
        path, before = hand.path, hand.before
        # Another reversal may have brought it back already, unless what it brings back are copies
        if before is not None and not hand.is_dress and not self._is_kept(before) and not self._has_copies:
            return False
        above = self._live.get(parent(path)) if path != ROOT else self._live[ROOT]
        return above is not None and above.is_dir and (not is_closed(above) or hand.is_dress or self._can_open(path))

    def _merged(self, hand: Hand) -> Node | None:
        """Return what a file gets that was edited since a run was applied by itself."""
        there, before = self._live.get(hand.path), hand.before
        if not self._may_merge or there is None or before is None or not self._has_place(hand):
            return None
        return merge(hand.after, there, before)

    def _is_kept(self, node: Node) -> bool:
        """Tell whether an entry lies where the operation has put it aside."""
        return (self._origin, node) in self._backup

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
            if node.is_dir and not is_dress:
                self._open.add(path)


def is_closed(node: Node) -> bool:
    """Tell whether a directory is one that its owner may not change."""
    return node.is_dir and node.mode & 0o300 != 0o300


def is_same_dir(first: Node, second: Node) -> bool:
    return first.is_dir and first.inode == second.inode and first.look() == second.look()


def _look_same(hand: Hand) -> bool:
    return hand.before is not None and hand.after is not None and hand.before.look() == hand.after.look()


def is_below_any(path: bytes, tops: Collection[bytes]) -> bool:
    return path in tops or ROOT in tops or any(above in tops for above in ancestors(path))
