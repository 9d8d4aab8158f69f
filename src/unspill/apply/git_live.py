# SPDX-License-Identifier: Apache-2.0
"""A live repository while an operation on it is drafted: where it stands, what it has, what must be pinned.

What a move displaces and nothing else leads to would be gone with git's next cleaning. So it gets a reference below
`refs/unspill/op-N`, until operation N can't be undone any more.
"""

from __future__ import annotations

import os
import stat

from unspill.apply.entries import entry_of
from unspill.apply.steps import make_step
from unspill.changes.reader import MergedTree
from unspill.git import index
from unspill.git.layout import OWN_REFS, is_object_name
from unspill.git.objects import Objects, make_object
from unspill.git.state import SYMBOLIC, common_of, is_own_ref, owner_of, read_members, read_state
from unspill.model.operation import GitMove, GitStep, RefMove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from unspill.apply.draft import Draft
    from unspill.apply.sites import Sites
    from unspill.git.state import GitState
    from unspill.model.operation import Step

    # The prefix of the repository that an object is in, and its name
    Displaced = tuple[bytes, bytes]

LARGEST = 64 << 20
GONE = "the repository is not there any more"


class LiveRepository:
    """The repository in the directory `top` of a root."""

    def __init__(self, draft: Draft, sites: Sites, root: int, top: bytes) -> None:
        self._draft = draft
        self.root = root
        self.files = sites.roots[root]
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
            return tree.read(self.top + name, LARGEST) or b""

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
        old = index.staged_objects(self.read(name), self.size) or {}
        others = index.staged_objects(new, self.size) or {}
        tree = objects.tree_of(resolve(self.state, owner_of(name, self.members) + b"HEAD") or b"")
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

    def _complete(self, step: Step) -> Step:
        return self._draft.complete(step.replace(staged=True) if self.is_staged else step)

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


def resolve(state: GitState, name: bytes) -> bytes | None:
    """Return the object that a reference leads to, through symbolic ones."""
    member = common_of(owner_of(name, state.members))
    for _ in range(5):
        value = state.refs.get(name)
        if value is None or not value.startswith(SYMBOLIC):
            return value
        name = member + value.removeprefix(SYMBOLIC)
    return None


def stashed(log: bytes) -> list[bytes]:
    """Return the entries of a stash, the newest first."""
    return [words[1] for line in reversed(log.splitlines()) if len(words := line.split(b" ", 2)) == 3]


def core_names(*states: GitState, members: Iterable[bytes]) -> set[bytes]:
    """Return the names that say where some members of a repository stand, in any of some states."""
    return {name for state in states for member in {*members, b""} for name in state.core(member)}
