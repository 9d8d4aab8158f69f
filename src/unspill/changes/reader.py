# SPDX-License-Identifier: Apache-2.0
"""The files before and after a change, opened by descriptor and never through a link.

After: the entry in the layer that a Change names. Before: what the sealed layers beneath and the live root show.
"""

from __future__ import annotations

import os
import posixpath

from unspill.changes.scan import find_entry, open_file, open_merged
from unspill.changes.walk import Pool
from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import have_same_content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from unspill.changes.scan import Found
    from unspill.changes.walk import Dir
    from unspill.model.change import Change, EntryKind

MAX_COMPARISONS = 500
MAX_BYTES = 64 * 1024 * 1024

_CHUNK = 1024 * 1024


class Reader:
    """Opens files on both sides of the changes of one root, for as long as the context lasts."""

    def __init__(self, live: bytes, below: Sequence[bytes] = ()) -> None:
        self._pool = Pool()
        self._before = MergedTree(live, below, self._pool)
        self._uppers: dict[bytes, Dir] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._pool.__exit__(*details)

    def open_after(self, change: Change) -> int:
        """Open the file that a change leaves.

        Raises:
            SandboxUnavailable: The layer no longer holds what was scanned.
            OSError: It can't be read.
        """
        assert change.layer is not None
        root = self._uppers.get(change.layer)
        if root is None:
            root = self._uppers[change.layer] = self._pool.upper_root(change.layer)
        found = _find([root], change.path)
        entry = change.entry
        if (
            found is None
            or entry is None
            or (found[3], found[2].st_ino, found[2].st_size) != (entry.kind, entry.inode, entry.size)
        ):
            raise SandboxUnavailable(
                f"{change.path!r} in {change.layer!r} changed after it was scanned",
                remedy="List the changes again.",
            )
        return open_file(found)

    def open_before(self, change: Change) -> int:
        """Open the file that was there before a change.

        Raises:
            OSError: It is gone, or can't be read.
        """
        found = self._before.find(change.path)
        if found is None:
            raise FileNotFoundError(change.path)
        return open_file(found)

    def kind_before(self, path: bytes) -> EntryKind | None:
        """Say what was at a path before, changed or not; None where there was nothing.

        Raises:
            OSError: A directory on the way can't be read.
        """
        found = self._before.find(path)
        return None if found is None else found[3]


class MergedTree:
    """A live directory and the layers over it, the topmost first, as overlayfs shows them to a command."""

    def __init__(self, live: bytes, layers: Sequence[bytes] = (), pool: Pool | None = None) -> None:
        self._live = live
        self._layers = layers
        self._pool = pool or Pool()
        self._roots: list[Dir] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._pool.__exit__(*details)

    def find(self, path: bytes) -> Found | None:
        """Return what is at a path, None where there is nothing.

        Raises:
            OSError: A directory on the way can't be read.
        """
        return _find(self._open_roots(), path)

    def read(self, path: bytes, limit: int) -> bytes | None:
        """Return the beginning of a file, None where there is none that can be read."""
        try:
            found = self.find(path)
            return None if found is None or found[3] != "file" else read_up_to(open_file(found), limit)
        except OSError:
            return None

    def names(self, path: bytes) -> dict[bytes, EntryKind]:
        """Return what is in a directory, nothing where there is none that can be read."""
        directories = self._open_roots()
        try:
            for part in path.split(b"/") if path else ():
                directories, _ = open_merged(directories, part)
            names = dict.fromkeys(name for directory in directories for name, _, _ in directory.names())
            found = ((name, find_entry(directories, name)) for name in sorted(names))
            return {name: entry[3] for name, entry in found if entry is not None}
        except OSError:
            return {}

    def _open_roots(self) -> list[Dir]:
        if not self._roots:
            layers = [self._pool.upper_root(path) for path in self._layers]
            self._roots = [*layers, self._pool.live_root(self._live)]
        return self._roots


def read_up_to(fd: int, limit: int) -> bytes:
    """Read a file from its beginning, at most `limit` bytes of it, and close it."""
    with open(fd, "rb", buffering=0) as file:
        chunks = []
        while limit > 0 and (chunk := os.read(file.fileno(), min(limit, _CHUNK))):
            chunks.append(chunk)
            limit -= len(chunk)
    return b"".join(chunks)


def digest_of(change: Change, reader: Reader) -> str | None:
    """Return the SHA-256 of a file's content or of a symlink's target; None where there is neither.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    if change.entry is None:
        return None
    if change.entry.kind == "symlink":
        return _sha256((change.target or b"",))
    return digest_of_file(reader.open_after(change)) if change.entry.kind == "file" else None


def digest_of_file(fd: int) -> str:
    """Return the SHA-256 of an open file, read from its beginning, and close it."""
    try:
        return _sha256(iter(lambda: os.read(fd, _CHUNK), b""))
    finally:
        os.close(fd)


def find_renames(changes: Sequence[Change], reader: Reader) -> dict[bytes, bytes]:
    """Return the old path of each added file that was there under another name, by its new path.

    For display, never part of a ChangeSet. The work is bounded; a rename that is not recognised is shown as what it is,
    two changes.
    """
    gone: dict[int, list[Change]] = {}
    for change in changes:
        if change.kind == "deleted" and change.base_kind == "file" and change.base_size:
            gone.setdefault(change.base_size, []).append(change)
    renames: dict[bytes, bytes] = {}
    comparisons, bytes_left = MAX_COMPARISONS, MAX_BYTES
    for change in changes:
        if not gone or comparisons <= 0 or bytes_left <= 0:
            break
        if change.kind != "added" or change.entry is None or change.entry.kind != "file":
            continue
        for old in _likeliest_first(gone.get(change.entry.size, ()), change):
            comparisons -= 1
            bytes_left -= change.entry.size
            if _is_same_file(old, change, reader):
                renames[change.path] = old.path
                gone[change.entry.size].remove(old)
                break
            if comparisons <= 0 or bytes_left <= 0:
                break
    return renames


def _find(directories: list[Dir], path: bytes) -> Found | None:
    *parents, name = path.split(b"/")
    for parent in parents:
        directories, _ = open_merged(directories, parent)
    return find_entry(directories, name)


def _likeliest_first(candidates: Sequence[Change], added: Change) -> list[Change]:
    name = posixpath.basename(added.path)
    return sorted(candidates, key=lambda old: posixpath.basename(old.path) != name)


def _is_same_file(old: Change, new: Change, reader: Reader) -> bool:
    if new.entry is None or new.entry.size > MAX_BYTES:
        return False
    try:
        before = reader.open_before(old)
    except OSError:
        return False
    try:
        after = reader.open_after(new)
        try:
            return have_same_content(before, after, new.entry.size)
        finally:
            os.close(after)
    except OSError:
        return False
    finally:
        os.close(before)


def _sha256(chunks: Iterable[bytes]) -> str:
    import hashlib  # lazy: approvals

    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
