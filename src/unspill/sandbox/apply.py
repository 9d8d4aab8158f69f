# SPDX-License-Identifier: Apache-2.0
"""Apply what is held, or discard it: chosen changes go to an operation, and what stays is folded into one layer.

Nothing here writes to the live tree; the operation does. A discard is an operation too: the layers lie in its directory
afterwards, so undo brings them back. An apply that a program wants asks the person about each held file, with the
digest of what would go there. It asks while nothing is locked, so it applies only what was looked at; anything else is
left as stale. Directories that are held, or go, are never asked about: an answer for one would be an answer for all
that is in it.

Whatever an operation needs to its end is loaded before its first step. That is a second line behind
`host.places`: should a command ever get at our own files, the operation that brings what it wrote there does not
run it.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
import time
from hashlib import blake2b

from unspill.apply.bases import Base, Bases, base_at, find_moved, pack, read_live
from unspill.apply.draft import RootDraft, Upper
from unspill.apply.fold import FoldedLayers, HeldEntry, fold_entries, inode_of, layers_of, take_moment
from unspill.apply.guard import lies_in
from unspill.apply.journal import (
    Residue,
    Settled,
    Taken,
    operation_dir,
    tree_dir,
)
from unspill.apply.operate import Task, operate
from unspill.apply.recover import RolledBackEntries
from unspill.changes.diff import apply_hunks, numbered_lines
from unspill.changes.merge import merge_texts
from unspill.changes.scan import Reader
from unspill.changes.select import ancestors, rest, select, without
from unspill.errors import (
    ApplyFailed,
    DeniedError,
    RootRefused,
    SandboxUnavailable,
    StoreError,
    UnspillError,
)
from unspill.host.dirfd import Beneath
from unspill.layers.lifecycle import discard_stacks, make_upper, new_id
from unspill.layers.locks import (
    OperationUse,
    SandboxLock,
    StackUse,
    base_dir,
    given_up,
    lock_sandbox,
    lock_unless_given_up,
    make_in_use,
    refuse_given_up,
    until_cancelled,
    work_dir,
)
from unspill.layers.trees import copy_metadata, open_closed, open_to_owner, remove_tree
from unspill.model.change import Consent, RootChanges
from unspill.model.operation import UNCHECKED
from unspill.model.permission import HeldPath
from unspill.model.policy import Policy
from unspill.model.run import Exited, LayerId, OpenLayer, RunId, Stack, TimeMark
from unspill.permissions.question import describe_held, head_of_held
from unspill.policy.held import TOLD_ONCE, code_of_manifest, meaning_of_manifest
from unspill.policy.paths import alias_of, contains, fold
from unspill.policy.secrets import masked_names
from unspill.runner.perform import perform
from unspill.runner.watch import RunControl
from unspill.sandbox.planning import RunSpec, get_places, make_plan
from unspill.sandbox.result import Applied, describe_end
from unspill.sandbox.review import (
    ApplyRequest,
    choose,
    fold_changes,
    get_run,
    read_all_partly_chosen,
    read_partly_chosen,
    with_tokens,
    with_whole_repositories,
)
from unspill.sandbox.scan import end_interrupted, keep_base, look_again
from unspill.sandbox.secrets import (
    carry_changed,
    concerns_git,
    entries_of,
    load_masked,
    mark_written,
    remember_claims,
    remember_made,
    shown_secrets,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from typing import Literal, Self

    from unspill.apply.bases import LayerBases
    from unspill.apply.draft import Draft
    from unspill.apply.journal import HeldAfter
    from unspill.apply.operate import Settler
    from unspill.apply.recover import OwnEntries
    from unspill.apply.steps import OpenDirs
    from unspill.git.state import Repository
    from unspill.model.change import (
        Change,
        ChangeSet,
        Hunks,
        Selection,
    )
    from unspill.model.operation import Operation, OperationId, Skipped
    from unspill.model.policy import Secrets
    from unspill.model.run import SandboxId
    from unspill.permissions.broker import Broker
    from unspill.sandbox.project import Project
    from unspill.sandbox.review import HeldChoice, PartlyChosen
    from unspill.store.db import Store

    # By root and path
    Files = dict[bytes, dict[bytes, PartlyChosen]]
    FlaggedPaths = tuple[tuple[bytes, str], ...]
    # Where something was told: on a terminal, or to whoever reads a pipe or a file
    Where = Literal["terminal", "elsewhere"]

# Who asks for an operation that follows a run by itself
AFTER_RUN = "run"
# Imported by functions, late, because most runs change nothing; tests/attack/test_installation.py finds what is missing
_TO_THE_END = (
    "_json",
    "json",
    "zlib",
    "unspill.changes.render",
    "unspill.changes.scan",
    "unspill.layers.trees",
    "unspill.sandbox.result",
)
# Only where there is a repository
_OF_REPOSITORIES = ("hashlib", "mmap", "unspill.apply.git_move", "unspill.git.frozen")
# Who asks for an operation asks next what it changed; a run knows that already
_TO_TELL = ("unspill.sandbox.review", "unspill.sandbox.history")
# A reason may name what a command has written
_LONGEST_REASON = 300
# Of what was told: how many files are remembered, how many contents of each, and how large they may be
_MOST_TOLD = 500
_MOST_CONTENTS = 40
_LARGEST_TOLD = 64 << 20
_LARGEST_MANIFEST = 4 << 20
_REFUSED_PACK = "git refused one of its packs"
_NOT_FOUND = 127
_INDEX_SCRIPT = b"""\
command -v git > /dev/null || exit 127
format=$1; shift
for pack; do
    number=$((number + 1))
    git index-pack --object-format="$format" -o "unspill-$number.idx" "$pack" || rm -f "unspill-$number.idx"
