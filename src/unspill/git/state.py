# SPDX-License-Identifier: Apache-2.0
"""Repositories of a root: where each stands, and which changes belong to it and move with it, not file by file.

Where it stands is HEAD, references, what the index says, and the state of a merge, rebase or bisection: a map from
names to values, whatever files it comes from. A reference means the same loose or packed, and an index that `git
status` refreshed says what it said before. Linked worktrees and submodules belong to the repository. One that is new or
goes as a whole has no changes of its own: its files are files like others, done all or none.
"""

from __future__ import annotations

import itertools
import os

from unspill.changes.scan import MergedTree
from unspill.errors import UsageError
from unspill.git.files import (
    GIT,
    LARGEST_FILE,
    OWN_REFS,
    REFTABLE,
    REPLACE,
    SHA1,
    SHA256,
    SPARSE,
    STASH_LOG,
    STATE_DIRECTORIES,
    STATE_FILES,
    digest,
    is_object_name,
    is_ref_name,
    part_of,
    repository_of,
    short_ref,
)
from unspill.plan.view import parse_gitconfig
from unspill.policy.paths import quote
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set

    from unspill.git.files import Part
    from unspill.model.change import Change, EntryKind, RootChanges


SYMBOLIC = b"ref: "
_LARGEST_REF = 4096
_LARGEST_PACKED_REFS = 16 << 20
_LARGEST_CONFIG = 1 << 20
# `git-new-workdir` makes such links
_NO_LINKS = (b"refs", b"packed-refs", b"objects", b"logs", b"index")
_MOST_REFS = 200_000
_MOST_FILES = 10_000
_MOST_MEMBERS = 1000
_MOST_NAMED = 3

IN_REFTABLE = "its references are in a reftable, which unspill can't update yet: commit outside the sandbox"
ODD_INDEX = "unspill can't read its index, or the index has a path that git would refuse, in .git for example"
ODD_FORMAT = "the format of its object names would change"
LINKED = "a part of it is a symlink, which unspill does not follow"
ODD_REF = "it has a reference that git would not write"
TOO_MANY = "it has more references than unspill can read"

# What a bare repository has in it that commands write
_BARE = frozenset((b"objects", b"refs", b"HEAD", b"packed-refs"))
_OBJECT_PARTS = ("object", "pack", "promisor", "derived")


class GitState(Record):
    """Where one repository stands. Names are paths in its git directory, such as `refs/heads/main`, `HEAD`, `index`.

    `refs` has object names, or `ref: NAME`. `files` has a digest of what each file says. `members` are the prefixes of
    its own directory, of worktrees and of submodules. `problem` says why it can't be moved, where it can't.
    """

    refs: dict[bytes, bytes]
    files: dict[bytes, bytes]
    members: tuple[bytes, ...] = (b"",)
    hash_size: int = 20
    problem: str = ""

    def value(self, name: bytes) -> bytes | None:
        """Return what a name stands for, None where there is no such thing."""
        return self.refs.get(name, self.files.get(name))

    def branch(self, member: bytes = b"") -> bytes | None:
        """Return the name of the reference that HEAD of a member names, which need not exist."""
        head = self.refs.get(member + b"HEAD", b"")
        if not head.startswith(SYMBOLIC):
            return None
        # Worktrees have the branches of their repository, submodules their own
        return common_of(member) + head.removeprefix(SYMBOLIC)

    def core(self, member: bytes = b"") -> set[bytes]:
        """Return the names that say where a member stands: HEAD, its branch, the index, the state of a merge."""
        branch = self.branch(member)
        files = {name for name in self.files if owner_of(name, self.members) == member}
        return {member + b"HEAD", member + b"index", *files, *(() if branch is None else (branch,))}


def common_of(member: bytes) -> bytes:
    """Return the prefix of the directory whose references a member has."""
    return member.rpartition(b"worktrees/")[0] if b"worktrees/" in member else member


def is_own_ref(name: bytes, members: tuple[bytes, ...]) -> bool:
    """Tell whether a reference is one that we made, in a repository or in one of its worktrees and submodules."""
    return name[len(owner_of(name, members)) :].startswith(OWN_REFS + b"/")


def owner_of(name: bytes, members: tuple[bytes, ...]) -> bytes:
    """Return the member that a name belongs to."""
    return max((member for member in members if name.startswith(member)), key=len, default=b"")


def read_state(tree: MergedTree, top: bytes) -> GitState | None:
    """Return where the repository in the directory `top` stands, None where there is none."""
    found = tree.find(top)
    if found is None or found[3] != "dir" or tree.find(top + b"/HEAD") is None:
        return None
    return _StateReader(tree, top).read()


def read_members(tree: MergedTree, top: bytes) -> tuple[bytes, ...]:
    """Return the prefixes of a git directory, of its worktrees and of its submodules."""
    return _StateReader(tree, top).members()


