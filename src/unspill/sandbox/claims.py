# SPDX-License-Identifier: Apache-2.0
"""What commands made git's index say about secrets, so that they can't find out by guessing what is in one.

A secret that git tracks as it is, is not masked. An index that an apply brings may name the digest of a guess: right,
it would unmask the secret. So such an entry counts for nothing from then on, whoever writes the index next. Where a
secret was shown before, or came with the same apply, the command knows it anyway.
"""

from __future__ import annotations

import posixpath

from unspill.policy.project_secrets import masked_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.change import ChangeSet
    from unspill.sandbox.opening import Opened
    from unspill.store.db import Store

    # Paths, absolute, and the digests that indexes have for them
    Entries = dict[bytes, bytes]

_KEY = "claims about "
_ANY = "any"
# After so many guesses at one secret no index is believed about it any more
_MOST = 32


class Claims:
    """The entries of indexes about the secrets of one directory that commands made."""

    def __init__(self, store: Store, directory: bytes) -> None:
        self._store = store
        self._key = _KEY + directory.hex()
        self._known = set((store.facts.find(self._key) or "").split())

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


def _word(name: bytes, digest: bytes) -> str:
    return f"{name.hex()}={digest.hex()}"


def concerns_git(changes: ChangeSet) -> bool:
    """Tell whether an apply may bring another index, or lead to another one."""
    return any(change.path.endswith((b"index", b".git")) for part in changes.roots for change in part.changes)


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
    own |= {*shown}
    for path, digest in entries_of(opened).items():
        if before.get(path) != digest and path not in own:
            directory, name = posixpath.split(path)
            Claims(opened.store, directory).add(name, digest)
