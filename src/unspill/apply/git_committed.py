# SPDX-License-Identifier: Apache-2.0
"""Which changes of a run are in the commit that it made: where that commit arrives, they are safe in it."""

from __future__ import annotations

import os

from unspill.git.objects import blob_name, make_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unspill.git.objects import Objects
    from unspill.model.change import Change


class CommittedPaths:
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
