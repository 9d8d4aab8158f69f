# SPDX-License-Identifier: Apache-2.0
"""What runs, applies, undos and discards must do, told from full copies of the live tree and of every layer.

The rules, none of which is taken from the code:

- The view is what the kernel shows of the held layers over the live tree: a person's edit shows where no run touched
  the path, and is hidden where one did.
- `apply(selection)`: for each chosen change, and the new directories above it, the live entry becomes what the view
  has, unless a person changed it since the first held run that touched it began. Then it is a conflict: the live entry
  and the view stay. The moment counts, not the content: writing the same bytes again is an edit.
- A directory goes entry by entry: what a person made or changed in it stays, and so does what is above that. What
  takes the place of a directory takes the place of all of it or of nothing.
- Devices, FIFOs and links that lead out of the project stay in the view. Special bits are not applied, and those of a
  live directory stay.
- An applied path is not held any more: there the view is the live tree, whatever becomes of it. All else is held by
  one new layer, which hides as little as can be.
- `undo(operation)`, of whichever: each entry goes back to what the operation displaced, the very same, unless it is
  not any more what the operation put there. Entries that changed hands together go back together. An undo is an
  operation itself: undone, it brings back what it displaced.
- What a person asked to be applied is held again when that is undone, as far as it went back: above what stayed held,
  below what later runs hold. Doing it again takes it out once more, unless something else did so since.
- `discard(selection)`: the chosen changes are not held any more, but for the new directories that others lie in. It is
  an operation: undone, they are held again where they were.

- A directory that its owner may not change is opened for an apply and closed again, and for an undo where the
  operation had opened it too. Where somebody closed it since, what is in it stays.

Where moments can't tell, the oracle is as careful as the program must be:

- A directory's own moment is also that of any entry that came or went in it, so its bits and attributes are in
  conflict when a person made something there. That asks once too often and loses nothing.
- A file that a person deleted leaves no moment: what the run made of it is applied. Nothing of the person's is lost.
- Where the project is on another mount than the state, something comes and goes in the root itself at the very end, so
  bits and attributes of the root that are still held are in conflict.
- What a person moves along with its directory is as old as it was. But the directory is not: one that is new, or whose
  own moment is later than that of its entries, may be another one, so what a run changed or deleted in it is in
  conflict. That is also so if somebody only gave it other bits.
- A directory's bits and attributes alone do not keep it: where a run deleted it and all in it is older, it goes. An
  empty one that is not older stays, since a person may have made it.
"""

from tests.kernel.round_trip_hands import ApplyHands, Done, Hand, ReversedHands, is_below_any, is_closed
from tests.kernel.round_trip_inside import Operation
from tests.kernel.round_trip_run import LiveEdit, RunEdit
from tests.kernel.round_trip_tree import (
    ROOT,
    Difference,
    Layer,
    Node,
    Tree,
    ancestors,
    differences,
    fold,
    has_moved,
    parent,
)

OUTSIDE = b"/outside"


