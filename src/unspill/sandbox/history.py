# SPDX-License-Identifier: Apache-2.0
"""Undo, redo and restore, and what is known of files and their backups.

An entry that an operation displaced or put may lie in the operation's own directory, in the live tree, or where a later
operation put it; it is known by its identity, wherever it is. One that was changed or pruned since is not shown. Undo
of a discard, or of an apply that was asked for, holds the changes again: one layer per root, above what was held then
and below what later runs hold.

A file has a record from the first operation that touches it. The first version of a file that is displaced on a day is
found under the name `{id}-{YY-MM-DD}-{basename}`; every other displaced version is found by its operation. A name is a
row, not a copy. When somebody looks whether a file is still there, its record changes so:

    the file is   it has a backup   its record
    there         -                 stays, not deleted (any more)
    absent        yes               stays, deleted
    absent        no                goes

A root that is not there itself says nothing about its files.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from unspill.apply.bases import Base, base_at, find_bases, find_text, is_directory, read_live, unpack
from unspill.apply.fold import FoldedLayers, fold_entries, take_moment
from unspill.apply.journal import (
    Residue,
    Settled,
    journal_of,
    kept_base_dir,
    residue_dir,
    tree_dir,
)
from unspill.apply.operate import Task, operate
from unspill.apply.reverse import LaterOperations, Reversal
from unspill.apply.staging import digest_entry
from unspill.apply.steps import entry_of, matches
from unspill.changes.diff import (
    MAX_FILE_BYTES,
    MAX_LINES,
    blame_lines,
    change_diff,
    is_binary,
    left_out,
    painted,
)
from unspill.changes.merge import merge_texts
from unspill.changes.render import name_here
from unspill.changes.scan import Reader, read_up_to, scan
from unspill.changes.select import ancestors
from unspill.errors import RootRefused, UsageError
from unspill.git.files import is_object, repository_of
from unspill.host.dirfd import Beneath
from unspill.host.job import memory_file
from unspill.host.overlay import hides_below
from unspill.layers.lifecycle import load_stacks, stat_root
from unspill.layers.locks import OperationUse, base_dir, lock_unless_given_up, refuse_given_up, upper_dir
from unspill.model.change import (
    Change,
    ChangeSet,
    Identity,
    RootChanges,
)
from unspill.model.operation import Metadata, OperationId, Step, reversals_of
from unspill.model.run import LayerId, RunId, SandboxId
from unspill.policy.paths import quote, show
from unspill.record import Record
from unspill.sandbox.apply import AFTER_RUN, held_inodes, taken_layers
from unspill.sandbox.review import fold_changes
from unspill.sandbox.scan import end_interrupted, keep_base, when_settled
from unspill.sandbox.secrets import forget_untracked, load_masked, mask_finder
from unspill.store.operations import BackupRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from typing import Literal, Self

    from unspill.apply.draft import Draft, Marks
    from unspill.apply.fold import HeldEntry
    from unspill.apply.journal import HeldAfter, Journal, Taken
    from unspill.apply.steps import OpenDirs
    from unspill.model.operation import (
        Entry,
        Operation,
        OperationKind,
        Skipped,
    )
    from unspill.sandbox.project import Project
    from unspill.store.db import Store
    from unspill.store.operations import FileRow

    # A directory of ours or a live root, and the path of an entry in it.
    Place = tuple[Beneath, bytes]

    Whereabouts = Literal["kept", "live", "gone"]

# Stands for a version of which nothing is kept; no file has it, since it is not a text
_NOT_KEPT = b"\0"
# Who wrote a line that no operation did: the person, or nobody knows who
_PERSON, _NOBODY = "you", "?"
_ALL = 1_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LONGEST_NAME = 255
_FILES = ("file", "symlink")
_SEE_LISTS = "See `unspill files` and `unspill log` for what there is."
_MADE_PRIVATE = "made again for you alone, since nothing is recorded of its permissions"
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class HeldReversal:
    """Restores what was held before an operation, path by path, as one layer for each root.

    What was held before lies in the trees that the operation took; its record says what it left of that.

        what is held now                 what is held afterwards
        what the operation left          what was before: that again, or nothing
        something else, by a later run   that, made from what is restored beneath it

    Where the operation left nothing, the restored layer goes to its old place below later ones. Otherwise all layers of
    the sandbox are folded into one with it.
    """

    def __init__(self, project: Project, journal: Journal, *, is_run: bool) -> None:
        """Take the journal of the operation. If `is_run`, a run was applied by itself, so its own layers are new."""
        assert journal.end is not None
        self._is_run = is_run
        self._store = project.store
        self._journal = journal
        self._end = journal.end
        self._operation = journal.end.operation
        origin = self._operation.origin
        first = None if origin is None else project.store.operations.find(origin)
        self._is_discard = first is not None and first.kind == "discard"
        own = self._operation.runs if is_run and self._operation.of is None else ()
        state = self._store.state
        self._before = [
            tree
            for tree in journal.trees
            if tree.run not in own and os.path.lexists(tree_dir(state, self._operation.id, tree.layer))
        ]
        self._stacks = load_stacks(self._store, SandboxId(self._operation.sandbox), project.roots) if self else ()
        # Found when the reversal is done: it may have changed the bits of a root
        self._find_masks = mask_finder(project, self._stacks)
        self._masks: dict[bytes, bytes] = {}
        # By root, what is held before the reversal
        self._held: dict[bytes, dict[bytes, int]] = {}
        self._trees: tuple[Taken, ...] = ()
        self._use: OperationUse | None = None
        self._linked: list[bytes] = []
        roots = self._operation.roots
        done = (journal.steps[index] for index in self._end.done)
        self._steps = {(roots[step.root], step.path): step for step in done if step.action != "set_metadata"}

    def __bool__(self) -> bool:
        return bool(self._before or self._end.held)

    def take_layers(self) -> tuple[Taken, ...]:
        """Return the layers that must be folded with what is restored. The sandbox's lock is held.

        Raises:
            SandboxUnavailable: a run still stands on the layers.
        """
        if any(inode for _root, _path, inode in self._end.held or ()) or self.is_covered():
            self.take_alone()
            self._trees = taken_layers(self._store, SandboxId(self._operation.sandbox))
            masks = self._find_masks()
            self._held = {
                stack.live: held_inodes(fold_changes((stack.replace(mask=masks.get(stack.live)),)))
                for stack in self._stacks
                if stack.sealed
            }
        return self._trees

    def find_taken(self) -> set[tuple[bytes, bytes]]:
        """Return the paths that the operation left held and that are not held any more, with their repositories."""
        if self._is_run:
            return set()
        trees = taken_layers(self._store, SandboxId(self._operation.sandbox))
        # An object that the project has is held no more, and decides nothing
        left = ((root, path) for root, path, inode in self._end.held or () if inode and not is_object(path))
        taken = {(root, path) for root, path in left if not self._is_held(trees, root, path)}
        return taken | {(root, repository_of(path) or path) for root, path in taken}

    def take_alone(self) -> None:
        """Keep runs from standing on the layers until `release`.

        Raises:
            SandboxUnavailable: one does already.
        """
        self._use = OperationUse(self._store.state, SandboxId(self._operation.sandbox))

    def is_covered(self) -> bool:
        """Tell whether a later run made a directory anew, and so would hide what is restored beneath it."""
        rows = self._store.layers.sealed(SandboxId(self._operation.sandbox))
        for tree in self._before:
            later = [upper_dir(self._store.state, row.id) for row in rows if row.root == tree.root]
            top = tree_dir(self._store.state, self._operation.id, tree.layer)
            for directory, _directories, _files in os.walk(top) if later else ():
                places = (upper + directory[len(top) :] for upper in later if directory != top)
                if any(is_directory(place) and hides_below(place) for place in places):
                    return True
        return False

    def _is_held(self, trees: Sequence[Taken], root: bytes, path: bytes) -> bool:
        uppers = (upper_dir(self._store.state, LayerId(tree.layer)) for tree in trees if tree.root == root)
        return any(_has_entry(upper, path) or _has_no_place(path, [upper]) for upper in uppers)

    def settle(self, operation: OperationId, left: Sequence[Skipped], marks: Sequence[int]) -> Settled:
        """Return the layers that are held from now on; what was left is as it was."""
        self._masks = self._find_masks()
        roots = self._operation.roots
        lefts = {(roots[one.root], one.path) for one in left if one.root < len(roots)}
        # What is done all or none was left with it
        groups = {step.group for place, step in self._steps.items() if place in lefts}
        lefts |= {place for place, step in self._steps.items() if step.group in groups}
        moments = dict(zip(roots, marks, strict=False))
        residues: list[Residue] = []
        held: list[HeldAfter] = []
        for root in dict.fromkeys(tree.root for tree in (*self._before, *self._trees)):
            moment = moments.get(root) or take_moment(self._store, operation, root)
            made, changed = self._settle_root(operation, root, moment, lefts)
            residues += [] if made is None else [made]
            held += changed
        return Settled(residues=tuple(residues), held=tuple(held))

    def list_restored(self, operation: OperationId, left: Sequence[Skipped], marks: Sequence[int]) -> Settled:
        """Return what is held otherwise where all layers go back as they are, below those of later runs."""
        self._masks = self._find_masks()
        found: list[HeldAfter] = []
        for root in dict.fromkeys(tree.root for tree in self._before):
            places = [(tree.seq, self._tree_of(tree)) for tree in self._before if tree.root == root]
            found += [(root, path, inode) for path, inode in self._look_through(root, places).items()]
        return Settled(held=tuple(found))

    def _look_through(self, root: bytes, restored: Sequence[tuple[int, bytes]]) -> dict[bytes, int]:
        """Return what is held otherwise with some layers, by place, between those that are there."""
        if not os.path.isdir(root):
            return {}
        state = self._store.state
        rows = [row for row in self._store.layers.sealed(SandboxId(self._operation.sandbox)) if row.root == root]
        bases = (self._base_of(root), *(base_dir(state, row.id) for row in rows))
        base = next((one for one in bases if one is not None and os.path.lexists(one)), None)
        below = tuple(one for one in (self._masks.get(root), base) if one is not None)
        there = [(row.seq, upper_dir(state, row.id)) for row in rows]
        then, now = (
            held_inodes(scan(tuple(upper for _seq, upper in reversed(layers)), below, root))
            for layers in (there, sorted([*there, *restored], key=lambda layer: layer[0]))
        )
        return {path: now.get(path, 0) for path in _differing(then, now)}

    def _tree_of(self, tree: Taken) -> bytes:
        return tree_dir(self._store.state, self._operation.id, tree.layer)

    def release(self) -> None:
        """Let runs stand on the layers again."""
        if self._use is not None:
            self._use.release()

    def drop_links(self) -> None:
        """Remove second names of what stays held as it was: what has one is copied when it is applied."""
        for place in self._linked:
            try:
                os.unlink(place)
            except OSError:
                continue

    def _settle_root(
        self, operation: OperationId, root: bytes, moment: int, lefts: set[tuple[bytes, bytes]]
    ) -> tuple[Residue | None, list[HeldAfter]]:
        put = {path for where, path in self._steps if where == root and not _is_left(root, path, lefts)}
        before, before_layers = self._read(root, self._before, self._operation.id)
        now, now_layers = self._read(root, self._trees, operation, put)
        result = dict(now)
        filled = ancestors(now)
        # Where nothing else was taken, it goes above what stayed held then, and below what came later
        place = 0 if self._trees else self._place_above(root)
        beneath = self._beneath(root, place)
        changed: dict[bytes, int] = {}
        # What goes comes first, or it would hide what is restored, and a directory before what is in it
        taken: set[bytes] = set()
        for path, left_as in sorted(self._changed_at(root, before), key=lambda one: (one[0] in before, one[0])):
            was, found = before.get(path), now.get(path)
            if _is_left(root, path, lefts) or taken.intersection(ancestors([path])):
                continue
            if self._is_taken_since(root, path, left_as, was, found, now_layers):
                if left_as >= -1:
                    # It took the place of a directory, with all that was in it
                    taken.add(path)
                continue
            # A directory that no run changed is none of a later one either
            is_own = found is not None and (
                found.is_on_the_way or (found.inode == left_as and self._is_own(found, now_layers))
            )
            later = found.base if found is not None else self._base_above(root, path, place)
            # What came with a commit alone, a later run has not seen: it made its change from the project's own
            has_seen = bool(left_as) or self._is_discard or (root, path) in self._steps
            is_same = was is not None and _is_known(was.base) and was.base == later
            if not is_own and (is_same or (later is not None and not has_seen)):
                # Where a later run made its change from the same, that is all that is held
                continue
            if found is not None and not is_own:
                result[path] = self._made_from(root, found, was)
            elif was is None or (now and _is_hidden(was, result, filled)) or _has_no_place(path, beneath):
                result.pop(path, None)
            else:
                result[path] = was
            changed[path] = result[path].inode if path in result else 0
            if now:
                changed |= {above: result[above].inode for above in self._rebase_hiding(root, path, result)}
        result = _without_idle_ways(result)
        changed |= self._seen_otherwise(root, result)
        changed = {path: inode if path in result else 0 for path, inode in changed.items()}
        if not result:
            return None, [(root, *one) for one in changed.items()]
        self._linked += [
            entry.place for path, entry in now.items() if path not in changed and entry.change.entry is not None
        ]
        entries, layers = list(result.values()), [*before_layers, *now_layers]
        rest = Residue(layer="", root=root, run=self._run_of(entries, layers), mark_ns=moment, seq=place)
        made = self._fold(operation, rest, entries, layers, beneath)
        if place:
            # Runs that came later may have written into a directory that is taken away beneath them
            changed |= self._look_through(root, [(place, residue_dir(self._store.state, operation, made.layer))])
        return made, [(root, *one) for one in changed.items()]

    def _fold(
        self,
        operation: OperationId,
        rest: Residue,
        entries: Sequence[HeldEntry],
        layers: Sequence[tuple[Taken, bytes]],
        beneath: Sequence[bytes],
    ) -> Residue:
        """Make one layer of what stays held, with its base; `rest` says what else the layer is like."""
        uppers = tuple(upper for _tree, upper in reversed(layers))
        made = fold_entries(self._store, operation, rest.root, entries, uppers, rest, beneath)
        changes = [entry.change for entry in entries]
        base = base_dir(self._store.state, LayerId(made.layer))
        keep_base(self._base_of(rest.root), rest.root, changes, base)
        return made

    def _seen_otherwise(self, root: bytes, result: Mapping[bytes, HeldEntry]) -> dict[bytes, int]:
        """Return what differs from the project otherwise than before, more or less: that has changed as well."""
        if root not in self._held:
            return {}
        left = {path: entry.inode for path, entry in result.items()}
        return {path: left.get(path, 0) for path in _differing(self._held[root], left)}

    def _is_own(self, found: HeldEntry, layers: Sequence[tuple[Taken, bytes]]) -> bool:
        """Tell whether an entry is what the operation left, not one that looks the same and was made by a later run."""
        own = {rest.layer for rest in self._end.residues}
        uppers = [upper for tree, upper in layers if tree.layer in own]
        return found.inode > 0 or not uppers or _made_in(found, layers) in uppers

    def _is_taken_since(
        self,
        root: bytes,
        path: bytes,
        left_as: int,
        was: HeldEntry | None,
        found: HeldEntry | None,
        layers: Sequence[tuple[Taken, bytes]],
    ) -> bool:
        """Tell whether what the operation left held at a path was applied or discarded since."""
        if not left_as:
            return False
        if left_as > 0 and found is not None and not any(_has_entry(upper, path, left_as) for _tree, upper in layers):
            # A later run changed the path anew
            return True
        is_gone = not any(
            _has_entry(upper, path) or (left_as == -1 and _has_no_place(path, [upper])) for _tree, upper in layers
        )
        # Nothing is seen of it, though the project has nothing there: a later run has taken it away
        is_gone |= left_as != -1 and found is None and not _has_entry(root, path)
        return is_gone and (not self._is_discard or (left_as > 0 and _has_lines_of(root, was)))

    def _place_above(self, root: bytes) -> int:
        """Return the place of the last layer of a root that was there when the operation took its layers."""
        rests = (self._store.layers.find(LayerId(rest.layer)) for rest in self._end.residues if rest.root == root)
        taken = (tree.seq for tree in self._before if tree.root == root)
        return max((*taken, *(row.seq for row in rests if row is not None)))

    def _base_above(self, root: bytes, path: bytes, place: int) -> Base | None:
        """Return what the layers above a place made of a path was made from."""
        rows = self._store.layers.sealed(SandboxId(self._operation.sandbox)) if place else ()
        above = (row for row in rows if row.root == root and row.seq > place)
        changing = next((row for row in above if _has_entry(upper_dir(self._store.state, row.id), path)), None)
        return None if changing is None else find_bases(self._store, changing.id).get(path)

    def _beneath(self, root: bytes, place: int) -> list[bytes]:
        """Return the layers of a root up to a place, the topmost first."""
        rows = self._store.layers.sealed(SandboxId(self._operation.sandbox)) if place else ()
        found = [row for row in rows if row.root == root and row.seq <= place]
        return [upper_dir(self._store.state, row.id) for row in reversed(found)]

    def _read(
        self, root: bytes, trees: Iterable[Taken], taken_by: OperationId, put: Container[bytes] = ()
    ) -> tuple[dict[bytes, HeldEntry], list[tuple[Taken, bytes]]]:
        """Return what layers hold over a root by path, and where each of them lies."""
        found = [(tree, tree_dir(self._store.state, taken_by, tree.layer)) for tree in trees if tree.root == root]
        if not found:
            return {}, []
        rows = [(tree.layer, upper, tree.mark_ns, dict(tree.overrides)) for tree, upper in found]
        layers = FoldedLayers(self._store, root, rows, self._masks.get(root))
        below = (self._masks.get(root), self._base_of(root))
        changes = list(scan(layers.uppers, tuple(one for one in below if one is not None), root))
        is_before = taken_by == self._operation.id
        entries = layers.entries(changes, returned=self._returned(root, layers.marks) if is_before else None, put=put)
        if is_before:
            entries = [self._as_before(entry, layers.marks.of(entry.change.path), root) for entry in entries]
        return {entry.change.path: entry for entry in entries}, found

    def _returned(self, root: bytes, marks: Marks) -> dict[bytes, Entry]:
        """Return what the operation displaced, where the runs before it saw that."""
        return {
            path: step.before
            for (where, path), step in self._steps.items()
            if where == root and step.before is not None and step.before.ctime_ns < marks.of(path)
        }

    def _as_before(self, entry: HeldEntry, mark: int, root: bytes) -> HeldEntry:
        """Return an entry whose base is live again: by its time, where nobody has read its content."""
        if entry.mark_ns is None or (entry.base is not None and entry.base.digest):
            return entry
        step = self._steps.get((root, entry.change.path))
        is_base = step is not None and step.before is not None and step.before.ctime_ns < mark
        return entry.replace(mark_ns=None) if is_base else entry

    def _changed_at(self, root: bytes, before: Mapping[bytes, HeldEntry]) -> Iterator[tuple[bytes, int]]:
        """Yield the paths at which the operation changed what is held, each with what it left there."""
        if self._end.held is None:
            yield from ((path, 0) for path in before)
        else:
            yield from ((path, inode) for where, path, inode in self._end.held if where == root)

    def _made_from(self, root: bytes, found: HeldEntry, was: HeldEntry | None) -> HeldEntry:
        """Return what a later run holds, over what is restored beneath it, or put into the project."""
        path = found.change.path
        if was is not None:
            return found.replace(base=was.base, packed=was.packed, mark_ns=was.mark_ns, inner=was.inner)
        if (root, path) not in self._steps:
            return found
        packed = self._store.texts.find(self._operation.of or "", root, path)
        text = unpack(packed)
        with Beneath(os.open(root, _DIRECTORY)) as live:
            base = base_at(live, path)
            if text is None or read_live(live, path) == text:
                return found.replace(base=base, packed=packed if text is not None else None, mark_ns=None, inner=())
        # It was merged with the person's edits, which the later run has not seen
        return found.replace(base=Base(kind=base.kind, mode=base.mode), packed=packed, mark_ns=0, inner=())

    def _rebase_hiding(self, root: bytes, path: bytes, result: dict[bytes, HeldEntry]) -> Iterator[bytes]:
        """Let later runs that took away a directory of a path have seen what is put there; yield these directories."""
        for above in ancestors([path]) & result.keys() if (root, path) in self._steps else ():
            entry = result[above]
            inner = dict(entry.inner)
            if path in inner and inner[path].kind is not None:
                with Beneath(os.open(root, _DIRECTORY)) as live:
                    inner[path] = base_at(live, path)
                result[above] = entry.replace(inner=tuple(inner.items()))
                yield above

    def _base_of(self, root: bytes) -> bytes | None:
        """Return the repository as the oldest of the layers saw it that are held afterwards.

        What is held again is older than what was held since; the operation's own layers go.
        """
        state, own = self._store.state, {rest.layer for rest in self._end.residues}
        places = [kept_base_dir(state, self._operation.id, one.layer) for one in self._before if one.root == root]
        now = [tree.layer for tree in self._trees if tree.root == root]
        places += [base_dir(state, LayerId(layer)) for layer in sorted(now, key=own.__contains__)]
        return next((place for place in places if os.path.lexists(place)), None)

    def _run_of(self, entries: Sequence[HeldEntry], layers: Sequence[tuple[Taken, bytes]]) -> str:
        """Return whose changes they are: the last run that made some of them."""
        made = [tree.run for tree, upper in layers if any(entry.place.startswith(upper + b"/") for entry in entries)]
        runs = self._operation.runs
        # Journals of unspill 0.1 have no run for each layer
        return (made or [""])[-1] or (runs[-1] if runs else "")


def _has_lines_of(root: bytes, was: HeldEntry | None) -> bool:
    """Tell whether the project has all that a change did to a text, whatever else was done to it there."""
    text = None if was is None else was.text
    if was is None or text is None:
        return False
    above, _, name = was.place.rpartition(b"/")
    with Beneath(os.open(root, _DIRECTORY)) as live, Beneath(os.open(above, _DIRECTORY)) as layer:
        ours, theirs = read_live(live, was.change.path), read_live(layer, name)
    merge = None if ours is None or theirs is None else merge_texts(text, ours, theirs)
    return merge is not None and not merge.clashes and merge.text() == ours


def _differing(one: Mapping[bytes, int], other: Mapping[bytes, int]) -> set[bytes]:
    """Return the paths at which something else is held, or nothing."""
    return {path for path in one.keys() | other if one.get(path) != other.get(path)}


def _without_idle_ways(entries: Mapping[bytes, HeldEntry]) -> dict[bytes, HeldEntry]:
    """Leave out directories that lead to nothing any more."""
    leading = ancestors(path for path, entry in entries.items() if not entry.is_on_the_way)
    return {path: entry for path, entry in entries.items() if not entry.is_on_the_way or path in leading}


def _made_in(entry: HeldEntry, layers: Sequence[tuple[Taken, bytes]]) -> bytes | None:
    """Return the layer, of some from the oldest on, that has an entry or takes it away, perhaps with all around it."""
    if entry.change.entry is not None:
        return entry.change.layer
    places = [entry.change.path, *ancestors([entry.change.path])]
    hiding = (upper for _tree, upper in reversed(layers) if any(hides_below(upper + b"/" + one) for one in places))
    return next(hiding, None)


def _is_known(base: Base | None) -> bool:
    """Tell whether a base says what there was, byte for byte."""
    return base is not None and (base.kind is None or bool(base.digest))


def _has_entry(upper: bytes, path: bytes, inode: int = 0) -> bool:
    """Tell whether a layer has something at a path, or that inode; where nobody can look, it may have."""
    try:
        found = os.lstat(upper + b"/" + path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return not inode or found.st_ino == inode


def _is_hidden(entry: HeldEntry, result: Mapping[bytes, HeldEntry], filled: Container[bytes]) -> bool:
    """Tell whether later changes leave no place for an entry: they took away what it is in, or `filled` it."""
    path = entry.change.path
    above = (result[one] for one in ancestors([path]) if one in result)
    if any(one.change.entry is None or one.change.entry.kind != "dir" for one in above):
        return True
    is_dir = entry.change.entry is not None and entry.change.entry.kind == "dir"
    return not is_dir and path in filled and any(one.startswith(path + b"/") for one in result)


def _has_no_place(path: bytes, uppers: Sequence[bytes]) -> bool:
    """Tell whether layers have something else where a path needs a directory."""
    places = (upper + b"/" + above for upper in uppers for above in ancestors([path]))
    return any(os.path.lexists(place) and not is_directory(place) for place in places)


def _is_left(root: bytes, path: bytes, left: set[tuple[bytes, bytes]]) -> bool:
    """Tell whether a path, or the repository that it belongs to, was left."""
    return (root, path) in left or (b".git/" in path and (root, repository_of(path) or path) in left)


def get_operation(project: Project, operation: str | int) -> Operation:
    """Return an operation of this project by number or id.

    Raises:
        UsageError: there is none.
    """
    text = str(operation)
    if text.isdecimal() and len(text) < 16:
        found = project.store.operations.find_number(project.path, int(text))
    else:
        found = project.store.operations.find(OperationId(text))
    if found is None or found.project != project.path:
        raise UsageError(f"no such operation: {text}", remedy="See `unspill log`.")
    return found


def undo_operation(
    project: Project,
    operation: str | int | None,
    asked_by: str,
    cancel_fd: int | None = None,
    *,
    is_dry: bool = False,
) -> Operation:
    """Take an operation back: by default the last one that was not taken back yet. If `is_dry`, only say what of it.

    Raises:
        UsageError: there is nothing to take back.
        SandboxUnavailable: the caller gave up; nothing was changed.
    """
    end_interrupted(project.store)
    done = done_in(project)
    if operation is None:
        newest = _newest_by_origin(done)
        last = (newest[one.origin] for one in done if _is_meant(one))
        wanted = next((one for one in last if one.kind != "undo"), None)
        if wanted is None:
            raise UsageError("there is nothing to undo", remedy="See `unspill log`.")
    else:
        named = get_operation(project, operation)
        wanted = _newest_of(named, done)
        if (wanted.kind == "undo") != (named.kind == "undo"):
            raise _already_reversed(named, wanted)
    kind: OperationKind = "undo" if wanted.kind != "undo" else "redo"
    return _reverse(project, wanted, kind, done, asked_by, cancel_fd, is_dry=is_dry)


def _is_meant(one: Operation) -> bool:
    """Tell whether somebody who says "undo" may mean an operation.

    What only changed times, and what a run dropped because a later one had taken it back, is undone when it is named.
    """
    return one.kind != "undo" and bool(one.changed) and not lets_go(one)


def lets_go(one: Operation) -> bool:
    """Tell whether an operation only dropped what earlier runs held and a later run had taken back."""
    return one.kind == "discard" and one.asked_by == AFTER_RUN


def _newest_of(wanted: Operation, done: Sequence[Operation]) -> Operation:
    """Return the last undo or redo of an operation, where there is one: what that replaced is what is restored."""
    return _newest_by_origin(done).get(wanted.origin, wanted)


def _newest_by_origin(done: Sequence[Operation]) -> dict[OperationId | None, Operation]:
    """Return the last undo or redo of each operation that began with itself, or that operation.

    A redo of an undo that was not complete has only a part of it: then the operation before counts.
    """
    newest: dict[OperationId | None, Operation] = {}
    complete: dict[OperationId | None, Operation] = {}
    # The youngest come first
    for one in reversed(done):
        last = newest.get(one.origin)
        is_part = one.kind == "redo" and last is not None and bool(last.left) and one.origin in complete
        newest[one.origin] = complete[one.origin] if is_part else one
        if one.kind != "undo":
            complete[one.origin] = newest[one.origin]
    return newest


def redo_operation(project: Project, operation: str | int | None, asked_by: str) -> Operation:
    """Do again what an undo took back: by default the last undo that was not followed by its redo.

    Raises:
        UsageError: there is nothing to do again.
    """
    end_interrupted(project.store)
    done = done_in(project)
    if operation is None:
        newest = _newest_by_origin(done)
        wanted = next((newest[one.origin] for one in done if newest[one.origin].kind == one.kind == "undo"), None)
        if wanted is None:
            raise UsageError("there is nothing to redo", remedy="See `unspill log`.")
    else:
        named = get_operation(project, operation)
        wanted = _newest_of(named, done)
        if wanted.kind != "undo" and named.kind == "undo":
            raise _already_reversed(named, wanted)
        if wanted.kind != "undo":
            raise UsageError(f"op {named.number} was not undone", remedy="See `unspill log`.")
    return _reverse(project, wanted, "redo", done, asked_by)


def steps_of(project: Project, operation: Operation) -> tuple[Step, ...]:
    """Return the steps of an operation that were done; none where its journal is not kept any more."""
    return with_steps(project, operation)[1]


def with_steps(project: Project, operation: Operation) -> tuple[Operation, tuple[Step, ...]]:
    """Return an operation with what was flagged in it, and its steps that were done, as far as its journal is kept."""
    journal = journal_of(project.store.state, operation)
    if journal is None or journal.end is None:
        return operation, ()
    steps = tuple(journal.steps[index] for index in journal.end.done)
    return operation.replace(flagged=journal.end.operation.flagged), steps


class Changers(Record):
    """The runs that changed a path, or what is below it: those behind each operation, by its id, and what is held."""

    by_operation: dict[str, set[RunId]]
    held: set[RunId]


def find_changers(project: Project, path: bytes) -> Changers:
    """Return the runs that changed what is at an absolute path, or below it, as far as operations are kept.

    A layer has each path that its run changed, or had it when it gave the entry away. Where layers of several runs were
    folded into one, nobody can tell any more which of them changed what: all of them are named.
    """
    state = project.store.state
    origins: dict[str, set[RunId]] = {}
    found: dict[str, set[RunId]] = {}
    taken: dict[str, set[RunId]] = {}
    for one in reversed(project.store.operations.latest(project.path, _ALL)):
        journal = find_journal(state, one)
        if journal is None or journal.end is None:
            continue
        behind = {tree.layer: origins.setdefault(tree.layer, {RunId(tree.run)}) for tree in journal.trees}
        runs = _changers_of(state, one, journal, behind, path)
        if runs is not None:
            # Journals of unspill 0.1 have no run for each layer
            found[one.id] = runs - {RunId("")} or set(one.runs)
        # A run that is applied by itself leaves nothing of its own held; an undo holds what others were behind
        own = set(one.runs) if one.asked_by == AFTER_RUN else set()
        taken[one.id] = set().union(*behind.values()) - own if behind else taken.get(one.of or "", set(one.runs))
        origins.update({rest.layer: taken[one.id] or {RunId(rest.run)} for rest in journal.end.residues})
    held: set[RunId] = set()
    for row in project.store.layers.sealed(project.row.id):
        if _touches(upper_dir(state, row.id), row.root, path):
            held |= origins.get(row.id, {row.run})
    return Changers(by_operation=found, held=held)


def _changers_of(
    state: bytes, operation: Operation, journal: Journal, behind: dict[str, set[RunId]], path: bytes
) -> set[RunId] | None:
    """Return the runs by whose layers an operation changed a path; None if it changed nothing there."""
    assert journal.end is not None
    found: set[RunId] = set()
    is_changed = False
    for step in (journal.steps[index] for index in journal.end.done):
        changed = operation.roots[step.root] + b"/" + step.path
        if changed != path and not changed.startswith(path + b"/") and not _went_with(state, step, changed, path):
            continue
        is_changed = True
        parts = step.place.split(b"/", 3)
        if not step.staged and len(parts) == 4 and parts[1] == b"tree":
            found |= behind.get(parts[2].decode(), set())
    for tree in journal.trees:
        if _touches(tree_dir(state, operation.id, tree.layer), tree.root, path):
            found |= behind[tree.layer]
    return found if found or is_changed else None


def _went_with(state: bytes, step: Step, changed: bytes, path: bytes) -> bool:
    """Tell whether something was at a path that went away with a directory above it."""
    if step.before is None or step.before.kind != "dir" or not path.startswith(changed + b"/"):
        return False
    return os.path.lexists(state + b"/operations/" + step.backup + path[len(changed) :])


def _touches(upper: bytes, root: bytes, path: bytes) -> bool:
    """Tell whether a layer over a root has something at a path or below it, or took away what was above it."""
    if (root + b"/").startswith(path + b"/"):
        return _has_file(upper)
    if not path.startswith(root + b"/"):
        return False
    place = upper
    for name in path[len(root) + 1 :].split(b"/"):
        place += b"/" + name
        try:
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                return True
        except OSError:
            return False
    return _has_file(place)


def _has_file(directory: bytes) -> bool:
    """Tell whether there is something in a directory that is none itself: a deletion is such a thing too."""
    return any(files for _directory, _directories, files in os.walk(directory))


def done_in(project: Project) -> list[Operation]:
    """Return the operations of the project that were done, the youngest first."""
    return [one for one in project.store.operations.latest(project.path, _ALL) if one.ending == "done"]


def _refuse_other_roots(journal: Journal) -> None:
    """Stop where another directory is at the path of a root than the one that the operation changed."""
    for root, (_device, inode) in zip(journal.operation.roots, journal.identities, strict=True):
        if stat_root(root).st_ino != inode:
            raise RootRefused(
                f"{os.fsdecode(root)} is not the directory that the operation changed",
                remedy="Move the project back to where it was.",
            )


def _already_reversed(wanted: Operation, by: Operation) -> UsageError:
    done, remedy = f"undid op {wanted.number}", f"To redo it: unspill redo op{wanted.number}"
    if wanted.kind == "undo":
        done, remedy = f"redid what op {wanted.number} undid", f"To undo it again: unspill undo op{by.number}"
    return UsageError(f"op {by.number} already {done}", remedy=remedy)


def _refuse_reversed_since(store: Store, wanted: Operation, done: Sequence[Operation]) -> None:
    """Stop where somebody else undid or redid an operation that was to be reversed, after these were done."""
    known = {one.id for one in done}
    for one in store.operations.of_origin(wanted.origin or wanted.id):
        if one.id not in known:
            raise UsageError(
                f"op {wanted.number} was undone or redone in the meantime, by op {one.number}",
                remedy="See `unspill log`.",
            )


def _reverse(
    project: Project,
    wanted: Operation,
    kind: OperationKind,
    done: Sequence[Operation],
    asked_by: str,
    cancel_fd: int | None = None,
    *,
    is_dry: bool = False,
) -> Operation:
    journal = _reversible(project.store, wanted, done)
    later = LaterOperations(project.store, wanted)
    origin = project.store.operations.find(wanted.origin) if wanted.origin is not None else None
    first = wanted if origin is None else origin
    is_run = first.kind == "apply" and first.asked_by == AFTER_RUN
    # Of what was asked for, the text that the run left is held again: there an edited file is a conflict
    may_merge = is_run or first.kind not in ("apply", "discard")

    def check() -> None:
        refuse_given_up(cancel_fd)
        _refuse_reversed_since(project.store, wanted, done)

    reversal = Reversal(later.as_of_now(journal), later, kind, may_merge=may_merge)
    task = Task(
        kind=kind,
        sandbox=wanted.sandbox,
        project=wanted.project,
        roots=wanted.roots,
        asked_by=asked_by,
        draft=reversal.draft,
        of=wanted.id,
        origin=wanted.origin,
        runs=wanted.runs,
        check=check,
        is_dry=is_dry,
    )
    try:
        assert journal.end is not None
        if not HeldReversal(project, journal, is_run=is_run) and not journal.end.restored:
            return operate(project.store, task)
        with lock_unless_given_up(project.store.state, SandboxId(wanted.sandbox), cancel_fd):
            check()
            # Anew: while this waited, somebody else may have taken the layers
            held = HeldReversal(project, journal, is_run=is_run)
            reversal.taken = held.find_taken()
            try:
                made = operate(project.store, _with_layers(project.store, wanted, journal, task, held))
            finally:
                held.release()
            if made.number:
                held.drop_links()
            return made
    finally:
        forget_untracked(project)


def _reversible(store: Store, wanted: Operation, done: Sequence[Operation]) -> Journal:
    """Return the journal of an operation that can be reversed.

    Raises:
        UsageError: it was rolled back or reversed already, its backup is gone, or a root is another directory now.
    """
    if wanted.ending != "done":
        raise UsageError(f"op {wanted.number} was rolled back: there is nothing to undo")
    if by := reversals_of(done).get(wanted.id):
        raise _already_reversed(wanted, by)
    journal = journal_of(store.state, wanted)
    if journal is None or journal.end is None:
        raise UsageError(f"the backup of op {wanted.number} is gone", remedy="See `keep_days` in the settings.")
    _refuse_other_roots(journal)
    return journal


def _with_layers(store: Store, wanted: Operation, journal: Journal, task: Task, held: HeldReversal) -> Task:
    """Return the task of a reversal with what it does to the layers of the sandbox.

    A discard of all that was held takes layers as they are, and its reversals give and take them so.

    Raises:
        UsageError: what was held again by an undo is not held any more, or a later run built on it.
    """
    end = journal.end
    assert end is not None
    changed = 0 if journal.steps or journal.git else wanted.changed
    if end.restored:
        layers = [tree.layer for tree in end.restored]
        known = {tree.layer: tree for tree in taken_layers(store, SandboxId(wanted.sandbox))}
        trees = tuple(known[layer] for layer in layers if layer in known)
        _refuse_built_on(store, wanted, layers, [*known])
        if len(trees) == len(layers) == len(known):
            if not task.is_dry:
                held.take_alone()
            return task.replace(trees=trees, changed=changed)
    elif changed and end.held is None and not held.is_covered():
        return task.replace(restored=journal.trees, changed=changed, settle=held.list_restored)
    return task.replace(trees=() if task.is_dry else held.take_layers(), settle=held.settle, changed=changed)


def _refuse_built_on(store: Store, wanted: Operation, held: Sequence[str], layers: Sequence[str]) -> None:
    """Stop where a later layer that stays has to do with a repository that the layers to be taken changed.

    Its references may lead to commits that only these have.
    """
    with_git = [layer for layer in layers if os.path.lexists(upper_dir(store.state, LayerId(layer)) + b"/.git")]
    first = next((at for at, layer in enumerate(with_git) if layer in held), len(with_git))
    if any(layer not in held for layer in with_git[first:]):
        raise UsageError(
            f"a later run built on the git repository that op {wanted.number} held again",
            remedy="Apply or discard everything that is held instead.",
        )


class PastOperation:
    """What an operation changed, for as long as the context lasts, with readers of both sides of each file."""

    def __init__(self, project: Project, operation: str | int) -> None:
        """Find it.

        Raises:
            UsageError: there is no such operation, or its journal is not kept any more.
        """
        self.operation = get_operation(project, operation)
        # Another process may undo a discard right now
        discarded = when_settled(project, lambda: _discarded(project, self.operation))
        self._trace: _Trace | None = None
        self._below: dict[bytes, tuple[bytes, ...]] = {}
        if discarded is not None:
            self.changes, self._below = discarded
        else:
            self._trace = _Trace(project, self.operation)
            parts = map(self._trace.part, range(len(self.operation.roots)))
            self.changes = ChangeSet(roots=tuple(parts))

    def reader(self, root: bytes) -> Reader:
        """Return what opens files of a root before and after."""
        if self._trace is None:
            return Reader(root, self._below.get(root, ()))
        return _Retraced(root, self.operation.roots.index(root), self._trace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._trace is not None:
            self._trace.__exit__(*details)


def operation_changes(project: Project, operation: str | int) -> ChangeSet:
    """Return what an operation changed.

    Raises:
        UsageError: there is no such operation, or its journal is not kept any more.
    """
    with PastOperation(project, operation) as past:
        return past.changes


def operation_diff(
    project: Project,
    operation: str | int,
    paths: Sequence[bytes],
    *,
    colour: bool,
    skip: Callable[[bytes], bool] = lambda _path: False,
    here: bytes = b"",
) -> str:
    """Return what an operation changed as a text that is safe to print; without paths that `skip` is true of.

    Raises:
        UsageError: there is no such operation, or its journal is not kept any more.
    """
    lines: list[str] = []
    more = 0
    with PastOperation(project, operation) as past:
        for part in past.changes.roots:
            with past.reader(part.root) as reader:
                for change in part.changes:
                    if change.is_mere_touch or (paths and not _is_below(change.path, part.root, paths)):
                        continue
                    if skip(part.root + b"/" + change.path):
                        continue
                    if len(lines) > MAX_LINES:
                        more += 1
                    else:
                        name = name_here(part.root, change.path, here)
                        lines += painted(change_diff(change, reader, MAX_FILE_BYTES, name), colour=colour)
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], left_out(len(lines) - MAX_LINES, more)]
    return "".join(line + "\n" for line in lines)


def blame_file(project: Project, path: bytes) -> tuple[tuple[Operation | str, bytes], ...]:
    """Return the lines of a file, each with the operation that wrote it, or with who else did.

    Raises:
        UsageError: there is no such file, or it is no text.
    """
    where = os.path.join(project.path, path)
    try:
        content = read_up_to(os.open(where, _FILE), MAX_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{quote(path)} can't be read: {error.strerror}") from None
    if is_binary(content):
        raise UsageError(f"{quote(path)} is not a text")
    versions: list[tuple[OperationId | str, bytes | None, bytes | None]] = []
    # What was there before an operation, which its reversal brings back
    befores: dict[OperationId | None, bytes | None] = {}
    known: dict[OperationId | str, Operation] = {}
    # Who wrote what is new in the next version; nobody knows where the one before is not kept
    between = _PERSON
    for operation, before, after in _versions_of(project, where):
        if before is not _NOT_KEPT and (not versions or versions[-1][1] != before):
            versions.append((between, before, None))
        befores[operation.id] = before
        between = _NOBODY if after is _NOT_KEPT else _PERSON
        if after is not _NOT_KEPT:
            versions.append((operation.id, after, befores.get(operation.of)))
            known[operation.id] = operation
    versions.append((between, content, None))
    found = blame_lines(versions, unknown=_NOBODY)
    return tuple((known.get(author, author), line) for author, line in found)  # type: ignore[call-overload]


def _versions_of(project: Project, path: bytes) -> Iterator[tuple[Operation, bytes | None, bytes | None]]:
    """Yield each operation that changed a file, the oldest first, with what was in it before and after.

    None is no file, `_NOT_KEPT` one that nobody has any more. What lies too far back to be kept is passed over.
    """
    done = done_in(project)
    reversals = {one.of: one for one in done if one.of is not None}
    for operation in reversed(done):
        for index, root in enumerate(operation.roots):
            if not path.startswith(root + b"/"):
                continue
            inner = path[len(root) + 1 :]
            try:
                with _Trace(project, operation, reversals.get(operation.id)) as trace:
                    if trace.has(index, inner):
                        yield operation, trace.read(index, inner, after=False), trace.read(index, inner, after=True)
            except UsageError:
                continue


def _discarded(project: Project, operation: Operation) -> tuple[ChangeSet, dict[bytes, tuple[bytes, ...]]] | None:
    """Return what a discard dropped, with the layers below it by root; None for another operation.

    Where it was undone nothing is there to be told of: it is held again.
    """
    state = project.store.state
    journal = journal_of(state, operation)
    if journal is None or journal.end is None or journal.steps or journal.git:
        return None
    uppers: dict[bytes, list[bytes]] = {}
    below: dict[bytes, tuple[bytes, ...]] = {}
    masks = {stack.live: stack.mask for stack in load_masked(project)}
    for tree in reversed(journal.trees):
        place, base = tree_dir(state, operation.id, tree.layer), kept_base_dir(state, operation.id, tree.layer)
        if os.path.lexists(place):
            uppers.setdefault(tree.root, []).append(place)
            below[tree.root] = tuple(path for path in (masks.get(tree.root), base) if path and os.path.lexists(path))
    chosen = set(journal.paths)
    parts = [
        part.replace(
            changes=tuple(change for change in part.changes if not chosen or (part.root, change.path) in chosen)
        )
        for root, layers in uppers.items()
        if os.path.isdir(root)
        for part in scan(tuple(layers), below[root], root).roots
    ]
    return ChangeSet(roots=tuple(parts)), below


def _is_below(path: bytes, root: bytes, wanted: Sequence[bytes]) -> bool:
    for top in wanted:
        if top in (b".", path) or path.startswith(top + b"/"):
            return True
        if top.startswith(b"/") and (root + b"/" + path + b"/").startswith(top + b"/"):
            return True
    return False


class _Sides:
    """What one path had before an operation and had after it."""

    def __init__(self) -> None:
        self.before: Entry | None = None
        self.after: Entry | None = None
        self.dress: list[Step] = []
        self.places: list[bytes] = []


class _Trace:
    """Knows the sides of each path and finds their entries."""

    def __init__(self, project: Project, operation: Operation, reversal: Operation | None = None) -> None:
        """Take an operation; what its reversal has put, if there is one, is what was there before."""
        self._project = project
        self._operation = operation
        self._reversal = reversal
        steps = steps_of(project, operation)
        # One that changed only branches has none
        if not steps and find_journal(project.store.state, operation) is None:
            raise UsageError(f"the backup of op {operation.number} is gone", remedy="See `keep_days` in the settings.")
        self._sides: dict[tuple[int, bytes], _Sides] = {}
        for step in steps:
            self._add(step)
        self._ours = Beneath(os.open(project.store.state + b"/operations", _DIRECTORY))
        self._live = [_open_live(root) for root in operation.roots]
        self._later: dict[tuple[bytes, bytes], list[bytes]] | None = None

    def part(self, root: int) -> RootChanges:
        """Return the changes of one root, sorted."""
        found = [(path, sides) for (index, path), sides in self._sides.items() if index == root]
        changes = [self._change(root, path, sides) for path, sides in sorted(found, key=lambda pair: pair[0])]
        return RootChanges(
            root=self._operation.roots[root], changes=tuple(change for change in changes if change is not None)
        )

    def has(self, root: int, path: bytes) -> bool:
        """Tell whether the content of a path may be another afterwards."""
        sides = self._sides.get((root, path))
        return sides is not None and (sides.before is not None or sides.after is not None)

    def read(self, root: int, path: bytes, *, after: bool) -> bytes | None:
        """Return what was in a file before, or after; None if there was none, `_NOT_KEPT` if nobody has it any more."""
        sides = self._sides[root, path]
        if (sides.after if after else sides.before) is None:
            return None
        try:
            return read_up_to(self.open(root, path, after=after), MAX_FILE_BYTES)
        except OSError:
            return _NOT_KEPT

    def open(self, root: int, path: bytes, *, after: bool) -> int:
        """Open the file that was at a path before, or after; of one that was edited since, the text that was kept.

        Raises:
            OSError: it is not kept any more.
        """
        sides = self._sides[root, path]
        place = self._find(root, path, sides, sides.after if after else sides.before)
        if place is not None:
            fd, name = place[0].parent(place[1])
            return os.open(name, _FILE, dir_fd=fd)
        put_by = self._operation if after else self._reversal
        where = self._operation.roots[root]
        text = None if put_by is None else find_text(self._project.store, put_by.id, where, path)
        if text is None:
            raise FileNotFoundError(2, "it is not kept any more")
        return memory_file(text)

    def _add(self, step: Step) -> None:
        sides = self._sides.setdefault((step.root, step.path), _Sides())
        if step.action == "set_metadata":
            sides.dress.append(step)
            return
        if step.before is not None and sides.before is None:
            sides.before = step.before
        sides.after = step.after if step.action == "put" else None
        sides.places.append(step.backup)

    def _change(self, root: int, path: bytes, sides: _Sides) -> Change | None:
        before, after = sides.before, sides.after
        if before is None and after is None:
            return _dress_change(path, sides.dress)
        change = Change(
            path=path,
            kind=_kind(before, after),
            entry=None if after is None else _identity(after, sides.dress),
            base_kind=None if before is None else before.kind,
            base_size=0 if before is None else before.size,
            base_mode=0 if before is None else before.mode,
            target=self._target(root, path, sides, after),
            base_target=self._target(root, path, sides, before),
        )
        if change.kind != "modified" or before is None or after is None:
            return change
        aspects = ("mode",) if before.mode != after.mode else ()
        is_same = before.size == after.size and self._has_same_content(root, path, change)
        return change.replace(kind="metadata" if is_same else "modified", aspects=aspects or ("mtime",) * is_same)

    def _has_same_content(self, root: int, path: bytes, change: Change) -> bool:
        if change.base_kind != "file" or change.base_size > MAX_FILE_BYTES:
            return change.base_kind == "symlink" and change.target == change.base_target
        try:
            sides = (read_up_to(self.open(root, path, after=after), MAX_FILE_BYTES) for after in (False, True))
            return next(sides) == next(sides)
        except OSError:
            return False

    def _target(self, root: int, path: bytes, sides: _Sides, entry: Entry | None) -> bytes | None:
        if entry is None or entry.kind != "symlink":
            return None
        place = self._find(root, path, sides, entry)
        if place is None:
            return None
        fd, name = place[0].parent(place[1])
        return os.readlink(name, dir_fd=fd)

    def _find(self, root: int, path: bytes, sides: _Sides, entry: Entry | None) -> Place | None:
        if entry is None:
            return None
        live = self._live[root]
        candidates: list[Place] = [(self._ours, place) for place in sides.places if place]
        candidates += [] if live is None else [(live, path)]
        return self._first(candidates, entry) or self._first(
            [(self._ours, place) for place in self._later_places(root, path)], entry
        )

    def _first(self, candidates: Iterable[Place], entry: Entry) -> Place | None:
        for tree, path in candidates:
            try:
                found = tree.find(path)
            except OSError:
                continue
            if found is None:
                continue
            # The copy of what was displaced from another filesystem has an inode and a mode of its own
            is_copy = tree is self._ours and found.st_mtime_ns == entry.mtime_ns and found.st_size == entry.size
            if matches(found, entry) or (is_copy and entry.kind != "dir"):
                return tree, path
        return None

    def _later_places(self, root: int, path: bytes) -> list[bytes]:
        if self._later is None:
            self._later = {}
            store = self._project.store
            for one in store.operations.later(self._operation.project, self._operation.number):
                journal = journal_of(store.state, one)
                for step in () if journal is None else journal.steps:
                    self._later.setdefault((one.roots[step.root], step.path), []).append(step.backup)
        return [place for place in self._later.get((self._operation.roots[root], path), ()) if place]

    def __enter__(self) -> _Trace:
        return self

    def __exit__(self, *_rest: object) -> None:
        self._ours.close()
        for live in self._live:
            if live is not None:
                live.close()


class _Retraced(Reader):
    """Opens files on both sides of what an operation changed."""

    def __init__(self, live: bytes, root: int, trace: _Trace) -> None:
        super().__init__(live)
        self._root = root
        self._trace = trace

    def open_before(self, change: Change) -> int:
        return self._trace.open(self._root, change.path, after=False)

    def open_after(self, change: Change) -> int:
        return self._trace.open(self._root, change.path, after=True)


def _open_live(root: bytes) -> Beneath | None:
    try:
        return Beneath(os.open(root, _DIRECTORY))
    except OSError:
        return None


def _kind(before: Entry | None, after: Entry | None):  # type: ignore[no-untyped-def]
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    return "modified" if before.kind == after.kind else "replaced"


def _identity(entry: Entry, dress: Sequence[Step]) -> Identity:
    worn = dress[-1].becomes if dress else None
    mode = entry.mode if worn is None else worn.mode
    return Identity(kind=entry.kind, mode=mode, inode=entry.inode, size=entry.size, ctime_ns=0)


def _dress_change(path: bytes, dress: Sequence[Step]) -> Change | None:
    """Tell what a directory wears that it did not; one that was only opened for the operation does not differ."""
    was, becomes, entry = dress[0].was, dress[-1].becomes, dress[-1].before
    assert entry is not None
    if was is None or becomes is None or was == becomes:
        return None
    aspects = ("mode",) * (was.mode != becomes.mode) + ("xattrs",) * (was.attributes != becomes.attributes)
    return Change(
        path=path,
        kind="metadata",
        entry=_identity(entry, dress),
        base_kind="dir",
        base_mode=was.mode,
        aspects=aspects,  # type: ignore[arg-type]
    )


class Backup(Record):
    """A displaced version of a file by its name.

    kept: it lies at `path`. live: an undo gave it back to the live tree, so it is what the project has. gone: neither;
    its operation was pruned, or something else was put there.
    """

    row: BackupRow
    where: Whereabouts
    path: bytes


def catch_up(store: Store, project: bytes) -> int:
    """Bring the records of a project up to date with its operations; return how many of them were new."""
    folded = 0
    for operation in store.operations.unrecorded(project):
        journal = find_journal(store.state, operation)
        with store.transaction:
            if not store.operations.claim(operation.id):
                continue
            folded += 1
            if journal is not None and operation.ending == "done":
                _fold(store, operation, journal)
    return folded


def files_of(store: Store, project: bytes, *, with_deleted: bool = False) -> tuple[FileRow, ...]:
    """Return the records of a project by root and path, those of deleted files only where they are asked for."""
    catch_up(store, project)
    return store.files.of_project(project, with_deleted=with_deleted)


def backups_of(store: Store, file: FileRow) -> tuple[Backup, ...]:
    """Return the named backups of a file, the newest first."""
    with _beneath(store.state + b"/operations") as places:
        return tuple(_look_up(store, places, file, row) for row in store.files.backups_of(file.id))


def find_journal(state: bytes, operation: Operation) -> Journal | None:
    """Return the journal of an operation, None where it is gone, was never ended or can't be read."""
    try:
        journal = journal_of(state, operation)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if journal is None or journal.end is None else journal


