# SPDX-License-Identifier: Apache-2.0
"""What becomes of a repository that a run changed, decided before anything is done: objects, what moves, what arrives.

If the person moved what the run moved too, theirs stays exactly as it is, and the run's commits, tags and stash entries
arrive as references of their own below `refs/unspill`. What a move displaces and nothing else leads to would be gone
with git's next cleaning: it gets a reference below `refs/unspill/op-N`, until operation N can't be undone any more.
"""

from __future__ import annotations

import os
import stat

from unspill.apply.steps import entry_of, make_step
from unspill.changes.scan import MergedTree
from unspill.git.files import (
    GIT,
    LARGEST_FILE,
    OWN_REFS,
    SHA1,
    SPARSE,
    STASH_LOG,
    STATE_DIRECTORIES,
    is_index,
    is_log_line,
    is_object_name,
    overlooked,
    short_ref,
    staged_objects,
    without_caches,
)
from unspill.git.objects import WRONG, Objects, blob_name, check_new_repository, choose_objects, make_object
from unspill.git.state import (
    SYMBOLIC,
    common_of,
    has_promisor,
    hash_size_of,
    is_own_ref,
    is_sparse,
    new_repositories,
    owner_of,
    read_members,
    read_state,
)
from unspill.model.operation import GitMove, GitStep, RefMove, Skipped
from unspill.policy.held import HIDDEN, SHADOWS
from unspill.policy.paths import quote, shell_word
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

    from unspill.apply.draft import Draft, RootDraft
    from unspill.apply.steps import OpenDirs
    from unspill.git.objects import Transfer
    from unspill.git.state import GitState, Repository
    from unspill.model.change import Change, RootChanges
    from unspill.model.operation import Step, Why

    # The prefix of the repository that an object is in, and its name
    Displaced = tuple[bytes, bytes]


REPOSITORY_GONE = "the repository no longer exists"
_ODD_REBASE = "its rebase began at another commit than its branch is at, so `git rebase --abort` would move the branch"
_RECORDED = b"rr-cache"
_NEEDS = "it needs an object that your repository no longer has"
_MOST_TIPS = 100
_MOST_LINES = 21
_MOST_WORDS = 4
_MOST_MOVED = 20
_NAMED = 3
_LONGEST_NAME = 80


def draft_with_repositories(
    draft: Draft,
    dirs: OpenDirs,
    root: int,
    part: RootChanges,
    repositories: Sequence[Repository],
    source: GitSource,
    files: RootDraft,
    held: Set[bytes] = frozenset(),
) -> None:
    """Draft all changes of a root; `repositories` are those that move with them, `held` the paths that do not come."""
    own = {change.path for repository in repositories for change, _part in repository.changes}
    changes = [change for change in part.changes if change.path not in own]
    members = {
        repository.top + b"/" + member.rstrip(b"/"): repository.after.hash_size
        for repository in repositories
        for member in repository.new_members()
    }
    here = b"/proc/self/fd/%d/." % dirs.roots[root].root_fd
    for top, size in (dict.fromkeys(new_repositories(part), SHA1) | members).items():
        before = len(draft.skipped)
        changes = _with_new(draft, root, top, size, changes, source, files)
        if len(draft.skipped) == before:
            _look_at_new(draft, here, top, size, changes, source, held)
    drafts = [GitDraft(draft, dirs, root, repository, source, files) for repository in repositories]
    # What stays in a commit that only arrives; where that commit can't come, its files are files like any other
    arriving = [git.committed(changes) if git.is_diverged and git.keeps_commit else set() for git in drafts]
    changes = [change for change in changes if not any(change.path in paths for paths in arriving)]
    files.add(changes)
    files.skip_incomplete()
    for git, repository, paths in zip(drafts, repositories, arriving, strict=True):
        if not git.is_diverged:
            files.add_quietly(git.going_along())
        along = {change.path for change, part in repository.changes if part == "along"}
        new = tuple(repository.top + b"/" + member for member in repository.new_members())
        git.note_held(held)
        git.add(
            {group for path, group in files.groups.items() if path in along or path.startswith(new)},
            () if git.is_diverged else _committed_groups(git, changes, files),
            paths,
        )


class GitSource(Record):
    """Where the files of a run lie while an operation is drafted.

    `layers` are its upper directories and `below` what is beneath them, both the topmost first; `uppers` has, by the
    path that a change names, where an upper directory is now. `packs` has, by path, the index that we made of a pack,
    and `unchecked` says why another has none. `name` is what the run is called in references.
    """

    layers: tuple[bytes, ...]
    below: tuple[bytes, ...]
    uppers: Mapping[bytes, bytes]
    packs: Mapping[bytes, bytes]
    unchecked: str
    name: bytes


