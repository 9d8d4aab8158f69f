# SPDX-License-Identifier: Apache-2.0
"""What unspill promises about files, as plain data: no layers, no inodes, no times, no backups.

A tree is a dict of paths and nodes. A sandbox holds changes: from which base each one was made, and its result. What a
command sees is the live tree with the results over it. An operation has two records, of the tree and of what is held;
undo and redo are its inverse on both. Content decides, never who wrote it or when.
"""

import difflib
import functools
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar

Side = Literal["", "ours", "theirs", "overwrite", "markers"]
Value = TypeVar("Value")
# Applied only when the person includes it: vim runs it when somebody opens a file beside it
ALWAYS_HELD = ".exrc"


class Node(NamedTuple):
    """A file, a symbolic link or a directory; `data` is its content or target."""

    kind: Literal["file", "link", "dir", "unknown"]
    mode: int
    data: bytes = b""

    def __deepcopy__(self, _known: object) -> Self:
        return self


class Held(NamedTuple):
    """A held change: from what it was made, and what it makes. None means that there is nothing."""

    base: Node | None
    result: Node | None

    def __deepcopy__(self, _known: object) -> Self:
        return self


Tree = dict[str, Node]
DIRECTORY = Node("dir", 0o755)
# The base of what the person edited while the command ran: nobody knows which version it saw
UNKNOWN = Node("unknown", 0)


class Unknown(Exception):
    """The model does not say what is right: what an undone operation left held has been changed by others since."""


class Conflict(Exception):
    """Both sides changed it, and the two can't be merged."""


class Run(NamedTuple):
    """What a command left, in a session or in none.

    `remade` are directories that it deleted and made again; `meanwhile` are paths that the person edited while it ran;
    `touched` are files that it wrote without changing them: that is applied, too, and undone, but counted nowhere.
    """

    number: int
    made: Tree
    session: str = ""
    remade: Collection[str] = ()
    meanwhile: Collection[str] = ()
    touched: Collection[str] = ()


@dataclass
class Operation:
    """One operation: what was before and after it, in the tree and in what its sandbox holds.

    `is_asked`: a person asked for this apply, so later edits of the same file are in its way; those of a run that was
    applied by itself are merged. `of` is the operation that an undo or redo reverses; `changed` is unspill's count.
    `is_partial` if something was skipped, `is_merged` if edits were kept. `silent` is what a discard dropped that the
    project had already.
    """

    kind: str
    sandbox: str
    is_asked: bool = False
    of: int = 0
    session: str = ""
    number: int = 0
    changed: int = 0
    is_partial: bool = False
    is_merged: bool = False
    touched: Collection[str] = ()
    live: dict[str, tuple[Node | None, Node | None]] = field(default_factory=dict)
    held: dict[str, tuple[Held | None, Held | None]] = field(default_factory=dict)
    silent: dict[str, Node | None] = field(default_factory=dict)


@dataclass
class Expected:
    """What a step must do and say: which paths it skips, and of which it says that they were merged."""

    operation: Operation
    skipped: set[str] = field(default_factory=set)
    may_be_skipped: set[str] = field(default_factory=set)
    merged: set[str] = field(default_factory=set)
    # A merge that equals one of the two sides may be told as one
    may_be_merged: set[str] = field(default_factory=set)
    # What was there already
    found: set[str] = field(default_factory=set)
    # What an undo held again was applied or discarded since
    may_do_nothing: bool = False


