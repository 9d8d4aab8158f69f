# SPDX-License-Identifier: Apache-2.0
"""Whose word it is that git tracks a secret: the person's, or that of a command whose index was applied.

A secret that git tracks is not masked. So an entry that an apply brought counts for nothing from then on, whoever
writes the index next: else a command could have any secret shown, or guess at it. Where a secret was shown before, or
came with the same apply, the command knows it anyway. Commits that commands made can come into an index later, by
`git reset`: once an apply wrote to a repository, a name that is new in its index needs the content that git has.
"""

from __future__ import annotations

import os
import posixpath

from unspill.policy.secrets import masked_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.change import ChangeSet
    from unspill.sandbox.opening import Opened
    from unspill.store.db import Store

    # Paths, absolute, and the digests that indexes have for them
    Entries = dict[bytes, bytes]

_KEY = "claims about "
_EVERYWHERE = "claims of all directories"
_TRUSTED = "tracked by the person in "
_WRITTEN = "repository written by a command: "
_ANY = "any"
# After so many guesses at one secret no index is believed about it any more
_MOST = 32
_MOST_EVERYWHERE = 1024


class Claims:
    """The entries of indexes about the secrets of one directory that commands made."""

    def __init__(self, store: Store, directory: bytes) -> None:
        self._store = store
        self._key = _KEY + directory.hex()
        self._known = set((store.facts.find(self._key) or "").split())
        self._trusted_key = _TRUSTED + directory.hex()
        self._trusted = frozenset((store.facts.find(self._trusted_key) or "").split())

    def has(self, name: bytes, digest: bytes) -> bool:
        """Tell whether it was a command that made an index say this."""
        return _word(name, digest) in self._known or f"{name.hex()}={_ANY}" in self._known

    def add(self, name: bytes, digest: bytes) -> None:
        """Remember an entry."""
        mine = {word for word in self._known if word.startswith(name.hex() + "=")}
        if len(mine) >= _MOST:
            self._known -= mine
            self._known.add(f"{name.hex()}={_ANY}")
        elif f"{name.hex()}={_ANY}" not in mine:
            self._known.add(_word(name, digest))
        self._store.facts.put(self._key, " ".join(sorted(self._known)))
        self.doubt(name, digest)

    def doubt(self, name: bytes, digest: bytes) -> None:
        """Remember an entry that says nothing about other contents than its own, wherever it is seen."""
        everywhere = (self._store.facts.find(_EVERYWHERE) or "").split()
        if _word(name, digest) not in everywhere:
            self._store.facts.put(_EVERYWHERE, " ".join([*everywhere, _word(name, digest)][-_MOST_EVERYWHERE:]))

    def doubts(self, name: bytes, digest: bytes) -> bool:
        """Tell whether an entry like this one came with a command."""
        return _word(name, digest) in (self._store.facts.find(_EVERYWHERE) or "").split()

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


def _word(name: bytes, digest: bytes) -> str:
    return f"{name.hex()}={digest.hex()}"


def _keys_of(repository: bytes) -> list[str]:
    """Return what a repository is known by: its path, and its inode, which it has under another path too."""
    try:
        return [_WRITTEN + repository.hex(), _WRITTEN + str(os.lstat(repository).st_ino)]
    except OSError:
        return [_WRITTEN + repository.hex()]


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


def _repository_of(path: bytes) -> bytes | None:
    """Return the part of a path that ends with the first `.git`."""
    if b".git" not in path.lower():
        return None
    parts = path.split(b"/")
    names = [part.lower() for part in parts]
    return b"/".join(parts[: names.index(b".git") + 1]) if b".git" in names else None


def repository_of(git: bytes) -> bytes | None:
    """Return the directory `.git` that another one of git's belongs to: of a worktree, of a module."""
    return _repository_of(os.path.realpath(git))


def entries_of(opened: Opened) -> Entries:
    """Return what the indexes of the live project say about all names of secrets, whether or not they exist."""
    from unspill.sandbox.masking import secret_directories
    from unspill.sandbox.tracked import find_entries

    names = masked_names(opened.policy.secrets)
    found: Entries = {}
    for directory in secret_directories(opened) if names else ():
        found |= {posixpath.join(directory, name): one for name, one in find_entries(directory, names).items()}
    return found


def remember_claims(opened: Opened, before: Entries, shown: Iterable[bytes], changes: ChangeSet) -> None:
    """Keep in mind what an apply made the indexes say; `shown` are the secrets that were not masked before it."""
    own = {posixpath.join(part.root, change.path) for part in changes.roots for change in part.changes}
    known = {*shown}
    entries = entries_of(opened)
    _trust_no_others(opened, entries)
    for path, digest in entries.items():
        if before.get(path) != digest and path not in known:
            directory, name = posixpath.split(path)
            claims = Claims(opened.store, directory)
            # What the person makes of the command's own file later is not for commands
            (claims.doubt if path in own else claims.add)(name, digest)


def forget_untracked(opened: Opened) -> None:
    """Trust no name any more that is not in an index now: who puts it there next may be another one."""
    _trust_no_others(opened, entries_of(opened))


def _trust_no_others(opened: Opened, entries: Entries) -> None:
    from unspill.sandbox.masking import secret_directories

    for directory in secret_directories(opened):
        tracked = [posixpath.basename(path) for path in entries if posixpath.dirname(path) == directory]
        Claims(opened.store, directory).trust_no_other(tracked)
