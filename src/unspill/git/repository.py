# SPDX-License-Identifier: Apache-2.0
"""The changes of a root that belong to repositories, taken out of the others: they move by repository, not by file.

A repository that is new or goes as a whole is not among them: its files are files like others, done all or none.
"""

from __future__ import annotations

import os

from unspill.changes.reader import MergedTree
from unspill.git.layout import GIT, REPLACE, part_of, repository_of
from unspill.git.state import ODD_FORMAT, GitState, is_own_ref, owner_of, read_state
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.git.layout import Part
    from unspill.model.change import Change, RootChanges


# What a bare repository has in it that commands write
_BARE = frozenset((b"objects", b"refs", b"HEAD", b"packed-refs"))
_OBJECT_PARTS = ("object", "pack", "promisor", "derived")


class Repository(Record):
    """What layers changed in one repository. `base` is where it stood before them, `after` where it stands with them.

    `changes` are all that does not go file by file, with the part each has; `tied` are those of worktrees that
    come or go and of submodules that come, which need the rest. `is_frozen` if `base` is how it stood when the first
    run began; else it is how it stands now, and only times tell whether the person moved it.
    """

    root: bytes
    top: bytes
    base: GitState
    after: GitState
    changes: tuple[tuple[Change, Part], ...]
    is_frozen: bool
    tied: tuple[Change, ...] = ()

    @property
    def paths(self) -> set[bytes]:
        """The paths of all changes that are done together or not at all."""
        return {change.path for change, _part in self.changes} | {change.path for change in self.tied}

    @property
    def problem(self) -> str:
        """Why it can't be moved, where it can't."""
        changed = ODD_FORMAT if self.base.hash_size != self.after.hash_size else ""
        return self.base.problem or self.after.problem or changed

    def moved(self) -> tuple[bytes, ...]:
        """Return the names of references and files that do not say what they said; our own references never count."""
        names = {*self.base.refs, *self.after.refs, *self.base.files, *self.after.files}
        members = set(self.base.members) & set(self.after.members)
        return tuple(
            name
            for name in sorted(names)
            if self.base.value(name) != self.after.value(name)
            and owner_of(name, self.after.members) in members
            and owner_of(name, self.base.members) in members
            and not is_own_ref(name, self.after.members)
        )

    @property
    def brings_anything(self) -> bool:
        """Whether there are objects, or lines of logs, that the repository may not have."""
        return any(
            part in ("object", "pack", "log") and change.kind in ("added", "modified", "replaced")
            for change, part in self.changes
        )

    def new_members(self) -> tuple[bytes, ...]:
        """Return the prefixes of worktrees and submodules that come as a whole."""
        return tuple(member for member in self.after.members if member not in self.base.members)

    def replaced(self) -> tuple[bytes, ...]:
        """Return the references that make git take one object for another, as far as they are new."""
        return tuple(name for name in self.moved() if REPLACE in name and self.after.value(name) is not None)


def find_repositories(
    part: RootChanges, uppers: Sequence[bytes], below: Sequence[bytes], *, is_frozen: bool
) -> tuple[Repository, ...]:
    """Return the repositories that layers changed and that live on.

    Args:
        part: The changes of a root.
        uppers: The upper directories that the changes are in, the topmost first.
        below: The layers under these, the topmost first.
        is_frozen: The lowest of them has the root's repository as it stood when the first run began.
    """
    tops = dict.fromkeys(top for change in part.changes for top in _tops_of(change.path))
    if not tops:
        return ()
    whole = {change.path for change in part.changes if change.kind in ("added", "deleted", "replaced")}
    with MergedTree(part.root, below) as before, MergedTree(part.root, (*uppers, *below)) as now:
        found = [
            _read(part, top, before, now, is_frozen=is_frozen and top == b".git")
            for top in tops
            if not whole.intersection(_with_parents(top)) and _is_repository(before, top)
        ]
    return tuple(repository for repository in found if repository is not None)


def _tops_of(path: bytes) -> list[bytes]:
    """Return the directories that may be the repository of a path: `.git`, or what a bare one would be."""
    top = repository_of(path)
    if top is not None:
        return [top]
    parts = path.split(b"/")
    return [b"/".join(parts[:end]) for end in range(1, len(parts)) if parts[end] in _BARE]


def _is_repository(tree: MergedTree, top: bytes) -> bool:
    if top.rpartition(b"/")[2] == GIT:
        return True
    kinds = tree.names(top)
    return [kinds.get(name) for name in (b"HEAD", b"objects", b"refs")] == ["file", "dir", "dir"]


def new_repositories(part: RootChanges) -> tuple[bytes, ...]:
    """Return the git directories that something is written into and that are no repositories yet.

    An empty one may have come earlier, so that it is there already does not tell.
    """
    tops = dict.fromkeys(repository_of(change.path) for change in part.changes if change.entry is not None)
    return tuple(top for top in tops if top and not os.path.lexists(b"%b/%b/HEAD" % (part.root, top)))


def find_noise(repositories: Iterable[Repository]) -> set[bytes]:
    """Return the paths of what git did for itself.

    In a repository that stands where it stood and has nothing new, that is all. In others it is what was deleted of the
    objects: that is never applied, and held it would hide what the person's git puts into the same directories.
    """
    noise = set()
    for repository in repositories:
        is_still = not repository.problem and not repository.moved() and not repository.brings_anything
        objects = repository.top + b"/objects"
        noise |= {
            change.path
            for change, part in repository.changes
            if is_still or (change.kind == "deleted" and part in _OBJECT_PARTS and change.path != objects)
        }
    return noise


def _with_parents(path: bytes) -> Iterable[bytes]:
    while path:
        yield path
        path = path.rpartition(b"/")[0]


def _read(part: RootChanges, top: bytes, before: MergedTree, now: MergedTree, *, is_frozen: bool) -> Repository | None:
    base, after = read_state(before, top), read_state(now, top)
    if base is None or after is None:
        return None
    changes = [change for change in part.changes if change.path.startswith(top + b"/")]
    return Repository(
        root=part.root,
        top=top,
        base=base,
        after=after,
        changes=tuple(_parts(changes, top, base, after)),
        is_frozen=is_frozen,
        tied=tuple(_tied(changes, top, base, after)),
    )


def _tied(changes: Sequence[Change], top: bytes, base: GitState, after: GitState) -> Iterable[Change]:
    """Yield the changes of worktrees and submodules that come, and of worktrees that go.

    The repository of a submodule that goes is held by itself, and nothing waits for it.
    """
    gone = {member for member in set(base.members) - set(after.members) if b"worktrees/" in member}
    others = tuple(top + b"/" + member for member in gone | (set(after.members) - set(base.members)))
    return (change for change in changes if others and (change.path + b"/").startswith(others))


def _parts(changes: Sequence[Change], top: bytes, base: GitState, after: GitState) -> Iterable[tuple[Change, Part]]:
    """Yield the changes that do not go file by file. What is in a worktree or module that comes or goes does."""
    kept = set(base.members) & set(after.members)
    every = tuple({*base.members, *after.members})
    for change in changes:
        name = change.path[len(top) + 1 :]
        member = owner_of(name, every)
        if member not in kept or name + b"/" in every:
            continue
        part = part_of(name[len(member) :])
        if part != "other":
            yield change, part
