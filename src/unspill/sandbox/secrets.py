# SPDX-License-Identifier: Apache-2.0
"""Hide a project's secrets from its runs: which ones, the layers that hide them, and when git's index is believed.

All names of the table are hidden, also those that do not exist: a person may make one while the command runs. Not
hidden are directories of such a name, what is revealed, and files that the person has git track.

That a path is in the index says nothing alone: a command may have put it there for a file that it has never seen, and
an apply would bring that index into the project. So an entry that an apply brought counts for nothing from then on,
whoever writes the index next: else a command could have any secret shown, or guess at it. Where a secret was shown
before, or came with the same apply, the command knows it anyway. Commits that commands made can come into an index
later, by `git reset`: once an apply wrote to a repository, a name that is new in its index needs the content that git
has. Indexes are read as data; git itself is never run.
"""

from __future__ import annotations

import os
import posixpath
import stat

from unspill.errors import UsageError
from unspill.git.files import find_objects
from unspill.layers.lifecycle import load_stacks
from unspill.layers.mask import find_mask
from unspill.model.run import Exited, Hint
from unspill.policy.git import pointer_target
from unspill.policy.paths import lies_beneath, quote, shell_word, show
from unspill.policy.secrets import masked_names, revealed_names
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from unspill.model.change import ChangeSet
    from unspill.model.policy import Secrets
    from unspill.model.run import Outcome, Output, RunId, SealedLayer, Stack
    from unspill.sandbox.project import Project
    from unspill.store.db import Store

    # Paths, absolute, and the digests that indexes have for them
    Entries = dict[bytes, bytes]


TRACKED = "is tracked by git, so it is not masked: commands see what is in it"
# Said by each run: git would take what it does not see for deleted
MASKED = (
    "is tracked by git but masked, since a command may have put it into the index: git sees it as deleted inside,"
    " so `git commit -a` would delete it; `git add` it yourself, or `--reveal` it"
)
_DIRECTORY, _SECRET = "directory", "secret"
# A directory of that size has at most some hundred entries on all filesystems
_SMALL = 8192
# Keys of facts in the store
_CHANGED = "secrets changed by "
_CLAIMED = "claims about "
_CLAIMED_ANYWHERE = "claims of all directories"
_TRUSTED = "tracked by the person in "
_WRITTEN = "repository written by a command: "
_ANY = "any"
# After so many guesses at one secret no index is believed about it any more
_MOST_GUESSES = 32
_MOST_ANYWHERE = 1024
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LARGEST_POINTER = 4096
# Secrets are small; what is not is taken for one that git does not have
_LARGEST_FILE = 4 << 20
_MOST_LEVELS = 64
# Of an output that is looked through for hints
_TAIL = 16 * 1024
_MOST_HINTS = 3
# Names such as `credentials` and `identity` are words too
_MISSING = (b"no such file", b"not found", b"not exist", b"enoent", b"missing")
_MARKS = b"\xe2\x80\x98 \xe2\x80\x99 ' \" ` ( ) [ ] < > , = : ;".split()


class Masks(Record):
    """What hides the secrets of a run.

    `layers` has the layer of each root that has one, `tracked` what git tracks under the names of secrets, each with
    what follows, `hidden` the secrets that are there and hidden.
    """

    layers: tuple[tuple[bytes, bytes], ...] = ()
    tracked: tuple[tuple[bytes, str], ...] = ()
    hidden: tuple[bytes, ...] = ()


def find_masks(project: Project, revealed: tuple[bytes, ...] = ()) -> Masks:
    """Return the masks of a run; `revealed` are paths that it may see, absolute or relative to the project.

    Raises:
        UsageError: a path of `revealed` is none that would be masked.
        SandboxUnavailable: a mask can't be made.
    """
    if revealed:
        _check_revealed(project, masked_names(project.means.policy.secrets), revealed)
    return _find_masks(project, revealed)


def load_masked(project: Project) -> tuple[Stack, ...]:
    """Return the stacks of a sandbox as a run without a grant sees them, so that no change shows what is masked.

    A secret that a run was shown and has changed is not masked: what is held is a change of the person's own file.
    """
    stacks = load_stacks(project.store, project.row.id, project.roots)
    layers = dict(_find_masks(project, tuple(_changed_secrets(project, stacks))).layers)
    return tuple(stack.replace(mask=layers.get(stack.live)) for stack in stacks)


