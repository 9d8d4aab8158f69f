# SPDX-License-Identifier: Apache-2.0
"""Staging directories: where a rootfs is made, and where one that is removed goes to be deleted.

The process that works in one holds an flock on the directory itself, which the kernel gives back when that process
dies, however it dies. So one whose flock can be had belongs to nobody any more.
"""

from __future__ import annotations

import fcntl
import os

from unspill.layers.remove import remove_tree
from unspill.rootfs.layout import DIRECTORY, SCRATCH, STAGING, TREE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_ATTEMPTS = 100


class Staging:
    """A new staging directory of this process; leaving the block removes it, wherever it is still at its place."""

    def __init__(self, directory: bytes, name: str) -> None:
        self._parent = os.path.join(directory, STAGING)
        self._name = os.fsencode(name)
        self.path = b""
        self.fd = -1

    @property
    def tree(self) -> bytes:
        """Where the content goes."""
        return os.path.join(self.path, TREE)

    @property
    def scratch(self) -> bytes:
        """What ends with the attempt."""
        return os.path.join(self.path, SCRATCH)

    def __enter__(self) -> Self:
        for _ in range(_ATTEMPTS):
            self.path = staging_path(self._parent, self._name)
            try:
                if self._make():
                    return self
            except BaseException:
                self.remove()
                raise
        raise OSError("something removes new staging directories")

    def _make(self) -> bool:
        """Make it and take its flock; tell whether it is still there then: somebody may have swept it in between."""
        os.mkdir(self.path, 0o700)
        try:
            self.fd = os.open(self.path, DIRECTORY)
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_at(self.fd, self.path):
                raise FileNotFoundError
            os.mkdir(self.scratch, 0o700)
            # Not the umask's choice: it is the `/` of everybody who may use the rootfs
            os.mkdir(self.tree)
            os.chmod(self.tree, 0o755)
        except (FileNotFoundError, BlockingIOError):
            self._close()
            return False
        return True

    def __exit__(self, *_details: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it, if it has not become a rootfs by then, and give its flock back."""
        if self.fd < 0 or is_at(self.fd, self.path):
            remove_tree(self.path)
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            let_go(fd)


def staging_path(parent: bytes, name: bytes) -> bytes:
    """Return a new name for a staging directory of a rootfs."""
    return os.path.join(parent, name + b"." + os.urandom(8).hex().encode())


def let_go(fd: int) -> None:
    """Give the lock of a descriptor back, and close it."""
    try:
        # By itself: a child that was forked meanwhile may have the descriptor as well
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        # Closing it gives the lock back, too, where nobody else has it
        pass
    finally:
        os.close(fd)


def is_at(fd: int, path: bytes) -> bool:
    """Tell whether an open directory is the one at a path."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino)


def sweep(directory: bytes, name: str | None = None) -> int:
    """Remove staging directories whose maker is dead, of one rootfs or of all; return how many there were."""
    parent = os.path.join(directory, STAGING)
    swept = 0
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return 0
    for entry in names:
        of, dot, _random = entry.rpartition(b".")
        if dot and (name is None or of == os.fsencode(name)):
            swept += _sweep_one(os.path.join(parent, entry))
    return swept


def _sweep_one(path: bytes) -> bool:
    try:
        fd = os.open(path, DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return is_at(fd, path) and remove_tree(path)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
