# SPDX-License-Identifier: Apache-2.0
"""What runs, applies, undos and discards must do, told from full copies of the live tree and of every layer.

The rules, none of which is taken from the code. A held change is a base, which is what the first run that changed the
path saw there, and a result. Content decides, never who wrote something or when; the time of a file is no content.

- The view is what the kernel shows of the held layers over the live tree: a person's edit shows where no run touched
  the path, and is hidden where one did.
- `apply(selection)`: for each chosen change, and the new directories above it, the live entry becomes what the view
  has if it is the base, and nothing is done if it is the result. Else both sides changed it: bits and lines of files
  merge, and all else is a conflict: the live entry and the view stay. What had a base and is gone was deleted.
- A directory goes entry by entry: what a person made or changed in it stays, and so does what is above that. What
  takes the place of a directory takes the place of all of it or of nothing.
- A directory that runs only wrote in is no change. Should it be gone, it is made again for what goes into it.
- Devices, FIFOs and links that lead out of the project stay in the view. Special bits are not applied, and those of a
  live directory stay.
- An applied path is not held any more: there the view is the live tree, whatever becomes of it. All else is held by
  one new layer, which hides as little as can be. What is as its base is not held, once no text of a held run is lost.
- `undo(operation)`, of whichever: each entry goes back to what the operation displaced, the very same, if it is as the
  operation left it, and stays if it went back already. Else files merge if a run was applied by itself; all other
  edits are conflicts, and so it is if what a person asked for is gone: it can't be held again. Entries that changed
  hands together go back together. A directory or link that somebody made anew is another one. An undo is an operation
  itself: undone, it brings back what it displaced.
- What an operation changed of what is held goes back with it, path by path: to what was held before, or to nothing.
  What a later run holds there stays, made from what is restored beneath it or put into the project. What was applied
  or discarded since stays so; of an apply that a person asked for nothing is done again then.
- `discard(selection)`: the chosen changes are not held any more, but for the new directories that others lie in. It is
  an operation: undone, they are held again where they were.
- A directory that its owner may not change is opened for an apply and closed again, and for an undo where the
  operation had opened it too. Where somebody closed it since, what is in it stays.
"""

from tests.kernel.round_trip_hands import (
    ApplyHands,
    Bases,
    Done,
    Hand,
    Held,
    ReversedHands,
    is_below_any,
    is_closed,
)
from tests.kernel.round_trip_inside import Operation
from tests.kernel.round_trip_run import LiveEdit, RunEdit
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
    differences,
    fold,
    order,
    parent,
)

OUTSIDE = b"/outside"
# The base where the run saw something else than was live
UNSEEN = Node("unseen")