def remember_revealed(project: Project, run: RunId, revealed: tuple[bytes, ...]) -> None:
    """Keep in mind which secrets a run is shown, before it begins: what it leaves of them in its layer is covered."""
    shown = {_absolute(project, path) for path in revealed}
    project.store.facts.put(_CHANGED + run, " ".join(path.hex() for path in shown))


def carry_changed(store: Store, stack: Stack) -> None:
    """Remember for the last run what was remembered for all: their layers are about to become one, under its name."""
    runs = dict.fromkeys(layer.run for layer in stack.sealed)
    texts = {text for run in runs for text in _words(store, _CHANGED + run)}
    if texts:
        store.facts.put(_CHANGED + stack.sealed[-1].run, " ".join(sorted(texts)))


def with_covers(project: Project, stacks: tuple[Stack, ...], revealed: tuple[bytes, ...]) -> tuple[Stack, ...]:
    """Return stacks in which no layer shows a secret that only an earlier run was granted to see.

    Raises:
        SandboxUnavailable: a layer can't be covered.
    """
    if not any(stack.sealed for stack in stacks):
        return stacks
    shown = {_absolute(project, path) for path in revealed}
    return tuple(
        stack.replace(sealed=tuple(_covered(project.store, stack, layer, shown) for layer in stack.sealed))
        for stack in stacks
    )


def shown_secrets(project: Project) -> tuple[bytes, ...]:
    """Return the files with names of secrets that runs see, because git has them."""
    return tuple(path for path, text in _find_masks(project, ()).tracked if text == TRACKED)


def tracked_warnings(project: Project, masks: Masks) -> tuple[str, ...]:
    """Return the warnings about tracked secrets: those that are masked, and shown ones as soon as they are others."""
    if not masks.tracked:
        return ()
    texts = tuple(f"{quote(os.path.relpath(path, project.path))} {text}." for path, text in masks.tracked)
    key, said = f"tracked secrets of {project.row.id}", "\n".join(texts)
    if project.store.facts.find(key) == said:
        return tuple(text for text in texts if text.endswith(f"{MASKED}."))
    project.store.facts.put(key, said)
    return texts


def is_about_secret(warning: str) -> bool:
    """Tell whether a run's warning is one of these, which must reach the person."""
    return warning.endswith((f"{TRACKED}.", f"{MASKED}."))


def mask_hints(hidden: Sequence[bytes], project: bytes, outcome: Outcome, *outputs: Output) -> tuple[Hint, ...]:
    """Return a hint for each masked secret, given by its path, that a failed command named."""
    if not isinstance(outcome, Exited) or not outcome.code:
        return ()
    texts = [(output.tail or output.head)[-_TAIL:] for output in outputs]
    lines = [line for text in texts for line in text.splitlines()]
    found = [path for path in hidden if any(_names(line, path, project) for line in lines)]
    return tuple(_hint(path, project) for path in found[:_MOST_HINTS])


def concerns_git(changes: ChangeSet) -> bool:
    """Tell whether an apply may bring another index, lead to another one, or bring commits."""
    return any(
        change.path.endswith(b"index") or _repository_of(change.path) is not None
        for part in changes.roots
        for change in part.changes
    )


def mark_written(store: Store, changes: ChangeSet) -> None:
    """Keep in mind that a command wrote to repositories; before an apply, and after it, when there may be new ones."""
    inner = {
        posixpath.join(part.root, found)
        for part in changes.roots
        for change in part.changes
        if (found := _repository_of(change.path)) is not None
    }
    for key in {key for path in inner for key in _keys_of(path)}:
        if store.facts.find(key) is None:
            store.facts.put(key, "")


def entries_of(project: Project) -> Entries:
    """Return what the indexes of the live project say about all names of secrets, whether or not they exist."""
    names = masked_names(project.means.policy.secrets)
    found: Entries = {}
    for directory in _all_directories(project) if names else ():
        found |= {posixpath.join(directory, name): one for name, one in _find_entries(directory, names)[0].items()}
    return found


def remember_claims(project: Project, before: Entries, shown: Iterable[bytes], changes: ChangeSet) -> None:
    """Keep in mind what an apply made the indexes say; `shown` are the secrets that were not masked before it."""
    own = {posixpath.join(part.root, change.path) for part in changes.roots for change in part.changes}
    known = {*shown}
    entries = entries_of(project)
    _trust_no_others(project, entries)
    for path, digest in entries.items():
        if before.get(path) != digest and path not in known:
            directory, name = posixpath.split(path)
            claims = Claims(project.store, directory)
            # What the person makes of the command's own file later is not for commands
            (claims.doubt if path in own else claims.add)(name, digest)