@dataclass
class Sandbox:
    """What a sandbox holds.

    `above` are the directories above that, as its commands saw them; `remade` are those that a command deleted and made
    again. `runs` are those that are held each by itself, with what they changed. `rewritten` are files of which hunks
    were taken out, or that a later run wrote anew: even if they are as they were, they are not what an operation left.
    `asleep` is what was to be held again, though the project has it, directories that a later run took back, and
    those above what it took back: if somebody changes that, nobody knows whether it is held. `taken_back` is all that:
    an undo or redo that puts it into the project may make a change of it again. `deleted` is what the project has lost
    of directories that are to go: it goes with them if it comes back as it was.
    """

    held: dict[str, Held] = field(default_factory=dict)
    above: Tree = field(default_factory=dict)
    remade: set[str] = field(default_factory=set)
    runs: dict[int, set[str]] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)
    asleep: dict[str, Node | None] = field(default_factory=dict)
    taken_back: set[str] = field(default_factory=set)
    deleted: Tree = field(default_factory=dict)

    def has_known_directories(self, live: Tree) -> bool:
        """Tell whether directories are as its commands saw them: whether others changed them meanwhile is not known."""
        for path, (base, result) in self.held.items():
            if any(is_dir(live.get(one)) and self.above.get(one, live[one]) != live[one] for one in above(path)):
                return False
            if is_dir(base) and is_dir(result) and not is_dir(live.get(path)):
                return False
            if is_dir(base) and is_dir(result) and self.above.get(path, result) != result:
                return False
            if result is not None and any(
                one in self.held and not is_dir(self.held[one].result) for one in above(path)
            ):
                return False
            if result is None and any(not is_dir(live.get(one)) and one not in self.held for one in above(path)):
                return False
            is_new = is_dir(result) and not is_dir(base)
            if (is_new or path in self.remade) and any(path in above(one) and one not in self.held for one in live):
                return False
        if any(path in above(one) and one not in self.held for path in self.remade for one in live):
            return False
        sleeping = {path: node for path, node in self.asleep.items() if path not in self.held}
        ways = [one for path in sleeping for one in above(path) if one not in self.held]
        return all(live.get(path) == node for path, node in sleeping.items()) and all(
            is_dir(live.get(one)) for one in ways
        )