def read_values(tree: MergedTree, top: bytes, members: tuple[bytes, ...], names: Iterable[bytes]) -> GitState:
    """Return what some references and files say; for those that are compared once more under locks."""
    reader = _StateReader(tree, top)
    for name in names:
        member = owner_of(name, members)
        reader.add(member, name[len(member) :])
    return reader.state(members)


def hash_size_of(config: bytes) -> int:
    """Return how many bytes the names of objects have, by the configuration of a repository."""
    return SHA256 if _settings(config).get("extensions.objectformat") == "sha256" else SHA1


def has_promisor(config: bytes) -> bool:
    """Tell whether a configuration names a remote that has the objects which a repository lacks."""
    return any(
        key == "extensions.partialclone" or (key.startswith("remote.") and key.endswith(".promisor"))
        for key, value in _pairs(config)
        if value.lower() not in ("false", "no", "off", "0", "")
    )


def is_sparse(*configs: bytes) -> bool:
    """Tell whether some configurations, the last of which counts most, want a checkout of some files only."""
    values = [value for config in configs for key, value in _pairs(config) if key == "core.sparsecheckout"]
    return bool(values) and values[-1].lower() in ("true", "yes", "on", "1")


def parse_packed(content: bytes) -> dict[bytes, bytes]:
    """Return the references of a file `packed-refs`."""
    found: dict[bytes, bytes] = {}
    for line in content.split(b"\n"):
        value, _, name = line.partition(b" ")
        if is_object_name(value):
            found[name] = value
    return found


def parse_ref(content: bytes) -> bytes | None:
    """Return the value of a loose reference, None where it is none that git would write."""
    value = content.strip()
    if is_object_name(value):
        return value
    target = value.removeprefix(SYMBOLIC).strip()
    return SYMBOLIC + target if target != value and is_ref_name(target) else None


def _settings(config: bytes) -> dict[str, str]:
    return {key: value.lower() for key, value in _pairs(config) if key.startswith("extensions.")}


def _pairs(config: bytes) -> tuple[tuple[str, str], ...]:
    try:
        return parse_gitconfig(config.decode("utf-8", "surrogateescape"))
    except UsageError:
        return ()


