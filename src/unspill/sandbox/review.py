# SPDX-License-Identifier: Apache-2.0
"""What a sandbox holds: read from its layers, shown, and chosen of. Changes nothing.

A consent is for everything that is held at or below a path, by the digest of its whole content: a name alone would let
in whatever a later run has put there. The digest is made of the sealed layers when something is shown, and made again
when it is applied. Whoever shows a review on a terminal notes it afterwards; only then does its token stand for a
consent. Whatever a choice leaves out is named, with the reason.
"""

from __future__ import annotations

import os
from hashlib import blake2b

from unspill.apply.guard import IgnoredFiles, judge, lies_in, still_held
from unspill.apply.guard_git import View
from unspill.changes.diff import (
    MAX_FILE_BYTES,
    MAX_LINES,
    apply_hunks,
    diff_lines,
)
from unspill.changes.render import summary_lines
from unspill.changes.scan import Reader, find_renames, join, read_up_to, scan
from unspill.changes.select import ancestors, select, with_parents
from unspill.errors import DeniedError, UsageError
from unspill.git.files import repository_of
from unspill.layers.locks import upper_dir, work_dir
from unspill.model.change import ChangeSet, Consent, RootChanges, Selection
from unspill.model.operation import AS_A_WHOLE, Skipped
from unspill.model.permission import Denied, HeldPath
from unspill.model.plan import CacheLayer
from unspill.model.run import LayerId, OpenLayer, RunId, Stack, TimeMark, Traffic
from unspill.permissions.approvers import TerminalApprover
from unspill.permissions.question import digest_of_held, make_question
from unspill.policy.held import REPLACED_OBJECT
from unspill.policy.paths import COLUMNS, lies_beneath, quote
from unspill.record import Record
from unspill.sandbox.planning import get_places, make_plan
from unspill.sandbox.scan import when_settled
from unspill.sandbox.secrets import found_hidden, load_masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from unspill.apply.guard import Judged
    from unspill.git.state import Repository
    from unspill.model.change import Change, Hunks
    from unspill.model.operation import Why
    from unspill.model.plan import Places, Plan
    from unspill.model.run import Run
    from unspill.sandbox.planning import RunSpec
    from unspill.sandbox.project import PathLike, Project
    from unspill.store.permissions import ShownTable


# A person who asks for the list wants the whole of it
_ALL = 1_000_000

# One of these is in every path of a repository, also of a bare one, that says where it stands
_IN_REPOSITORIES = (b".git", b"objects", b"refs", b"HEAD")
EARLIER = "an earlier held run changed it too"
STALE = "it changed after the review"
CHANGED = "it changed after you reviewed it"
# Of so many groups of paths and so many bytes at most the tokens are told unasked
_MOST_TOKENS = 20
_MOST_TOKEN_BYTES = 64 << 20
LARGEST_WITH_HUNKS = 16 << 20
# As good as no bound
_NO_BOUND = 1 << 40
_MOST_REVIEWED = 200