done
"""


def apply_held(project: Project, request: ApplyRequest, own: Mapping[bytes, OwnEntries] | None = None) -> Operation:
    """Apply what a request chooses; the sandbox's lock must be held. `own` are no edits of anybody.

    Raises:
        UsageError: the selection chooses nothing, or a run whose paths another held run changed too.
        ApplyFailed: the filesystem failed; nothing was changed.
        RootRefused: another directory is where the project was.
        SandboxUnavailable: the caller gave up; nothing was changed.
    """
    end_interrupted(project.store)
    with StackUse(project.store.state, project.row.id) as use:
        stacks = load_masked(project)
        _refuse_another_project(project, stacks)
        try:
            apply = _Apply(project, stacks, request, is_shared=not use.is_alone, own=own)
        except OSError as error:
            raise ApplyFailed(f"unspill can't read the held changes: {error.strerror}; nothing was changed") from error
        return _without_claims(project, apply)


def _without_claims(project: Project, apply: _Apply) -> Operation:
    """Run an apply; what it makes an index of git say about secrets must not unmask one."""
    operation = _run_with_claims(project, apply) if concerns_git(apply.chosen) else apply.run()
    remember_made(project, operation.paths)
    return operation


def _run_with_claims(project: Project, apply: _Apply) -> Operation:
    before = entries_of(project)
    shown = shown_secrets(project, before)
    # Before: whoever ends this process in the middle must not have the index believed
    mark_written(project.store, apply.chosen)
    try:
        return apply.run()
    finally:
        mark_written(project.store, apply.chosen)
        remember_claims(project, before, shown, apply.chosen)


def _refuse_another_project(project: Project, stacks: Sequence[Stack]) -> None:
    """Stop where the changes would go to another directory than the one they were made over.

    By inode alone: the number of a device may be another one after each start of the machine.
    """
    if any(stack.live == project.path and stack.inode != project.row.inode for stack in stacks):
        raise RootRefused(
            f"{os.fsdecode(project.path)} is not the directory that the sandbox changed",
            remedy="Move the project back to where it was, or run `unspill discard`.",
        )


class _Apply:
    """One apply: which changes are chosen, which stay, and where their entries are."""

    def __init__(
        self,
        project: Project,
        stacks: tuple[Stack, ...],
        request: ApplyRequest,
        *,
        is_shared: bool,
        is_copy: bool = False,
        own: Mapping[bytes, OwnEntries] | None = None,
    ) -> None:
        """Choose. Of a copy nothing is settled: what stays is still in the layer that it is of."""
        self._project = project
        self._is_copy = is_copy
        self._own = own or {}
        self._state = project.store.state
        self._request = request
        self._stacks = tuple(stack for stack in stacks if stack.sealed)
        self._linked: list[Change] = []
        self._is_shared = is_shared
        choice = choose(project, self._stacks, request)
        self._choice = choice
        self._changes = choice.changes
        self.chosen = choice.chosen
        self._git = {stack.live: self._repositories_of(stack.live) for stack in self._stacks}
        self._partly = read_all_partly_chosen(choice.chosen, request.selection.hunks)
        self._rest = rest(choice.changes, choice.chosen, request.selection.hunks)
        self._held = {} if is_copy else {stack.live: self._held_before(stack) for stack in self._stacks}
        self._moved: dict[int, dict[bytes, bool]] = {}
        # By root, bases that can't be read any more when the operation is done
        self._bases: dict[bytes, dict[bytes, Base]] = {}
        self._packs: PackIndexes = self._index_packs()
        self._flagged: list[tuple[bytes, str]] = []
        self._left = self._with_tokens()

    def run(self) -> Operation:
        taken = {layer.id for stack in self._stacks for layer in stack.sealed}
        rows = taken_layers(self._project.store, self._project.row.id)
        trees = tuple(tree for tree in rows if tree.layer in taken)
        task = Task(
            kind="apply",
            sandbox=self._project.row.id,
            project=self._project.path,
            roots=tuple(stack.live for stack in self._stacks),
            asked_by=self._request.asked_by,
            runs=self._runs(),
            draft=self._draft,
            settle=None if self._is_copy else self._settle,
            trees=() if self._is_shared else trees,
            dropped=tuple(tree.layer for tree in trees) if self._is_shared and not self._is_copy else (),
            skipped=self._left,
            flagged=self._flagged_without,
            check=lambda: refuse_given_up(self._request.cancel_fd),
        )
        flags = Flags(self._project.store, self._project.path)
        flags.look_before(self.chosen, self._choice.flagged)
        with self._packs:
            operation = operate(self._project.store, task)
        flags.look_after()
        if not operation.number and not operation.left and not self._rest and not self._is_copy:
            self._drop_layers()
        if operation.number and not self._is_shared:
            self._drop_links(operation.id)
        left = tuple(map(self._with_consent, operation.left))
        return operation.replace(flagged=self._flagged_without(operation.left), left=left)

    def _flagged_without(self, skipped: Iterable[Skipped]) -> FlaggedPaths:
        left = {one.path for one in skipped}
        # What came of a repository is known by the draft alone, and skipped by the name of the repository
        moved = [found for found in self._flagged if not any(lies_in(found[0], path) for path in left)]
        chosen = [found for found in self._choice.flagged if found[0] not in left]
        return (*chosen, *moved)

    def _with_consent(self, left: Skipped) -> Skipped:
        """Return a conflict with the token by which it was consented to: whoever tries again needs both."""
        given = (self._stacks[left.root].live, left.path)
        found = [one.token for one in self._request.selection.consents if (one.root, one.path) == given]
        return left.replace(token=found[0]) if found and left.why == "conflict" else left

    def _with_tokens(self) -> tuple[Skipped, ...]:
        choice, store = self._choice, self._project.store
        if not choice.held:
            return choice.left
        roots = tuple(stack.live for stack in self._stacks)
        return with_tokens(choice.left, choice.held, roots, store.shown, self._project.row.id)

    def _drop_layers(self) -> None:
        """Drop layers that mean nothing to the project: what git did for itself, or what is there already.

        What a run held and a later one has deleted or written over is kept by an operation, as with any discard.
        """
        if self._is_shared:
            # Other runs stand on them: the next operation drops them
            return
        if any(len(stack.sealed) > 1 for stack in self._stacks):
            discard_all(self._project, self._request.asked_by)
        else:
            discard_stacks(self._project.store, self._project.row.id)

    def _index_packs(self) -> PackIndexes:
        """Have an index made of each pack that the chosen changes bring."""
        packs = {
            change.path: change.layer + b"/" + change.path
            for part in self.chosen.roots
            for change in part.changes
            if change.path.endswith(b".pack") and change.layer is not None and change.kind != "metadata"
        }
        size = max((repository.after.hash_size for repository in self._choice.repositories), default=20)
        return PackIndexes(self._project, packs, size)

    def _drop_links(self, operation: OperationId) -> None:
        """Remove second names of what stays held, or discarding it later would free nothing until the next pruning."""
        for change in self._linked:
            layer = os.path.basename(change.layer or b"").decode()
            if change.entry is not None and change.entry.kind != "dir":
                try:
                    os.unlink(tree_dir(self._state, operation, layer) + b"/" + change.path)
                except OSError:
                    continue

    def _runs(self) -> tuple[str, ...]:
        if self._request.run is not None:
            return (*self._request.beside, get_run(self._project, self._request.run).id)
        return tuple(dict.fromkeys(layer.run for stack in self._stacks for layer in stack.sealed))

    def _repositories_of(self, root: bytes) -> tuple[Repository, ...]:
        return tuple(repository for repository in self._choice.repositories if repository.root == root)

    def _draft(self, draft: Draft, dirs: OpenDirs) -> None:
        for index, stack in enumerate(self._stacks):
            layers = self._layers(stack, draft.name)
            changes, chosen = self._changes.of_root(stack.live), self.chosen.of_root(stack.live)
            self._bases[stack.live] = layers.read_bases(changes, self._places(stack, draft.name))
            own = self._own.get(stack.live)
            rolled_back = RolledBackEntries(self._project.store, self._project.path, stack.live, own)
            self._moved[index] = find_moved(dirs.roots[index], changes, layers.marks.of_change, rolled_back.explains)
            if not chosen:
                continue
            uppers = self._uppers(draft.name, stack)
            try:
                files = RootDraft(
                    draft,
                    index,
                    dirs.roots[index],
                    uppers,
                    layers.marks,
                    contents={path: file.chosen for path, file in self._partly.get(stack.live, {}).items()},
                    overwrite=_in_root(stack.live, self._request.selection.overwrite),
                    must_copy=self._is_shared,
                    rolled_back=rolled_back,
                    moved=self._exchanged(index, layers.bases),
                    bases=self._bases_of(stack, layers),
                )
                if self._git[stack.live] or any(b".git" in change.path for change in chosen):
                    part = RootChanges(root=stack.live, changes=chosen)
                    self._draft_repositories(draft, dirs, index, part, uppers, files)
                else:
                    files.add(chosen)
            finally:
                for upper in uppers.values():
                    upper.tree.close()

    def _exchanged(self, index: int, bases: LayerBases) -> set[bytes]:
        """Return the paths of changes in directories that may not be those that the runs saw.

        Where a base says that they were still those when a run had ended, nobody need doubt it right afterwards.
        """
        moved = self._moved[index]
        if not self._request.automatic:
            return {*moved}
        return {path for path, is_sure in moved.items() if is_sure or not bases.is_unread(path)}

    def _bases_of(self, stack: Stack, layers: FoldedLayers) -> Bases:
        selection = self._request.selection
        consented = _in_root(stack.live, selection.included)
        consented += [one.path for one in selection.consents if one.root == stack.live]
        partly = self._partly.get(stack.live, {})

        def find(path: bytes) -> bytes | None:
            # A person has consented to what the run left, and to nothing else
            if any(contains(top, path) for top in consented):
                return None
            seen = layers.bases.text(path)
            # Hunks are chosen from what lies between the live text and the run's
            return partly[path].old if seen is not None and path in partly else seen

        sides = {name: side for path, side in selection.sides for name in _in_root(stack.live, (path,))}
        resolutions = {name: one for one in selection.resolutions for name in _in_root(stack.live, (one.path,))}
        return Bases(layers.bases, find, sides, resolutions)

    def _draft_repositories(
        self, draft: Draft, dirs: OpenDirs, index: int, part: RootChanges, uppers: dict[bytes, Upper], files: RootDraft
    ) -> None:
        from unspill.apply.git_draft import (  # lazy: git
            GitSource,  # lazy: git
            draft_with_repositories,  # lazy: git
        )

        stack = self._stacks[index]
        source = GitSource(
            layers=tuple(uppers[layer.upper].path for layer in reversed(stack.sealed)),
            below=stack.below(),
            uppers={path: upper.path for path, upper in uppers.items()},
            packs=self._packs.indexes,
            unchecked=self._packs.problem,
            name=self._name_of_runs(stack),
        )
        held = dict(self._choice.waiting)[stack.live]
        draft_with_repositories(draft, dirs, index, part, self._git[stack.live], source, files, held)
        self._flagged = draft.flagged

    def _name_of_runs(self, stack: Stack) -> bytes:
        """Return what the last of the runs is called in references."""
        run = self._project.store.runs.find(stack.sealed[-1].run)
        number = 0 if run is None else run.number
        name = self._project.row.name
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
        return b"run-%d" % number if name == "default" else b"%b-run-%d" % (plain.encode(), number)

    def _places(self, stack: Stack, operation: OperationId) -> dict[bytes, bytes]:
        """Return where the layers of a stack lie during the operation, the topmost first."""
        return {
            layer.upper: layer.upper if self._is_shared else tree_dir(self._state, operation, layer.id)
            for layer in reversed(stack.sealed)
        }

    def _uppers(self, operation: OperationId, stack: Stack) -> dict[bytes, Upper]:
        found, places = {}, self._places(stack, operation)
        for layer in stack.sealed:
            path = places[layer.upper]
            place = b"%b/tree/%b" % (operation.encode(), layer.id.encode())
            tree = Beneath(open_closed(path), open_to_owner)
            found[layer.upper] = Upper(path=path, place=place, tree=tree)
        return found

    def _layers(self, stack: Stack, operation: OperationId) -> FoldedLayers:
        places, rows = self._places(stack, operation), layers_of(self._project.store, stack)
        layers = [(layer, places[upper], mark_ns, single) for layer, upper, mark_ns, single in rows]
        return FoldedLayers(self._project.store, stack.live, layers, stack.mask)

    def _settle(self, operation: OperationId, left: Sequence[Skipped], marks: Sequence[int]) -> Settled:
        """Fold what stays into one layer per root, and say what is held otherwise than before."""
        residues: list[Residue] = []
        held: list[HeldAfter] = []
        for index, stack in enumerate(self._stacks):
            places = self._places(stack, operation)
            missed = self._with_repositories(stack.live, {one.path for one in left if one.root == index})
            remaining = [
                change
                for change in self._remaining(stack, missed)
                if change.path not in missed or _is_there(change, places)
            ]
            partly = self._partly.get(stack.live, {}).keys() - missed
            entries = self._entries(stack, operation, remaining, places, self._moved[index], partly)
            remaining = [entry.change for entry in entries]
            held += self._held_after(stack.live, entries, partly)
            if not remaining:
                continue
            # What was before of a file that is partly applied is what an undo holds again
            self._linked += [change for change in remaining if change.path not in partly]
            carry_changed(self._project.store, stack)
            rest = Residue(layer="", root=stack.live, run=_run_of(stack, remaining), mark_ns=marks[index])
            made = fold_entries(self._project.store, operation, stack.live, entries, tuple(places.values()), rest)
            keep_base(stack.base, stack.live, remaining, base_dir(self._state, LayerId(made.layer)))
            residues.append(made)
        return Settled(residues=tuple(residues), held=tuple(sorted(held)))

    def _entries(
        self,
        stack: Stack,
        operation: OperationId,
        remaining: Sequence[Change],
        places: Mapping[bytes, bytes],
        moved: Mapping[bytes, bool],
        partly: Container[bytes],
    ) -> list[HeldEntry]:
        """Return what stays of a stack; the rest of a file starts from its base with what was applied of it."""
        layers = self._layers(stack, operation)
        entries = layers.entries(remaining, places, moved, self._bases[stack.live])
        rebased = (self._rebased(stack.live, entry) if entry.change.path in partly else entry for entry in entries)
        return [entry for entry in rebased if entry is not None]

    def _rebased(self, root: bytes, entry: HeldEntry) -> HeldEntry | None:
        """Return what stays of a file of which hunks were applied; None where they were all that the runs did."""
        path, change = entry.change.path, entry.change
        file = self._partly[root][path]
        text = _without_edits(file, entry.text)
        if file.new in (file.chosen, text):
            return None
        with Beneath(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as live:
            found = base_at(live, path)
            base = found if text is not None and read_live(live, path) == text else Base(kind="file")
        # The run's bits came along with its first hunk: others are the person's
        mode = found.mode if change.entry is None else change.entry.mode
        is_base = bool(base.digest) and found.mode == mode & 0o777
        return entry.replace(
            base=base.replace(mode=mode),
            packed=None if text is None else pack(text),
            mark_ns=None if is_base else entry.mark_ns or 0,
        )

    def _held_before(self, stack: Stack) -> dict[bytes, int]:
        """Return what is held by path; before a run that is applied by itself, only what earlier ones changed is."""
        if self._request.automatic:
            own = self._runs()
            earlier = stack.replace(sealed=tuple(layer for layer in stack.sealed if layer.run not in own))
            changes = tuple(fold_changes((earlier,)))
        else:
            changes = self._changes.of_root(stack.live)
        return held_inodes(changes)

    def _held_after(self, root: bytes, entries: Sequence[HeldEntry], partly: set[bytes]) -> Iterator[HeldAfter]:
        """Yield the paths of which something else is held than before, each with what that is."""
        inodes = {entry.change.path: entry.inode for entry in entries}
        before = self._held[root]
        for path in before.keys() | inodes.keys():
            if path in partly or before.get(path, 0) != inodes.get(path, 0):
                yield root, path, inodes.get(path, 0)

    def _with_repositories(self, root: bytes, left: set[bytes]) -> set[bytes]:
        """Add all that a repository has that was left: it moves or comes as a whole, or stays so."""
        changes = self.chosen.of_root(root)
        together = [repository.paths for repository in self._git[root] if repository.top in left]
        news = tuple(change.path + b"/" for change in changes if change.path in left and _is_new(change))
        below = (change.path for change in changes if change.path.startswith(news))
        return left.union(*together, below)

    def _remaining(self, stack: Stack, left: set[bytes]) -> list[Change]:
        """Return the changes of a root that stay, in the order of the scan, with the directories that they need."""
        whole = self._changes.of_root(stack.live)
        stays = {change.path for change in self._rest.of_root(stack.live)}
        # What is left of a directory that gives way stands for the whole of it
        above = ancestors(left)
        stays |= {
            change.path for change in whole if change.path in left or (change.path in above and _gives_way(change))
        }
        return [change for change in whole if change.path in stays]


def _in_root(root: bytes, paths: Sequence[bytes]) -> list[bytes]:
    """Return what paths are called in a root: relative ones count from each, absolute ones from theirs."""
    own = [path[len(root) + 1 :] or b"." for path in paths if contains(root, path)]
    return own + [path for path in paths if not path.startswith(b"/")]


def _run_of(stack: Stack, remaining: Sequence[Change]) -> RunId:
    """Return whose leftover it is: the last run that made something of what remains."""
    uppers = {change.layer for change in remaining}
    made = [layer.run for layer in stack.sealed if layer.upper in uppers]
    return (made or [stack.sealed[-1].run])[-1]


def _is_new(change: Change) -> bool:
    """Tell whether a directory comes with all that is in it."""
    return change.kind == "added" and change.entry is not None and change.entry.kind == "dir"


def _gives_way(change: Change) -> bool:
    """Tell whether a live directory goes, with all in it."""
    return change.base_kind == "dir" and change.kind in ("deleted", "replaced")


def _is_there(change: Change, sources: Mapping[bytes, bytes]) -> bool:
    """Tell whether a change's entry is still in its layer: an editor may have replaced it while it was live.

    One that was written to meanwhile is still there: what was written is held with it, and nothing is dropped.
    """
    entry = change.entry
    if entry is None or entry.kind == "dir" or change.layer is None:
        return True
    try:
        found = os.lstat(sources[change.layer] + b"/" + change.path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return found.st_ino == entry.inode


def discard_held(project: Project, selection: Selection, asked_by: str = "person") -> Operation:
    """Discard what is held, or what is chosen of it; the operation's number is 0 if nothing was held.

    Raises:
        UsageError: the selection chooses nothing.
        SandboxUnavailable: a run that does not hold its changes still stands on the layers.
        ApplyFailed: the filesystem failed; nothing was discarded.
    """
    end_interrupted(project.store)
    state, sandbox = project.store.state, project.row.id
    with lock_sandbox(state, sandbox), OperationUse(state, sandbox):
        if selection.is_everything:
            return discard_all(project, asked_by)
        return _Discard(
            project, lambda _stacks, changes: select(changes, selection, parents=False), asked_by, selection.hunks
        ).run()


def let_go(project: Project) -> None:
    """Discard what held runs have taken back where the person has made something since: it would hide that.

    Where somebody stands on the layers, or they can't be read, it stays for now.
    """
    state, store, sandbox = project.store.state, project.store, project.row.id
    lock = SandboxLock(state, sandbox)
    if not lock.try_acquire():
        return
    try:
        end_interrupted(store)
        with OperationUse(state, sandbox):
            discard = _Discard(project, lambda stacks, changes: _taken_back(store, stacks, changes), AFTER_RUN)
            if discard.paths:
                discard.run()
            look_again(project)
    except (OSError, SandboxUnavailable):
        return
    finally:
        lock.release()


def _taken_back(store: Store, stacks: Sequence[Stack], changes: ChangeSet) -> ChangeSet:
    if changes.is_cut:
        # What is not listed would go too
        return changes.replace(roots=tuple(part.replace(changes=()) for part in changes.roots))
    parts = []
    for stack, part in zip(stacks, changes.roots, strict=True):
        layers = FoldedLayers(store, stack.live, layers_of(store, stack), stack.mask)
        found = {*layers.taken_back(part.changes)}
        parts.append(part.replace(changes=tuple(change for change in part.changes if change.path in found)))
    return changes.replace(roots=tuple(parts))


def discard_all(project: Project, asked_by: str) -> Operation:
    """Discard every layer; the live directories may be gone by now. The sandbox's lock is held."""
    trees = taken_layers(project.store, project.row.id)
    paths = _held_paths(project) if trees else ()
    changed = max(1, len(paths)) if trees else 0
    return operate(project.store, _task(project, asked_by, trees, changed, None)).replace(paths=paths)


