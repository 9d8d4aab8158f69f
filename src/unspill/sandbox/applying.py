# SPDX-License-Identifier: Apache-2.0
"""Apply what is held: hand what is chosen over to an operation, and fold what stays into one layer.

The sandbox's lock is held by the caller. Nothing here writes to the live tree; the operation does.
"""

from __future__ import annotations

import os

from unspill.apply.draft import RootDraft, Upper
from unspill.apply.journal import Residue, residue_dir, tree_dir
from unspill.apply.operate import Task, operate
from unspill.apply.recover import RolledBackEntries
from unspill.changes.select import rest
from unspill.changes.walk import open_closed, open_to_owner
from unspill.errors import ApplyFailed, RootRefused
from unspill.host.dirfd import Beneath
from unspill.layers.lifecycle import discard_stacks, new_id
from unspill.layers.locks import StackUse, base_dir
from unspill.layers.marks import Marks, carry_over, unedited_directories
from unspill.layers.residue import build_residue
from unspill.sandbox.bases import keep_base
from unspill.sandbox.choosing import ancestors, choose
from unspill.sandbox.claims import concerns_git, entries_of, mark_written, remember_claims
from unspill.sandbox.layer_rows import taken_layers
from unspill.sandbox.masking import carry_changed, load_masked, shown_secrets
from unspill.sandbox.reading import get_run
from unspill.sandbox.sweeping import end_interrupted
from unspill.sandbox.turn import refuse_given_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unspill.apply.draft import Draft
    from unspill.apply.steps import OpenDirs
    from unspill.git.repository import Repository
    from unspill.model.change import Change, ChangeSet, RootChanges
    from unspill.model.layer import RunId, Stack
    from unspill.model.operation import Operation, OperationId, Skipped
    from unspill.sandbox.choosing import Wish
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.pack_index import PackIndexes


def apply_held(opened: Opened, wish: Wish) -> Operation:
    """Apply what is wished for; the sandbox's lock must be held.

    Raises:
        UsageError: the selection chooses nothing, or a run whose paths another held run changed too.
        ApplyFailed: the filesystem failed; nothing was changed.
        RootRefused: another directory is where the project was.
        SandboxUnavailable: the caller gave up; nothing was changed.
    """
    end_interrupted(opened.store)
    with StackUse(opened.store.state, opened.row.id, alone=True) as use:
        stacks = load_masked(opened)
        _refuse_another_project(opened, stacks)
        try:
            apply = _Apply(opened, stacks, wish, is_shared=not use.is_alone)
        except OSError as error:
            raise ApplyFailed(f"what is held can't be read: {error.strerror}; nothing was changed") from error
        return _without_claims(opened, apply)


def _without_claims(opened: Opened, apply: _Apply) -> Operation:
    """Run an apply; what it makes an index of git say about secrets must not unmask one."""
    if not concerns_git(apply.chosen):
        return apply.run()
    before, shown = entries_of(opened), shown_secrets(opened)
    # Before: whoever ends this process in the middle must not have the index believed
    mark_written(opened.store, apply.chosen)
    try:
        return apply.run()
    finally:
        mark_written(opened.store, apply.chosen)
        remember_claims(opened, before, shown, apply.chosen)


def _refuse_another_project(opened: Opened, stacks: Sequence[Stack]) -> None:
    """Stop where the changes would go to another directory than the one they were made over.

    By inode alone: the number of a device may be another one after each start of the machine.
    """
    if any(stack.live == opened.project and stack.inode != opened.row.inode for stack in stacks):
        raise RootRefused(
            f"{os.fsdecode(opened.project)} is another directory than the one that was changed in the sandbox",
            remedy="Put the project back where it was, or `unspill discard` what is held.",
        )


