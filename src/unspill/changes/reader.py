# SPDX-License-Identifier: Apache-2.0
"""The files before and after a change, opened by descriptor and never through a link.

After: the entry in the layer that a Change names. Before: what the sealed layers beneath and the live root show.
"""

from __future__ import annotations

import os

from unspill.changes.compare import open_file
from unspill.changes.merge import find_entry, open_merged
from unspill.changes.walk import Pool
from unspill.errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from unspill.changes.report import Found
    from unspill.changes.walk import Dir
    from unspill.model.change import Change, EntryKind


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
                f"{change.path!r} in {change.layer!r} is not what was scanned",
                remedy="Ask for the changes again.",
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


def _find(directories: list[Dir], path: bytes) -> Found | None:
    *parents, name = path.split(b"/")
    for parent in parents:
        directories, _ = open_merged(directories, parent)
    return find_entry(directories, name)


def read_up_to(fd: int, limit: int) -> bytes:
    """Read a file from its beginning, at most `limit` bytes of it, and close it."""
    with open(fd, "rb", buffering=0) as file:
        chunks = []
        while limit > 0 and (chunk := os.read(file.fileno(), min(limit, 1 << 20))):
            chunks.append(chunk)
            limit -= len(chunk)
    return b"".join(chunks)