def _held_paths(project: Project) -> tuple[bytes, ...]:
    try:
        return tuple(fold_changes(load_masked(project)).paths())
    except (OSError, RootRefused):
        return ()


def _task(project: Project, asked_by: str, trees: tuple[Taken, ...], changed: int, settle: Settler | None) -> Task:
    return Task(
        kind="discard",
        sandbox=project.row.id,
        project=project.path,
        roots=(),
        asked_by=asked_by,
        draft=lambda _draft, _dirs: None,
        settle=settle,
        runs=tuple(dict.fromkeys(tree.run for tree in trees)),
        trees=trees,
        changed=changed,
    )


class _Discard:
    """A discard of a part: which changes go, and which stay as one layer per root."""

    def __init__(
        self,
        project: Project,
        choose: Callable[[Sequence[Stack], ChangeSet], ChangeSet],
        asked_by: str,
        hunks: tuple[Hunks, ...] = (),
    ) -> None:
        self._project = project
        self._state = project.store.state
        self._asked_by = asked_by
        stacks = [stack for stack in load_masked(project) if stack.sealed]
        changes = fold_changes(stacks)
        self._files, partly = _files_without(changes, hunks)
        chosen, moved = with_whole_repositories(changes, stacks, choose(stacks, changes))
        self._notes = [f"git: also discarded: {what}" for what in moved]
        kept = without(changes, chosen, partly)
        self.paths = tuple((part.root, change.path) for part in chosen.roots for change in part.changes)
        staying = {(part.root, change.path) for part in kept.roots for change in part.changes}
        self._gone = [
            (part.root, change.path)
            for part in changes.roots
            for change in part.changes
            if (part.root, change.path) not in staying
        ]
        self._count = len(changes) - len(kept) + len(partly)
        # The stacks that lose something, with what each has and what stays of it
        self._losing = [
            (stack, part.changes, left.changes)
            for stack, part, left in zip(stacks, changes.roots, kept.roots, strict=True)
            if len(left.changes) < len(part.changes) or stack.live in self._files
        ]
        self._older = {stack.live: layers_of(project.store, stack) for stack, *_changes in self._losing}

    def run(self) -> Operation:
        taken = {layer.id for stack, *_changes in self._losing for layer in stack.sealed}
        trees = tuple(tree for tree in taken_layers(self._project.store, self._project.row.id) if tree.layer in taken)
        task = _task(self._project, self._asked_by, trees, self._count, self._settle)
        return operate(self._project.store, task.replace(paths=self.paths, draft=self._draft))

    def _draft(self, draft: Draft, _dirs: OpenDirs) -> None:
        draft.notes += self._notes

    def _settle(self, operation: OperationId, _left: Sequence[Skipped], _marks: Sequence[int]) -> Settled:
        """Fold what stays into one layer per root, and say what is held otherwise than before."""
        held = dict.fromkeys(self._gone, 0)
        made = [self._fold(operation, *losing, held) for losing in self._losing if losing[-1]]
        return Settled(
            residues=tuple(one for one in made if one is not None),
            held=tuple((root, path, inode) for (root, path), inode in held.items()),
        )

    def _fold(
        self,
        operation: OperationId,
        stack: Stack,
        changes: tuple[Change, ...],
        remaining: tuple[Change, ...],
        held: dict[tuple[bytes, bytes], int],
    ) -> Residue | None:
        """Return the layer of what stays; None where the project has all of it, or later runs took it back."""
        store = self._project.store
        carry_changed(store, stack)
        places = {sealed.upper: tree_dir(self._state, operation, sealed.id) for sealed in reversed(stack.sealed)}
        rows = [(layer, places[upper], mark_ns, single) for layer, upper, mark_ns, single in self._older[stack.live]]
        layers = FoldedLayers(store, stack.live, rows, stack.mask)
        # Before anything live is looked at: what changes from now on is not older
        moment = take_moment(store, operation, stack.live)
        texts: dict[bytes, bytes] = {}
        for path, file in self._files.get(stack.live, {}).items():
            text = _without_edits(file, layers.bases.text(path))
            texts[path] = file.chosen if text is None else text
        written = self._write_texts(operation, stack, remaining, places, texts)
        entries = [
            entry.replace(place=written.get(entry.change.path, entry.place))
            for entry in layers.entries(remaining, places, known=layers.read_bases(changes, places))
            if not _is_base(entry, texts.get(entry.change.path))
        ]
        staying = {entry.change.path for entry in entries}
        held |= {
            (stack.live, change.path): 0
            for change in remaining
            if change.path not in staying and not change.is_mere_touch
        }
        held |= {(stack.live, path): os.lstat(place).st_ino for path, place in written.items() if path in staying}
        if not entries:
            return None
        rest = Residue(layer="", root=stack.live, run=stack.sealed[-1].run, mark_ns=moment)
        made = fold_entries(store, operation, stack.live, entries, tuple(places.values()), rest)
        keep_base(stack.base, stack.live, remaining, base_dir(self._state, LayerId(made.layer)))
        return made

    def _write_texts(
        self,
        operation: OperationId,
        stack: Stack,
        remaining: Sequence[Change],
        sources: Mapping[bytes, bytes],
        texts: Mapping[bytes, bytes],
    ) -> dict[bytes, bytes]:
        """Write files that lose only some of their hunks; return where each is."""
        top = operation_dir(self._state, operation) + b"/stage"
        written: dict[bytes, bytes] = {}
        for change in remaining:
            text = texts.get(change.path)
            if text is not None and change.layer is not None:
                os.makedirs(top, 0o700, exist_ok=True)
                path = written[change.path] = b"%b/text-%d" % (top, len(written))
                _write_text(path, text, change.replace(layer=sources[change.layer]), stack.live)
        return written