def forget_untracked(project: Project) -> None:
    """Trust no name any more that is not in an index now: who puts it there next may be another one."""
    _trust_no_others(project, entries_of(project))


class Claims:
    """The entries of indexes about the secrets of one directory that commands made."""

    def __init__(self, store: Store, directory: bytes) -> None:
        self._store = store
        self._key = _CLAIMED + directory.hex()
        self._known = set(_words(store, self._key))
        self._trusted_key = _TRUSTED + directory.hex()
        self._trusted = frozenset(_words(store, self._trusted_key))

    def has(self, name: bytes, digest: bytes) -> bool:
        """Tell whether it was a command that made an index say this."""
        return _word(name, digest) in self._known or f"{name.hex()}={_ANY}" in self._known

    def add(self, name: bytes, digest: bytes) -> None:
        """Remember an entry."""
        mine = {word for word in self._known if word.startswith(name.hex() + "=")}
        if len(mine) >= _MOST_GUESSES:
            self._known -= mine
            self._known.add(f"{name.hex()}={_ANY}")
        elif f"{name.hex()}={_ANY}" not in mine:
            self._known.add(_word(name, digest))
        self._store.facts.put(self._key, " ".join(sorted(self._known)))
        self.doubt(name, digest)

    def doubt(self, name: bytes, digest: bytes) -> None:
        """Remember an entry that says nothing about other contents than its own, wherever it is seen."""
        everywhere = _words(self._store, _CLAIMED_ANYWHERE)
        if _word(name, digest) not in everywhere:
            self._store.facts.put(_CLAIMED_ANYWHERE, " ".join([*everywhere, _word(name, digest)][-_MOST_ANYWHERE:]))

    def doubts(self, name: bytes, digest: bytes) -> bool:
        """Tell whether an entry like this one came with a command."""
        return _word(name, digest) in _words(self._store, _CLAIMED_ANYWHERE)

    def trusts(self, name: bytes) -> bool:
        """Tell whether it was the person who had git track this name, ever since it is in the index."""
        return name.hex() in self._trusted

    def may_be_made(self, name: bytes, digest: bytes, repositories: Iterable[bytes]) -> bool:
        """Tell whether a command may be why an entry is there; its directory may have been moved or copied since."""
        if self.doubts(name, digest):
            return True
        keys = [key for path in repositories for key in _keys_of(path)]
        return not keys or any(self._store.facts.find(key) is not None for key in keys)

    def trust(self, names: Iterable[bytes], tracked: Iterable[bytes]) -> None:
        """Remember which of some names the person has git track."""
        trusted = (self._trusted - {name.hex() for name in names}) | {name.hex() for name in tracked}
        if trusted != self._trusted:
            self._trusted = trusted
            self._store.facts.put(self._trusted_key, " ".join(sorted(trusted)))

    def trust_no_other(self, tracked: Iterable[bytes]) -> None:
        """Forget the names that are not in the index any more."""
        if self._trusted:
            self.trust([bytes.fromhex(word) for word in self._trusted - {name.hex() for name in tracked}], ())


def _find_masks(project: Project, revealed: tuple[bytes, ...]) -> Masks:
    secrets = project.means.policy.secrets
    names = masked_names(secrets)
    if not names:
        return Masks()
    layers, tracked, secret = [], [], []
    for root in project.roots:
        hidden: dict[bytes, tuple[bytes, ...]] = {}
        for path, directory in _directories(root, secrets):
            shown = revealed_names((*secrets.reveal, *revealed), project.path, directory)
            for name, text in _find_shown(project.store, directory, names, shown):
                if text in (TRACKED, MASKED):
                    tracked.append((posixpath.join(directory, name), text))
                if text in (TRACKED, _DIRECTORY):
                    shown |= {name}
                else:
                    secret.append(posixpath.join(directory, name))
            hidden[path] = tuple(name for name in names if name not in shown) if shown else names
        layer = find_mask(project.store.state, root, hidden)
        if layer is not None:
            layers.append((root, layer))
    return Masks(layers=tuple(layers), tracked=tuple(tracked), hidden=tuple(secret))