class GitDraft:
    """Drafts what becomes of one repository that a run changed."""

    def __init__(
        self, draft: Draft, dirs: OpenDirs, root: int, repository: Repository, source: GitSource, files: RootDraft
    ) -> None:
        self._draft = draft
        self._live = LiveRepository(draft, dirs, root, repository.top)
        self._repository = repository
        self._base, self._after = repository.base, repository.after
        self._source = source
        self._files = files
        self._name = self._free_name(source.name)
        self._moved = repository.moved()
        self._changes = {change.path: change for change, _part in repository.changes}
        # The objects of the repository and of the run together
        self._all_objects = Objects(
            self._live.object_directories([self._live.here]),
            self._live.size,
            written=self._live.object_directories(source.uppers.values()),
            checked=[(source.packs[path], place) for path, place in self._new_packs().items() if path in source.packs],
        )
        self.is_diverged = not files.is_overwritten(repository.top) and self._find_divergence()
        self._transfer = self._choose_objects()
        self.problem = self._find_problem()
        self._arrival = () if self.problem is not None else self._make_arrival(self._transfer)

    def committed(self, changes: Iterable[Change]) -> set[bytes]:
        """Return the paths of changes that the run's own commit has."""
        base, tip = _resolve(self._base, b"HEAD"), _resolve(self._after, b"HEAD")
        if base == tip:
            return set()
        above = self._repository.top.rpartition(b"/")[0]
        prefix = above + b"/" if above else b""
        return _CommittedPaths(self._all_objects, base, tip, prefix, self._live.size, self._path_of).of(changes)

    @property
    def keeps_commit(self) -> bool:
        """Whether a reference leads to the run's commit even if nothing moves: one that arrives, or the person's."""
        tip = _resolve(self._after, b"HEAD")
        if self._live.state is None or self.problem is not None or tip is None:
            return False
        arriving = [ref.new for ref in self._arrival if ref.new is not None]
        return tip in self._live.state.refs.values() or any(
            self._all_objects.is_ancestor(tip, value) for value in arriving
        )

    def add(self, dependent: Iterable[int] = (), committed: Iterable[int] = (), arriving: Iterable[bytes] = ()) -> None:
        """Draft what becomes of it. Groups of steps that are `dependent` are done only if it moves.

        Those of what is `committed` are done unless it turns out that the run's work can only arrive. Of paths that are
        `arriving` there are no steps: they are skipped if the work can't arrive either.
        """
        if self.problem is not None:
            self._skip(*self.problem)
            return
        if self.is_diverged:
            notes = deletion_notes(self._repository.top, self._deleted())
            self._draft.notes += notes or (
                [] if self._arrival or not self._moved else [stayed_note(self._repository.top)]
            )
        move = None if self.is_diverged else self._make_move(self._transfer)
        if self._transfer.paths or move is not None or self._arrival:
            places = tuple(self._places(self._transfer))
            self._live.add_step(move, self._arrival, places, sorted(dependent), sorted(committed))
            self._draft.arriving[self._live.root, self._repository.top] = sorted(arriving)

    def going_along(self) -> list[Change]:
        """Return the changes that go along. Git resolves conflicts by what it recorded as soon as there is a place."""
        unused = () if self._live.files.find(self._live.top + _RECORDED) else (self._live.top + _RECORDED,)
        changes = [change for change, part in self._repository.changes if part == "along"]
        return [change for change in changes if not (unused and change.path.startswith(unused))]

    def note_held(self, held: Set[bytes]) -> None:
        """Name those of the held files that the run gave to git, which can bring them without us."""
        above = self._repository.top.rpartition(b"/")[0]
        prefix = above + b"/" if above else b""
        inside = {path[len(prefix) :] for path in held if path.startswith(prefix)}
        if self.problem is not None or not inside or not self._moved:
            return
        base, tip = (self._all_objects.tree_of(_resolve(state, b"HEAD") or b"") for state in (self._base, self._after))
        given = {path for path in inside if tip and self._new_in_tree(path, base, tip)}
        if not self.is_diverged and b"index" in self._moved:
            staged = staged_objects(self._read_after(b"index"), self._live.size) or {}
            known = staged_objects(self._live.read(b"index", self._source.below), self._live.size) or {}
            given |= {path for path in inside if staged.get(path, set()) - known.get(path, set())}
        self._draft.notes += held_notes(self._repository.top, given, is_diverged=self.is_diverged)

    def _new_in_tree(self, path: bytes, base: bytes | None, tip: bytes) -> bool:
        entry = self._all_objects.entry_at(tip, path)
        return entry is not None and (base is None or self._all_objects.entry_at(base, path) != entry)

    def _flag_overlooked(self, names: Iterable[bytes]) -> None:
        for name in names:
            if self._live.inner(name) == b"index":
                found = overlooked(self._read_after(name), self._live.size)
                found -= overlooked(self._live.read(name), self._live.size) if found else set()
                git = self._live.top + owner_of(name, self._after.members)
                layers = (*self._source.layers, *self._source.below)
                flag_overlooked(self._draft, self._live.here, layers, git[:-1], found)

    def _free_name(self, wanted: bytes) -> bytes:
        """Return a name below our own references that nothing has yet."""
        taken = {name.split(b"/")[2] for name in self._live.own_refs()}
        names = (wanted, *(b"%b-%d" % (wanted, count) for count in range(2, 1000)))
        return next((name for name in names if name not in taken), wanted)

    def _find_divergence(self) -> bool:
        """Tell whether the person moved what says where the repository stands, or what the run moved too."""
        live = self._live.state
        if live is None:
            return True
        members = {owner_of(name, self._after.members) for name in self._moved}
        # Also the branch that the run is on at its end: without it HEAD would lead nowhere
        names = core_names(self._base, live, self._after, members=members) | set(self._moved)
        if any(live.value(name) not in (self._base.value(name), self._after.value(name)) for name in names):
            return True
        return not self._repository.is_frozen and any(self._is_newer(name) for name in names)

    def _is_newer(self, name: bytes) -> bool:
        """Tell by its time whether somebody wrote a reference or a file since the run began."""
        member = common_of(owner_of(name, self._after.members))
        for path in (self._live.top + name, self._live.top + member + b"packed-refs"):
            found = self._live.files.find(path)
            if found is not None and stat.S_ISREG(found.st_mode):
                return self._files.is_edited(path, found)
        return False

    def _path_of(self, change: Change) -> bytes:
        """Return where the entry of a change lies now."""
        assert change.layer is not None
        return self._source.uppers[change.layer] + b"/" + change.path

    def _find_problem(self) -> tuple[Why, str] | None:
        """Say why the repository has to stay as it is, if it has."""
        if self._live.state is None:
            return "conflict", REPOSITORY_GONE
        if self._has_odd_rebase():
            return "refused", _ODD_REBASE
        missing = self._find_missing(self._transfer)
        if not missing:
            return None
        if self._has_unchecked():
            return "refused", self._source.unchecked
        reason = WRONG if self._transfer.refused else _NEEDS
        return "refused", f"{reason}: {missing[:12].decode()}"

    def _has_odd_rebase(self) -> bool:
        """Tell whether to abort the run's rebase would move a branch to where it did not begin."""
        for name in self._moved:
            if name in self._after.files and name.endswith((b"rebase-merge/head-name", b"rebase-apply/head-name")):
                branch = self._live.common(name) + self._read_after(name).strip()
                began = self._read_after(name.removesuffix(b"head-name") + b"orig-head").strip()
                if self._after.refs.get(branch, began) != began:
                    return True
        return False

    def _deleted(self) -> list[bytes]:
        """Return the references that the run deleted and that are still there."""
        assert self._live.state is not None
        return [name for name in self._moved if self._after.value(name) is None and name in self._live.state.refs]

    def _skip(self, why: Why, reason: str) -> None:
        self._draft.skip(Skipped(root=self._live.root, path=self._repository.top, why=why, reason=reason))

    def _has_unchecked(self) -> bool:
        """Tell whether there are packs that nobody could make an index of."""
        # Git renews the time of a pack that has what it would write
        packs = {change.path for change, part in self._repository.changes
                 if part == "pack" and change.entry is not None and change.kind != "metadata"}  # fmt: skip
        return not packs <= self._source.packs.keys()

    def _new_packs(self) -> dict[bytes, bytes]:
        """Return where the packs of the run lie, by path."""
        return {
            change.path: self._path_of(change)
            for change, part in self._repository.changes
            if part == "pack" and change.entry is not None and change.entry.kind == "file" and change.kind != "metadata"
        }

    def _choose_objects(self) -> Transfer:
        loose = {
            change.path: self._path_of(change)
            for change, part in self._repository.changes
            if part == "object" and change.entry is not None and change.entry.kind == "file"
            if change.kind != "metadata"
        }
        packs = {path: (place, self._source.packs[path]) for path, place in self._new_packs().items()
                 if path in self._source.packs}  # fmt: skip
        return choose_objects(
            self._live.objects,
            loose,
            packs,
            hash_size=self._live.size,
            may_lack=self._has_promisor(),
            ends=self._live.read(b"shallow").split(),
        )

    def _has_promisor(self) -> bool:
        """Tell whether the person's repository gets from a remote what it lacks; marks beside packs prove nothing."""
        return any(has_promisor(self._live.read(common_of(member) + b"config")) for member in self._live.members)

    def _find_missing(self, transfer: Transfer) -> bytes:
        """Return the name of an object that what moves needs and that is neither there nor comes; empty if none."""
        wanted = [self._after.refs[name] for name in self._moved if name in self._after.refs]
        for name in self._moved:
            if name in self._after.files and self._live.inner(name) == b"index":
                staged = staged_objects(self._read_after(name), self._live.size) or {}
                wanted += [oid for oids in staged.values() for oid in oids]
            elif name.endswith((b"_HEAD", STASH_LOG)):
                wanted += [word for word in self._read_after(name).split() if is_object_name(word)]
        return next((name for name in wanted if not self._is_there(name, transfer)), b"")

    def _is_there(self, name: bytes, transfer: Transfer) -> bool:
        is_known = name.startswith(SYMBOLIC) or not name.strip(b"0") or name in transfer.names
        return is_known or self._live.objects.has(name)

    def _read_after(self, name: bytes) -> bytes:
        return self._live.read(name, (*self._source.layers, *self._source.below))

    def _places(self, transfer: Transfer) -> Iterator[tuple[bytes, bytes]]:
        """Yield each path to be added, and where it is added from; the index of a pack after it."""
        root = self._live.root
        for path in transfer.paths:
            yield path, self._files.bring_object(self._changes[path])
            if path in self._source.packs:
                name = path.removesuffix(b".pack")
                with open(self._source.packs[path], "rb") as file:
                    yield name + b".idx", self._draft.stage_content(root, file.read(), 0o444)
                if name + b".promisor" in self._changes and self._has_promisor():
                    yield name + b".promisor", self._draft.stage_content(root, b"", 0o444)

    def _make_move(self, transfer: Transfer) -> GitMove | None:
        """Return what moves with the run, None where nothing does."""
        live = self._live.state
        assert live is not None
        differing = [name for name in self._moved if live.value(name) != self._after.value(name)]
        refs = [
            RefMove(name=name, old=live.refs.get(name), new=self._after.refs.get(name))
            for name in differing
            if name in live.refs or name in self._after.refs
        ]
        files = [name for name in differing if name in live.files or name in self._after.files]
        steps = [*self._file_steps(files), *self._log_steps(refs)]
        logs = list(self._new_lines(transfer, refs))
        if not (refs or steps or logs):
            return None
        self._flag_overlooked(files)
        self._draft.flagged += [
            (self._live.top + name, f"{SHADOWS.reason}: {_cut(quote(short))}")
            for name, short in shadowing([ref.name for ref in refs if ref.old is None], live.refs, self._live.members)
        ]
        refs += self._make_pins(refs, files)
        members = {owner_of(name, self._after.members) for name in differing}
        names = core_names(live, self._after, members=members) | set(differing)
        return self._live.move(
            refs,
            steps,
            logs,
            before={name: live.value(name) for name in names},
            after={name: self._after.value(name) if name in differing else live.value(name) for name in names},
        )

    def _file_steps(self, names: Sequence[bytes]) -> Iterator[Step]:
        """Yield steps that bring the files of the run: the index, the state of a merge, the stash."""
        made: set[bytes] = set()
        emptied: set[bytes] = set()
        for name in names:
            path = self._live.top + name
            found = self._live.files.find(path)
            if name not in self._after.files:
                assert found is not None
                yield self._live.take(path, found)
                emptied.add(path.rpartition(b"/")[0])
                continue
            for directory in self._missing_directories(path, made):
                yield self._live.put(directory, *self._draft.stage_directory(self._live.root), None)
            if self._live.inner(name) == b"index":
                self._files.write_instead({path: without_caches(self._read_after(name), self._live.size)})
            yield self._live.put(path, *self._files.bring(self._changes[path]), found)
        for directory in sorted(emptied, reverse=True):
            found = self._live.files.find(directory) if self._is_over(directory) else None
            if found is not None:
                yield self._live.take(directory, found)

    def _missing_directories(self, path: bytes, made: set[bytes]) -> list[bytes]:
        missing: list[bytes] = []
        above = path.rpartition(b"/")[0]
        while above not in made and self._live.files.find(above) is None:
            missing.append(above)
            above = above.rpartition(b"/")[0]
        made.update(missing)
        return missing[::-1]

    def _is_over(self, directory: bytes) -> bool:
        """Tell whether a directory is that of a merge or rebase that the run has ended."""
        name = directory[len(self._live.top) :]
        is_state = self._live.inner(name).partition(b"/")[0] in STATE_DIRECTORIES
        return is_state and not any(other.startswith(name + b"/") for other in self._after.files)

    def _log_steps(self, refs: Sequence[RefMove]) -> Iterator[Step]:
        """Yield steps that take the logs of deleted references away: one in the way stops git from making another."""
        for ref in refs:
            log = self._live.log_of(ref.name)
            found = self._live.files.find(self._live.top + log) if ref.new is None and log != STASH_LOG else None
            if found is not None and stat.S_ISREG(found.st_mode):
                yield self._live.take(self._live.top + log, found)

    def _new_lines(self, transfer: Transfer, refs: Sequence[RefMove]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the lines that the run added to logs, as far as what they name is there."""
        gone = {self._live.log_of(ref.name) for ref in refs if ref.new is None}
        for name in self._changed_logs():
            if name not in gone:
                # What the person has expired since does not come back
                known = set(self._live.read(name).splitlines(keepends=True))
                lines = _added_lines(self._live.read(name, self._source.below), self._read_after(name))
                kept = [
                    line
                    for line in lines
                    if line not in known
                    and is_log_line(line)
                    and all(self._is_there(oid, transfer) for oid in line.split(b" ", 2)[:2])
                ]
                if kept:
                    yield name, b"".join(kept)

    def _changed_logs(self) -> list[bytes]:
        return [
            change.path[len(self._live.top) :]
            for change, part in self._repository.changes
            if part == "log" and change.entry is not None and change.entry.kind == "file"
        ]

    def _make_pins(self, refs: Sequence[RefMove], files: Sequence[bytes]) -> list[RefMove]:
        displaced = self._live.displaced_by(refs)
        kept = self._live.kept_by(refs)
        for name in files:
            if name.endswith(STASH_LOG):
                displaced += [(self._live.common(name), entry) for entry in stashed(self._live.read(name))]
                kept += stashed(self._read_after(name))
            elif self._live.inner(name) == b"index":
                displaced += self._live.lost_blobs(name, self._read_after(name), self._all_objects)
        return self._live.pins(displaced, kept, self._all_objects)

    def _make_arrival(self, transfer: Transfer) -> tuple[RefMove, ...]:
        """Return the references under which the run's work arrives if the repository can't move with it."""
        found: dict[bytes, bytes] = {}
        for name in self._moved:
            value = self._after.refs.get(name, b"")
            if is_object_name(value) and self._live.inner(name) != b"refs/stash":
                found[self._arrival_name(name)] = value
        for member in self._after.members:
            for count, value in enumerate(self._new_stash(member)):
                found[self._arrival_name(member + b"refs/stash/%d" % count)] = value
            for count, value in enumerate(self._log_tips(member, transfer, [*found.values()])):
                found[self._arrival_name(member + b"refs/log/%d" % count)] = value
            if self.is_diverged and (tree := self._new_staged(member)) is not None:
                found[self._arrival_name(member + b"refs/index")] = tree
        return tuple(RefMove(name=name, old=None, new=value) for name, value in sorted(found.items()))

    def _arrival_name(self, name: bytes) -> bytes:
        """Return the name under which a reference of the run arrives: in the same repository, below our own."""
        member = owner_of(name, self._after.members)
        common = common_of(member)
        inner = name[len(member) :].removeprefix(b"refs/")
        return b"%b%b/%b/%b%b" % (common, OWN_REFS, self._name, member[len(common) :], inner)

    def _new_stash(self, member: bytes) -> list[bytes]:
        name = member + STASH_LOG
        if name not in self._moved:
            return []
        old = stashed(self._live.read(name, self._source.below))
        return [entry for entry in stashed(self._read_after(name)) if entry not in old][:_MOST_TIPS]

    def _log_tips(self, member: bytes, transfer: Transfer, arriving: list[bytes]) -> list[bytes]:
        """Return commits that the run made and left again, and that nothing else of it leads to."""
        name = member + b"logs/HEAD"
        if name not in self._changed_logs():
            return []
        tips: list[bytes] = []
        for line in reversed(_added_lines(self._live.read(name), self._read_after(name))):
            words = line.split(b" ", 2)
            value = words[1] if len(words) == 3 else b""
            known = (*arriving, *tips)
            if value in transfer.names and not any(self._all_objects.is_ancestor(value, other) for other in known):
                tips.append(value)
        return tips[:_MOST_TIPS]

    def _new_staged(self, member: bytes) -> bytes | None:
        """Return a tree of what the run staged and did not commit, None where there is nothing of the kind."""
        name = member + b"index"
        if name not in self._moved:
            return None
        new = staged_objects(self._read_after(name), self._live.size) or {}
        old = staged_objects(self._live.read(name, self._source.below), self._live.size) or {}
        tree = self._all_objects.tree_of(_resolve(self._after, member + b"HEAD") or b"")
        staged: set[bytes] = set()
        for path, oids in new.items():
            fresh = oids - old.get(path, set())
            known = self._all_objects.entry_at(tree, path) if fresh and tree is not None else None
            staged |= fresh if known is None else fresh - {known[1]}
        return self._live.make_tree(self._live.common(name), sorted(staged)) if staged else None


class LiveRepository:
    """The repository in the directory `top` of a root."""

    def __init__(self, draft: Draft, dirs: OpenDirs, root: int, top: bytes) -> None:
        self._draft = draft
        self.root = root
        self.files = dirs.roots[root]
        self.top = top + b"/"
        self.is_staged = draft.is_staged(root)
        self.here = b"/proc/self/fd/%d/." % self.files.root_fd
        with MergedTree(self.here) as tree:
            # First, so that an index that somebody writes meanwhile is not taken for the one that is read
            self._known = dict(self._index_numbers(read_members(tree, top)))
            self.state: GitState | None = read_state(tree, top)
        self.size = 20 if self.state is None else self.state.hash_size
        self.members: tuple[bytes, ...] = (b"",) if self.state is None else self.state.members
        self.objects = Objects(self.object_directories([self.here]), self.size)
        self._made: list[tuple[bytes, bytes]] = []

    def own_refs(self) -> list[bytes]:
        """Return the references below our own name, without the prefix of the member that has them."""
        names = () if self.state is None else self.state.refs
        return [inner for name in names if (inner := self.inner(name)).startswith(OWN_REFS + b"/")]

    def object_directories(self, tops: Iterable[bytes]) -> list[bytes]:
        """Return where the objects of the repository and of its submodules lie, in each of some trees."""
        own = [member for member in self.members if b"worktrees/" not in member]
        return [top + b"/" + self.top + member + b"objects" for top in tops for member in own]

    def read(self, name: bytes, layers: Sequence[bytes] = ()) -> bytes:
        """Return the content of one of its files, as it is live or under some layers; nothing where there is none."""
        with MergedTree(self.here, layers) as tree:
            return tree.read(self.top + name, LARGEST_FILE) or b""

    def inner(self, name: bytes) -> bytes:
        """Return a name without the prefix of the member that it belongs to."""
        return name[len(owner_of(name, self.members)) :]

    def log_of(self, name: bytes) -> bytes:
        """Return the name of the log of a reference."""
        member = owner_of(name, self.members)
        return member + b"logs/" + name[len(member) :]

    def common(self, name: bytes) -> bytes:
        """Return the prefix of the repository that has the objects of a name: itself, or a submodule."""
        return common_of(owner_of(name, self.members))

    def pins(self, displaced: Iterable[Displaced], kept: Iterable[bytes], objects: Objects) -> list[RefMove]:
        """Return references to those of the displaced objects that nothing of what is kept leads to."""
        kept = [value for value in dict.fromkeys(kept) if is_object_name(value)]
        lost = [
            (member, value)
            for member, value in dict.fromkeys(displaced)
            if is_object_name(value) and not any(objects.is_ancestor(value, other) for other in kept)
        ]
        top = b"%b/op-%d" % (OWN_REFS, self._draft.number()) if lost else b""
        return [
            RefMove(name=b"%b%b/%d" % (member, top, count), old=None, new=value)
            for count, (member, value) in enumerate(lost)
        ]

    def displaced_by(self, refs: Iterable[RefMove]) -> list[Displaced]:
        """Return what references lead to now that are about to move; pins are no loss."""
        return [
            (self.common(ref.name), ref.old)
            for ref in refs
            if ref.old is not None and not is_own_ref(ref.name, self.members)
        ]

    def kept_by(self, refs: Iterable[RefMove]) -> list[bytes]:
        """Return what the live references lead to when some of them have moved, but for the stash: its log counts."""
        moved = {ref.name: ref.new for ref in refs}
        refs_now = {} if self.state is None else self.state.refs
        return [
            value
            for name, value in {**refs_now, **moved}.items()
            if value is not None and self.inner(name) != b"refs/stash"
        ]

    def lost_blobs(self, name: bytes, new: bytes, objects: Objects) -> list[Displaced]:
        """Return a tree of what an index has staged that neither another index nor the commit it is for has."""
        assert self.state is not None
        old = staged_objects(self.read(name), self.size) or {}
        others = staged_objects(new, self.size) or {}
        tree = objects.tree_of(_resolve(self.state, owner_of(name, self.members) + b"HEAD") or b"")
        lost: set[bytes] = set()
        for path, oids in old.items():
            missing = oids - others.get(path, set())
            known = objects.entry_at(tree, path) if missing and tree is not None else None
            lost |= missing if known is None else missing - {known[1]}
        return [(self.common(name), self.make_tree(self.common(name), sorted(lost)))] if lost else []

    def make_tree(self, member: bytes, blobs: Sequence[bytes]) -> bytes:
        """Make a tree that leads to some blobs of a member; return its name. It is added with the other objects."""
        content = b"".join(b"100644 %b\0%b" % (blob, bytes.fromhex(blob.decode())) for blob in blobs)
        name, text = make_object("tree", content, self.size)
        path = b"%b%bobjects/%b/%b" % (self.top, member, name[:2], name[2:])
        self._made.append((path, self._draft.stage_content(self.root, text, 0o444)))
        return name

    def put(self, path: bytes, place: bytes, status: os.stat_result, found: os.stat_result | None) -> Step:
        """Return the step that puts a file or directory of a place, where `found` is now."""
        before = None if found is None else entry_of(found)
        return self._complete(make_step(self.root, path, "put", 0, place, before, entry_of(status)))

    def take(self, path: bytes, found: os.stat_result) -> Step:
        """Return the step that takes away what is there now."""
        place = self._draft.next_place(self.root)
        return self._complete(make_step(self.root, path, "take", 0, place, entry_of(found), None))

    def move(
        self,
        refs: Sequence[RefMove],
        steps: Sequence[Step],
        logs: Sequence[tuple[bytes, bytes]],
        before: Mapping[bytes, bytes | None],
        after: Mapping[bytes, bytes | None],
    ) -> GitMove:
        """Return a move with all that is needed to do it under locks."""
        return GitMove(
            refs=tuple(refs),
            files=tuple(steps),
            logs=tuple(logs),
            before=tuple(sorted(before.items())),
            after=tuple(sorted(after.items())),
            known=tuple((name, *numbers) for name, numbers in self._known.items() if name in before),
            locks=tuple(dict.fromkeys(self._locks(refs, before))),
        )

    def add_step(
        self,
        move: GitMove | None,
        arrival: Sequence[RefMove] = (),
        objects: Sequence[tuple[bytes, bytes]] = (),
        dependent: Sequence[int] = (),
        committed: Sequence[int] = (),
    ) -> None:
        """Add what is to be done to the draft."""
        lock = self._draft.stage_content(self.root, b"unspill pid %d\n" % os.getpid(), 0o444)
        self._draft.add_git(
            GitStep(
                root=self.root,
                top=self.top[:-1],
                members=self.members,
                hash_size=self.size,
                objects=(*objects, *self._made),
                staged=self.is_staged,
                move=move,
                arrival=tuple(arrival),
                dependent=tuple(dependent),
                committed=tuple(committed),
                lock=lock,
                lock_inode=self._draft.inode_of(self.root, lock),
            )
        )

    def _complete(self, step: Step) -> Step:
        return self._draft.complete(step.replace(staged=True) if self.is_staged else step)

    def _index_numbers(self, members: Iterable[bytes]) -> Iterator[tuple[bytes, tuple[int, int, int]]]:
        for name in (member + b"index" for member in members):
            try:
                found = self.files.find(self.top + name)
            except OSError:
                continue
            if found is not None and stat.S_ISREG(found.st_mode):
                yield name, (found.st_ino, found.st_size, found.st_ctime_ns)

    def _locks(self, refs: Sequence[RefMove], names: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the locks of all that moves or must not move meanwhile, as git takes them."""
        for member in sorted({owner_of(name, self.members) for name in names}):
            yield member + b"index.lock"
            yield member + b"HEAD.lock"
        gone = [ref.name for ref in refs if ref.new is None]
        for member in sorted({common_of(owner_of(name, self.members)) for name in gone}):
            yield member + b"packed-refs.lock"
        moving = {ref.name for ref in refs} | {name for name in names if self.inner(name).startswith(b"refs/")}
        for name in sorted(moving):
            # Nobody can make a reference below another one that is locked
            if not any(name.startswith(other + b"/") for other in gone) and not is_own_ref(name, self.members):
                yield name + b".lock"


def core_names(*states: GitState, members: Iterable[bytes]) -> set[bytes]:
    """Return the names that say where some members of a repository stand, in any of some states."""
    return {name for state in states for member in {*members, b""} for name in state.core(member)}


def stashed(log: bytes) -> list[bytes]:
    """Return the entries of a stash, the newest first."""
    return [words[1] for line in reversed(log.splitlines()) if len(words := line.split(b" ", 2)) == 3]


def shadowing(
    new: Iterable[bytes], known: Iterable[bytes], members: tuple[bytes, ...]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield new references that git takes for an older one which is called the same, and that short name."""
    ranks: dict[bytes, int] = {}
    for name in known:
        for rank, short in _short_names(name, members):
            ranks[short] = max(ranks.get(short, 0), rank)
    for name in new:
        found = [short for rank, short in _short_names(name, members) if ranks.get(short, 0) > rank]
        if found:
            yield name, found[-1][len(owner_of(name, members)) :]


def _short_names(name: bytes, members: tuple[bytes, ...]) -> Iterator[tuple[int, bytes]]:
    """Yield the names by which git finds a reference, with the member's prefix; the lowest rank comes first."""
    member = owner_of(name, members)
    for rank, start in enumerate((b"refs/", b"refs/tags/", b"refs/heads/", b"refs/remotes/"), 1):
        if name.startswith(member + start):
            yield rank, member + name[len(member + start) :]


def moved_note(step: GitStep) -> str:
    """Say in one line what moved in a repository."""
    assert step.move is not None
    moved = [ref for ref in step.move.refs if not is_own_ref(ref.name, step.members)]
    heads = {ref.name for ref in moved if ref.name[len(owner_of(ref.name, step.members)) :] == b"HEAD"}
    refs = [ref for ref in moved if ref.name not in heads]
    # What was there comes first, and many new branches leave none of it out
    words = [_moved_word(ref) for ref in refs if ref.old is not None]
    words += [f"now at {_short_value(ref.new)}" for ref in moved if ref.name in heads and ref.new is not None]
    most = max(_MOST_WORDS, min(len(words), _MOST_MOVED))
    words += [_moved_word(ref) for ref in refs if ref.old is None]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    shown = ", ".join(words[:most]) + more
    return f"{_git_of(step.top)}: {shown or 'index or merge state changed'}"


def arrival_notes(step: GitStep) -> list[str]:
    """Say where the work of a run is that its repository could not move with, and how to get it."""
    git = _git_command(step.top)
    lines = ["git: your branches stay as they are, because you changed them too. To get the run's work:"]
    for ref in step.arrival:
        short = ref.name.removeprefix(b"refs/")
        kind = ref.name.removeprefix(OWN_REFS + b"/").split(b"/")[1:2]
        word = shell_word(short)
        if kind == [b"stash"]:
            lines.append(f"  {git} stash apply {word}")
        elif kind in ([b"heads"], [b"HEAD"], [b"log"]):
            lines += [f"  {git} log --oneline HEAD..{word}", f"  {git} merge {word}"]
        else:
            lines.append(f"  {git} show {word}")
    # Where only the locks showed that somebody else moved it
    gone = [ref.name for ref in step.move.refs if ref.new is None] if step.move is not None else []
    return [*lines[:_MOST_LINES], *deletion_notes(step.top, gone)]


def deletion_notes(top: bytes, names: Iterable[bytes]) -> list[str]:
    """Name branches and tags that a run deleted and that stay, because the repository did not move with the run."""
    git = _git_command(top)
    lines = []
    for name in sorted(names):
        for kind, delete in ((b"refs/heads/", "branch -D"), (b"refs/tags/", "tag -d")):
            if name.startswith(kind):
                short = name.removeprefix(kind)
                lines.append(f"git: the run deleted {quote(short)}. You still have it; to delete it too:")
                lines.append(f"  {git} {delete} {shell_word(short)}")
    return lines[:_MOST_LINES]


def stayed_note(top: bytes) -> str:
    """Say that what a run did to HEAD or the index is dropped, where nothing of it can arrive under another name."""
    return f"{_git_of(top)}: you changed it during the run, so HEAD and the index stay as you left them"


def held_notes(top: bytes, given: Iterable[bytes], *, is_diverged: bool) -> list[str]:
    """Name files that are held, and that git nevertheless has from the run."""
    names = sorted(given)
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
    shown = ", ".join(_cut(quote(name)) for name in names[:_NAMED]) + more
    verb, what = ("is", "it") if len(names) == 1 else ("are", "them")
    if is_diverged:
        why = f"the run committed {what}: merging or checking out its work puts {what} into your tree"
    else:
        why = f"the run gave {what} to git: `git stash`, `git restore` or a checkout puts {what} into your tree"
    return [f"{_git_of(top)}: {shown} {verb} held, but {why}"]


def flag_overlooked(draft: Draft, here: bytes, layers: Sequence[bytes], git: bytes, names: Set[bytes]) -> None:
    """Flag the index of a git directory that makes git overlook changes of some files.

    That is what a sparse checkout does, too, but to files that are not there.
    """
    if not names:
        return
    above, _, last = git.rpartition(b"/")
    with MergedTree(here, layers) as tree:
        shared = git.rpartition(b"/worktrees/")[0] if b"/worktrees/" in git else git
        configs = [tree.read(path, LARGEST_FILE) for path in (shared + b"/config", git + b"/config.worktree")]
        if is_sparse(*(config or b"" for config in configs)) and tree.read(git + b"/" + SPARSE, 1):
            # Where the work tree of a submodule is can't be told from here
            names = _present(tree, above, names) if last == GIT else set()
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        shown = ", ".join(_cut(quote(name)) for name in sorted(names)[:_NAMED]) + more
        draft.flagged.append((git + b"/index", f"{HIDDEN.reason}: {shown}"))


def _present(tree: MergedTree, above: bytes, names: Iterable[bytes]) -> set[bytes]:
    """Return those of the names in a directory that are there; each directory is looked at once."""
    known: dict[bytes, Mapping[bytes, object]] = {b"": tree.names(above)}

    def inside(directory: bytes) -> Mapping[bytes, object]:
        if directory not in known:
            parent, _, last = directory.rpartition(b"/")
            path = above + b"/" + directory if above else directory
            known[directory] = tree.names(path) if last in inside(parent) else {}
        return known[directory]

    split = ((name, *name.rstrip(b"/").rpartition(b"/")) for name in names)
    return {name for name, directory, _, last in split if last in inside(directory)}


def _look_at_new(
    draft: Draft,
    here: bytes,
    top: bytes,
    hash_size: int,
    changes: Sequence[Change],
    source: GitSource,
    held: Set[bytes],
) -> None:
    """Flag and name of a repository that comes as a whole what one that moves is looked at for."""
    layers = (*source.layers, *source.below)
    indexes = [change.path for change in changes if is_index(change.path) and change.path.startswith(top + b"/")]
    above = top.rpartition(b"/")[0]
    prefix = above + b"/" if above else b""
    with MergedTree(here, layers) as tree:
        config = tree.read(top + b"/config", LARGEST_FILE)
        size = hash_size if config is None else hash_size_of(config)
        texts = {path: tree.read(path, LARGEST_FILE) or b"" for path in indexes}
    for path, text in texts.items():
        flag_overlooked(draft, here, layers, path.rpartition(b"/")[0], overlooked(text, size))
    staged = staged_objects(texts.get(top + b"/index", b""), size) or {}
    inside = {path[len(prefix) :] for path in held if path.startswith(prefix)}
    draft.notes += held_notes(top, inside & staged.keys(), is_diverged=False)


class _CommittedPaths:
    """What the commit `tip` of a run has, made upon `base` in the repository whose working tree is below `prefix`."""

    def __init__(
        self,
        objects: Objects,
        base: bytes | None,
        tip: bytes | None,
        prefix: bytes,
        hash_size: int,
        path_of: Callable[[Change], bytes],
    ) -> None:
        self._objects = objects
        self._base = objects.tree_of(base or b"")
        self._tree = objects.tree_of(tip or b"")
        self._prefix = prefix
        self._size = hash_size
        self._path_of = path_of

    def of(self, changes: Iterable[Change]) -> set[bytes]:
        """Return the paths of those changes that the commit has."""
        if self._tree is None:
            return set()
        inside = [change for change in changes if change.path.startswith(self._prefix)]
        found = {change.path for change in inside if self._has(change, self._tree)}
        # A directory is only made for what is in it
        kept = {change.path for change in inside} - found
        return {path for path in found if not any(other.startswith(path + b"/") for other in kept)}

    def _has(self, change: Change, tree: bytes) -> bool:
        path = change.path[len(self._prefix) :]
        entry = self._objects.entry_at(tree, path)
        if change.entry is None:
            # No commit deletes what git does not track
            return entry is None and self._base is not None and self._objects.entry_at(self._base, path) is not None
        if entry is None:
            return False
        mode, name = entry
        if change.entry.kind == "dir":
            return mode == b"40000" and change.kind == "added"
        if change.entry.kind == "symlink":
            return mode == b"120000" and make_object("blob", change.target or b"", self._size)[0] == name
        is_executable = bool(change.entry.mode & 0o100)
        if change.entry.kind != "file" or mode != (b"100755" if is_executable else b"100644"):
            return False
        try:
            fd = os.open(self._path_of(change), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        return blob_name(fd, change.entry.size, self._size) == name


def _committed_groups(git: GitDraft, changes: Sequence[Change], files: RootDraft) -> set[int]:
    """Return the groups of steps that do nothing but what the run's own commit has."""
    committed = git.committed(changes)
    others = {group for path, group in files.groups.items() if path not in committed}
    return {group for path, group in files.groups.items() if path in committed} - others


def _with_new(
    draft: Draft, root: int, top: bytes, hash_size: int, changes: Sequence[Change], source: GitSource, files: RootDraft
) -> list[Change]:
    """Return the changes with what is applied of a repository that comes as a whole: all of it, or nothing."""

    def place_of(change: Change) -> bytes:
        assert change.layer is not None
        return source.uppers[change.layer] + b"/" + change.path

    inside = [change for change in changes if change.path.startswith(top + b"/")]
    checked = check_new_repository(inside, place_of, source.packs, source.unchecked, hash_size)
    kept = {change.path for change in checked.changes}
    if checked.problem:
        draft.skip(Skipped(root=root, path=top, why="refused", reason=checked.problem))
    else:
        kept.add(top)
        files.group_together(top)
        files.write_instead(checked.contents)
    return [change for change in changes if change.path in kept or not (change.path + b"/").startswith(top + b"/")]


def _added_lines(before: bytes, after: bytes) -> list[bytes]:
    """Return the lines of a log that it did not have before."""
    if after.startswith(before):
        return after[len(before) :].splitlines(keepends=True)
    known = set(before.splitlines(keepends=True))
    return [line for line in after.splitlines(keepends=True) if line not in known]


def _resolve(state: GitState, name: bytes) -> bytes | None:
    """Return the object that a reference leads to, through symbolic ones."""
    member = common_of(owner_of(name, state.members))
    for _ in range(5):
        value = state.refs.get(name)
        if value is None or not value.startswith(SYMBOLIC):
            return value
        name = member + value.removeprefix(SYMBOLIC)
    return None


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def _git_of(top: bytes) -> str:
    return f"git in {quote(top.rpartition(b'/')[0])}" if b"/" in top else "git"


def _git_command(top: bytes) -> str:
    """Return how to call git for a repository, from the root's directory."""
    above = top.rpartition(b"/")[0]
    return f"git -C {shell_word(above)}" if above else "git"


def _moved_word(ref: RefMove) -> str:
    name = quote(short_ref(ref.name))
    if ref.old is None or ref.new is None:
        return f"new {name}" if ref.old is None else f"{name} deleted"
    return f"{name} {_short_value(ref.old)} -> {_short_value(ref.new)}"


def _short_value(value: bytes | None) -> str:
    text = (value or b"").removeprefix(SYMBOLIC)
    return quote(text.removeprefix(b"refs/heads/")) if text != value else text[:7].decode()
