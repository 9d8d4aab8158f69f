# SPDX-License-Identifier: Apache-2.0
"""What becomes of a repository that a run changed, decided before anything is done: objects, what moves, what arrives.

If the person moved what the run moved too, theirs stays exactly as it is, and the run's commits, tags and stash entries
arrive as references of their own below `refs/unspill`.
"""

from __future__ import annotations

import stat

from unspill.apply.git_committed import CommittedPaths
from unspill.apply.git_live import GONE, LiveRepository, core_names, resolve, stashed
from unspill.apply.git_notes import deletion_notes, stayed_note
from unspill.changes.reader import MergedTree
from unspill.git import index
from unspill.git.layout import OWN_REFS, STASH_LOG, STATE_DIRECTORIES, is_object_name
from unspill.git.objects import Objects
from unspill.git.state import SYMBOLIC, common_of, owner_of
from unspill.git.transfer import UNCHECKED, WRONG, choose_objects
from unspill.model.operation import Left, RefMove
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from unspill.apply.draft import Draft
    from unspill.apply.drafting import RootDraft
    from unspill.apply.sites import Sites
    from unspill.git.repository import Repository
    from unspill.git.transfer import Transfer
    from unspill.model.change import Change
    from unspill.model.operation import GitMove, Step, Why

NEEDS = "it needs an object that is not in your repository any more"
_MOST_TIPS = 100


class GitSource(Record):
    """Where the files of a run lie while an operation is drafted.

    `layers` are its upper directories and `below` what is beneath them, both the topmost first; `uppers` has, by the
    path that a change names, where an upper directory is now. `packs` has, by path, the index that we made of a pack.
    `name` is what the run is called in references.
    """

    layers: tuple[bytes, ...]
    below: tuple[bytes, ...]
    uppers: Mapping[bytes, bytes]
    packs: Mapping[bytes, bytes]
    name: bytes