def _covered(store: Store, stack: Stack, layer: SealedLayer, shown: set[bytes]) -> SealedLayer:
    names: dict[bytes, tuple[bytes, ...]] = {}
    for path in _changed_in(store, stack, layer):
        if path not in shown:
            directory, name = posixpath.split(path[len(stack.live) + 1 :])
            names[directory] = (*names.get(directory, ()), name)
    return layer.replace(cover=find_mask(store.state, layer.upper, names)) if names else layer


def _changed_secrets(project: Project, stacks: tuple[Stack, ...]) -> Iterator[bytes]:
    """Yield the secrets that runs were shown and changed, as far as that is held."""
    for stack in stacks:
        for layer in stack.sealed:
            yield from _changed_in(project.store, stack, layer)


def _changed_in(store: Store, stack: Stack, layer: SealedLayer) -> Iterator[bytes]:
    for text in _words(store, _CHANGED + layer.run):
        path = bytes.fromhex(text)
        if lies_beneath(path, stack.live) and os.path.lexists(layer.upper + path[len(stack.live) :]):
            yield path


def _directories(root: bytes, secrets: Secrets) -> Iterator[tuple[bytes, bytes]]:
    """Yield the directories of a root in which names are masked, each also where the person's links lead.

    The first of a pair is the path from the root on, the second the whole one.
    """
    yield b"", root
    for path in secrets.directories:
        whole = posixpath.join(root, path)
        for found in dict.fromkeys((whole, os.path.realpath(whole))):
            if lies_beneath(found, root):
                yield found[len(root) + 1 :], found


def _all_directories(project: Project) -> Iterator[bytes]:
    for root in project.roots:
        for _path, directory in _directories(root, project.means.policy.secrets):
            yield directory


def _absolute(project: Project, path: bytes) -> bytes:
    return posixpath.normpath(posixpath.join(project.path, path))


def _find_shown(
    store: Store, directory: bytes, names: tuple[bytes, ...], shown: frozenset[bytes]
) -> Iterator[tuple[bytes, str]]:
    """Yield the names that are there, each with what it is."""
    files = []
    for name in _find_present(directory, names):
        if name not in shown:
            if _is_directory(directory + b"/" + name):
                yield name, _DIRECTORY
            else:
                files.append(name)
    if files:
        tracked = _find_tracked(directory, files, Claims(store, directory))
        for name in files:
            yield name, _SECRET if name not in tracked else TRACKED if tracked[name] else MASKED


def _find_present(directory: bytes, names: tuple[bytes, ...]) -> list[bytes]:
    """Return those names that are there, in the cheaper way: to list a directory, or to ask for each of them."""
    try:
        if os.lstat(directory).st_size <= _SMALL:
            return sorted({*os.listdir(directory)}.intersection(names))
    except OSError:
        pass
    above = directory + b"/"
    return [name for name in names if os.access(above + name, os.F_OK)]