def _is_base(entry: HeldEntry, text: bytes | None) -> bool:
    """Tell whether a file that is to hold a text is what it was made from, so that there is nothing to hold."""
    change, base = entry.change, entry.base
    has_bits = base is not None and change.entry is not None and change.entry.mode == base.mode
    return text is not None and text == entry.text and has_bits and "xattrs" not in change.aspects


def _without_edits(file: PartlyChosen, seen: bytes | None) -> bytes | None:
    """Return what is chosen of a file, over the text that the run saw instead of the live one.

    None where the person's lines can't be told from the run's.
    """
    if seen is None or seen == file.old:
        return file.chosen
    merge = merge_texts(file.old, seen, file.chosen)
    return None if merge is None or merge.clashes else merge.text()


def _files_without(changes: ChangeSet, hunks: tuple[Hunks, ...]) -> tuple[Files, list[Hunks]]:
    """Return what stays of files without some hunks, and those hunks, but for files that lose all."""
    files: Files = {}
    partly: list[Hunks] = []
    for some in hunks:
        file = read_partly_chosen(changes, some)
        old, new = file.old, file.new
        apply_hunks(old, new, some.numbers, some.lines)
        lines = [line for line in numbered_lines(old, new) if line.number]
        stay = [line.number for line in lines if line.hunk not in some.numbers and line.number not in some.lines]
        if stay or {"mode", "xattrs"}.intersection(file.change.aspects):
            chosen = apply_hunks(old, new, (), stay)
            files.setdefault(file.root, {})[file.change.path] = file.replace(chosen=chosen)
            partly.append(some)
    return files, partly


