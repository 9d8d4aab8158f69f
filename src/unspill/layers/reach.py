# SPDX-License-Identifier: Apache-2.0
"""Reach entries of sealed layers by their paths, however long those are and whatever their directories forbid.

For layers that are about to go: a directory that is closed to its owner is opened, and stays so. An attribute that
overlayfs hides keeps the mode that the command left; a scan puts it right, should the layer stay after all.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from unspill.host.beneath import Beneath
from unspill.host.half_open import before_opening, half_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self, TypeVar

    T = TypeVar("T")

# The attribute and the turn are those of a scan, which may go on at the same time.
MODE_MARK = "user.overlay.unspill.mode"
PATIENCE_S = 30.0

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_MAX = 4096


class Reach:
    """Entries below some directories of ours, by absolute path."""

    def __init__(self, tops: Sequence[bytes]) -> None:
        self._tops = tops
        self._top = b""
        self._tree: Beneath | None = None
        self._turn = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        if self._tree is not None:
            self._tree.close()
        if self._turn >= 0:
            os.close(self._turn)

    def call(self, path: bytes, act: Callable[[bytes, int | None], T]) -> T:
        """Call a function with a name and the directory descriptor that it counts from, for the entry at `path`.

        Raises:
            OSError: the function raised it.
        """
        # Nothing moves in a sealed layer, so its own path is as good as a descriptor, and needs no directory opened.
        if len(path) < _PATH_MAX:
            try:
                return act(path, None)
            except PermissionError:
                pass
        tree, inner = self._find_tree(path)
        above, _, name = inner.rpartition(b"/")
        return act(name, self._directory(tree, above))

    def open_directory(self, path: bytes) -> int:
        """Return a new descriptor of a directory, through which its attributes can be read."""
        if len(path) < _PATH_MAX:
            try:
                return os.open(path, _DIRECTORY)
            except PermissionError:
                pass
        tree, inner = self._find_tree(path)
        fd = self._directory(tree, inner)
        # That of a tree's own top may be good for look-ups only.
        return os.open(b"/proc/self/fd/%d" % fd, _DIRECTORY & ~os.O_NOFOLLOW)

    def _find_tree(self, path: bytes) -> tuple[Beneath, bytes]:
        path = path.removesuffix(b"/.")
        top = next((top for top in self._tops if path == top or path.startswith(top + b"/")), None)
        if top is None:
            top = os.path.dirname(path)
        if self._tree is None or top != self._top:
            if self._tree is not None:
                self._tree.close()
            self._top = top
            self._tree = Beneath(os.open(top, os.O_PATH | _DIRECTORY), self._open_closed)
            mode = stat.S_IMODE(os.fstat(self._tree.root_fd).st_mode)
            if mode & 0o700 != 0o700:
                self._open_closed(b"/proc/self/fd/%d" % self._tree.root_fd, mode)
        return self._tree, path[len(top) + 1 :]

    def _directory(self, tree: Beneath, path: bytes) -> int:
        try:
            return tree.directory(path)
        except PermissionError:
            # One on the way is closed: it can only be opened when it is the last of a path.
            at = path.find(b"/")
            while at >= 0:
                tree.directory(path[:at])
                at = path.find(b"/", at + 1)
            return tree.directory(path)

    def _open_closed(self, path: bytes, mode: int) -> None:
        if os.geteuid() == 0:
            return
        self._take_turn()
        mode = true_mode(path, mode)
        # An attribute can't be set on what its owner can't write, and nobody may find it open without the mark.
        os.chmod(path, half_open(mode))
        os.setxattr(path, MODE_MARK, b"%o" % mode)
        os.chmod(path, mode | 0o700)

    def _take_turn(self) -> None:
        """Wait until no scan has directories of this layer open to their owner, but not for ever."""
        if self._turn >= 0:
            return
        self._turn = os.open(os.path.dirname(self._top), _DIRECTORY)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.002)
            else:
                break


def true_mode(directory: bytes | int, mode: int) -> int:
    """Return the permissions that a command left on a directory, though it may be open to its owner now."""
    try:
        return int(os.getxattr(directory, MODE_MARK), 8)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EACCES):
            return before_opening(mode)
        raise