def _is_directory(path: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _check_revealed(project: Project, names: tuple[bytes, ...], revealed: tuple[bytes, ...]) -> None:
    places = {
        directory
        for root in project.roots
        for directory in (root, *(posixpath.join(root, path) for path in project.means.policy.secrets.directories))
    }
    for path in revealed:
        above, name = posixpath.split(_absolute(project, path))
        if above not in places or name not in names:
            raise UsageError(
                f"{show(path)} can't be revealed: no secret would be masked there.",
                remedy="Name the file itself: the top directory of a root and those of `[secrets]` have masked names.",
            )


def _find_tracked(directory: bytes, names: Sequence[bytes], claims: Claims) -> dict[bytes, bool]:
    """Return the names in a directory that are in the index of its repository, and whether the person is why.

    If that is known, what the file has by now does not matter.
    """
    entries, repositories = _find_entries(directory, names)
    found = {
        name: not claims.has(name, known)
        and (
            claims.trusts(name)
            or not claims.may_be_made(name, known, repositories)
            # It is in the repository, where a command can read it
            or _is_object(directory + b"/" + name, known)
        )
        for name, known in entries.items()
    }
    claims.trust(
        names, [name for name, is_shown in found.items() if is_shown and not claims.doubts(name, entries[name])]
    )
    return found


def _find_entries(directory: bytes, names: Sequence[bytes]) -> tuple[dict[bytes, bytes], tuple[bytes, ...]]:
    """Return the digests that the index of a directory's repository has for some names in it, and that repository.

    Of a worktree or a module they are two, see `_find_index`; none where that is not known.
    """
    index, prefix, repositories = _find_index(directory)
    if index is None:
        return {}, ()
    try:
        objects = find_objects(index, [prefix + name for name in names])
    finally:
        os.close(index)
    return {name: objects[prefix + name] for name in names if prefix + name in objects}, repositories


def _find_index(directory: bytes) -> tuple[int | None, bytes, tuple[bytes, ...]]:
    """Return the open index of the nearest repository upwards, what its paths to the directory begin with, and `.git`.

    Where that is a file, it is two: the file, and the directory that it belongs to.
    """
    prefix = b""
    for _ in range(_MOST_LEVELS):
        git = os.path.join(directory, b".git")
        try:
            status = os.lstat(git)
        except OSError:
            above, name = os.path.split(directory)
            if above == directory:
                break
            directory, prefix = above, name + b"/" + prefix
            continue
        repositories: tuple[bytes, ...] = (git,)
        if not stat.S_ISDIR(status.st_mode):
            # Of a worktree or a module. Wherever it leads: nothing comes of it but whether a digest is there.
            target = pointer_target(_read(git, _LARGEST_POINTER) or b"")
            if target is None or b"\0" in target:
                break
            git = os.path.join(directory, target)
            owner = _owner_of(git)
            repositories = () if owner is None else (*repositories, owner)
        return _open(os.path.join(git, b"index")), prefix, repositories
    return None, b"", ()


def _is_object(path: bytes, known: bytes) -> bool:
    content = _read(path, _LARGEST_FILE)
    if content is None:
        return False
    import hashlib  # lazy: tracked secrets

    # Git's own name for a content, nothing that anybody relies on for safety alone
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest() == known


def _open(path: bytes) -> int | None:
    try:
        fd = os.open(path, _FILE)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _read(path: bytes, largest: int) -> bytes | None:
    """Return the content of a regular file that is not too large; of a link, which git tracks too, where it leads."""
    fd = _open(path)
    if fd is None:
        try:
            return os.readlink(path)
        except OSError:
            return None
    with open(fd, "rb") as file:
        content = file.read(largest + 1)
    return content if len(content) <= largest else None


def _repository_of(path: bytes) -> bytes | None:
    """Return the part of a path that ends with the first `.git`."""
    if b".git" not in path.lower():
        return None
    parts = path.split(b"/")
    names = [part.lower() for part in parts]
    return b"/".join(parts[: names.index(b".git") + 1]) if b".git" in names else None


def _owner_of(git: bytes) -> bytes | None:
    """Return the directory `.git` that another one of git's belongs to: of a worktree, of a module."""
    return _repository_of(os.path.realpath(git))


def _trust_no_others(project: Project, entries: Entries) -> None:
    for directory in _all_directories(project):
        tracked = [posixpath.basename(path) for path in entries if posixpath.dirname(path) == directory]
        Claims(project.store, directory).trust_no_other(tracked)


def _words(store: Store, key: str) -> list[str]:
    return (store.facts.find(key) or "").split()


def _word(name: bytes, digest: bytes) -> str:
    return f"{name.hex()}={digest.hex()}"


def _keys_of(repository: bytes) -> list[str]:
    """Return what a repository is known by: its path, and its inode, which it has under another path too."""
    try:
        return [_WRITTEN + repository.hex(), _WRITTEN + str(os.lstat(repository).st_ino)]
    except OSError:
        return [_WRITTEN + repository.hex()]


def _hint(path: bytes, project: bytes) -> Hint:
    name = os.path.relpath(path, project)
    return Hint(
        code="masked-secret",
        text=f"{quote(name)} is hidden as a secret.",
        remedy=f"Ask to show it to one run with `--reveal {shell_word(name)}`.",
    )


def _names(line: bytes, path: bytes, project: bytes) -> bool:
    name = os.path.basename(path)
    if name not in line or not any(word in line.lower() for word in _MISSING):
        return False
    for mark in _MARKS:
        line = line.replace(mark, b" ")
    # The working directory may be the secret's own
    ways = (path, os.path.relpath(path, project), name)
    return any(os.path.normpath(word) in ways or os.path.normpath(word.rstrip(b".")) in ways for word in line.split())