def _write_text(path: bytes, text: bytes, change: Change, live: bytes) -> None:
    """Write a file that is like the one in the layer but for its text."""
    with Reader(live) as reader, open(reader.open_after(change), "rb") as source, open(path, "xb") as file:
        file.write(text)
        file.flush()
        copy_metadata(source.fileno(), file.fileno(), os.fstat(source.fileno()))


def preload(roots: Sequence[bytes], *, after_run: bool = False) -> None:
    """Load all that an operation on some roots needs after its first step; `after_run` if it is that of a run."""
    names = _TO_THE_END if after_run else (*_TO_THE_END, *_TO_TELL)
    if any(os.path.lexists(root + b"/.git") for root in roots):
        names = (*names, *_OF_REPOSITORIES)
    for name in names:
        __import__(name)


def apply_run(
    project: Project,
    run: RunId,
    changes: ChangeSet,
    stacks: tuple[Stack, ...],
    own: Mapping[bytes, OwnEntries] | None = None,
    beside: tuple[RunId, ...] = (),
) -> Applied:
    """Apply the changes of a run that is sealed on top of its stacks; a failure to apply leaves them held.

    `beside` are runs that may have made them too. With `own` there were checkpoints, and `changes` are only those of
    all that is in the layers that are still to go.
    """
    preload(project.roots, after_run=True)
    uppers = tuple(layer.upper for stack in stacks for layer in stack.sealed)
    # With nothing beneath, what the run changed is all that is held, and it has just been read
    is_all = all(layer.run == run for stack in stacks for layer in stack.sealed)
    reviewed = changes.replace(layers=uppers) if is_all else None
    if own is not None:
        reviewed = changes.replace(layers=())
    try:
        request = ApplyRequest(reviewed=reviewed, run=run, beside=beside, asked_by=AFTER_RUN, automatic=True)
        operation = apply_held(project, request, own)
    except UnspillError as error:
        return Applied(is_held=True, problem=error.message)
    return _as_applied(project, operation)