def backup_name(file: int, at_ns: int, path: bytes) -> bytes:
    """Return the name of the first version that is displaced on a day: the person's own day, not that of UTC."""
    day = time.strftime("%y-%m-%d", time.localtime(at_ns // 1_000_000_000)).encode()
    return (b"%d-%b-%b" % (file, day, os.path.basename(path)))[:LONGEST_NAME]


def _fold(store: Store, operation: Operation, journal: Journal) -> None:
    assert journal.end is not None
    for index in journal.end.done:
        step = journal.steps[index]
        before, after = _as_file(step.before), _as_file(step.after) if step.action == "put" else None
        if step.action != "set_metadata" and (before or after):
            _fold_step(store, operation, step, before, after)


def _as_file(entry: Entry | None) -> Entry | None:
    return entry if entry is not None and entry.kind in _FILES else None


def _fold_step(store: Store, operation: Operation, step: Step, before: Entry | None, after: Entry | None) -> None:
    known = after or before
    assert known is not None
    project, root = operation.project, operation.roots[step.root]
    file = store.files.put(project, root, step.path, known.mtime_ns, is_deleted=after is None)
    if before is None:
        return
    name = backup_name(file.id, operation.at_ns, step.path)
    store.files.add_backup(
        BackupRow(
            name=name,
            file=file.id,
            operation=operation.id,
            place=step.backup,
            recorded_ns=operation.at_ns,
            # The inode of a copy is not the one that was displaced
            entry=before.replace(inode=0) if step.staged else before,
            digest=step.digest,
        )
    )
    if file.last_approved_copy_path != name:
        store.files.change(file.replace(last_approved_copy_path=name))


def _beneath(path: bytes) -> Beneath:
    return Beneath(os.open(path, _DIRECTORY))


def _look_up(store: Store, places: Beneath, file: FileRow, row: BackupRow) -> Backup:
    path = b"%b/operations/%b" % (store.state, row.place)
    if is_kept(places, row):
        return Backup(row=row, where="kept", path=path)
    try:
        with _beneath(file.root) as live:
            found = live.find(file.path)
    except OSError:
        found = None
    if found is not None and matches(found, row.entry):
        return Backup(row=row, where="live", path=os.path.join(file.root, file.path))
    return Backup(row=row, where="gone", path=path)


def is_kept(places: Beneath, row: BackupRow | _Source) -> bool:
    """Tell whether a backup lies where it was put; `places` is the directory of operations."""
    try:
        found = places.find(row.place)
    except OSError:
        return False
    if found is None:
        return False
    entry = row.entry if row.entry.inode else row.entry.replace(inode=found.st_ino, mode=found.st_mode & 0o7777)
    return matches(found, entry)


class _Source(Record):
    """A backup: where it lies below the directory of operations, and what it must be; a copy has no inode there."""

    place: bytes
    entry: Entry
    digest: bytes = b""


def restore_path(project: Project, path: bytes, backup: str | None, asked_by: str) -> Operation:
    """Put a displaced version of a file back: a named one, that of an operation (`op7`), or the newest that is kept.

    Raises:
        UsageError: there is no such backup, or a directory is in the way.
    """
    root, inner = _in_root(project, path)
    source = _find_source(project, root, inner, backup)
    task = Task(
        kind="restore",
        sandbox=project.row.id,
        project=project.path,
        roots=(root,),
        asked_by=asked_by,
        draft=lambda draft, dirs: _draft(project, draft, dirs, inner, source),
    )
    return operate(project.store, task)


def _in_root(project: Project, path: bytes) -> tuple[bytes, bytes]:
    full = os.path.normpath(os.path.join(project.path, path))
    for root in project.roots:
        if full.startswith(root + b"/"):
            return root, full[len(root) + 1 :]
    raise UsageError(f"{os.fsdecode(path)!r} is not inside the project", remedy=_SEE_LISTS)


def _find_source(project: Project, root: bytes, path: bytes, backup: str | None) -> _Source:
    name, found = os.fsdecode(path), None
    if backup is None:
        lack = f"there is no backup of {name!r}"
        with _beneath(project.store.state + b"/operations") as places:
            found = _find_newest(project, places, root, path)
    elif backup.startswith("op") and backup[2:].isdecimal():
        lack = f"{backup} did not replace {name!r}"
        operation = get_operation(project, backup[2:])
        journal = journal_of(project.store.state, operation)
        if journal is not None and journal.end is not None:
            now = LaterOperations(project.store, operation).as_of_now(journal)
            found = next(_displaced(operation, [now.steps[index] for index in journal.end.done], root, path), None)
    else:
        lack = f"there is no such backup of {name!r}"
        catch_up(project.store, project.path)
        file = project.store.files.find(project.path, root, path)
        for one in backups_of(project.store, file) if file is not None else ():
            if one.where == "kept" and one.row.name == os.fsencode(backup):
                found = _Source(place=one.row.place, entry=one.row.entry, digest=one.row.digest)
    if found is None:
        raise UsageError(lack, remedy=_SEE_LISTS)
    return found


def _find_newest(
    project: Project, places: Beneath, root: bytes, path: bytes, *, is_dir: bool = False
) -> _Source | None:
    """Return the version that was displaced last and still lies where it was put."""
    for operation in project.store.operations.latest(project.path, _ALL):
        for source in _displaced(operation, steps_of(project, operation), root, path, is_dir=is_dir):
            if is_kept(places, source):
                return source
    return None


def _displaced(
    operation: Operation, steps: Iterable[Step], root: bytes, path: bytes, *, is_dir: bool = False
) -> Iterator[_Source]:
    """Yield the files, or else the directories, that steps of an operation displaced at a path."""
    for step in steps:
        entry = step.before
        is_there = step.path == path and operation.roots[step.root] == root and step.action != "set_metadata"
        if is_there and entry is not None and (entry.kind == "dir") == is_dir:
            entry = entry.replace(inode=0) if step.staged else entry
            yield _Source(place=step.backup, entry=entry, digest=step.digest)


def _draft(project: Project, draft: Draft, dirs: OpenDirs, path: bytes, source: _Source) -> None:
    status = dirs.operations.find(source.place)
    if status is None:
        raise UsageError(f"{show(path)} has no backup there any more: an undo or redo used it", remedy=_SEE_LISTS)
    fd, name = dirs.operations.parent(source.place)
    _verify(fd, name, status, source, draft)
    live = dirs.roots[0]
    group = draft.next_group()
    missing = _make_parents(project, draft, dirs, path, group)
    found = None if missing else live.find(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{os.fsdecode(path)!r} is a directory now", remedy="Move it away first.")
    if not missing:
        draft.open_directory(0, path.rpartition(b"/")[0], live)
    place, after = draft.stage_backup(0, fd, name)
    before = None if found is None else entry_of(found)
    step = Step(root=0, path=path, action="put", group=group, place=place, before=before, after=entry_of(after))
    draft.add(step.replace(staged=draft.is_staged(0)))


def _verify(fd: int, name: bytes, status: os.stat_result, source: _Source, draft: Draft) -> None:
    entry = source.entry
    is_same = matches(status, entry) if entry.inode and not source.digest else status.st_size == entry.size
    if not is_same or (source.digest and digest_entry(fd, name, status, draft.modes) != source.digest):
        raise UsageError("the backup was changed", remedy=_SEE_LISTS)


def _make_parents(project: Project, draft: Draft, dirs: OpenDirs, path: bytes, group: int) -> bool:
    """Add the directories that are missing above a path; tell whether there are any.

    They get the permissions that they had when an operation took them away, or are the owner's alone.

    Raises:
        UsageError: something that is no directory, a link perhaps, is where one was.
    """
    missing, live = [], dirs.roots[0]
    above = path.rpartition(b"/")[0]
    try:
        while above and live.find(above) is None:
            missing.append(above)
            above = above.rpartition(b"/")[0]
        live.directory(above)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise UsageError(
            f"{show(path)} can't be restored: a link or file took the place of a directory above it",
            remedy="Move it away first, or undo the operation that created it.",
        ) from error
    for directory in reversed(missing):
        source = _find_newest(project, dirs.operations, dirs.paths[0], directory, is_dir=True)
        if source is None:
            place, made = draft.stage_directory(0)
            draft.note(directory, _MADE_PRIVATE)
        else:
            place, made = draft.stage_backup(0, *dirs.operations.parent(source.place))
        step = Step(root=0, path=directory, action="put", group=group, place=place, after=entry_of(made))
        draft.add(step.replace(staged=draft.is_staged(0)))
        mode = 0o700 if source is None else source.entry.mode
        draft.set_metadata_of_new(0, directory, made, Metadata(mode=mode), group)
    return bool(missing)


class Rescanned(Record):
    """How many records stay, how many of those changed, and how many are gone."""

    kept: int = 0
    changed: int = 0
    removed: int = 0


def rescan(store: Store, project: bytes) -> Rescanned:
    """Compare the records of a project with what is there."""
    catch_up(store, project)
    return judge_files(store, store.files.of_project(project, with_deleted=True))


def judge_files(store: Store, files: Iterable[FileRow]) -> Rescanned:
    """Renew or remove the records of some files."""
    kept: list[FileRow] = []
    removed: list[int] = []
    changed: list[FileRow] = []
    with _Look(store) as look:
        for file in files:
            after = look.judge(file)
            if after is None:
                removed.append(file.id)
                continue
            kept.append(after)
            if after != file:
                changed.append(after)
    with store.transaction:
        for file in changed:
            store.files.change(file)
        store.files.remove(removed)
    return Rescanned(kept=len(kept), changed=len(changed), removed=len(removed))


class _Look:
    """Looks at live files and at backups, each root opened once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places = Beneath(os.open(store.state + b"/operations", _DIRECTORY))
        self._roots: dict[bytes, Beneath | None] = {}

    def judge(self, file: FileRow) -> FileRow | None:
        """Return the record as it should be, None if it should not be."""
        live = self._root(file.root)
        if live is None:
            return file
        try:
            found = live.find(file.path)
        except OSError as error:
            if error.errno not in _ABSENT:
                return file
            found = None
        backups = [row for row in self._store.files.backups_of(file.id) if is_kept(self._places, row)]
        known = self._store.files.find_backup(file.last_approved_copy_path) if file.last_approved_copy_path else None
        copy = file.last_approved_copy_path if known is not None else backups[0].name if backups else b""
        file = file.replace(last_approved_copy_path=copy)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            return file.replace(is_deleted=False, last_modified=found.st_mtime_ns)
        return file.replace(is_deleted=True) if backups else None

    def _root(self, root: bytes) -> Beneath | None:
        if root not in self._roots:
            try:
                self._roots[root] = Beneath(os.open(root, _DIRECTORY))
            except OSError:
                self._roots[root] = None
        return self._roots[root]

    def __enter__(self) -> _Look:
        return self

    def __exit__(self, *_rest: object) -> None:
        self._places.close()
        for live in self._roots.values():
            if live is not None:
                live.close()