class Model:
    """A project, its sandboxes and its operations."""

    def __init__(self, tree: Tree) -> None:
        self.live = dict(tree)
        self.sandboxes: dict[str, Sandbox] = {}
        self.operations: dict[int, Operation] = {}

    def sandbox(self, name: str) -> Sandbox:
        return self.sandboxes.setdefault(name, Sandbox())

    # What can be seen

    def view(self, name: str) -> Tree:
        """Return what a command in this sandbox sees."""
        sandbox = self.sandbox(name)
        hidden = {path for path, held in sandbox.held.items() if not is_dir(held.result)}
        seen = {path: node for path, node in self.live.items() if not hidden.intersection((path, *above(path)))}
        for path, (_base, result) in sandbox.held.items():
            if result is not None:
                for directory in above(path):
                    if not is_dir(seen.get(directory)):
                        seen[directory] = sandbox.above.get(directory, DIRECTORY)
                seen[path] = result
        return seen

    def changes(self, name: str) -> dict[str, str]:
        """Return what `unspill changes` lists; a directory that goes stands for all that is in it."""
        return differences(self.live, self.view(name))

    def is_done(self, number: int) -> bool:
        """Tell whether an operation has its effect: it was not undone, or it was redone since."""
        return self.operations[self._chain_of(number)[-1]].kind != "undo"

    def newest_of(self, number: int) -> int:
        """Return the last undo or redo of an operation, or the operation itself: what that replaced is restored.

        A redo of an undo that skipped something has only a part of it: then the operation before counts.
        """
        newest = complete = number
        for link in self._chain_of(number):
            one = self.operations[link]
            is_part = one.kind == "redo" and self.operations[newest].is_partial
            newest = complete if is_part else link
            complete = newest if one.kind != "undo" else complete
        return newest

    def is_mixed(self, number: int) -> bool:
        """Tell whether undo and redo of an operation, after one that skipped something, have kept edits meanwhile.

        Then some files go back to what that operation replaced, and some to what a later redo did. So it is if other
        operations have changed the same files since.
        """
        chain = self._chain_of(number)
        first = next((one for one in chain if self.operations[one].is_partial), max(self.operations))
        others = [one for later, one in self.operations.items() if later > first and later not in chain]
        is_changed = any(not self.operations[number].live.keys().isdisjoint(one.live) for one in others)
        return is_changed or any(self.operations[one].is_merged for one in chain if one > number)

    def last_at(self, number: int, path: str) -> Operation | None:
        """Return the last of an operation, its undo and its redo that changed a path."""
        chain = [self.operations[one] for one in self._chain_of(number)]
        return next((one for one in reversed(chain) if path in one.live), None)

    def _chain_of(self, number: int) -> list[int]:
        root = self.root_of(number)
        return [one for one in sorted(self.operations) if self.root_of(one) == root]

    def root_of(self, number: int) -> int:
        """Return the operation that a chain of undo and redo began with."""
        while self.operations[number].of:
            number = self.operations[number].of
        return number

    def last(self, kind: Literal["undo", "redo"]) -> int | None:
        """Return what `undo` or `redo` without an argument reverses."""
        for number in sorted(self.operations, reverse=True):
            one = self.operations[number]
            # What changed nothing is undone when it is named
            is_meant = one.kind == "undo" if kind == "redo" else one.kind != "undo" and one.changed
            if is_meant and self.is_done(number) == (kind == "undo"):
                return self.newest_of(number)
        return None

    # What can be done. Each returns what is expected, and does it in the model.

    def run(self, name: str, run: Run, after: str) -> Expected:
        """A command turned what it saw into something else."""
        sandbox, seen, made = self.sandbox(name), self.view(name), run.made
        expected = Expected(Operation("apply", name, session=run.session, touched=run.touched))
        changed = sorted(path for path in {*seen, *made} if seen.get(path) != made.get(path))
        if after == "discard":
            return expected
        before, told = dict(sandbox.held), self._told(sandbox)
        if any(is_dir(seen.get(one)) and not is_dir(self.live.get(one)) and one not in before for one in changed):
            # The person has deleted a directory that is seen because of what is held in it
            raise Unknown
        if after == "apply" and any(one in before and before[one].result == self.live.get(one) for one in changed):
            # The project has what is held there: is it an earlier change?
            raise Unknown
        unknown = {path for path in changed if path in run.meanwhile and path not in before}
        # A directory that goes does so with all that is in it, or what was not edited does so without it
        going = {path for path in unknown if is_dir(seen.get(path)) and not is_dir(made.get(path))}
        if any(path not in {*before, *unknown} and going.intersection(above(path)) for path in changed):
            raise Unknown
        kept = set(changed) if after == "hold" else self._kept_of_run(sandbox, seen, made, changed) | unknown
        moves = {path: Held(self.live.get(path), made.get(path)) for path in changed if path not in kept}
        for path in kept:
            is_hidden = any(one in before and not is_dir(before[one].result) for one in above(path))
            base = before[path].base if path in before else None if is_hidden else self.live.get(path)
            self._hold(sandbox, path, Held(UNKNOWN if path in unknown else base, made.get(path)))
            is_taken_back = path in before and path not in sandbox.held
            if is_taken_back:
                sandbox.taken_back.add(path)
            if is_taken_back and is_dir(before[path].base):
                if self.live.get(path) != before[path].base:
                    raise Unknown
                sandbox.asleep[path] = self.live.get(path)
            elif is_taken_back:
                # A directory that the person deletes is seen empty for as long as a layer leads through it
                sandbox.asleep.update({one: self.live.get(one, UNKNOWN) for one in above(path)})
            if after == "apply":
                # If it is again as in the project, or as it was, there is nothing to skip
                is_same = made.get(path) == self.live.get(path) or is_taken_back
                (expected.may_be_skipped if is_same else expected.skipped).add(path)
        for path in changed:
            sandbox.above.update({one: made[one] for one in (path, *above(path)) if is_dir(made.get(one))})
        again = {path for path in changed if not is_dir(seen.get(path)) and is_dir(self.live.get(path))}
        sandbox.remade.update(path for path in again.union(run.remade) if is_dir(made.get(path)))
        sandbox.rewritten.update(path for path in run.touched if path in before)
        done = self._move(moves, expected, sandbox)
        for path, change in moves.items():
            self._hold(sandbox, path, None if path in done else change)
        if expected.operation.live:
            self._settle(sandbox, expected.operation, told)
        elif after == "apply" and changed and not self.changes(name):
            # The project has it all
            sandbox.held.clear()
        elif changed:
            sandbox.runs[run.number] = set(changed)
        return expected

    def _kept_of_run(self, sandbox: Sandbox, seen: Tree, made: Tree, changed: list[str]) -> set[str]:
        """Return what stays held of a run that is applied by itself: what an earlier held run changed too."""
        kept: set[str] = set()
        # A directory that an earlier held run made comes along with what is new in it
        new = {path for path, held in sandbox.held.items() if not is_dir(held.base) and is_dir(made.get(path))}
        for path in changed:
            below = [one for one in {*seen, *sandbox.held} if path in above(one)]
            # A directory goes as a whole; and one on the way to what is held has a copy in its layer
            goes = is_dir(seen.get(path)) and not is_dir(made.get(path))
            is_changed_too = any(one in sandbox.held for one in (path, *below))
            is_hidden = any(one in sandbox.held and not is_dir(sandbox.held[one].result) for one in above(path))
            has_no_place = any(one in kept - new and not is_dir(self.live.get(one)) for one in above(path))
            is_always_held = path == ALWAYS_HELD and path in made
            if is_changed_too or is_hidden or has_no_place or is_always_held:
                kept.update(one for one in [path, *(below if goes else ())] if one in changed)
        moving = [path for path in changed if path in made and path not in kept]
        return kept - {one for path in moving for one in above(path) if one in new}

    def apply(
        self, name: str, paths: Collection[str] | None = None, side: Side = "", *, include: bool = False
    ) -> Expected:
        """Apply what is held, or what is held at or below these paths; `side` says what becomes of conflicts there."""
        sandbox = self.sandbox(name)
        expected = Expected(Operation("apply", name, is_asked=True))
        before, told = dict(sandbox.held), self._told(sandbox)
        chosen = {path for path in before if paths is None or any(one in paths for one in (path, *above(path)))}
        # New directories come along with what is in them
        chosen |= {one for path in chosen for one in above(path) if one in before and not is_dir(before[one].base)}
        if not include:
            expected.skipped |= {one for one in chosen if one == ALWAYS_HELD and before[one].result is not None}
            chosen -= expected.skipped
        moves = {path: before[path] for path in chosen}
        tops = frozenset(paths or before)
        done = self._move(moves, expected, sandbox, side=side, tops=tops, may_merge=True)
        if expected.operation.live or expected.may_be_merged or not expected.skipped:
            for path in done:
                sandbox.held.pop(path, None)
        self._settle(sandbox, expected.operation, told)
        return expected

    def apply_run(self, name: str, run: int) -> Expected | None:
        """Apply what one held run changed; None if that is refused, because another one changed the same."""
        sandbox = self.sandbox(name)
        own = sandbox.runs[run]
        others = {path for other, paths in sandbox.runs.items() if other != run for path in paths}
        shared = {path for path in own if others.intersection((path, *above(path)))}
        shared |= {path for path in others if own.intersection(above(path))}
        if shared and shared <= sandbox.taken_back:
            # It may be let go of before
            raise Unknown
        return None if shared else self.apply(name, own)

    def apply_part(self, name: str, path: str, numbers: Collection[int], lines: Collection[int] = ()) -> Expected:
        """Apply hunks and lines of a text that the person did not edit; the rest is held, over what is live then."""
        sandbox = self.sandbox(name)
        expected = Expected(Operation("apply", name, is_asked=True))
        before, told = dict(sandbox.held), self._told(sandbox)
        live, result = self.live[path], before[path].result
        assert result is not None
        # Permissions come along with the first of its hunks
        new = result._replace(data=part_of(live.data, result.data, numbers, lines))
        sandbox.rewritten.add(path)
        self._put(path, new, expected.operation)
        self._hold(sandbox, path, Held(new, result))
        self._settle(sandbox, expected.operation, told)
        return expected

    def discard(self, name: str, paths: Collection[str] | None = None) -> Expected:
        """Drop what is held, or what is held at or below these paths."""
        sandbox = self.sandbox(name)
        expected = Expected(Operation("discard", name))
        before, told = dict(sandbox.held), self._told(sandbox)
        for path in before:
            if paths is None or any(one in paths for one in (path, *above(path))):
                del sandbox.held[path]
        silent = before.keys() - told.keys() - sandbox.held.keys()
        expected.operation.silent = {path: self.live.get(path) for path in silent}
        self._settle(sandbox, expected.operation, told)
        return expected

    def discard_part(self, name: str, path: str, numbers: Collection[int]) -> Expected:
        """Drop hunks of a text that the person did not edit."""
        sandbox = self.sandbox(name)
        expected = Expected(Operation("discard", name))
        before, told = dict(sandbox.held), self._told(sandbox)
        base, result = before[path]
        assert base is not None
        assert result is not None
        rest = set(range(1, len(hunks(base.data, result.data)) + 1)).difference(numbers)
        sandbox.rewritten.add(path)
        self._hold(sandbox, path, Held(base, result._replace(data=part_of(base.data, result.data, rest))))
        self._settle(sandbox, expected.operation, told)
        return expected

    def reverse(self, number: int) -> Expected:
        """Undo an operation; or redo it, if it is an undo."""
        was = self.operations[number]
        sandbox = self.sandbox(was.sandbox)
        kind = "redo" if was.kind == "undo" else "undo"
        expected = Expected(Operation(kind, was.sandbox, was.is_asked, number, was.session, touched=was.touched))
        expected.may_be_skipped.update(was.touched)
        expected.may_be_merged.update(was.touched)
        if any(path in was.held for path in was.touched) or (was.touched and not was.live):
            # Whoever wrote it since is in the way of what is to be held again; and new times alone may be an operation,
            # which knows what else its run left held
            raise Unknown
        lasts = [self.last_at(number, path) for path in was.live]
        if any(last is not None and last.kind == kind for last in lasts):
            # The one before did it for this file, though not for another, and the person has changed it since
            raise Unknown
        if sandbox.taken_back.intersection(was.live):
            raise Unknown
        before = dict(sandbox.held)
        self._look_at_left(was, before, expected)
        moves = {path: Held(after, then) for path, (then, after) in was.live.items()}
        if any(
            is_dir(result) and is_dir(self.live.get(path)) and not is_dir(base or DIRECTORY)
            for path, (base, result) in moves.items()
        ):
            # Somebody else has put a directory in the place of the file already
            raise Unknown
        # A directory that somebody else made there is as good
        there = {path for path, (base, result) in moves.items() if base is None and is_dir(result)}
        expected.found |= {path for path in there if is_dir(self.live.get(path))}
        moves = {path: move for path, move in moves.items() if path not in expected.found}
        expected.skipped |= self._lost(was, kind, before, moves)
        moves = {path: move for path, move in moves.items() if path not in expected.skipped}
        self._move(moves, expected, sandbox, may_merge=not was.is_asked, is_reversal=True)
        if expected.skipped.intersection(was.live) and not expected.operation.live:
            return expected
        self._reverse_held(number, before, expected)
        sandbox.asleep.update(was.silent)
        # Where nothing was left, only that goes back which was taken
        is_folded = any(after is not None for _then, after in was.held.values())
        for path in list(sandbox.held if is_folded else was.held):
            if path in sandbox.held and sandbox.held[path].result == self.live.get(path):
                del sandbox.held[path]
                sandbox.asleep[path] = self.live.get(path)
        for path, (_base, result) in sandbox.held.items():
            ways = [] if result is None or path in before else above(path)
            if any(not is_dir(self.live.get(one)) and one not in sandbox.held for one in ways):
                # Directories that are held again on the way to it stay held when it goes
                raise Unknown
        record(expected.operation.held, before, sandbox.held)
        sandbox.runs.setdefault(-1, set()).update(expected.operation.held)
        return expected

    def _lost(self, was: Operation, kind: str, before: dict[str, Held], moves: dict[str, Held]) -> set[str]:
        """Return where an operation that a person asked for can't be reversed any more."""
        if not was.is_asked:
            return set()
        # What it left held was applied or discarded since
        lost = {path for path, (_then, after) in was.held.items() if after is not None and path not in before}
        lost = {path for path in lost & moves.keys() if self.live.get(path) != moves[path].result}
        if kind == "undo":
            # What was put is held again, but not if it is gone, whatever is there now
            lost |= {path for path, (after, _then) in moves.items() if after not in (None, self.live.get(path))}
        return lost

    def _reverse_held(self, number: int, before: dict[str, Held], expected: Expected) -> None:
        """Hold what was held before this operation, over what was done since."""
        was = self.operations[number]
        sandbox = self.sandbox(was.sandbox)
        is_discard = was.kind != "undo" and self.operations[self.root_of(number)].kind == "discard"
        for path, (then, after) in was.held.items():
            now = before.get(path)
            is_settled = now is None and after is not None and not is_discard and path not in was.live
            # What an applied run left held, and was applied or discarded since, is left alone
            if is_settled or (path in expected.skipped and path in was.live):
                continue
            is_folded = any(one.sandbox == was.sandbox for later, one in self.operations.items() if later > number)
            if now is not None and (path in sandbox.rewritten or (is_folded and now != after)):
                # Of several held changes one was made: is what this operation left among them?
                raise Unknown
            self._hold(sandbox, path, self._held_again(path, then, after, now, is_put=path in was.live))
            if now not in (after, None):
                # It lies beneath what a later run made
                sandbox.rewritten.add(path)
            expected.found.add(path)

    def _look_at_left(self, was: Operation, before: dict[str, Held], expected: Expected) -> None:
        """Note where what an operation left held is not held any more."""
        seen = self.view(was.sandbox)
        for path, (_then, after) in was.held.items():
            is_away = after is not None and is_dir(after.base) and not is_dir(after.result)
            if is_away and is_dir(seen.get(path)):
                # A later run made the directory anew that this one took away: is what was in it deleted?
                raise Unknown
            is_hidden = any(one in before and not is_dir(before[one].result) for one in above(path))
            if after is not None and (before.get(path) != after or is_hidden):
                expected.may_do_nothing = True
                expected.may_be_skipped.add(path)

    def _held_again(
        self, path: str, then: Held | None, after: Held | None, now: Held | None, *, is_put: bool
    ) -> Held | None:
        """Return what is held where `then` is to be held again in place of `after`, and `now` is."""
        if now in (after, None):
            return then
        assert now is not None
        if (after is not None and now.result == after.result) or now.result == self.live.get(path):
            raise Unknown
        if then is not None:
            # What a later run made stays; it was made from what this change was made from
            return Held(then.base, now.result)
        return Held(self.live.get(path), now.result) if is_put else now

    def restore(self, path: str, number: int) -> Expected:
        """Put the version back that an operation replaced."""
        expected = Expected(Operation("restore", ""))
        self._move({path: Held(self.live.get(path), self.operations[number].live[path][0])}, expected, None)
        return expected

    # How it is done

    def _told(self, sandbox: Sandbox) -> dict[str, Held]:
        """Return what is held and not in the project already."""
        return {path: held for path, held in sandbox.held.items() if self.live.get(path) != held.result}

    def _settle(self, sandbox: Sandbox, operation: Operation, before: dict[str, Held]) -> None:
        """What stays held after an operation is held anew: over the directories as they are now."""
        record(operation.held, before, self._told(sandbox))
        if not (operation.live or operation.held):
            return
        sandbox.above.update({path: node for path, node in self.live.items() if is_dir(node)})
        sandbox.remade.clear()
        for path, held in {**before, **sandbox.held}.items():
            if held.base is not None and held.result is None:
                sandbox.deleted[path] = held.base
        # What the project has is not held any more
        sandbox.held = self._told(sandbox)
        # A layer may still lead through directories that are gone
        lost = {path for path in sandbox.asleep if any(not is_dir(self.live.get(one)) for one in above(path))}
        sandbox.asleep = {path: sandbox.asleep[path] for path in lost}
        # Folded into one, which belongs to no single run
        sandbox.runs = {-1: set(sandbox.held)}

    def _hold(self, sandbox: Sandbox, path: str, held: Held | None) -> None:
        """Hold this change at a path; one that changes nothing is none."""
        put(sandbox.held, path, None if held is None or held.base == held.result else held)

    def _put(self, path: str, node: Node | None, operation: Operation) -> None:
        first = operation.live.get(path, (self.live.get(path), None))[0]
        put(self.live, path, node)
        operation.live[path] = (first, node)
        if first == node:
            del operation.live[path]

    def _move(
        self,
        moves: dict[str, Held],
        expected: Expected,
        sandbox: Sandbox | None,
        *,
        side: Side = "",
        tops: frozenset[str] = frozenset(),
        may_merge: bool = False,
        is_reversal: bool = False,
    ) -> set[str]:
        """Let each path become its result where it is its base; return those that have become it.

        `side` says what becomes of conflicts at or below `tops`.
        """
        done: set[str] = set()
        moves = moves if sandbox is None or is_reversal else self._with_deleted(moves, sandbox)
        going = [path for path, (_base, result) in moves.items() if result is None and is_dir(self.live.get(path))]
        settled: set[str] = set()
        for path in sorted(set(moves).difference(going)):
            if path in settled:
                continue
            base, result = moves[path]
            whole = [path]
            chosen: Side = side if tops.intersection((path, *above(path))) else ""
            if is_dir(self.live.get(path)) and not is_dir(result):
                # What takes the place of a directory takes the place of all of it, or of nothing
                whole += [one for one in {*self.live, *moves} if path in above(one)]
            try:
                if is_dir(self.live.get(path)) and not is_dir(result):
                    if chosen != "overwrite":
                        self._check_whole(path, whole, moves, is_reversal=is_reversal)
                    new = result
                elif is_reversal and path not in self.live and is_dir(base) and not is_dir(result):
                    # The directory that took its place is gone
                    new = result
                else:
                    new = self._resolve(path, base, result, expected, chosen if may_merge else "refuse")
                wins = chosen in ("overwrite", "theirs")
                self._check_place(path, new, None if wins else sandbox, is_reversal=is_reversal)
            except Conflict:
                # An undo names what keeps it from putting a directory back
                named = whole[:1] if is_reversal else whole
                expected.skipped.update(one for one in named if one in moves)
                expected.may_be_skipped.update(whole)
                settled.update(whole)
                continue
            for one in sorted(whole[1:], reverse=True):
                self._put(one, None, expected.operation)
            if new is not None:
                self._make_directories(path, sandbox, expected.operation)
            self._put(path, new, expected.operation)
            done.update(one for one in whole if one in moves)
            settled.update(whole)
        for path in sorted(set(going) - settled, reverse=True):
            if self._take_directory(
                path, moves, expected, wins=side == "overwrite" and bool(tops & {path, *above(path)})
            ):
                done.add(path)
        return done

    def _with_deleted(self, moves: dict[str, Held], sandbox: Sandbox) -> dict[str, Held]:
        """Return what is to be done with what comes back in a directory that goes: the run has deleted it as well."""
        more = {
            path: Held(node, None)
            for path, node in sandbox.deleted.items()
            if self.live.get(path) == node
            and any(one in moves and not is_dir(moves[one].result) for one in above(path))
        }
        return {**more, **moves}

    def _take_directory(self, path: str, moves: dict[str, Held], expected: Expected, *, wins: bool) -> bool:
        inside = [one for one in self.live if path in above(one)]
        if (inside or self.live[path] != moves[path].base) and not wins:
            # What is in it may be named instead
            expected.skipped.add(path)
            expected.may_be_skipped.update(inside)
            return False
        for one in (*sorted(inside, reverse=True), path):
            self._put(one, None, expected.operation)
        return True

    def _check_whole(self, path: str, whole: Iterable[str], moves: dict[str, Held], *, is_reversal: bool) -> None:
        for one in whole:
            live = self.live.get(one)
            if live is not None and (one not in moves or moves[one].base != live):
                if is_reversal and one == path:
                    # What is in the directory may go before it is seen that itself can't
                    raise Unknown
                raise Conflict(path)

    def _resolve(
        self, path: str, base: Node | None, result: Node | None, expected: Expected, side: Side | Literal["refuse"]
    ) -> Node | None:
        live = self.live.get(path)
        if live == result:
            expected.found.add(path)
        if live in (base, result):
            return result
        if live is None and is_dir(result) and not is_dir(base):
            # Where the person has deleted the file, a directory is in nobody's way
            return result
        if side == "refuse":
            raise Conflict(path)
        if side == "overwrite":
            return result
        new = merge(base, live, result, side)
        (expected.may_be_merged if new in (live, result) else expected.merged).add(path)
        return new

    def _check_place(self, path: str, new: Node | None, sandbox: Sandbox | None, *, is_reversal: bool) -> None:
        """Refuse to put something where there is another thing than a directory.

        One that the person has deleted is made again for what is new in it, but not for an undo, and not if its own
        permissions were changed.
        """
        for one in above(path) if new is not None else ():
            held = None if sandbox is None else sandbox.held.get(one)
            comes_along = sandbox is None or not (is_reversal or (held is not None and is_dir(held.base)))
            if sandbox is None and one in self.live and not is_dir(self.live[one]):
                # The run's directory may win as well, with what is in it
                raise Unknown
            if not is_dir(self.live.get(one)) and (one in self.live or not comes_along):
                raise Conflict(path)

    def _make_directories(self, path: str, sandbox: Sandbox | None, operation: Operation) -> None:
        for one in above(path):
            if one not in self.live:
                seen = DIRECTORY if sandbox is None else sandbox.above.get(one, DIRECTORY)
                held = None if sandbox is None else sandbox.held.pop(one, None)
                self._put(one, seen if held is None else held.result, operation)