def _as_applied(project: Project, operation: Operation) -> Applied:
    return Applied(
        operation=operation,
        is_held=bool(operation.left),
        flagged=operation.flagged,
        told=Flags(project.store, project.path).told(operation, "terminal"),
    )


def apply_checkpoint(
    project: Project,
    run: RunId,
    changes: ChangeSet,
    stacks: tuple[Stack, ...],
    own: Mapping[bytes, OwnEntries],
    selection: Selection | None = None,
    beside: tuple[RunId, ...] = (),
) -> Applied:
    """Apply changes of a copy of the layers of a run that goes on; the copy is on top of the stacks, and stays.

    `beside` are runs that may have made them too. `own` are entries that earlier ones have put there; those of this one
    are added. A `selection` is a person's. The sandbox's lock is held.

    Raises:
        UsageError: the selection chooses nothing.
    """
    preload(project.roots, after_run=True)
    end_interrupted(project.store)
    uppers = tuple(layer.upper for stack in stacks for layer in stack.sealed)
    is_all = all(layer.run == run for stack in stacks for layer in stack.sealed)
    reviewed = changes.replace(layers=uppers if is_all else ())
    request = ApplyRequest(reviewed=reviewed, run=run, beside=beside, asked_by=AFTER_RUN, automatic=True)
    if selection is not None:
        # Still a run's: the layer that it is of stays, so undoing it changes nothing of what is held
        request = request.replace(selection=selection)
    marks = {stack.live: stack.sealed[-1].mark.ctime_ns for stack in stacks}
    unedited = {
        part.root: own[part.root].unedited(part.root, (change.path for change in part.changes), marks[part.root])
        for part in changes.roots
    }
    try:
        _refuse_another_project(project, stacks)
        operation = _without_claims(project, _Apply(project, stacks, request, is_shared=True, is_copy=True, own=own))
    except OSError as error:
        return Applied(is_held=True, problem=f"the checkpoint can't be read: {error.strerror}")
    except UnspillError as error:
        if selection is not None:
            raise
        return Applied(is_held=True, problem=error.message)
    if operation.number:
        for root, entries in own.items():
            entries.note(project.store, operation, root, unedited.get(root, {}))
    return _as_applied(project, operation)