class _StateReader:
    def __init__(self, tree: MergedTree, top: bytes) -> None:
        self._tree = tree
        self._top = top + b"/"
        self._settings = _settings(tree.read(self._top + b"config", _LARGEST_CONFIG) or b"")
        self._hash_size = SHA256 if self._settings.get("extensions.objectformat") == "sha256" else SHA1
        self._problem = ""
        self._packed: dict[bytes, dict[bytes, bytes]] = {}
        self._refs: dict[bytes, bytes] = {}
        self._files: dict[bytes, bytes] = {}

    def members(self) -> tuple[bytes, ...]:
        return tuple(itertools.islice(self._members(b""), _MOST_MEMBERS))

    def read(self) -> GitState:
        members = self.members()
        for member in members:
            for name in (*self._ref_names(member), *self._file_names(member)):
                self.add(member, name)
            config = self._tree.read(self._top + common_of(member) + b"config", _LARGEST_CONFIG)
            if config is not None and hash_size_of(config) != self._hash_size:
                # Git would not read its index as it is read here
                self._problem = ODD_FORMAT
        has_reftable = any(self._kind(member + REFTABLE) is not None for member in members)
        if has_reftable or self._settings.get("extensions.refstorage") == "reftable":
            self._problem = IN_REFTABLE
        if any(self._kind(member + name) == "symlink" for member in members for name in _NO_LINKS):
            self._problem = LINKED
        return self.state(members)

    def state(self, members: tuple[bytes, ...]) -> GitState:
        return GitState(
            refs=self._refs, files=self._files, members=members, hash_size=self._hash_size, problem=self._problem
        )

    def add(self, member: bytes, name: bytes) -> None:
        """Read one reference or file of a member; one that is not there is left out."""
        if part_of(name) == "ref":
            value = self._ref(member, name)
            if value is not None:
                self._refs[member + name] = value
        elif (says := self._file(member, name)) is not None:
            self._files[member + name] = says

    def _kind(self, name: bytes) -> EntryKind | None:
        try:
            found = self._tree.find(self._top + name)
        except OSError:
            return None
        return None if found is None else found[3]

    def _members(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the prefix of a git directory, and those of its worktrees and submodules."""
        yield prefix
        for name in self._tree.names(self._top + prefix + b"worktrees"):
            if self._kind(prefix + b"worktrees/" + name + b"/HEAD") is not None:
                yield prefix + b"worktrees/" + name + b"/"
        waiting = [prefix + b"modules"]
        for directory in waiting:
            for name, kind in self._tree.names(self._top + directory).items():
                inner = directory + b"/" + name
                if kind == "dir" and self._kind(inner + b"/HEAD") is not None:
                    yield from self._members(inner + b"/")
                elif kind == "dir" and len(waiting) < _MOST_MEMBERS:
                    # The name of a submodule may have slashes in it
                    waiting.append(inner)

    def _ref_names(self, member: bytes) -> Iterator[bytes]:
        loose = [path[len(member) :] for path in self._below(member + b"refs", _MOST_REFS)]
        names = dict.fromkeys((b"HEAD", *self._packed_refs(member), *loose))
        if len(names) >= _MOST_REFS:
            self._problem = TOO_MANY
        return iter(names)

    def _packed_refs(self, member: bytes) -> dict[bytes, bytes]:
        if member not in self._packed:
            content = self._tree.read(self._top + member + b"packed-refs", _LARGEST_PACKED_REFS) or b""
            self._packed[member] = {name: value for name, value in parse_packed(content).items() if is_ref_name(name)}
        return self._packed[member]

    def _ref(self, member: bytes, name: bytes) -> bytes | None:
        """Return the value of a reference, loose if it is, else packed."""
        kind = self._kind(member + name)
        if kind == "symlink":
            # As very old versions of git wrote HEAD
            found = self._tree.find(self._top + member + name)
            value = None if found is None else parse_ref(SYMBOLIC + found[0].readlink(found[1]))
        elif kind == "file":
            value = parse_ref(self._tree.read(self._top + member + name, _LARGEST_REF) or b"")
        else:
            return self._packed_refs(member).get(name)
        if value is None or not is_ref_name(name):
            self._problem = ODD_REF
        return value

    def _file_names(self, member: bytes) -> Iterator[bytes]:
        yield from (b"index", SPARSE, STASH_LOG, *STATE_FILES)
        for directory in (REFTABLE, *STATE_DIRECTORIES):
            yield from (path[len(member) :] for path in self._below(member + directory, _MOST_FILES))

    def _file(self, member: bytes, name: bytes) -> bytes | None:
        """Return a digest of what a file says."""
        kind = self._kind(member + name)
        content = self._tree.read(self._top + member + name, LARGEST_FILE) if kind == "file" else None
        if name == b"index" and kind is not None:
            is_whole = content is not None and len(content) < LARGEST_FILE
            says = digest(content or b"", self._hash_size) if is_whole else b""
            self._problem = self._problem if says else ODD_INDEX
            return says
        if content is None:
            return None
        import hashlib  # lazy: git

        return hashlib.blake2b(content, digest_size=16).digest()

    def _below(self, directory: bytes, most: int) -> Iterator[bytes]:
        """Yield the paths of everything below a directory but directories and locks, so many at most."""
        waiting, count = [directory], 0
        while waiting and count < most:
            here = waiting.pop()
            for name, kind in self._tree.names(self._top + here).items():
                count += 1
                if kind == "dir":
                    waiting.append(here + b"/" + name)
                elif not name.endswith(b".lock"):
                    yield here + b"/" + name


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
        odd = ODD_REF if any(self._odd_symbolic_refs()) else ""
        return self.base.problem or self.after.problem or changed or odd

    @property
    def is_refused(self) -> bool:
        """Whether no consent helps either: file by file, references would come apart from what they name."""
        return self.problem == IN_REFTABLE

    def _odd_symbolic_refs(self) -> Iterator[bytes]:
        """Yield references that newly name another one, other than a branch of HEAD or a remote's own HEAD.

        A branch that names itself makes git unable to read where it stands.
        """
        for name, value in self.after.refs.items():
            if value.startswith(SYMBOLIC) and self.base.refs.get(name) != value:
                inner = name[len(owner_of(name, self.after.members)) :]
                start = b"refs/heads/" if inner == b"HEAD" else inner.removesuffix(b"HEAD")
                is_remote = inner.startswith(b"refs/remotes/") and inner.endswith(b"/HEAD")
                if not (inner == b"HEAD" or is_remote) or not value.startswith(SYMBOLIC + start):
                    yield name

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

    def without_worktrees(self, held: Set[bytes]) -> Repository:
        """Return it without the new worktrees that some of these paths lie in: nothing else in it needs them."""
        found = {
            self.top + b"/" + member: member
            for member in self.new_members()
            if b"worktrees/" in member and any(path.startswith(self.top + b"/" + member) for path in held)
        }
        if not found:
            return self
        places, members = tuple(found), tuple(found.values())
        after = self.after.replace(
            refs={name: value for name, value in self.after.refs.items() if not name.startswith(members)},
            files={name: value for name, value in self.after.files.items() if not name.startswith(members)},
            members=tuple(member for member in self.after.members if member not in members),
        )
        tied = tuple(change for change in self.tied if not (change.path + b"/").startswith(places))
        return self.replace(after=after, tied=tied)

    def describe_moved(self) -> str:
        """Return in words where branches, tags and HEAD would go."""
        found = []
        for name in self.moved():
            pair = [values.get(name, b"nothing") for values in (self.base.refs, self.after.refs)]
            if any(is_object_name(value) for value in pair):
                found.append(f"{quote(short_ref(name))} {' -> '.join(value[:7].decode() for value in pair)}")
        more = [f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
        return ", ".join([*found[:_MOST_NAMED], *more])

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
        is_read = not repository.problem or (repository.is_refused and all(repository.after.files.values()))
        is_still = is_read and not repository.moved() and not repository.brings_anything
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