def find_trees(root: bytes, paths: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return, by path, the tree that nobody wants to read file by file: git's own directory, or one that git ignores.

    Files that are in none are left out.
    """
    found: dict[bytes, bytes] = {}
    with Reader(root) as reader:
        ignored = IgnoredFiles(View(RootChanges(root=root, changes=()), reader))
        for path in paths:
            tree = repository_of(path) or ignored.top_of(path)
            if tree is not None:
                found[path] = tree
    return found


def changes_of(project: Project, run: str | int | None) -> ChangeSet:
    """Return the folded stack against the live tree, or one run's layer against what was below it.

    Raises:
        UsageError: there is no such run, or nothing of it is held.
    """
    return when_settled(project, lambda: _read_changes(project, run))


def _read_changes(project: Project, run: str | int | None) -> ChangeSet:
    stacks = load_masked(project)
    if run is None:
        return fold_changes(stacks)
    wanted = get_run(project, run)
    parts = [
        _scan_from(stack, index, index + 1)
        for stack in stacks
        for index, layer in enumerate(stack.sealed)
        if layer.run == wanted.id
    ]
    if not parts and wanted.changed:
        raise UsageError(f"run {wanted.number} has no held changes", remedy="See `unspill log`.")
    return join(parts)


def changes_of_runs(project: Project, runs: Sequence[RunId]) -> ChangeSet:
    """Return of what is held the part that came from some runs."""
    wanted = {layer.upper for stack in load_masked(project) for layer in stack.sealed if layer.run in runs}
    changes = changes_of(project, None)
    return changes.replace(
        roots=tuple(
            part.replace(changes=tuple(change for change in part.changes if change.layer in wanted))
            for part in changes.roots
        )
    )


def fold_changes(stacks: Sequence[Stack]) -> ChangeSet:
    """Return what whole stacks change in their live trees."""
    held = [stack for stack in stacks if stack.sealed]
    changes = join(_scan_from(stack, 0, len(stack.sealed)) for stack in held)
    return changes.replace(layers=tuple(layer.upper for stack in held for layer in stack.sealed))


def _scan_from(stack: Stack, first: int, end: int) -> ChangeSet:
    uppers = [layer.upper for layer in stack.sealed]
    return scan(tuple(reversed(uppers[first:end])), stack.below(first), stack.live)


def diff_of(
    project: Project,
    paths: Sequence[str],
    run: str | int | None,
    *,
    colour: bool,
    skip: Callable[[bytes], bool] = lambda _path: False,
    here: bytes = b"",
) -> str:
    """Return what is held as a text that is safe to print; without paths, absolute ones, that `skip` is true of."""

    def read() -> list[str]:
        changes = changes_below(_read_changes(project, run), paths, skip)
        return diff_lines(changes, layers_below(project, run), colour=colour, here=here)

    return "".join(line + "\n" for line in when_settled(project, read))


def changes_below(
    changes: ChangeSet, paths: Sequence[str], skip: Callable[[bytes], bool] = lambda _path: False
) -> ChangeSet:
    """Return the changes at or below paths, all for none; relative ones count from every root."""
    wanted = tuple(path.encode("utf-8", "surrogateescape").rstrip(b"/") for path in paths) or (b"",)
    return changes.replace(
        roots=tuple(
            part.replace(
                changes=tuple(
                    change
                    for change in part.changes
                    if (_is_below(change.path, wanted) or _is_below(part.root + b"/" + change.path, wanted))
                    and not skip(part.root + b"/" + change.path)
                )
            )
            for part in changes.roots
        )
    )


def summary_of(project: Project, run: str | int | None, *, colour: bool, here: bytes = b"") -> list[str]:
    """Return what is held as lines for a person, with renames recognised."""

    def read() -> tuple[ChangeSet, dict[bytes, bytes]]:
        changes, below = _read_changes(project, run), layers_below(project, run)
        renames: dict[bytes, bytes] = {}
        for part in changes.roots:
            with Reader(part.root, below.get(part.root, ())) as reader:
                renames |= find_renames(part.changes, reader)
        return changes, renames

    changes, renames = when_settled(project, read)
    return summary_lines(changes, limit=_ALL, colour=colour, renames=renames, project=project.path, here=here)


def layers_below(project: Project, run: str | int | None) -> dict[bytes, tuple[bytes, ...]]:
    """Return, for each root, the layers that lay under the ones whose changes are asked, the topmost first."""
    stacks = load_masked(project)
    if run is None:
        return {stack.live: stack.below() for stack in stacks}
    wanted = get_run(project, run).id
    below = {}
    for stack in stacks:
        for index, layer in enumerate(stack.sealed):
            if layer.run == wanted:
                below[stack.live] = stack.below(index)
    return below


def is_same(reviewed: Change | None, change: Change) -> bool:
    """Tell whether a change is the one that was reviewed.

    Not by the links of what it replaces: to keep what a repository is built on, unspill itself links to it meanwhile.
    """
    return reviewed == change or (
        reviewed is not None
        and reviewed.broke_link != change.broke_link
        and reviewed == change.replace(broke_link=reviewed.broke_link)
    )


def _is_below(path: bytes, wanted: tuple[bytes, ...]) -> bool:
    return any(top in (b"", b".", path) or path.startswith(top + b"/") for top in wanted)


def get_run(project: Project, run: str | int) -> Run:
    """Return a run of this sandbox by number or id.

    Raises:
        UsageError: there is none.
    """
    text = str(run)
    text = text[3:] if text.startswith("run") and text[3:].isdecimal() else text
    if text.isdecimal() and len(text) < 16:
        found = project.store.runs.find_number(project.row.id, int(text))
    else:
        found = project.store.runs.find(RunId(text))
    if found is None or found.sandbox != project.row.id:
        raise UsageError(f"no such run: {text}", remedy="See `unspill log`.")
    return found


def traffic_of(project: Project, run: str | int) -> Traffic:
    """Return what a run reached and what it was refused.

    Raises:
        UsageError: there is no such run.
    """
    return project.store.traffic.find(get_run(project, run).id) or Traffic()


def plan_as_if(project: Project, spec: RunSpec) -> Plan:
    """Return the plan that the next run of a command would have; its layer's directories are only named, not made."""
    places = get_places(project)
    return make_plan(project, spec, places, *stacks_as_if(project, places))


def stacks_as_if(
    project: Project, places: Places
) -> tuple[tuple[Stack, ...], tuple[CacheLayer, ...], tuple[CacheLayer, ...]]:
    """Return the stacks of the next run, of its caches and of its rootfs, with an open layer that is only named."""
    state, next_id = project.store.state, LayerId("next")
    layer = OpenLayer(
        id=next_id,
        upper=upper_dir(state, next_id),
        work=work_dir(state, next_id),
        mark=TimeMark(ctime_ns=0),
        run=RunId("next"),
    )
    stacks = load_masked(project)
    caches = (Stack(live=path, device=0, inode=0, open=layer) for path in places.home.caches)
    written: tuple[CacheLayer, ...] = ()
    if project.means.policy.rootfs_writable:
        from unspill.sandbox.rootfs_use import stacks_over, writable_directories  # lazy: rootfs

        written = stacks_over(project, writable_directories(project, places.rootfs), layer)
    return (
        tuple(stack.replace(open=layer) for stack in stacks),
        tuple(CacheLayer(path=stack.live, stack=stack) for stack in caches),
        written,
    )


class ApplyRequest(Record):
    """What a caller wants applied: of the `reviewed` changes or of all that is held, perhaps of one `run` only.

    `beside` are runs that may have done it together with that one.
    `automatic`: after a run; paths that an earlier held run changed too are left instead of refused. `cancel_fd`
    becomes readable where the caller gives up.
    """

    selection: Selection = Selection()
    reviewed: ChangeSet | None = None
    run: str | int | None = None
    beside: tuple[RunId, ...] = ()
    asked_by: str = "person"
    automatic: bool = False
    cancel_fd: int | None = None


def make_apply_request(selection: Selection | PathLike | Sequence[PathLike], **rest: Any) -> ApplyRequest:
    """Return the request to apply paths, or what a selection says."""
    return ApplyRequest(selection=to_selection(selection), **rest)


class HeldChoice(Record):
    """All that is held, what of it is chosen, what was left out and why, and what of the chosen is flagged.

    `repositories` are those that the chosen changes move; what does not go file by file in them is chosen whole.
    `held` has by root what needs consent, where something of it was left for lack of one; `waiting` has by root the
    paths of all that needs consent and is not chosen, of earlier runs too.
    """

    changes: ChangeSet
    chosen: ChangeSet
    left: tuple[Skipped, ...]
    flagged: tuple[tuple[bytes, str], ...]
    repositories: tuple[Repository, ...] = ()
    held: tuple[HeldPart, ...] = ()
    waiting: tuple[tuple[bytes, frozenset[bytes]], ...] = ()


def choose(project: Project, stacks: tuple[Stack, ...], request: ApplyRequest) -> HeldChoice:
    """Choose what a request is about. `stacks` are those that hold something; their indices are the roots' in `left`.

    Raises:
        UsageError: the selection chooses nothing, or a run whose paths another held run changed too.
    """
    return _Choosing(project, stacks, request).run()


def find_held(
    project: Project, stacks: tuple[Stack, ...], known: ChangeSet | None = None
) -> tuple[ChangeSet, tuple[HeldPart, ...]]:
    """Return all that stacks hold, and what of it needs consent; what is `known` of them is not read again."""
    choosing = _Choosing(project, stacks, ApplyRequest(reviewed=known))
    return choosing.changes, tuple(choosing.held_part(part.root) for part in choosing.changes.roots)


class _Choosing:
    def __init__(self, project: Project, stacks: tuple[Stack, ...], request: ApplyRequest) -> None:
        self._project = project
        self._stacks = stacks
        self._request = request
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
        if root not in self._held:
            self._held[root] = HeldPart(self._whole(root), self._judge(root), self._repositories_of(root))
        return self._held[root]

    def run(self) -> HeldChoice:
        changes = self.changes
        if self._request.reviewed is not None and changes is not self._request.reviewed:
            changes = self._as_reviewed(self._request.reviewed)
        if self._request.run is not None:
            changes = self._of_run(changes, self._request.run)
        self._check_consents()
        chosen = self._without_held(select(changes, self._request.selection))
        chosen, repositories = self._whole_repositories(chosen)
        roots = {left.root for left in self._left if left.why == "held"}
        return HeldChoice(
            changes=self.changes,
            chosen=chosen,
            left=tuple(self._left),
            flagged=tuple(self._flagged),
            repositories=repositories,
            held=tuple(self.held_part(self._stacks[root].live) for root in sorted(roots)),
            waiting=tuple((part.root, self._waiting(part)) for part in chosen.roots),
        )

    def _waiting(self, chosen: RootChanges) -> frozenset[bytes]:
        held = self._judge(chosen.root).held
        return frozenset(path for path, _ in held) - {change.path for change in chosen.changes} if held else frozenset()

    def _check_consents(self) -> None:
        """Find out which consents are for what is held now; what the others were for stays held."""
        roots = {part.root for part in self.changes.roots}
        for consent in self._request.selection.consents:
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
        reviewed = self._request.reviewed
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
            same = tuple(change for change in part.changes if is_same(seen.get(change.path), change))
            kept = {change.path for change in same}
            self._leave(part.root, [(path, STALE) for path in seen if path not in kept], "stale")
            parts.append(part.replace(changes=same))
        return self.changes.replace(roots=tuple(parts))

    def _of_run(self, changes: ChangeSet, run: str | int) -> ChangeSet:
        """Return what one run changed, where no other held run changed it too."""
        wanted = get_run(self._project, run).id
        if all(layer.run == wanted for stack in self._stacks for layer in stack.sealed):
            return changes
        chosen: dict[bytes, set[bytes]] = {}
        shared: dict[bytes, set[bytes]] = {}
        touched: set[bytes] = set()
        for stack in self._stacks:
            own = tuple(layer for layer in stack.sealed if layer.run == wanted)
            others = tuple(layer for layer in stack.sealed if layer.run != wanted)
            mine, theirs = _all_paths(changes, stack) if own else set(), set()
            gone: set[bytes] = set()
            if own and others:
                mine = _all_paths(fold_changes((stack.replace(sealed=own),)), stack)
                changed = _changed_in(stack, wanted)
                touched |= mine - changed
                earlier = tuple(fold_changes((stack.replace(sealed=others),)))
                theirs = {change.path for change in earlier}
                # By itself, a directory of an earlier one in which this run only deleted looks like one that is gone
                mine |= changed & theirs & _all_paths(changes, stack)
                gone = {one.path for one in earlier if one.entry is None or one.entry.kind != "dir"}
            # What is in a directory that the earlier one took away, or put something else in the place of
            below = {path for path in mine if not gone.isdisjoint(ancestors([path]))} if gone else set()
            shared[stack.live] = mine & (theirs | ancestors(theirs)) | below
            chosen[stack.live] = mine - shared[stack.live]
        with_needed = with_parents(changes, chosen)
        for root, paths in shared.items():
            self._refuse_or_leave(root, paths - with_needed.get(root, set()) - touched)
        return changes.replace(
            roots=tuple(
                part.replace(
                    changes=tuple(change for change in part.changes if change.path in with_needed.get(part.root, set()))
                )
                for part in changes.roots
            )
        )

    def _refuse_or_leave(self, root: bytes, paths: set[bytes]) -> None:
        if paths and not self._request.automatic:
            raise UsageError(
                f"another held run changed {os.fsdecode(min(paths))!r} too",
                remedy="Apply everything that is held, or choose other paths.",
            )
        # Where the reason that the earlier one is held is the person's consent, that is what is missing here, too
        held = still_held(self._judge(root), self._request.selection.included) if paths else {}
        held = self._needing_consent(root, held)
        self._leave(root, [(path, held[path]) for path in sorted(paths) if path in held], "held")
        self._leave(root, [(path, EARLIER) for path in sorted(paths) if path not in held], "earlier")

    def _without_held(self, chosen: ChangeSet) -> ChangeSet:
        """Leave out what needs the person's consent and does not have it."""
        parts = []
        for part in chosen.roots:
            judged = self._judge(part.root)
            held = self._needing_consent(part.root, still_held(judged, self._request.selection.included))
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
            held = self._needing_consent(
                part.root, still_held(self._judge(part.root), self._request.selection.included)
            )
            for found in self._repositories_of(part.root):
                if not found.paths & (paths | refused):
                    continue
                # What is held in it may not have been chosen at all, and must not come along with what was
                unasked = sorted(found.paths & held.keys() - refused)
                self._leave(part.root, [(path, held[path]) for path in unasked], "held")
                repository, apart = self._without_held_worktrees(found, held)
                paths -= apart
                own = repository.paths
                if self._is_held_whole(repository) or own & (refused | held.keys()):
                    paths -= own
                    self._leave_as_one(repository, own)
                else:
                    paths |= own
                    moving += [repository] if not repository.problem else []
            kept = tuple(change for change in whole.changes if change.path in paths)
            parts.append(part.replace(changes=kept))
        return chosen.replace(roots=tuple(parts)), tuple(moving)

    def _without_held_worktrees(
        self, repository: Repository, held: Mapping[bytes, str]
    ) -> tuple[Repository, set[bytes]]:
        """Return a repository without new worktrees that need consent, if nothing else in it does; and their paths.

        One line stands for all of such a worktree: git has it whole or not at all.
        """
        reduced = repository.without_worktrees(held.keys())
        apart = {change.path for change in repository.tied} - reduced.paths
        if not apart or reduced.paths & held.keys():
            return repository, set()
        added = {change.path for change in self._whole(repository.root).changes if change.kind == "added"}
        # Without its first worktree, their directory would be empty
        others = {repository.top + b"/" + member for member in (*reduced.after.members, *repository.base.members)}
        for above in ancestors(apart) & added - apart:
            if not any(other.startswith(above + b"/") for other in others):
                apart.add(above)
        index = self._indices[repository.root]
        for top in (path for path in apart if path.rpartition(b"/")[0] not in apart):
            found = [one for one in self._left if one.root == index and lies_in(one.path, top) and one.why == "held"]
            self._left = [one for one in self._left if one not in found]
            self._left += [one.replace(path=top, reason=f"{one.reason}: {quote(one.path)}") for one in found[:1]]
        return reduced, apart

    def _leave_as_one(self, repository: Repository, own: set[bytes]) -> None:
        """Let one line stand for all of a repository that is left for another reason than consent, or beside that."""
        index = self._indices[repository.root]
        found = [left for left in self._left if left.root == index and left.path in own and left.why != "held"]
        if found:
            self._left = [left for left in self._left if left not in found]
            self._left += [] if repository.is_refused else [found[0].replace(path=repository.top)]
            return
        held = [left.path for left in self._left if left.root == index and left.path in own]
        if held and (what := repository.describe_moved()):
            reason = f"{AS_A_WHOLE}, and {quote(held[0])} is held; not applied: {what}"
            self._leave(repository.root, [(repository.top, reason)], "held")

    def _is_held_whole(self, repository: Repository) -> bool:
        """Tell whether a repository needs the person's consent to move at all, or can't move; say so where it is so."""
        if repository.is_refused:
            self._leave(repository.root, [(repository.top, repository.problem)], "refused")
            return True
        included = self._request.selection.included
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
            self._judged[root] = judge(
                part, below, self._project.means.policy.secrets, found_hidden(self._project, root)
            )
        return self._judged[root]

    def _leave(self, root: bytes, found: Iterable[tuple[bytes, str]], why: Why) -> None:
        index = self._indices[root]
        self._left += [Skipped(root=index, path=path, why=why, reason=reason) for path, reason in found]


def repositories_of(part: RootChanges, stack: Stack) -> tuple[Repository, ...]:
    """Return the repositories that the sealed layers of a stack changed and that live on."""
    if not any(word in change.path for change in part.changes for word in _IN_REPOSITORIES):
        return ()
    from unspill.git.state import find_repositories  # lazy: git

    uppers = tuple(layer.upper for layer in reversed(stack.sealed))
    return find_repositories(part, uppers, stack.below(), is_frozen=stack.base is not None)


def with_whole_repositories(
    changes: ChangeSet, stacks: Sequence[Stack], chosen: ChangeSet
) -> tuple[ChangeSet, list[str]]:
    """Return what is chosen, with all of each repository that something is chosen of, and what that moves, in words.

    It moves as a whole, but for a new worktree, which nothing else needs.
    """
    by_root = {stack.live: stack for stack in stacks}
    parts, moved = [], []
    for part, some in zip(changes.roots, chosen.roots, strict=True):
        paths = {change.path for change in some.changes}
        for repository in repositories_of(part, by_root[part.root]):
            own = repository.paths & paths
            rest = repository.without_worktrees(own).paths
            if own & rest:
                paths |= repository.paths
                moved.append(repository.describe_moved())
            elif own:
                paths |= repository.paths - rest
                places = repository.top + b"/worktrees"
                is_last = all(change.path in paths for change in part.changes if lies_beneath(change.path, places))
                paths |= {places} if is_last else set()
        parts.append(some.replace(changes=tuple(change for change in part.changes if change.path in paths)))
    return chosen.replace(roots=tuple(parts)), [what for what in moved if what]


def _among(flagged: Iterable[tuple[bytes, str]], part: RootChanges) -> list[tuple[bytes, str]]:
    """Return those flags that are about chosen paths, or about a directory that some are in."""
    paths = {change.path for change in part.changes}
    known = paths | ancestors(paths)
    return [found for found in flagged if found[0] in known]


def _all_paths(changes: ChangeSet, stack: Stack) -> set[bytes]:
    return {change.path for part in changes.roots if part.root == stack.live for change in part.changes}


def _changed_in(stack: Stack, run: RunId) -> set[bytes]:
    """Return the paths at which a run changed more than the time of a file, as it saw them."""
    own = (index for index, layer in enumerate(stack.sealed) if layer.run == run)
    found = (change for index in own for change in _scan_from(stack, index, index + 1))
    return {change.path for change in found if not change.is_mere_touch}


class HeldPart:
    """What needs consent in one root."""

    def __init__(self, part: RootChanges, judged: Judged, repositories: Iterable[Repository] = ()) -> None:
        self.root = part.root
        self.held = judged.held
        self.flagged = judged.flagged
        self._changes = {change.path: change for change in part.changes}
        # A repository that is held moves as a whole
        self._together = [
            (frozenset((repository.top, *(repository.top + b"/" + name for name in repository.replaced()))), repository)
            for repository in repositories
            if (repository.problem or repository.replaced()) and not repository.is_refused
        ]
        self._digests: dict[bytes, str] = {}

    def names(self, path: bytes) -> set[bytes]:
        """Return the held paths that a consent to a path is for: those at or below it, and what they need above.

        A repository that is held is not what a file in it needs: who is asked about a hook is shown only the hook.
        """
        named = {name for names, _ in self._together for name in names}
        concerned = {name for name, _ in self.held if name not in named and _concerns(name, path)}
        return concerned | {name for name in named if _is_at(name, path)}

    def covered(self, path: bytes) -> tuple[Change, ...]:
        """Return the changes that a consent to a path lets in, by path."""
        paths = {name for name in self.names(path) if lies_in(name, path) or path == b"." or self._does_more(name)}
        for names, repository in self._together:
            if any(_is_at(name, path) for name in names):
                paths |= repository.paths
        return tuple(self._changes[name] for name in sorted(paths) if name in self._changes)

    def with_needed(self, path: bytes) -> tuple[Change, ...]:
        """Return what a consent to a path lets in with the new directories above that come along, by path."""
        covered = {change.path for change in self.covered(path)}
        needed = {above for above in ancestors(covered) if above in self._changes and not self._does_more(above)}
        return tuple(self._changes[name] for name in sorted(covered | needed))

    def digest(self, path: bytes) -> str:
        """Return what stands for all that a consent to a path lets in; nothing where it lets nothing in.

        Raises:
            SandboxUnavailable: A layer no longer holds what was scanned.
            OSError: A file can't be read.
        """
        if path not in self._digests:
            self._digests[path] = self._digest(path)
        return self._digests[path]

    def size(self, path: bytes) -> int:
        """Return how many bytes the digest of a path is made of."""
        return sum(change.entry.size for change in self.covered(path) if change.entry is not None)

    def meets_own(self, path: bytes) -> bool:
        """Tell whether the person has something where a consent to a path would add a file: a masked secret."""
        return any(
            change.kind == "added"
            and change.entry is not None
            and change.entry.kind != "dir"
            and os.path.lexists(os.path.join(self.root, change.path))
            for change in self.covered(path)
        )

    def outermost(self) -> list[bytes]:
        """Return the held paths that need not be named together with one above them."""
        named = [(name, why) for names, repository in self._together for name in names for why in [repository.problem]]
        return [path for path, _ in outermost(sorted((*self.held, *named)))]

    def _digest(self, path: bytes) -> str:
        covered = self.with_needed(path)
        if not covered:
            return ""
        digest = blake2b(digest_size=32)
        with Reader(self.root) as reader:
            for change in covered:
                digest.update(b"%d %b %b\n" % (len(change.path), change.path, digest_of_held(change, reader).encode()))
        return digest.hexdigest()

    def _does_more(self, name: bytes) -> bool:
        """Tell whether a directory above does more than come to be: that is not needed to name what is in it."""
        change = self._changes.get(name)
        return change is not None and change.kind != "added"


def digest_of_hunks(path: bytes, old: bytes, new: bytes, more: bytes = b"") -> str:
    """Return what stands for the hunks between two texts, whichever of them are chosen, and for what `more` comes."""
    digest = blake2b(b"hunks %d %b %d " % (len(path), path, len(old)), digest_size=32)
    digest.update(old)
    digest.update(new)
    digest.update(more)
    return digest.hexdigest()


def beside_hunks(change: Change, reader: Reader) -> bytes:
    """Return what else a change brings that has hunks: other bits and attributes."""
    if not {"mode", "xattrs"}.intersection(change.aspects) or change.entry is None:
        return b""
    return repr((change.entry.mode & 0o7777, reader.attributes_after(change))).encode()


def outermost(held: Iterable[tuple[bytes, str]]) -> list[tuple[bytes, str]]:
    """Return of held paths in order those that are not in another one that is held for the same reason."""
    found: list[tuple[bytes, str]] = []
    for path, why in held:
        if not found or found[-1][1] != why or not lies_in(path, found[-1][0]):
            found.append((path, why))
    return found


def with_tokens(
    lefts: Sequence[Skipped], parts: Sequence[HeldPart], roots: Sequence[bytes], shown: ShownTable, sandbox: str
) -> tuple[Skipped, ...]:
    """Return what was left, with tokens where consent is missing: as many as can be told without much reading."""
    by_root = {part.root: part for part in parts}
    told, size, last = 0, 0, None
    result = []
    for left in lefts:
        # Who consents to what is held in a repository consents to nothing else there
        is_asked = left.why == "held" and not left.reason.startswith(AS_A_WHOLE)
        part = by_root.get(roots[left.root]) if is_asked else None
        is_inside = last is not None and (last.root, last.reason) == (left.root, left.reason)
        if part is None or told == _MOST_TOKENS or (is_inside and last is not None and lies_in(left.path, last.path)):
            result.append(left)
            continue
        last, told = left, told + 1
        size += part.size(left.path)
        digest = readable_digest(part, left.path) if size <= _MOST_TOKEN_BYTES else ""
        token = shown.token_of(sandbox, part.root, left.path, digest) if digest else ""
        result.append(left.replace(digest=digest, token=token, is_there=part.meets_own(left.path)))
    return tuple(result)


def readable_digest(part: HeldPart, path: bytes) -> str:
    """Return the digest of a path, nothing where it can't be read."""
    try:
        return part.digest(path)
    except OSError:
        return ""


def _is_at(name: bytes, path: bytes) -> bool:
    return path == b"." or lies_in(name, path)


def _concerns(name: bytes, path: bytes) -> bool:
    return _is_at(name, path) or lies_in(path, name)


class PartlyChosen(Record):
    """A changed file below a root, before and after its change, and with what is chosen of it."""

    root: bytes
    change: Change
    old: bytes
    new: bytes
    more: bytes = b""
    chosen: bytes = b""

    @property
    def digest(self) -> str:
        """What stands for its hunks."""
        return digest_of_hunks(self.change.path, self.old, self.new, self.more)


def read_partly_chosen(changes: ChangeSet, some: Hunks, here: bytes = b"") -> PartlyChosen:
    """Find the file that hunks are of, however its path is written, and read both sides of it.

    Raises:
        UsageError: there is no such change, it is too large or has no text to choose from, or it is not what was shown.
    """
    (change,) = select(changes, Selection(hunks=(some,), here=here), parents=False)
    root = next(part.root for part in changes.roots if change in part.changes)
    size = 0 if change.entry is None else change.entry.size
    if max(size, change.base_size) > LARGEST_WITH_HUNKS:
        raise UsageError(f"{os.fsdecode(change.path)!r} is too large for hunks", remedy="Choose the whole file.")
    with Reader(root) as reader:
        old = read_up_to(reader.open_before(change), LARGEST_WITH_HUNKS)
        new = read_up_to(reader.open_after(change), LARGEST_WITH_HUNKS)
        more = beside_hunks(change, reader)
    file = PartlyChosen(root=root, change=change, old=old, new=new, more=more)
    if some.digest and not file.digest.startswith(some.digest):
        raise UsageError(
            f"the hunks of {os.fsdecode(change.path)!r} changed after you reviewed them",
            remedy="Look again: `unspill diff PATH`, on a terminal.",
        )
    return file


def read_all_partly_chosen(changes: ChangeSet, hunks: Sequence[Hunks]) -> dict[bytes, dict[bytes, PartlyChosen]]:
    """Return the partly chosen files by root and path, each with the text that it will have.

    Raises:
        UsageError: a file is too large or not text, or has no such hunk.
    """
    found: dict[bytes, dict[bytes, PartlyChosen]] = {}
    for some in hunks:
        file = read_partly_chosen(changes, some)
        chosen = apply_hunks(file.old, file.new, some.numbers, some.lines)
        found.setdefault(file.root, {})[file.change.path] = file.replace(chosen=chosen)
    return found


def to_selection(given: Selection | PathLike | Sequence[PathLike]) -> Selection:
    """Return a path, or several, as a Selection."""
    return given if isinstance(given, Selection) else Selection(paths=tuple(paths_given(given)))


def paths_given(given: PathLike | Sequence[PathLike]) -> list[bytes]:
    """Return a path, or several, as bytes. One text is one path, not a list of letters."""
    several = (given,) if isinstance(given, str | bytes | os.PathLike) else given
    return [os.fsencode(path) for path in several]


class Review(Record):
    """A diff, and what it is of. `held` are the held paths in it; `shown` is all that it shows to the last byte."""

    text: str
    held: tuple[Consent, ...] = ()
    shown: tuple[Consent, ...] = ()

    def is_whole(self, consent: Consent) -> bool:
        """Tell whether all that a consent is for is in the text."""
        return consent in self.shown


class Reviews:
    """The reviews of one sandbox. A diff that is never noted counts for nothing."""

    def __init__(self, project: Project) -> None:
        self.project = project
        # Where the person stands, for the headings
        self.here = b""
        self._table = project.store.shown
        self._sandbox = project.row.id

    def diff(self, paths: Sequence[str], *, colour: bool) -> Review:
        """Return what is held at or below paths: what is named whole, however long; everything only up to a bound."""
        changes, parts = self.look()
        chosen = changes_below(changes, paths)
        wanted = [(part, path) for part in parts for path in part.outermost()[:_MOST_REVIEWED]]
        wanted += [(part, path) for part in parts for path in self._in_root(part, map(os.fsencode, paths))]
        return self._review(chosen, dict.fromkeys(wanted), colour=colour, is_bounded=not paths)

    def held_at(self, path: bytes) -> tuple[Consent, ...]:
        """Return what a consent to an absolute path would be for, by root."""
        _changes, parts = self.look()
        return tuple(
            self._consent(part.root, inner, part.digest(inner), is_there=part.meets_own(inner))
            for part in parts
            for inner in self._in_root(part, [path])
            if part.covered(inner)
        )

    def covered_at(self, path: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """Return the root and path of each change that a consent to an absolute path would let in."""
        _changes, parts = self.look()
        return tuple(
            (part.root, change.path)
            for part in parts
            for inner in self._in_root(part, [path])
            for change in part.covered(inner)
        )

    def held_diff(self, path: bytes, *, colour: bool) -> Review:
        """Return all that a consent to an absolute path would let in, and the new directories that it needs."""
        changes, parts = self.look()
        wanted = [(part, inner) for part in parts for inner in self._in_root(part, [path]) if part.covered(inner)]
        covered = {part.root: {change.path for change in part.with_needed(inner)} for part, inner in wanted}
        chosen = changes.replace(
            roots=tuple(
                part.replace(changes=tuple(one for one in part.changes if one.path in covered.get(part.root, ())))
                for part in changes.roots
            )
        )
        return self._review(chosen, dict.fromkeys(wanted), colour=colour, is_bounded=False)

    def hunks_at(self, hunks: Hunks) -> Consent:
        """Return what stands for the hunks of a file as they are now.

        Raises:
            UsageError: there is no such file among the changes, or it has no hunks.
        """
        changes, _parts = self.look()
        file = read_partly_chosen(changes, hunks.replace(digest=""), self.here)
        return self._consent(file.root, file.change.path, file.digest)

    def note(self, review: Review) -> None:
        """Remember that a review was shown on a terminal."""
        if review.shown:
            self._table.put(self._sandbox, review.shown)

    def was_shown(self, consent: Consent, token: str) -> bool:
        """Tell whether a token names what a consent is for, and that was shown on a terminal."""
        return self._table.has(self._sandbox, consent, token)

    def ask(self, consent: Consent, text: str, *, is_whole: bool) -> None:
        """Ask on the person's terminal about what was just shown there. After a no, no token stands for it any more.

        Raises:
            DeniedError: they did not say yes.
        """
        request = HeldPath(
            project=self.project.path,
            sandbox=self._sandbox,
            root=consent.root,
            path=consent.path,
            digest=consent.digest,
        )
        question = make_question(request, ("once",), wait_s=self.project.means.policy.permissions.wait_s)
        careful = (
            () if is_whole else ("careful:   not all of it could be shown: it is binary, too large or unreadable",)
        )
        question = question.replace(text=text, lines=(*question.lines, *careful))
        answer = TerminalApprover(lock=self.project.store.state + b"/locks/terminal").ask(question)
        if isinstance(answer, Denied):
            if not answer.is_unseen:
                self._table.drop(self._sandbox, consent)
            because = "nobody could be asked" if answer.is_unseen else "you did not agree"
            because += f" ({answer.reason})" if answer.reason else ""
            raise DeniedError(f"Not applied: {because}.", remedy="Nothing was changed; it is still held.")

    def look(self, known: ChangeSet | None = None) -> tuple[ChangeSet, tuple[HeldPart, ...]]:
        """Return all that is held, and what of it needs consent; what is `known` of that is not read again."""
        return when_settled(self.project, lambda: find_held(self.project, self.stacks(), known))

    def stacks(self) -> tuple[Stack, ...]:
        """Return the stacks that hold something."""
        return tuple(stack for stack in load_masked(self.project) if stack.sealed)

    def _review(
        self, chosen: ChangeSet, wanted: dict[tuple[HeldPart, bytes], None], *, colour: bool, is_bounded: bool
    ) -> Review:
        hunks: list[Consent] = []

        def token(root: bytes, change: Change, texts: tuple[bytes, bytes]) -> str:
            if change.kind != "modified":
                return ""
            with Reader(root) as reader:
                more = beside_hunks(change, reader)
            hunks.append(self._consent(root, change.path, digest_of_hunks(change.path, *texts, more)))
            return hunks[-1].token

        seen: set[tuple[bytes, bytes]] = set()
        lines = diff_lines(
            chosen,
            layers_below(self.project, None),
            max_lines=MAX_LINES if is_bounded else _NO_BOUND,
            max_file_bytes=MAX_FILE_BYTES if is_bounded else LARGEST_WITH_HUNKS,
            columns=COLUMNS if is_bounded else _NO_BOUND,
            colour=colour,
            token=token,
            seen=seen,
            here=self.here,
        )
        there = {(part.root, change.path) for part in chosen.roots for change in part.changes}
        held, shown = [], [consent for consent in hunks if (consent.root, consent.path) in seen]
        for part, path in wanted:
            covered = {(part.root, change.path) for change in part.covered(path)}
            digest = readable_digest(part, path) if covered and covered <= there else ""
            if digest:
                held.append(self._consent(part.root, path, digest, is_there=part.meets_own(path)))
                shown += held[-1:] if covered <= seen else []
        return Review(text="".join(line + "\n" for line in lines), held=tuple(held), shown=tuple(shown))

    def _in_root(self, part: HeldPart, paths: Iterable[bytes]) -> list[bytes]:
        """Return what paths, absolute or as seen from the project, are called in a root."""
        found = []
        for given in paths:
            path = os.path.normpath(os.path.join(self.project.path, given))
            if (path + b"/").startswith(part.root + b"/"):
                found.append(path[len(part.root) + 1 :] or b".")
            elif (part.root + b"/").startswith(path.rstrip(b"/") + b"/"):
                found.append(b".")
        return found

    def _consent(self, root: bytes, path: bytes, digest: str, *, is_there: bool = False) -> Consent:
        token = self._table.token_of(self._sandbox, root, path, digest)
        return Consent(root=root, path=path, digest=digest, token=token, is_there=is_there)