class Flags:
    """What was told of flagged files of a project: no content of a file is told twice in one place.

    A file is remembered only while it is as a run left it. Whoever else changes it, an undo included, has seen
    something in it, so all of it is told anew. Of a package manifest only what is code is told more than once a day.
    Losing this costs a line, never more.
    """

    def __init__(self, store: Store, project: bytes) -> None:
        self._store = store
        self._key = f"flagged in {project.hex()}"
        self._text = store.facts.find(self._key) or "{}"
        # By absolute path: what it is as the last run left it; and what was told where, or was live before
        self._known: dict[str, tuple[str, dict[str, list[str]]]] = json.loads(self._text)
        self._changing: list[tuple[bytes, bytes]] = []

    def look_before(self, chosen: ChangeSet, flagged: FlaggedPaths) -> None:
        """Forget the files that somebody else changed, and remember what the flagged ones are now.

        What a run left there counts only once it was told; what was forgotten for lack of space may be from a run.
        """
        for part in chosen.roots:
            paths = {change.path for change in part.changes}
            known = [os.fsencode(name)[len(part.root) + 1 :] for name in self._known if _is_below(name, part.root)]
            found = [(path, reason) for path, reason in flagged if path in paths and reason in TOLD_ONCE]
            affected = {path for path in known if path in paths or not paths.isdisjoint(ancestors([path]))}
            is_full = len(self._known) >= _MOST_TOLD
            for path in affected:
                if self._record(part.root, path)[0] != _state_of(part.root, path):
                    del self._known[os.fsdecode(part.root + b"/" + path)]
            for path, reason in found:
                is_new = os.fsdecode(part.root + b"/" + path) not in self._known
                self._note(
                    part.root, path, "live", _words_of(part.root, path, reason) if is_new and not is_full else []
                )
            self._changing += [(part.root, path) for path in sorted({*affected, *(path for path, _ in found)})]

    def look_after(self) -> None:
        """Remember what the files are that an operation has changed."""
        for root, path in self._changing:
            name = os.fsdecode(root + b"/" + path)
            if name in self._known:
                # The last ones are those that stay remembered
                self._known[name] = _state_of(root, path), self._known.pop(name)[1]
        self._save()

    def told(self, operation: Operation, where: Where) -> tuple[bytes, ...]:
        """Return the flagged paths of an operation whose content was told there before."""
        return tuple(path for path, reason in operation.flagged if self._is_told(operation, path, reason, where))

    def tell(self, operation: Operation, where: Where) -> FlaggedPaths:
        """Return what of an operation is to be told there, and remember that it was."""
        told = set(self.told(operation, where))
        news = tuple(found for found in operation.flagged if found[0] not in told)
        for path, reason in news:
            for root in _roots_of(operation, path) if reason in TOLD_ONCE else ():
                self._note(root, path, where, [*_words_of(root, path, reason), _today()])
        self._save()
        return news

    def _is_told(self, operation: Operation, path: bytes, reason: str, where: Where) -> bool:
        roots = _roots_of(operation, path) if reason in TOLD_ONCE else []
        return bool(roots) and all(self._is_known(root, path, reason, where) for root in roots)

    def _is_known(self, root: bytes, path: bytes, reason: str, where: Where) -> bool:
        record = self._known.get(os.fsdecode(root + b"/" + path))
        if record is None:
            return False
        told = record[1].get(where, [])
        known = {*told, *record[1].get("live", ())}
        content, *code = _words_of(root, path, reason) or [""]
        return content in known or (bool(code) and known.issuperset(code) and _today() in told)

    def _record(self, root: bytes, path: bytes) -> tuple[str, dict[str, list[str]]]:
        return self._known.setdefault(os.fsdecode(root + b"/" + path), (_state_of(root, path), {}))

    def _note(self, root: bytes, path: bytes, where: str, words: list[str]) -> None:
        known = self._record(root, path)[1]
        known[where] = [*(word for word in known.get(where, ()) if word not in words), *words][-_MOST_CONTENTS:]

    def _save(self) -> None:
        text = json.dumps(dict(list(self._known.items())[-_MOST_TOLD:]))
        if text != self._text:
            try:
                self._store.facts.put(self._key, text)
            except StoreError:
                # Then something is told twice; what was applied is applied
                return
            self._text = text


def _is_below(name: str, root: bytes) -> bool:
    return name.startswith(os.fsdecode(root) + "/")


def _roots_of(operation: Operation, path: bytes) -> list[bytes]:
    changed = frozenset(operation.paths)
    return [root for root in operation.roots if root + b"/" + path in changed]


def _today() -> str:
    return time.strftime("on %Y-%m-%d")


def _state_of(root: bytes, path: bytes) -> str:
    """Return what tells a live file from any other and from any later state of itself; nothing where there is none."""
    try:
        with Beneath(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as tree:
            found = tree.find(path)
    except OSError:
        return ""
    if found is None:
        return ""
    return f"{found.st_mode:o} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _words_of(root: bytes, path: bytes, reason: str) -> list[str]:
    """Return what stands for a live file as it was flagged, and for the code in a manifest; nothing if it has none."""
    try:
        with Beneath(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as tree:
            above, name = tree.parent(path)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=above), "rb") as file:
                found = os.fstat(file.fileno())
                is_told = stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_TOLD
                content = file.read(_LARGEST_TOLD) if is_told else b""
    except OSError:
        return []
    if not is_told:
        return []
    about = f"{reason} {found.st_mode & 0o7777:o} ".encode()
    if len(content) > _LARGEST_MANIFEST:
        texts = [about + content]
    else:
        code = code_of_manifest(name, content)
        texts = [about + meaning_of_manifest(name, content), *([] if code is None else [b"code " + os.fsencode(code)])]
    return [blake2b(text, digest_size=16).hexdigest() for text in texts]


def apply_in_turn(project: Project, request: ApplyRequest, broker: Broker | None) -> Operation:
    """Apply what a request chooses when it is its turn; with a broker, the person is asked about what is held back.

    Raises:
        UsageError: the selection chooses nothing.
        ApplyFailed: the filesystem failed; nothing was changed.
        SandboxUnavailable: the caller gave up; nothing was changed.
    """
    if broker is not None:
        return apply_with_questions(project, request, broker)
    with lock_unless_given_up(project.store.state, project.row.id, request.cancel_fd):
        return apply_held(project, request)


def apply_with_questions(project: Project, request: ApplyRequest, broker: Broker) -> Operation:
    """Apply what a request chooses, and of what is held that to which the person says yes.

    Raises:
        UsageError: the selection chooses nothing.
        ApplyFailed: the filesystem failed; nothing was changed.
        SandboxUnavailable: the caller gave up; nothing was changed.
    """
    with lock_unless_given_up(project.store.state, project.row.id, request.cancel_fd):
        stacks = tuple(stack for stack in load_masked(project) if stack.sealed)
        choice = choose(project, stacks, request)
        roots = tuple(stack.live for stack in stacks)
        held = {(roots[left.root], left.path): left.reason for left in choice.left if left.why == "held"}
        asked = tuple(_requests(project, held, choice)) if held else ()
    allowed = []
    for question in asked:
        try:
            _obtain(broker, question, request.cancel_fd)
        except DeniedError:
            continue
        allowed.append(Consent(root=question.root, path=question.path, digest=question.digest))
    selection = request.selection.replace(consents=(*request.selection.consents, *allowed))
    reviewed = choice.changes if held else request.reviewed
    with lock_unless_given_up(project.store.state, project.row.id, request.cancel_fd):
        return apply_held(project, request.replace(selection=selection, reviewed=reviewed))


