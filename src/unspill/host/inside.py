# SPDX-License-Identifier: Apache-2.0
"""Resolves a path as a process sees it whose `/` is a given tree, without ever looking outside that tree.

Absolute links lead to the tree's top, `..` never above it. Reads only; every name is looked up by descriptor, so a
link of the tree is never followed by the kernel of the host. The tree must not change meanwhile.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LINKS_AT_MOST = 40
_DEEPEST = 256
_LOOKUP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def resolve_inside(tree_fd: int, path: bytes, elsewhere: Sequence[bytes] = ()) -> bytes | None:
    """Return where a path of the tree really leads, relative to its top and without links; b"" is the top itself.

    None where there is nothing, something in between is no directory or may not be entered, or links go in circles.
    Nor is there an answer where the way leads to one of `elsewhere`: absolute paths at which a process sees something
    that is not of the tree. The answer has no leading slash, so that it is safe to use with `dir_fd=tree_fd`.
    """
    walk = _Walk(tree_fd, elsewhere)
    try:
        return walk.follow(path)
    except OSError:
        return None
    finally:
        walk.close()


def find_inside(tree_fd: int, path: bytes) -> os.stat_result | None:
    """Return what is at the end of all links of a path of the tree, None where there is nothing."""
    real = resolve_inside(tree_fd, path)
    if real is None:
        return None
    return os.stat(real, dir_fd=tree_fd, follow_symlinks=False) if real else os.fstat(tree_fd)


class _Walk:
    """The directories between the top and where a resolution stands."""

    def __init__(self, tree_fd: int, elsewhere: Sequence[bytes]) -> None:
        self._top = tree_fd
        self._elsewhere = frozenset(place.lstrip(b"/") for place in elsewhere)
        self._names: list[bytes] = []
        self._fds: list[int] = []

    def follow(self, path: bytes) -> bytes | None:
        """Go along a path, whose names may be links, which may be the last one's as well."""
        rest = _names_of(path)
        links = 0
        while rest:
            name = rest.pop()
            if name == b"..":
                self._up()
                continue
            if self._elsewhere and b"/".join([*self._names, name]) in self._elsewhere:
                return None
            here = self._fds[-1] if self._fds else self._top
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                target = os.readlink(name, dir_fd=here)
                if links > _LINKS_AT_MOST or len(rest) > _DEEPEST:
                    return None
                if target.startswith(b"/"):
                    self.close()
                rest += _names_of(target)
            elif stat.S_ISDIR(found.st_mode):
                self._down(name, here)
            else:
                return None if rest else b"/".join([*self._names, name])
        return b"/".join(self._names)

    def _down(self, name: bytes, here: int) -> None:
        if len(self._fds) >= _DEEPEST:
            raise OSError("too deep")
        self._fds.append(os.open(name, _LOOKUP, dir_fd=here))
        self._names.append(name)

    def _up(self) -> None:
        if self._fds:
            os.close(self._fds.pop())
            self._names.pop()

    def close(self) -> None:
        """Stand at the top again."""
        while self._fds:
            self._up()


def _names_of(path: bytes) -> list[bytes]:
    """Return the names of a path, the first one last."""
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]
