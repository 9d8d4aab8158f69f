# SPDX-License-Identifier: Apache-2.0
"""Names of an archive as paths beneath its tree: relative, without `.` and `..`, and short enough.

Pure; a name that passes still has to be walked without following a link.
"""

from __future__ import annotations

from unspill.errors import RootfsUnsafe
from unspill.rootfs.tar_bounds import NAME_BYTES, PATH_BYTES, shown

# How many directories are remembered as checked: archives list what is in one directory in a row
REMEMBERED = 4096
NO_NAMES = (b"", b".", b"..")
SLASH = 0x2F


class Names:
    """Checks names; each directory is looked at once, since most entries share theirs with the one before."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._parents: dict[bytes, bytes] = {}

    def split(self, name: bytes) -> tuple[bytes, bytes]:
        """Return the path of the directory and the name in it; both are empty for the tree itself.

        Raises:
            RootfsUnsafe: the name leads out of the tree, or is too long.
        """
        above, _, base = name.rpartition(b"/")
        parent = self._parents.get(above)
        if parent is None or base in NO_NAMES or len(base) > NAME_BYTES or name[0] == SLASH:
            parent, _, base = self.normal(name).rpartition(b"/")
            if len(self._parents) > REMEMBERED:
                self._parents.clear()
            self._parents[above] = self.normal(above + b"/.") if above else b""
        return parent, base

    def normal(self, name: bytes) -> bytes:
        """Return the path without what means nothing: `./`, doubled and trailing slashes."""
        if not name:
            raise RootfsUnsafe("an entry of the archive has no name")
        if name.startswith(b"/"):
            raise RootfsUnsafe(f"{shown(name)} is an absolute path")
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise RootfsUnsafe(f"{shown(name)} leads out of its directory")
        path = b"/".join(parts)
        if len(path) >= PATH_BYTES or max(map(len, parts), default=0) > NAME_BYTES:
            raise RootfsUnsafe(f"{shown(name)} is too long")
        if len(parts) > self._depth:
            raise RootfsUnsafe(f"{shown(name)} is too deep")
        return path