class Oracle:
    """The live tree, the held layers with the bases of their changes, and everything that was done."""

    def __init__(self, *, is_elsewhere: bool = False) -> None:
        self._is_elsewhere = is_elsewhere
        self.live: Tree = {ROOT: Node("dir", 0o755)}
        self.stack: list[Layer] = []
        self._bases: Bases = {}
        self.done: list[Done] = []
        self._backup: set[tuple[int, Node]] = set()
        self._places = 0

    def view(self) -> Tree:
        return fold(self.stack, self.live)

    def changes(self) -> list[Difference]:
        return self._changes_of(self.stack)

    def _changes_of(self, stack: list[Layer]) -> list[Difference]:
        """Return what layers change; a directory that runs only wrote in is no change, unless something is in it."""
        found = differences(self.live, fold(stack, self.live))
        return [change for change in found if change.path in self._bases or not _is_left_over(change, found)]

    def edit(self, operations: list[Operation]) -> None:
        """Let a person edit the live tree."""
        for operation in operations:
            LiveEdit(self.live).play(operation)

    def begin_run(self) -> RunEdit:
        return RunEdit(self.stack, self.live)

    def hold(self, run: RunEdit, *, must_stay: bool = False) -> None:
        """Keep the layer of a run that changed anything. `must_stay`: new times of files count as well."""
        before, after = self.view(), run.view()
        if not differences(before, after):
            return
        changed = {path for path in {*before, *after} if not are_same(before.get(path), after.get(path))}
        touched = {path for path in before if path in after and before[path].look() != after[path].look()}
        for path in changed | (touched if must_stay else set()):
            self._bases.setdefault(path, self._seen_at(path, before))
        run.layer.place = self._next_place()
        self.stack.append(run.layer)
        if not must_stay:
            self._drop_unchanged(run.layer, changed, after)

    def _seen_at(self, path: bytes, view: Tree) -> Node | None:
        """Return what a run saw of the live tree; a directory that held runs wrote in hides a file of the person's."""
        seen, live = view.get(path), self.live.get(path)
        if seen is None or live is None:
            return None
        return live if seen.is_dir == live.is_dir else UNSEEN

    def _drop_unchanged(self, layer: Layer, changed: set[bytes], after: Tree) -> None:
        """Hold nothing of files that a run did not change, or put back as they were before held runs."""
        if not changed:
            self.stack.remove(layer)
            return
        for path in changed:
            is_back = Held(path, after.get(path), self._bases).is_back
            is_hidden = any(one.hides(above) for one in self.stack for above in ancestors(path))
            lower = [one for one in self.stack[:-1] if path in one.entries]
            if is_back and not is_hidden and lower and not any(self._has_text(one, path) for one in lower):
                for one in self.stack:
                    one.remove(path)
                    self._drop_emptied(one, path, changed)
        for path in sorted(layer.entries, key=order, reverse=True):
            node = layer.entries[path]
            if node is None or path in (ROOT, *changed) or any(layer.hides(above) for above in ancestors(path)):
                continue
            if not node.is_dir or not (path in layer.opaque or below(layer.entries, path)):
                layer.remove(path)

    def _has_text(self, layer: Layer, path: bytes) -> bool:
        """Tell whether a layer has content at a path, or below it, that the base has not: no text is lost."""
        base = self._bases[path]
        nodes = [layer.entries[one] for one in (path, *below(layer.entries, path))]
        return any(
            node is not None and node.kind == "file" and node.content and (base is None or node.content != base.content)
            for node in nodes
        )

    def _drop_emptied(self, layer: Layer, path: bytes, changed: set[bytes]) -> None:
        """Take directories out of a layer that were only on the way to a path."""
        for above in ancestors(path):
            if above not in layer.entries or above in changed or above in self._bases or below(layer.entries, above):
                return
            layer.remove(above)

    def _next_place(self) -> float:
        self._places += 1
        return float(self._places)

    def apply(self, chosen: set[bytes] | None, overwrite: frozenset[bytes] = frozenset()) -> Done | None:
        """Apply the changes at or below the chosen paths, by default all; None where nothing came of it."""
        changes = self.changes()
        wanted = {change.path for change in changes if chosen is None or is_below_any(change.path, chosen)}
        return self._apply(changes, wanted | _made_above(changes, wanted), self._held(), overwrite, is_asked=True)

    def apply_run(self, run: RunEdit) -> Done | None:
        """Apply what a run changed, with the new directories above, where no held one decides as well."""
        others, held, layer = list(self.stack), self._held(), run.layer
        self.hold(run, must_stay=True)
        if layer not in self.stack:
            return None
        changes = self.changes()
        wanted = {change.path for change in changes}
        if others:
            mine = {change.path for change in differences(self.live, fold([layer], self.live))}
            earlier = fold(others, self.live)
            theirs = {change.path for change in differences(self.live, earlier)}
            gone = {path for path in theirs if path not in earlier or not earlier[path].is_dir}
            both = mine & (theirs | {above for path in theirs for above in ancestors(path)})
            both |= {path for path in mine if not gone.isdisjoint(ancestors(path))}
            wanted = mine - both
            wanted |= _made_above(changes, wanted)
        recorded = self._apply(changes, wanted, held, frozenset())
        if recorded is None and layer in self.stack:
            before, after = fold(others, self.live), self.view()
            changed = {path for path in {*before, *after} if not are_same(before.get(path), after.get(path))}
            self._drop_unchanged(layer, changed, after)
        return recorded

    def _apply(
        self,
        changes: list[Difference],
        wanted: set[bytes],
        held_before: dict[bytes, Held],
        overwrite: frozenset[bytes],
        *,
        is_asked: bool = False,
    ) -> Done | None:
        held, layers = _held_back(changes), list(self.stack)
        left = wanted & held
        chosen = [change for change in changes if change.path in wanted - held]
        draft = ApplyHands(self.live, self._bases, overwrite)
        for change in chosen:
            draft.add(change)
        left |= draft.left
        if not draft.hands:
            if not left and wanted.issuperset(change.path for change in changes):
                # Nothing of it differs from the live tree
                self._keep({})
            return None
        taken = {change.path for change in chosen} - left
        # What is left of a directory that gives way stands for the whole of it
        above = {path for one in left for path in ancestors(one)}
        items = self._held()
        remaining = {
            change.path: items[change.path]
            for change in changes
            if change.path in items
            and (change.path not in taken or (change.path in above and change.kind == "deleted"))
        }
        view = self.view()
        draft.play()
        number = len(self.done) + 1
        self._backup |= {(number, hand.before) for hand in draft.hands if hand.before is not None}
        self._keep(remaining, view)
        recorded = self._record(draft.hands, left)
        recorded.layers, recorded.is_asked = layers, is_asked
        self._note_held(recorded, held_before, {path: one for path, one in remaining.items() if not one.is_back})
        return recorded

    def discard(self, chosen: set[bytes] | None) -> Done | None:
        """Hold the chosen changes no more."""
        layers, changes, before = list(self.stack), self.changes(), self._held()
        if not layers:
            return None
        done = Done(0, [], {}, layers=layers, is_discard=True)
        if chosen is None:
            done.is_whole, done.bases = True, dict(self._bases)
            self._keep({})
        else:
            kept = {change.path for change in changes if not is_below_any(change.path, chosen)}
            kept |= _made_above(changes, kept)
            if len(kept) == len(changes):
                return None
            remaining = {path: held for path, held in before.items() if path in kept}
            self._keep(remaining, self.view())
            self._note_held(done, before, remaining)
        return self._add(done)

    def _note_held(self, done: Done, before: dict[bytes, Held], after: dict[bytes, Held]) -> None:
        done.rest = self.stack[0] if self.stack else None
        for path in {*before, *after}:
            if not _are_alike(before.get(path), after.get(path)):
                done.held[path] = before.get(path), after.get(path)

    def _add(self, done: Done) -> Done:
        done.number = len(self.done) + 1
        self.done.append(done)
        return done

    def _held(self) -> dict[bytes, Held]:
        """Return what is held by path, where it differs from the live tree."""
        found = {}
        for change in self.changes():
            is_known, node = change.path in self._bases, change.new
            if not is_known and node is not None and (node.is_dir if change.kind == "added" else not node.is_dir):
                # A directory on the way, or a file that was made again as it was
                continue
            gives_way = change.old is not None and change.old.is_dir and (change.new is None or not change.new.is_dir)
            inner = below(self._bases, change.path) if gives_way else ()
            bases = {path: self._bases[path] for path in (change.path, *inner) if path in self._bases}
            bases |= {change.path: None} if change.kind == "added" and not is_known else {}
            found[change.path] = Held(change.path, change.new, bases)
        return found

    def _keep(self, held: dict[bytes, Held], view: Tree | None = None) -> None:
        """Hold these changes in one layer in place of all others."""
        self.stack, self._bases = [], {}
        held = {path: one for path, one in held.items() if not one.is_back}
        if held:
            self._learn(held)
            layer = self._layer_of(held, view or {})
            layer.place = self._next_place()
            self.stack = [layer]

    def _learn(self, held: dict[bytes, Held]) -> None:
        for one in held.values():
            self._bases |= one.bases

    def _layer_of(self, held: dict[bytes, Held], view: Tree, beneath: Tree | None = None) -> Layer:
        """Return a layer that holds these changes and hides nothing else; `view` has directories that are needed."""
        entries: dict[bytes, Node | None] = {}
        for path in sorted(held, key=order):
            for above in (ROOT, *reversed(ancestors(path))):
                if above not in entries:
                    found = (beneath or self.live).get(above)
                    entries[above] = (found if found is not None and found.is_dir else view[above]).copy()
            entries[path] = held[path].node
        return Layer(entries)

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

    def newest_of(self, done: Done) -> Done:
        """Return the last undo or redo of an operation; a redo of an undo that was not complete has only a part."""
        newest = complete = done.first
        for one in self.done:
            if one.first is done.first and one.of is not None:
                newest = complete if not one.is_undo and newest.left else one
                complete = complete if one.is_undo else newest
        return newest

    def reverse(self, done: Done) -> Done | None:
        """Undo an operation; None where nothing of it could be."""
        done = self.newest_of(done)
        held_again = [path for path, (_was, left) in done.held.items() if left is not None]
        is_in_stack = all(any(path in layer.entries for layer in self.stack) for path in held_again)
        if done.first.is_asked and done.hands and not is_in_stack:
            return None
        if done.first.is_discard:
            recorded = self._add(Done(0, [], {}, done))
            self._reverse_discard(recorded, done)
            return recorded
        held_now = self._held()
        back = ReversedHands(self.live, self._backup, done, has_copies=self._is_elsewhere)
        for hand in reversed(done.hands):
            back.play(hand)
        if not back.hands and (back.left or not back.is_needless):
            return None
        recorded = self._record(back.hands, back.left, of=done)
        self._restore_held(recorded, done, held_now)
        return recorded

    def _reverse_discard(self, recorded: Done, done: Done) -> None:
        if done.again and done.again == self.stack:
            # What was given back as it was is taken as it is
            recorded.is_whole, recorded.layers, recorded.bases = True, list(self.stack), dict(self._bases)
            self._keep({})
        elif done.is_whole and recorded.is_undo:
            recorded.is_whole, recorded.again = True, list(done.layers)
            self._bases |= done.bases
            self._insert(recorded.again)
            recorded.held = {path: (None, held) for path, held in self._held_of(recorded.again).items()}
        else:
            self._restore_held(recorded, done, self._held())

    def _held_of(self, layers: list[Layer]) -> dict[bytes, Held]:
        stack, self.stack = self.stack, layers
        held = self._held()
        self.stack = stack
        return held

    def _restore_held(self, recorded: Done, done: Done, held_before: dict[bytes, Held]) -> None:
        """Hold what was held before an operation, path by path; `held_before` is what was held before its reversal."""
        must_fold = any(left is not None for _was, left in done.held.values())
        now = self._held() if must_fold else {}
        result = dict(now)
        for path in sorted(done.held, key=order):
            was, left = done.held[path]
            found = now.get(path)
            if path in recorded.left or (left is not None and self._is_gone(path, left, found, done)):
                continue
            was = self._as_it_went(was, recorded)
            if found is not None and not _are_alike(found, left):
                result[path] = self._made_from(found, was, recorded)
            elif was is None or _has_no_place(path, was, result):
                result.pop(path, None)
            else:
                result[path] = was
            held_then = held_before.get(path) if must_fold else None
            if not _are_alike(held_then, result.get(path)):
                recorded.held[path] = held_then, result.get(path)
        recorded.layers = list(self.stack) if must_fold else []
        view = fold([*done.layers, *self.stack], self.live)
        if must_fold:
            self._keep(result, view)
            recorded.rest = self.stack[0] if self.stack else None
        elif result:
            recorded.rest = self._insert_restored(result, view, done)

    def _insert_restored(self, result: dict[bytes, Held], view: Tree, done: Done) -> Layer:
        """Hold changes in a layer above what stayed when the operation took its layers, below what came later."""
        taken = [*done.layers, *([done.rest] if done.rest in self.stack and done.rest is not None else [])]
        place = max(layer.place for layer in taken)
        above = sorted(layer.place for layer in self.stack if layer.place > place)
        beneath = fold([layer for layer in self.stack if layer.place <= place], self.live)
        layer = self._layer_of(result, view, beneath)
        is_taken = any(other.place == place for other in self.stack)
        layer.place = place if not is_taken else (place + above[0]) / 2 if above else self._next_place()
        self._insert([layer])
        self._learn(result)
        return layer

    def _as_it_went(self, was: Held | None, recorded: Done) -> Held | None:
        """Return what is held again: nothing if the project has it, and with another time if it was written anew."""
        if was is None:
            return None
        live = self.live.get(was.path)
        if live is was.node or (live is not None and was.node is not None and live.look() == was.node.look()):
            return None
        if self._is_elsewhere:
            return was
        went = [hand.before for hand in recorded.hands if hand.path == was.path and hand.before is not None]
        if was.node is not None and was.node.kind == "file" and went and went[0].look()[2:] != was.node.look()[2:]:
            was.node.mtime, was.node.attributes = ANY_TIME, went[0].attributes
        return was

    def _is_gone(self, path: bytes, left: Held, found: Held | None, done: Done) -> bool:
        """Tell whether what an operation left held was applied, discarded or taken away by a later run since."""
        there = [layer.entries[path] for layer in self.stack if path in layer.entries]
        if found is not None:
            # A later run may hold something else, made from what is in the project
            return left.node is not None and not left.node.is_dir and left.node not in there
        is_hidden = left.node is not None and path not in self.live
        return (is_hidden or not there) and not done.first.is_discard

    def _made_from(self, found: Held, was: Held | None, recorded: Done) -> Held:
        """Return what a later run holds, over what is restored beneath it or put into the project."""
        path, live = found.path, self.live.get(found.path)
        if was is not None:
            return Held(path, found.node, was.bases)
        is_put = any(hand.path == path for hand in recorded.hands)
        return Held(path, found.node, {**found.bases, path: live}) if is_put else found

    def _record(self, hands: list[Hand], left: set[bytes], of: Done | None = None) -> Done:
        moved = [hand for hand in hands if not hand.is_dress]
        places = {path for hand in moved for path in (hand.path, parent(hand.path))}
        if of is not None:
            # What was opened to be taken back, and could not be, was closed with it
            places -= left
        closed = {path: self.live[path] for path in places if path in self.live and is_closed(self.live[path])}
        return self._add(Done(0, hands, closed, of, left))


def _are_alike(one: Held | None, other: Held | None) -> bool:
    """Tell whether two changes have one result; a directory has no content."""
    if one is None or other is None:
        return one is other
    if one.node is None or other.node is None or not (one.node.is_dir and other.node.is_dir):
        return one.node is other.node
    return one.node.look() == other.node.look()


def _has_no_place(path: bytes, held: Held, result: dict[bytes, Held]) -> bool:
    """Tell whether later changes took away the directory that an entry is in, or filled what it takes the place of."""
    above = [result[one].node for one in ancestors(path) if one in result]
    if any(node is None or not node.is_dir for node in above):
        return True
    return (held.node is None or not held.node.is_dir) and any(one.startswith(path + b"/") for one in result)


def _is_left_over(change: Difference, changes: list[Difference]) -> bool:
    """Tell whether a directory is in the view only because something was in it that is gone."""
    if change.new is None or not change.new.is_dir or (change.old is not None and change.old.is_dir):
        return False
    return not any(other.path.startswith(change.path + b"/") for other in changes)


def _held_back(changes: list[Difference]) -> set[bytes]:
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