class Oracle:
    """The live tree, the held layers, and everything that was done."""

    def __init__(self, *, is_elsewhere: bool = False) -> None:
        self._is_elsewhere = is_elsewhere
        self.clock = 1
        self.live: Tree = {ROOT: Node("dir", 0o755)}
        self.stack: list[Layer] = []
        self.done: list[Done] = []
        self._backup: set[tuple[int, Node]] = set()
        self._places = 0

    def view(self) -> Tree:
        return fold(self.stack, self.live)

    def changes(self) -> list[Difference]:
        return differences(self.live, self.view())

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def edit(self, operations: list[Operation]) -> None:
        """Let a person edit the live tree."""
        for operation in operations:
            LiveEdit(self.live, self.tick()).play(operation)

    def begin_run(self) -> RunEdit:
        return RunEdit(self.stack, self.live, self.tick())

    def hold(self, run: RunEdit) -> None:
        """Keep the layer of a run that changed anything."""
        if differences(self.view(), run.view()):
            run.layer.place = self._next_place()
            self.stack.append(run.layer)

    def _next_place(self) -> float:
        self._places += 1
        return float(self._places)

    def apply(self, chosen: set[bytes] | None, overwrite: frozenset[bytes] = frozenset()) -> Done | None:
        """Apply the changes at or below the chosen paths, by default all; None where nothing came of it."""
        changes = self.changes()
        wanted = {change.path for change in changes if chosen is None or is_below_any(change.path, chosen)}
        return self._apply(changes, wanted | _made_above(changes, wanted), overwrite, is_asked=True)

    def apply_run(self, layer: Layer) -> Done | None:
        """Apply what the topmost layer changed, with the new directories above, where no other one decides as well."""
        if layer not in self.stack:
            return None
        others = [other for other in self.stack if other is not layer]
        changes = self.changes()
        if not others:
            return self._apply(changes, {change.path for change in changes}, frozenset())
        mine = {change.path for change in differences(self.live, fold([layer], self.live))}
        theirs = {change.path for change in differences(self.live, fold(others, self.live))}
        both = mine & (theirs | {above for path in theirs for above in ancestors(path)})
        wanted = mine - both
        return self._apply(changes, wanted | _made_above(changes, wanted), frozenset())

    def _apply(
        self, changes: list[Difference], wanted: set[bytes], overwrite: frozenset[bytes], *, is_asked: bool = False
    ) -> Done | None:
        held, layers = _held(changes), list(self.stack)
        left = wanted & held
        chosen = [change for change in changes if change.path in wanted - held]
        draft = ApplyHands(self.live, self._mark_of, overwrite, self._moved(changes))
        for change in chosen:
            draft.add(change)
        left |= draft.left
        if not draft.hands:
            if not left and wanted.issuperset(change.path for change in changes):
                # Nothing of it differs from the live tree
                self.stack = []
            return None
        now = self.tick()
        taken = {change.path for change in chosen} - left
        # What is left of a directory that gives way stands for the whole of it
        above = {path for one in left for path in ancestors(one)}
        remaining = [
            change
            for change in changes
            if change.path not in taken or (change.path in above and change.kind == "deleted")
        ]
        view, edited = self.view(), self._edited(remaining)
        draft.play(now)
        number = len(self.done) + 1
        self._backup |= {(number, hand.before) for hand in draft.hands if hand.before is not None}
        self._keep(remaining, view, edited)
        recorded = self._record(draft.hands, left)
        if recorded is not None:
            recorded.layers, recorded.is_asked = layers, is_asked
            recorded.rest = self.stack[0] if self.stack else None
        return recorded

    def discard(self, chosen: set[bytes] | None) -> Done | None:
        """Hold the chosen changes no more."""
        layers, changes = list(self.stack), self.changes()
        if not layers:
            return None
        dropped: set[bytes] | None = None
        if chosen is None:
            self.stack = []
        else:
            kept = {change.path for change in changes if not is_below_any(change.path, chosen)}
            kept |= _made_above(changes, kept)
            dropped = {change.path for change in changes if is_below_any(change.path, chosen)}
            if len(kept) == len(changes):
                return None
            remaining = [change for change in changes if change.path in kept]
            self._keep(remaining, self.view(), self._edited(remaining))
        rest = self.stack[0] if self.stack else None
        return self._add(Done(0, [], {}, layers=layers, rest=rest, is_discard=True, dropped=dropped))

    def _add(self, done: Done) -> Done:
        self.tick()
        done.number = len(self.done) + 1
        self.done.append(done)
        return done

    def _mark_of(self, path: bytes, stack: list[Layer] | None = None) -> int:
        """Return when the first held run that touched a path began."""
        layers = self.stack if stack is None else stack
        for layer in layers:
            if layer.has_a_say(path):
                return layer.mark_of(path)
        return layers[0].mark_of(path)

    def _moved(self, changes: list[Difference], stack: list[Layer] | None = None) -> set[bytes]:
        """Return the changes in, or of, a directory that may not be the one that the first of their runs saw."""
        found = set()
        for change in changes:
            mark = self._mark_of(change.path, stack)
            is_dir = change.old is not None and change.old.is_dir
            above = [node for path in ancestors(change.path) if (node := self.live.get(path)) is not None]
            directories = [*([change.old] if is_dir and change.path != ROOT else []), *above]
            if any(node is not None and node.is_dir and has_moved(node, mark) for node in directories):
                found.add(change.path)
        return found

    def _edited(self, changes: list[Difference], stack: list[Layer] | None = None) -> dict[bytes, int]:
        """Return the marks of those paths that are in conflict, or that hide a directory which may have such ones."""
        kept = {}
        moved = self._moved(changes, stack)
        for change in changes:
            node, mark = self.live.get(change.path), self._mark_of(change.path, stack)
            hides = node is not None and node.is_dir and (change.new is None or not change.new.is_dir)
            if node is not None and (node.changed > mark or hides or change.path in moved):
                kept[change.path] = mark
        return kept

    def _keep(self, remaining: list[Difference], view: Tree, older: dict[bytes, int]) -> None:
        """Hold these changes in one layer in place of all others."""
        self.stack = []
        if remaining:
            self.stack = [self._layer_of(remaining, view, older)]
            self.stack[0].place = self._next_place()

    def _layer_of(self, remaining: list[Difference], view: Tree, older: dict[bytes, int]) -> Layer:
        """Return a layer that holds these changes and hides nothing else."""
        entries: dict[bytes, Node | None] = {}
        for change in remaining:
            for above in (ROOT, *reversed(ancestors(change.path))):
                if above not in entries:
                    found = self.live.get(above)
                    entries[above] = (found if found is not None and found.is_dir else view[above]).copy()
            entries[change.path] = change.new
        return Layer(self.tick(), entries, older=older)

    def _hold_again(self, done: Done, paths: set[bytes], *, is_renewed: bool) -> list[Layer]:
        """Hold changes again that an operation took out: above what stayed then, below what came later."""
        view = fold(done.layers, self.live)
        changes = [change for change in differences(self.live, view) if change.path in paths]
        if not changes:
            return []
        layer = self._layer_of(changes, view, {} if is_renewed else self._edited(changes, done.layers))
        below = [*done.layers, *([done.rest] if done.rest in self.stack and done.rest is not None else [])]
        layer.place = max(other.place for other in below)
        above = sorted(other.place for other in self.stack if other.place > layer.place)
        if any(other.place == layer.place for other in self.stack):
            layer.place = (layer.place + above[0]) / 2 if above else self._next_place()
        self._insert([layer])
        return [layer]

    def _insert(self, layers: list[Layer]) -> None:
        self.stack = sorted((*self.stack, *layers), key=lambda layer: layer.place)

    def active(self) -> list[Done]:
        """Return the operations that can be reversed: those that were not, or whose reversal was."""
        reversed_ones: set[int] = set()
        gone: set[int] = set()
        for done in reversed(self.done):
            if done.of is not None and done.number not in gone:
                reversed_ones.add(done.of.number)
                gone.add(done.of.number)
        return [done for done in self.done if done.number not in reversed_ones]

    def reverse(self, done: Done) -> Done | None:
        """Undo an operation; None where nothing of it could be."""
        if any(layer not in self.stack for layer in done.again) or self._is_done_again(done):
            return None
        taken = list(done.again)
        if done.first.is_discard:
            return self._reverse_discard(done, taken)
        back = ReversedHands(self.live, self._backup, done, self.tick(), has_copies=self._is_elsewhere)
        for hand in reversed(done.hands):
            back.play(hand)
        recorded = self._record(back.hands, back.left, of=done)
        if back.attempted and recorded is None:
            self._come_and_go_in_root()
            for directory, was_filled in reversed(back.attempted):
                # Nothing came of it, and the journal says so
                directory.filled = directory.changed if was_filled else directory.filled
        if recorded is not None:
            self.stack = [layer for layer in self.stack if layer not in taken]
            if recorded.is_undo and done.first.is_asked:
                paths = {hand.path for hand in done.hands} - back.left
                recorded.again = self._hold_again(done.first, paths, is_renewed=True)
        return recorded

    def _is_done_again(self, done: Done) -> bool:
        """Tell whether a discard of everything was undone and done again: then that is what can be undone."""
        is_whole = done.first.is_discard and done.first.dropped is None and not done.is_undo
        return is_whole and any(later.first is done.first and not later.is_undo for later in self.done[done.number :])

    def _reverse_discard(self, done: Done, taken: list[Layer]) -> Done:
        recorded = Done(0, [], {}, done, dropped=done.dropped)
        self.stack = [layer for layer in self.stack if layer not in taken]
        if recorded.is_undo:
            # A discard that was done again has taken what its undo had brought back
            source = done.first if done.of is None else done
            if done.first.dropped is None or done.of is not None:
                recorded.again = list(source.layers)
                self._insert(recorded.again)
            else:
                recorded.again = self._hold_again(done.first, done.first.dropped, is_renewed=False)
        else:
            recorded.layers = taken
        return self._add(recorded)

    def _come_and_go_in_root(self) -> None:
        """A root on another mount has the directory for what is staged in it until the end of an operation."""
        if self._is_elsewhere:
            self.live[ROOT].changed = self.tick()

    def _record(self, hands: list[Hand], left: set[bytes], of: Done | None = None) -> Done | None:
        self.tick()
        if not hands:
            return None
        moved = [hand for hand in hands if not hand.is_dress]
        if moved:
            self._come_and_go_in_root()
        places = {path for hand in moved for path in (hand.path, parent(hand.path))}
        if of is not None:
            # What was opened to be taken back, and could not be, was closed with it
            places -= left
        closed = {path: self.live[path] for path in places if path in self.live and is_closed(self.live[path])}
        for node in closed.values():
            # Closed again after the last entry had come or gone
            node.filled = node.changed - 1
        recorded = Done(len(self.done) + 1, hands, closed, of, left)
        self.done.append(recorded)
        return recorded


def _held(changes: list[Difference]) -> set[bytes]:
    """Return the links that lead out, and the new directories in which there is nothing else."""
    held = {change.path for change in changes if change.new is not None and change.new.content == OUTSIDE}
    for change in reversed(changes):
        if change.kind == "added" and change.new is not None and change.new.is_dir:
            inside = [other.path for other in changes if other.path.startswith(change.path + b"/")]
            if inside and held.issuperset(inside):
                held.add(change.path)
    return held


def _made_above(changes: list[Difference], paths: set[bytes]) -> set[bytes]:
    """Return the new directories above paths."""
    made = {change.path for change in changes if change.kind in ("added", "replaced")}
    return made & {above for path in paths for above in ancestors(path)}