class GitDraft:
    """Drafts what becomes of one repository that a run changed."""

    def __init__(
        self, draft: Draft, sites: Sites, root: int, repository: Repository, source: GitSource, files: RootDraft
    ) -> None:
        self._draft = draft
        self._live = LiveRepository(draft, sites, root, repository.top)
        self._repository = repository
        self._base, self._after = repository.base, repository.after
        self._source = source
        self._files = files
        self._name = self._free_name(source.name)
        self._moved = repository.moved()
        self._changes = {change.path: change for change, _part in repository.changes}
        tops = [*source.uppers.values(), self._live.here]
        # The objects of the repository and of the run together
        self._all_objects = Objects(self._live.object_directories(tops), self._live.size)
        self.is_diverged = not files.is_overwritten(repository.top) and self._find_divergence()
        self._transfer = self._choose_objects()
        self.problem = self._find_problem()
        self._arrival = () if self.problem is not None else self._make_arrival(self._transfer)

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

    def committed(self, changes: Iterable[Change]) -> set[bytes]:
        """Return the paths of changes that the run's own commit has."""
        base, tip = resolve(self._base, b"HEAD"), resolve(self._after, b"HEAD")
        if base == tip:
            return set()
        above = self._repository.top.rpartition(b"/")[0]
        prefix = above + b"/" if above else b""
        return CommittedPaths(self._all_objects, base, tip, prefix, self._live.size, self._path_of).of(changes)

    @property
    def keeps_commit(self) -> bool:
        """Whether a reference leads to the run's commit even if nothing moves: one that arrives, or the person's."""
        tip = resolve(self._after, b"HEAD")
        if self._live.state is None or self.problem is not None or tip is None:
            return False
        arriving = [ref.new for ref in self._arrival if ref.new is not None]
        return tip in self._live.state.refs.values() or any(
            self._all_objects.is_ancestor(tip, value) for value in arriving
        )

    def _path_of(self, change: Change) -> bytes:
        """Return where the entry of a change lies now."""
        assert change.layer is not None
        return self._source.uppers[change.layer] + b"/" + change.path

    def _find_problem(self) -> tuple[Why, str] | None:
        """Say why the repository has to be left as it is, if it has."""
        if self._live.state is None:
            return "conflict", GONE
        missing = self._find_missing(self._transfer)
        if not missing:
            return None
        reason = UNCHECKED if self._has_unchecked() else WRONG if self._transfer.refused else NEEDS
        return "refused", f"{reason}: {missing[:12].decode()}"

    def add(self, dependent: Iterable[int] = (), committed: Iterable[int] = (), arriving: Iterable[bytes] = ()) -> None:
        """Draft what becomes of it. Groups of steps that are `dependent` are done only if it moves.

        Those of what is `committed` are done unless it turns out that the run's work can only arrive. Of paths that are
        `arriving` there are no steps: they are left if the work can't arrive either.
        """
        if self.problem is not None:
            self._leave(*self.problem)
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

    def _deleted(self) -> list[bytes]:
        """Return the references that the run deleted and that are still there."""
        assert self._live.state is not None
        return [name for name in self._moved if self._after.value(name) is None and name in self._live.state.refs]

    def _leave(self, why: Why, reason: str) -> None:
        self._draft.leave(Left(root=self._live.root, path=self._repository.top, why=why, reason=reason))

    def _has_unchecked(self) -> bool:
        """Tell whether there are packs that nobody could make an index of."""
        # Git renews the time of a pack that has what it would write
        packs = {change.path for change, part in self._repository.changes
                 if part == "pack" and change.entry is not None and change.kind != "metadata"}  # fmt: skip
        return not packs <= self._source.packs.keys()

    def _choose_objects(self) -> Transfer:
        loose: dict[bytes, bytes] = {}
        packs: dict[bytes, tuple[bytes, bytes]] = {}
        for change, part in self._repository.changes:
            if change.entry is None or change.entry.kind != "file" or change.kind == "metadata":
                continue
            if part == "object":
                loose[change.path] = self._path_of(change)
            elif part == "pack" and change.path in self._source.packs:
                packs[change.path] = self._path_of(change), self._source.packs[change.path]
        with MergedTree(self._live.here) as tree:
            packed = tree.names(self._live.top + b"objects/pack")
        return choose_objects(
            self._live.objects,
            loose,
            packs,
            hash_size=self._live.size,
            may_lack=any(name.endswith(b".promisor") for name in packed),
            ends=self._live.read(b"shallow").split(),
        )

    def _find_missing(self, transfer: Transfer) -> bytes:
        """Return the name of an object that what moves needs and that is neither there nor comes; empty if none."""
        wanted = [self._after.refs[name] for name in self._moved if name in self._after.refs]
        for name in self._moved:
            if name in self._after.files and self._live.inner(name) == b"index":
                staged = index.staged_objects(self._read_after(name), self._live.size) or {}
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
                if name + b".promisor" in self._changes:
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
                lines = new_lines(self._live.read(name, self._source.below), self._read_after(name))
                kept = [
                    line
                    for line in lines
                    if line not in known
                    and len(named := line.split(b" ", 2)[:2]) == 2
                    and all(is_object_name(oid) and self._is_there(oid, transfer) for oid in named)
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
        for line in reversed(new_lines(self._live.read(name), self._read_after(name))):
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
        new = index.staged_objects(self._read_after(name), self._live.size) or {}
        old = index.staged_objects(self._live.read(name, self._source.below), self._live.size) or {}
        tree = self._all_objects.tree_of(resolve(self._after, member + b"HEAD") or b"")
        staged: set[bytes] = set()
        for path, oids in new.items():
            fresh = oids - old.get(path, set())
            known = self._all_objects.entry_at(tree, path) if fresh and tree is not None else None
            staged |= fresh if known is None else fresh - {known[1]}
        return self._live.make_tree(self._live.common(name), sorted(staged)) if staged else None


def new_lines(before: bytes, after: bytes) -> list[bytes]:
    """Return the lines of a log that it did not have before."""
    if after.startswith(before):
        return after[len(before) :].splitlines(keepends=True)
    known = set(before.splitlines(keepends=True))
    return [line for line in after.splitlines(keepends=True) if line not in known]
