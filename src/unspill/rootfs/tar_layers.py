# SPDX-License-Identifier: Apache-2.0
"""What an OCI layer removes of the layers below it: whiteouts, opaque directories, and entries that change their kind.

A layer never removes what it brought itself, in whichever order its entries come. Everything is removed by descriptor,
without following a link.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsUnsafe
from unspill.rootfs.tar_bounds import Memory, shown
from unspill.rootfs.tar_tree import DIRECTORY, join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.rootfs.tar_tree import Tree

PREFIX = b".wh."
OPAQUE = b".wh..wh..opq"
# What the paths of one layer may take in memory: half a million files fit. A path takes some more than its bytes
_MOST_BYTES = 128 << 20
_EACH_BYTES = 100


class Layer:
    """One layer over those that are in the tree already; `_own` are its paths, with all the directories above them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._own: set[bytes] = {b""}
        self._memory = Memory("the paths of one layer", _MOST_BYTES)

    def claim(self, path: bytes) -> None:
        """Take note that the layer has an entry at a path.

        Raises:
            RootfsUnsafe: a directory on the way has the name of a whiteout, or there are more paths than in any layer.
        """
        while path not in self._own:
            self._memory.charge(len(path) + _EACH_BYTES)
            self._own.add(path)
            path, _, name = path.rpartition(b"/")
            if name.startswith(PREFIX):
                raise RootfsUnsafe(f"{shown(name)} is the name of a whiteout, but is something else")

    def owns(self, path: bytes) -> bool:
        """Return whether the layer has that path, or something beneath it."""
        return path in self._own

    def white_out(self, above: bytes, name: bytes) -> None:
        """Do what an entry says whose name begins as those of whiteouts do.

        Raises:
            RootfsUnsafe: it names nothing that could be removed.
        """
        if above:
            self.claim(above)
        victim = name.removeprefix(PREFIX)
        if name != OPAQUE and (victim in (b"", b".", b"..") or victim.startswith(PREFIX)):
            raise RootfsUnsafe(f"the whiteout {shown(name)} names nothing in its directory")
        if name == OPAQUE:
            self._empty(above)
        else:
            self.remove(above, victim)

    def remove(self, above: bytes, name: bytes) -> None:
        """Remove what the layers below have at a path."""
        try:
            parent = self._tree.directory(above, make=False)
        except FileNotFoundError:
            return
        path = join(above, name)
        if not self.owns(path):
            self._tree.forget(path)
            _remove(parent, name)
        elif self._tree.kind(above, name) == stat.S_IFDIR:
            self._empty(path)

    def _empty(self, path: bytes) -> None:
        for name in os.listdir(self._tree.directory(path)):
            self.remove(path, os.fsencode(name))


def _remove(parent: int, name: bytes) -> None:
    """Remove an entry, and what is beneath it; how deep that goes was bounded when it was made."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        fd = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            for child in os.listdir(fd):
                _remove(fd, os.fsencode(child))
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=parent)
