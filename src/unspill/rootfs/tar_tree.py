# SPDX-License-Identifier: Apache-2.0
"""A directory tree that is written beneath one descriptor, never through a link.

Every directory is reached from the one above it by name with O_NOFOLLOW, and files are always new (O_EXCL), so that
nothing an archive has made before can lead a later entry elsewhere. Paths are those that `Names` let pass.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import RootfsError, RootfsUnsafe
from unspill.rootfs.tar_bounds import shown

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
IMPLIED_MODE = 0o755
OPEN_DIRECTORIES = 128


class Tree:
    """The tree and its open directories."""

    def __init__(self, path: bytes) -> None:
        try:
            self._open = {b"": os.open(path, DIRECTORY)}
        except OSError as problem:
            raise RootfsError(f"{shown(path)} is no directory to unpack to: {problem.strerror}") from None

    def close(self) -> None:
        """Close every directory."""
        while self._open:
            os.close(self._open.popitem()[1])

    def is_empty(self) -> bool:
        """Return whether there is nothing in the tree."""
        with os.scandir(self._open[b""]) as found:
            return next(found, None) is None

    def trim(self) -> None:
        """Close directories if many are open; not to be called while one is in use."""
        if len(self._open) > OPEN_DIRECTORIES:
            for path in list(self._open)[1 : OPEN_DIRECTORIES // 2]:
                os.close(self._open.pop(path))

    def forget(self, path: bytes) -> None:
        """Close the directory at a path and all beneath it, because they go away."""
        below = path + b"/"
        for known in [known for known in self._open if known == path or known.startswith(below)]:
            os.close(self._open.pop(known))

    def directory(self, path: bytes, *, make: bool = True) -> int:
        """Return a descriptor of a directory, which is made if need be; it stays ours.

        Raises:
            RootfsUnsafe: there is something else, for instance a link.
            FileNotFoundError: it is not there, and is not to be made.
        """
        if (known := self._open.get(path)) is not None:
            return known
        above, _, name = path.rpartition(b"/")
        parent = self.directory(above, make=make)
        try:
            fd = os.open(name, DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
            return self.make_directory(above, name, IMPLIED_MODE)
        except OSError as problem:
            if problem.errno in (errno.ELOOP, errno.ENOTDIR):
                raise RootfsUnsafe(f"{shown(path)} is no directory, and entries would be written beneath it") from None
            raise
        self._open[path] = fd
        return fd

    def make_directory(self, above: bytes, name: bytes, mode: int) -> int:
        """Make a directory that is not there, with exactly that mode."""
        parent = self.directory(above)
        os.mkdir(name, 0o700, dir_fd=parent)
        fd = self._open[join(above, name)] = os.open(name, DIRECTORY, dir_fd=parent)
        if mode != 0o700:
            os.fchmod(fd, mode)
        return fd

    def kind(self, above: bytes, name: bytes) -> int | None:
        """Return the file type of an entry, None if there is none."""
        try:
            parent = self.directory(above, make=False)
            return stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return None


def join(above: bytes, name: bytes) -> bytes:
    """Return the path of an entry."""
    return above + b"/" + name if above else name