def _obtain(broker: Broker, question: HeldPath, cancel_fd: int | None) -> None:
    permit = until_cancelled(lambda: broker.obtain(question), cancel_fd)
    if permit is None:
        raise given_up()
    permit.take(question)


def _requests(project: Project, held: dict[tuple[bytes, bytes], str], choice: HeldChoice) -> Iterator[HeldPath]:
    is_secret = _secrets(project.means.policy.secrets)
    changes = {(part.root, change.path): change for part in choice.changes.roots for change in part.changes}
    parts = {part.root: part for part in choice.held}
    for (root, path), why in held.items():
        change = changes.get((root, path))
        if change is None or not _is_one_file(change):
            continue
        becomes = describe_held(change)
        with Reader(root) as reader:
            head, rest = (b"", "") if is_secret(path) else head_of_held(change, reader)
        if change.entry is not None and is_secret(path):
            becomes += "; its content is not shown because of its name: see `unspill diff`"
        yield HeldPath(
            project=project.path,
            sandbox=project.row.id,
            root=root,
            path=path,
            digest=parts[root].digest(path),
            why=why[:_LONGEST_REASON] if why.isprintable() else "",
            becomes=becomes,
            head=head,
            rest=rest,
        )


def _secrets(secrets: Secrets) -> Callable[[bytes], bool]:
    """Return what tells the names of secrets, in whatever spelling some filesystem takes for them.

    Who is asked may be a program: what such a file has is the person's alone.
    """
    names = masked_names(secrets)
    aliases = {alias_of(name): name.decode() for name in names if name.isascii()}
    folded = frozenset(fold(name, aliases) for name in names)
    return lambda path: fold(posixpath.basename(path), aliases) in folded


def _is_one_file(change: Change) -> bool:
    left = None if change.entry is None else change.entry.kind
    return left in (None, "file", "symlink") and change.base_kind != "dir"


class PackIndexes:
    """The indexes of some packs, for as long as the context lasts; `problem` says why a pack has none."""

    def __init__(self, project: Project, packs: Mapping[bytes, bytes], hash_size: int) -> None:
        """Take packs by the path that they have in the project, with where they lie."""
        self._project = project
        self._packs = packs
        self._format = b"sha1" if hash_size == 20 else b"sha256"
        self._top = work_dir(project.store.state, new_id())
        self._use_fd: int | None = None
        self.indexes: dict[bytes, bytes] = {}
        self.problem = _REFUSED_PACK

    def __enter__(self) -> Self:
        if self._packs:
            try:
                self._make()
            except (OSError, UnspillError) as error:
                # Without an index a pack is not applied, and what needs it waits; that is said then
                self.problem = f"{UNCHECKED}: {error}"
        return self

    def __exit__(self, *_details: object) -> None:
        remove_tree(self._top)
        if self._use_fd is not None:
            os.close(self._use_fd)

    def _make(self) -> None:
        self._use_fd = make_in_use(self._top)
        os.mkdir(self._top + b"/empty", 0o755)
        directories: dict[bytes, list[bytes]] = {}
        for path, place in self._packs.items():
            directories.setdefault(os.path.dirname(place), []).append(path)
        for number, (lower, paths) in enumerate(directories.items()):
            upper, work = (b"%b/%b-%d" % (self._top, name, number) for name in (b"upper", b"work"))
            os.mkdir(work, 0o700)
            make_upper(upper, lower)
            self._run(lower, upper, work, [os.path.basename(self._packs[path]) for path in paths])
            for count, path in enumerate(paths, 1):
                index = b"%b/unspill-%d.idx" % (upper, count)
                if os.path.isfile(index) and not os.path.islink(index):
                    self.indexes[path] = index

    def _run(self, lower: bytes, upper: bytes, work: bytes, names: list[bytes]) -> None:
        run = RunId(os.urandom(8).hex())
        found = os.stat(lower)
        layer = OpenLayer(id=new_id(), upper=upper, work=work, mark=TimeMark(ctime_ns=0), run=run)
        stack = Stack(live=lower, device=found.st_dev, inode=found.st_ino, open=layer)
        # Nothing of the home directory: its places are covered by directories that this sandbox does not have
        known = self._project.means.policy
        policy = Policy(bwrap=known.bwrap, limits=known.limits, toolchains=False, caches=False)
        project = self._project.replace(path=lower, roots=(lower,)).with_means(policy=policy)
        spec = RunSpec(
            argv=(b"/bin/sh", b"-c", _INDEX_SCRIPT, b"index", self._format, *names),
            script=None,
            cwd=lower,
            environ=(),
            limits=policy.limits,
        )
        # Its one root lies in our state directory, where no root may be: so this sandbox has another one
        places = get_places(project).replace(state=self._top, own=())
        plan = make_plan(project, spec, places, (stack,), ())
        performed = perform(plan, project.means.facts, RunControl(run=run, spill_dir=self._top + b"/output"))
        if performed.outcome == Exited(code=_NOT_FOUND):
            raise OSError("git is not installed")
        if performed.outcome != Exited(code=0):
            raise OSError(describe_end(performed.outcome).partition("\n")[0])
        said = performed.stderr.text.splitlines()[-1:]
        self.problem = ": ".join([_REFUSED_PACK, *said])[:_LONGEST_REASON]


def held_inodes(changes: Iterable[Change]) -> dict[bytes, int]:
    """Return what identifies each held change, by path; what the project has but for the time is not held any more."""
    return {change.path: inode_of(change) for change in changes if not change.is_mere_touch}


def taken_layers(store: Store, sandbox: SandboxId) -> tuple[Taken, ...]:
    """Return the sealed layers of a sandbox, oldest first."""
    return tuple(
        Taken(
            layer=row.id,
            root=row.root,
            run=row.run,
            mark_ns=row.mark_ns,
            seq=row.seq,
            overrides=tuple(store.marks.of(row.id).items()),
        )
        for row in store.layers.sealed(sandbox)
    )
