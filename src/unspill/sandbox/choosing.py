# SPDX-License-Identifier: Apache-2.0
"""Which of the held changes an apply is about: those reviewed, of the run, selected, and not held back.

Everything that is left out for one of these reasons is named. Reads layers and the live tree, changes nothing.
"""

from __future__ import annotations

import os

from unspill.apply.guard import judge, lies_in, still_held
from unspill.changes.select import select, with_parents
from unspill.errors import UsageError
from unspill.model.change import ChangeSet, Selection
from unspill.model.operation import Skipped
from unspill.policy.other_rows import REPLACED_OBJECT
from unspill.record import Record
from unspill.sandbox.reading import fold_changes, get_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from unspill.apply.guard import Judged
    from unspill.git.repository import Repository
    from unspill.model.change import RootChanges
    from unspill.model.layer import Stack
    from unspill.model.operation import Why
    from unspill.sandbox.consent import HeldPart
    from unspill.sandbox.opening import Opened

# One of these is in every path of a repository, also of a bare one, that says where it stands
_IN_REPOSITORIES = (b".git", b"objects", b"refs", b"HEAD")
EARLIER = "an earlier run that is held changed it too"
STALE = "it is not what was reviewed"
CHANGED = "it is not what you were shown, but changed since"


class Wish(Record):
    """What a caller wants applied: of the `reviewed` changes or of all that is held, perhaps of one `run` only.

    `automatic`: after a run; paths that an earlier held run changed too are left instead of refused. `cancel_fd`
    becomes readable where the caller gives up.
    """

    selection: Selection = Selection()
    reviewed: ChangeSet | None = None
    run: str | int | None = None
    asked_by: str = "person"
    automatic: bool = False
    cancel_fd: int | None = None


def make_wish(selection: Selection | Sequence[str | bytes], **rest: Any) -> Wish:
    """Return a wish for paths, or for what a selection says."""
    from unspill.sandbox.selecting import to_selection

    return Wish(selection=to_selection(selection), **rest)


class Choice(Record):
    """All that is held, what of it is chosen, what was left out and why, and what of the chosen is flagged.

    `repositories` are those that the chosen changes move; what does not go file by file in them is chosen whole.
    `held` has by root what needs consent, where something of it was left for lack of one.
    """

    changes: ChangeSet
    chosen: ChangeSet
    left: tuple[Skipped, ...]
    flagged: tuple[tuple[bytes, str], ...]
    repositories: tuple[Repository, ...] = ()
    held: tuple[HeldPart, ...] = ()


def choose(opened: Opened, stacks: tuple[Stack, ...], wish: Wish) -> Choice:
    """Choose what a wish is about. `stacks` are those that hold something; their indices are the roots' in `left`.

    Raises:
        UsageError: the selection chooses nothing, or a run whose paths another held run changed too.
    """
    return _Choosing(opened, stacks, wish).run()


def find_held(opened: Opened, stacks: tuple[Stack, ...]) -> tuple[ChangeSet, tuple[HeldPart, ...]]:
    """Return all that stacks hold, and what of it needs consent."""
    choosing = _Choosing(opened, stacks, Wish())
    return choosing.changes, tuple(choosing.held_part(part.root) for part in choosing.changes.roots)