# Trees


def is_dir(node: Node | None) -> bool:
    return node is not None and node.kind == "dir"


def above(path: str) -> list[str]:
    """Return the directories above a path, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def put(where: dict[str, Value], path: str, what: Value | None) -> None:
    if what is None:
        where.pop(path, None)
    else:
        where[path] = what


def record(where: dict[str, tuple[Held | None, Held | None]], before: dict[str, Held], after: dict[str, Held]) -> None:
    """Write down what is held otherwise than before."""
    for path in {*before, *after}:
        if before.get(path) != after.get(path):
            where[path] = before.get(path), after.get(path)


def differences(old: Tree, new: Tree) -> dict[str, str]:
    """Return how two trees differ, path by path; a directory that goes stands for all that is in it."""
    found: dict[str, str] = {}
    gone: set[str] = set()
    for path in sorted({*old, *new}):
        was, now = old.get(path), new.get(path)
        if was == now or (now is None and gone.intersection(above(path))):
            continue
        if is_dir(was) and not is_dir(now):
            gone.add(path)
        if was is None or now is None:
            found[path] = "added" if was is None else "deleted"
        elif was.kind != now.kind:
            found[path] = "replaced"
        else:
            found[path] = "metadata" if was.data == now.data else "modified"
    return found


# Texts


def merge(base: Node | None, ours: Node | None, theirs: Node | None, side: Side = "") -> Node | None:
    """Merge three versions: the permissions and the content each on their own.

    Raises:
        Conflict: that can't be done.
    """
    if base is None or ours is None or theirs is None or len({base.kind, ours.kind, theirs.kind}) > 1:
        # The run's lines are not its deletion
        if side == "theirs" and theirs is not None:
            return theirs
        raise Conflict
    mode = ours.mode if theirs.mode == base.mode else theirs.mode
    if len({ours.mode, theirs.mode, base.mode}) == 3 or (ours.mode != base.mode and mode not in (ours.mode, base.mode)):
        if side != "theirs":
            raise Conflict
        mode = theirs.mode
    try:
        return base._replace(mode=mode, data=merge_data(base.kind, base.data, ours.data, theirs.data, side))
    except Conflict:
        if side == "theirs":
            return theirs
        raise


def merge_data(kind: str, base: bytes, ours: bytes, theirs: bytes, side: Side) -> bytes:
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    if kind != "file" or any(b"\0" in data for data in (base, ours, theirs)):
        raise Conflict
    return merge_texts(base, ours, theirs, side)


@functools.lru_cache(10_000)
def merge_texts(base: bytes, ours: bytes, theirs: bytes, side: Side) -> bytes:
    """Merge by `git merge-file`."""
    with tempfile.TemporaryDirectory() as where:
        names = [str(Path(where, name)) for name in ("ours", "base", "theirs")]
        for name, data in zip(names, (ours, base, theirs), strict=True):
            Path(name).write_bytes(data)
        options = [f"--{side}"] if side in ("ours", "theirs") else ["-L", "yours", "-L", "base", "-L", "the run's"]
        words = ["git", "merge-file", "-p", "-q", *options, *names]
        done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode != 0 and side != "markers":
        raise Conflict
    return done.stdout


def hunks(old: bytes, new: bytes) -> list[list[tuple[int, int, int, int]]]:
    """Return the hunks of a unified diff with three lines of context, each as ranges of old and of new lines."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(True), new.splitlines(True), autojunk=False)
    groups = matcher.get_grouped_opcodes(3)
    return [[(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in group if tag != "equal"] for group in groups]


def part_of(old: bytes, new: bytes, numbers: Collection[int], lines: Collection[int] = ()) -> bytes:
    """Return `old` with these hunks and these changed lines, each counted from 1, of the way to `new`."""
    before, after = old.splitlines(True), new.splitlines(True)
    made: list[bytes] = []
    at = count = 0
    for number, hunk in enumerate(hunks(old, new), 1):
        for old_start, old_end, new_start, new_end in hunk:
            made += before[at:old_start]
            whole = number in numbers
            goes = {line for line in range(old_start, old_end) if whole or count + line - old_start + 1 in lines}
            count += old_end - old_start
            chosen = [line for line in range(new_start, new_end) if whole or count + line - new_start + 1 in lines]
            comes = [after[line] for line in chosen]
            count += new_end - new_start
            made += placed(before, range(old_start, old_end), goes, comes)
            at = old_end
    return b"".join(made + before[at:])


def placed(before: list[bytes], old: range, goes: set[int], comes: list[bytes]) -> Iterator[bytes]:
    """Yield old lines, of which some go: what comes takes their places, and the rest of it follows the last of them."""
    last = max(goes, default=old.stop - 1)
    waiting = list(comes)
    for line in old:
        if line not in goes:
            yield before[line]
        elif waiting:
            yield waiting.pop(0)
        if line == last:
            yield from waiting
            waiting.clear()
    yield from waiting