class _Apply:
    """One apply: which changes are chosen, which stay, and where their entries are."""

    def __init__(self, opened: Opened, stacks: tuple[Stack, ...], wish: Wish, *, is_shared: bool) -> None:
        self._opened = opened
        self._state = opened.store.state
        self._wish = wish
        self._stacks = tuple(stack for stack in stacks if stack.sealed)
        self._linked: list[Change] = []
        self._is_shared = is_shared
        choice = choose(opened, self._stacks, wish)
        self._choice = choice
        self._changes = choice.changes
        self.chosen = choice.chosen
        self._rest = rest(choice.changes, choice.chosen, wish.selection.hunks)
        self._git = {stack.live: self._repositories_of(stack.live) for stack in self._stacks}
        self._contents = self._partial_contents()
        self._unedited: dict[int, set[bytes]] = {}
        self._packs: dict[bytes, bytes] = {}
        self._left = self._with_tokens()

    def run(self) -> Operation:
        taken = {layer.id for stack in self._stacks for layer in stack.sealed}
        rows = taken_layers(self._opened.store, self._opened.row.id)
        trees = tuple(tree for tree in rows if tree.layer in taken)
        task = Task(
            kind="apply",
            sandbox=self._opened.row.id,
            project=self._opened.project,
            roots=tuple(stack.live for stack in self._stacks),
            asked_by=self._wish.asked_by,
            runs=self._runs(),
            draft=self._draft,
            settle=self._settle,
            trees=() if self._is_shared else trees,
            dropped=tuple(tree.layer for tree in trees) if self._is_shared else (),
            skipped=self._left,
            check=lambda: refuse_given_up(self._wish.cancel_fd),
        )
        with self._index_packs() as packs:
            self._packs = packs.indexes
            operation = operate(self._opened.store, task)
        if not operation.number and not operation.left and not self._rest:
            self._drop_layers()
        if operation.number and not self._is_shared:
            self._drop_links(operation.id)
        left = {one.path for one in operation.left}
        return operation.replace(flagged=tuple(found for found in self._choice.flagged if found[0] not in left))

    def _with_tokens(self) -> tuple[Skipped, ...]:
        choice, store = self._choice, self._opened.store
        if not choice.held:
            return choice.left
        from unspill.sandbox.consent import with_tokens

        roots = tuple(stack.live for stack in self._stacks)
        return with_tokens(choice.left, choice.held, roots, store.shown, self._opened.row.id)

    def _drop_layers(self) -> None:
        """Drop layers that mean nothing to the project: what git did for itself, or what is there already.

        What a run held and a later one has deleted or written over is kept by an operation, as with any discard.
        """
        if any(len(stack.sealed) > 1 for stack in self._stacks):
            from unspill.sandbox.discarding import discard_all

            discard_all(self._opened, self._wish.asked_by)
        else:
            discard_stacks(self._opened.store, self._opened.row.id)

    def _index_packs(self) -> PackIndexes:
        """Have an index made of each pack that the chosen changes bring."""
        from unspill.sandbox.pack_index import PackIndexes

        packs = {
            change.path: change.layer + b"/" + change.path
            for part in self.chosen.roots
            for change in part.changes
            if change.path.endswith(b".pack") and change.layer is not None and change.kind != "metadata"
        }
        size = max((repository.after.hash_size for repository in self._choice.repositories), default=20)
        return PackIndexes(self._opened, packs, size)

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
        if self._wish.run is not None:
            return (get_run(self._opened, self._wish.run).id,)
        return tuple(dict.fromkeys(layer.run for stack in self._stacks for layer in stack.sealed))

    def _partial_contents(self) -> dict[bytes, dict[bytes, bytes]]:
        hunks = self._wish.selection.hunks
        if not hunks:
            return {}
        from unspill.sandbox.partial import partial_contents

        return partial_contents(self.chosen, hunks)

    def _repositories_of(self, root: bytes) -> tuple[Repository, ...]:
        return tuple(repository for repository in self._choice.repositories if repository.root == root)

    def _draft(self, draft: Draft, dirs: OpenDirs) -> None:
        for index, stack in enumerate(self._stacks):
            marks = self._marks(stack, draft.name)
            whole = self._part(self._changes, stack.live)
            self._unedited[index] = unedited_directories(stack.live, whole.changes if whole else (), marks)
            part = self._part(self.chosen, stack.live)
            if part is None or not part.changes:
                continue
            uppers = self._uppers(draft.name, stack)
            try:
                files = RootDraft(
                    draft,
                    index,
                    dirs.roots[index],
                    uppers,
                    marks,
                    contents=self._contents.get(stack.live, {}),
                    overwrite=self._wish.selection.overwrite,
                    must_copy=self._is_shared,
                    rolled_back=RolledBackEntries(self._opened.store, self._opened.project, stack.live),
                )
                if self._git[stack.live] or any(b".git" in change.path for change in part.changes):
                    self._draft_repositories(draft, dirs, index, part, uppers, files)
                else:
                    files.add(part.changes)
            finally:
                for upper in uppers.values():
                    upper.tree.close()

    def _draft_repositories(
        self, draft: Draft, dirs: OpenDirs, index: int, part: RootChanges, uppers: dict[bytes, Upper], files: RootDraft
    ) -> None:
        from unspill.apply.git_draft import GitSource, draft_with_repositories  # lazy: git

        stack = self._stacks[index]
        source = GitSource(
            layers=tuple(uppers[layer.upper].path for layer in reversed(stack.sealed)),
            below=stack.below(),
            uppers={path: upper.path for path, upper in uppers.items()},
            packs=self._packs,
            name=self._name_of_runs(stack),
        )
        draft_with_repositories(draft, dirs, index, part, self._git[stack.live], source, files)

    def _name_of_runs(self, stack: Stack) -> bytes:
        """Return what the last of the runs is called in references."""
        run = self._opened.store.runs.find(stack.sealed[-1].run)
        number = 0 if run is None else run.number
        name = self._opened.row.name
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
        return b"run-%d" % number if name == "default" else b"%b-run-%d" % (plain.encode(), number)

    def _uppers(self, operation: OperationId, stack: Stack) -> dict[bytes, Upper]:
        found = {}
        for layer in stack.sealed:
            path = layer.upper if self._is_shared else tree_dir(self._state, operation, layer.id)
            place = b"%b/tree/%b" % (operation.encode(), layer.id.encode())
            tree = Beneath(open_closed(path), open_to_owner)
            found[layer.upper] = Upper(path=path, place=place, tree=tree)
        return found

    def _marks(self, stack: Stack, operation: OperationId) -> Marks:
        return Marks(
            [
                (
                    layer.upper if self._is_shared else tree_dir(self._state, operation, layer.id),
                    layer.mark.ctime_ns,
                    self._opened.store.marks.of(layer.id),
                )
                for layer in stack.sealed
            ]
        )

    def _settle(self, operation: OperationId, left: Sequence[Skipped], marks: Sequence[int]) -> tuple[Residue, ...]:
        """Fold what stays into one layer per root."""
        residues = []
        for index, stack in enumerate(self._stacks):
            sources = {
                sealed.upper: sealed.upper if self._is_shared else tree_dir(self._state, operation, sealed.id)
                for sealed in reversed(stack.sealed)
            }
            missed = self._with_repositories(stack.live, {one.path for one in left if one.root == index})
            remaining = [
                change
                for change in self._remaining(stack, missed)
                if change.path not in missed or _is_there(change, sources)
            ]
            if not remaining:
                continue
            self._linked += remaining
            carry_changed(self._opened.store, stack)
            layer = new_id()
            os.makedirs(residue_dir(self._state, operation, "")[:-1], 0o700, exist_ok=True)

            def locate(change: Change, sources: dict[bytes, bytes] = sources) -> bytes:
                assert change.layer is not None
                return sources[change.layer] + b"/" + change.path

            build_residue(
                residue_dir(self._state, operation, layer), tuple(sources.values()), remaining, locate, stack.live
            )
            keep_base(stack.base, stack.live, remaining, base_dir(self._state, layer))
            older = carry_over(
                stack.live,
                remaining,
                self._marks(stack, operation),
                marks[index],
                renewed=self._unedited[index] | self._contents.get(stack.live, {}).keys(),
            )
            residues.append(
                Residue(
                    layer=layer,
                    root=stack.live,
                    run=_run_of(stack, remaining),
                    mark_ns=marks[index],
                    overrides=tuple(older.items()),
                )
            )
        return tuple(residues)

    def _with_repositories(self, root: bytes, left: set[bytes]) -> set[bytes]:
        """Add all that a repository has that was left: it moves or comes as a whole, or stays so."""
        part = self._part(self.chosen, root)
        changes = part.changes if part is not None else ()
        together = [repository.paths for repository in self._git[root] if repository.top in left]
        news = tuple(change.path + b"/" for change in changes if change.path in left and _is_new(change))
        below = (change.path for change in changes if change.path.startswith(news))
        return left.union(*together, below)

    def _remaining(self, stack: Stack, left: set[bytes]) -> list[Change]:
        """Return the changes of a root that stay, in the order of the scan, with the directories that they need."""
        whole, kept = self._part(self._changes, stack.live), self._part(self._rest, stack.live)
        if whole is None:
            return []
        stays = {change.path for change in kept.changes} if kept is not None else set()
        # What is left of a directory that gives way stands for the whole of it
        above = ancestors(left)
        stays |= {
            change.path
            for change in whole.changes
            if change.path in left or (change.path in above and _gives_way(change))
        }
        return [change for change in whole.changes if change.path in stays]

    @staticmethod
    def _part(changes: ChangeSet, root: bytes) -> RootChanges | None:
        return next((part for part in changes.roots if part.root == root), None)


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