class _Choosing:
    def __init__(self, opened: Opened, stacks: tuple[Stack, ...], wish: Wish) -> None:
        self._opened = opened
        self._stacks = stacks
        self._wish = wish
        self._indices = {stack.live: index for index, stack in enumerate(stacks)}
        self._left: list[Skipped] = []
        self._flagged: list[tuple[bytes, str]] = []
        self._judged: dict[bytes, Judged] = {}
        self._repositories: dict[bytes, tuple[Repository, ...]] = {}
        self._held: dict[bytes, HeldPart] = {}
        self._released: dict[bytes, set[bytes]] = {}
        self._void: dict[bytes, set[bytes]] = {}
        self.changes = self._find_changes()

    def held_part(self, root: bytes) -> HeldPart:
        """Return what needs consent in a root."""
        from unspill.sandbox.consent import HeldPart

        if root not in self._held:
            self._held[root] = HeldPart(self._whole(root), self._judge(root).held, self._repositories_of(root))
        return self._held[root]

    def run(self) -> Choice:
        changes = self.changes
        if self._wish.reviewed is not None and changes is not self._wish.reviewed:
            changes = self._as_reviewed(self._wish.reviewed)
        if self._wish.run is not None:
            changes = self._of_run(changes, self._wish.run)
        self._check_consents()
        chosen = self._without_held(select(changes, self._wish.selection))
        chosen, repositories = self._whole_repositories(chosen)
        roots = {left.root for left in self._left if left.why == "held"}
        return Choice(
            changes=self.changes,
            chosen=chosen,
            left=tuple(self._left),
            flagged=tuple(self._flagged),
            repositories=repositories,
            held=tuple(self.held_part(self._stacks[root].live) for root in sorted(roots)),
        )

    def _check_consents(self) -> None:
        """Find out which consents are for what is held now; what the others were for stays held."""
        roots = {part.root for part in self.changes.roots}
        for consent in self._wish.selection.consents:
            if consent.root in roots:
                part = self.held_part(consent.root)
                is_same = part.digest(consent.path) == consent.digest
                where = self._released if is_same else self._void
                where.setdefault(consent.root, set()).update(part.names(consent.path))

    def _needing_consent(self, root: bytes, found: dict[bytes, str]) -> dict[bytes, str]:
        """Return those of the held paths to which nobody has consented as they are now."""
        released, void = self._released.get(root, set()), self._void.get(root, set())
        return {path: CHANGED if path in void else why for path, why in found.items() if path not in released}

    def _find_changes(self) -> ChangeSet:
        """Return all that is held; what was reviewed, where nothing was added since."""
        reviewed = self._wish.reviewed
        uppers = tuple(layer.upper for stack in self._stacks for layer in stack.sealed)
        if reviewed is not None and reviewed.layers == uppers:
            return reviewed
        return fold_changes(self._stacks)

    def _as_reviewed(self, reviewed: ChangeSet) -> ChangeSet:
        """Return those changes that are what was reviewed; the others are left as stale."""
        known = {part.root: {change.path: change for change in part.changes} for part in reviewed.roots}
        parts = []
        for part in self.changes.roots:
            seen = known.get(part.root, {})
            same = tuple(change for change in part.changes if seen.get(change.path) == change)
            kept = {change.path for change in same}
            self._leave(part.root, [(path, STALE) for path in seen if path not in kept], "stale")
            parts.append(part.replace(changes=same))
        return self.changes.replace(roots=tuple(parts))

    def _of_run(self, changes: ChangeSet, run: str | int) -> ChangeSet:
        """Return what one run changed, where no other held run changed it too."""
        wanted = get_run(self._opened, run).id
        if all(layer.run == wanted for stack in self._stacks for layer in stack.sealed):
            return changes
        chosen: dict[bytes, set[bytes]] = {}
        shared: dict[bytes, set[bytes]] = {}
        for stack in self._stacks:
            own = tuple(layer for layer in stack.sealed if layer.run == wanted)
            others = tuple(layer for layer in stack.sealed if layer.run != wanted)
            mine, theirs = _all_paths(changes, stack) if own else set(), set()
            if own and others:
                mine, theirs = _paths_of(stack.replace(sealed=own)), _paths_of(stack.replace(sealed=others))
            shared[stack.live] = mine & (theirs | ancestors(theirs))
            chosen[stack.live] = mine - shared[stack.live]
        with_needed = with_parents(changes, chosen)
        for root, paths in shared.items():
            self._refuse_or_leave(root, paths - with_needed.get(root, set()))
        return changes.replace(
            roots=tuple(
                part.replace(
                    changes=tuple(change for change in part.changes if change.path in with_needed.get(part.root, set()))
                )
                for part in changes.roots
            )
        )

    def _refuse_or_leave(self, root: bytes, paths: set[bytes]) -> None:
        if paths and not self._wish.automatic:
            raise UsageError(
                f"another held run changed {os.fsdecode(min(paths))!r} too",
                remedy="Apply all that is held, or choose other paths.",
            )
        # Where the reason that the earlier one is held is the person's consent, that is what is missing here, too
        held = still_held(self._judge(root), self._wish.selection.included) if paths else {}
        held = self._needing_consent(root, held)
        self._leave(root, [(path, held[path]) for path in sorted(paths) if path in held], "held")
        self._leave(root, [(path, EARLIER) for path in sorted(paths) if path not in held], "earlier")

    def _without_held(self, chosen: ChangeSet) -> ChangeSet:
        """Leave out what needs the person's consent and does not have it."""
        parts = []
        for part in chosen.roots:
            judged = self._judge(part.root)
            held = self._needing_consent(part.root, still_held(judged, self._wish.selection.included))
            back = [(change.path, held[change.path]) for change in part.changes if change.path in held]
            self._leave(part.root, back, "held")
            parts.append(part.replace(changes=tuple(change for change in part.changes if change.path not in held)))
            self._flagged += _among(judged.flagged, parts[-1])
        return chosen.replace(roots=tuple(parts))

    def _whole_repositories(self, chosen: ChangeSet) -> tuple[ChangeSet, tuple[Repository, ...]]:
        """Choose of each repository all that does not go file by file, or nothing of it."""
        parts, moving = [], []
        for part in chosen.roots:
            whole = self._whole(part.root)
            paths = {change.path for change in part.changes}
            refused = {left.path for left in self._left if left.root == self._indices[part.root]}
            for repository in self._repositories_of(part.root):
                own = repository.paths
                if not own & (paths | refused):
                    continue
                if self._is_held_whole(repository) or own & refused:
                    paths -= own
                    self._leave_as_one(repository, own)
                else:
                    paths |= own
                    moving += [repository] if not repository.problem else []
            kept = tuple(change for change in whole.changes if change.path in paths)
            parts.append(part.replace(changes=kept))
        return chosen.replace(roots=tuple(parts)), tuple(moving)

    def _leave_as_one(self, repository: Repository, own: set[bytes]) -> None:
        """Let one line stand for all of a repository that is left for another reason than consent."""
        index = self._indices[repository.root]
        found = [left for left in self._left if left.root == index and left.path in own and left.why != "held"]
        if found:
            self._left = [left for left in self._left if left not in found]
            self._left.append(found[0].replace(path=repository.top))

    def _is_held_whole(self, repository: Repository) -> bool:
        """Tell whether a repository needs the person's consent to move at all; say so where it does."""
        included = self._wish.selection.included
        found = [(repository.top + b"/" + name, REPLACED_OBJECT.reason) for name in repository.replaced()]
        found += [(repository.top, repository.problem)] if repository.problem else []
        held = {path: why for path, why in found if not any(lies_in(path, one) for one in included)}
        held = self._needing_consent(repository.root, held)
        self._leave(repository.root, held.items(), "held")
        return bool(held)

    def _whole(self, root: bytes) -> RootChanges:
        return next(found for found in self.changes.roots if found.root == root)

    def _repositories_of(self, root: bytes) -> tuple[Repository, ...]:
        if root not in self._repositories:
            stack = self._stacks[self._indices[root]]
            self._repositories[root] = repositories_of(self._whole(root), stack)
        return self._repositories[root]

    def _judge(self, root: bytes) -> Judged:
        if root not in self._judged:
            part = self._whole(root)
            below = next(stack.below() for stack in self._stacks if stack.live == root)
            self._judged[root] = judge(part, below, self._opened.policy.secrets)
        return self._judged[root]

    def _leave(self, root: bytes, found: Iterable[tuple[bytes, str]], why: Why) -> None:
        index = self._indices[root]
        self._left += [Skipped(root=index, path=path, why=why, reason=reason) for path, reason in found]


def repositories_of(part: RootChanges, stack: Stack) -> tuple[Repository, ...]:
    """Return the repositories that the sealed layers of a stack changed and that live on."""
    if not any(word in change.path for change in part.changes for word in _IN_REPOSITORIES):
        return ()
    from unspill.git.repository import find_repositories  # lazy: git

    uppers = tuple(layer.upper for layer in reversed(stack.sealed))
    return find_repositories(part, uppers, stack.below(), is_frozen=stack.base is not None)


def with_whole_repositories(changes: ChangeSet, stacks: Sequence[Stack], chosen: ChangeSet) -> ChangeSet:
    """Return what is chosen, with all of each repository that something is chosen of: it moves as a whole."""
    by_root = {stack.live: stack for stack in stacks}
    parts = []
    for part, some in zip(changes.roots, chosen.roots, strict=True):
        paths = {change.path for change in some.changes}
        for repository in repositories_of(part, by_root[part.root]):
            paths |= repository.paths if repository.paths & paths else set()
        parts.append(some.replace(changes=tuple(change for change in part.changes if change.path in paths)))
    return chosen.replace(roots=tuple(parts))


def ancestors(paths: Iterable[bytes]) -> set[bytes]:
    """Return every directory above the paths."""
    found: set[bytes] = set()
    for path in paths:
        above = path.rpartition(b"/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition(b"/")[0]
    return found


def _among(flagged: Iterable[tuple[bytes, str]], part: RootChanges) -> list[tuple[bytes, str]]:
    """Return those flags that are about chosen paths, or about a directory that some are in."""
    paths = {change.path for change in part.changes}
    known = paths | ancestors(paths)
    return [found for found in flagged if found[0] in known]


def _all_paths(changes: ChangeSet, stack: Stack) -> set[bytes]:
    return {change.path for part in changes.roots if part.root == stack.live for change in part.changes}


def _paths_of(stack: Stack) -> set[bytes]:
    """Return every path that layers of a stack decide about."""
    return {change.path for change in fold_changes((stack,))}
