# SPDX-License-Identifier: Apache-2.0
"""A directory for probes in the state directory that is gone afterwards, whatever a probe left in it.

It is locked while in use; one that nobody holds is what a killed probe left, and the next probe removes it.
"""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

PREFIX = b"probe-"


class Scratch:
    """A private directory, made on entry and removed on exit."""

    def __init__(self, state_dir: bytes) -> None:
        self._state = os.path.realpath(state_dir)
        self._lock_fd = -1
        self.path = b""

    def __enter__(self) -> Self:
        _sweep(self._state)
        self.path = os.path.join(self._state, PREFIX + os.urandom(8).hex().encode())
        os.mkdir(self.path, 0o700)
        self._lock_fd = _lock(self.path)
        return self

    def __exit__(self, *_reason: object) -> None:
        remove_tree(self.path)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    def make(self, name: bytes) -> bytes:
        """Make one directory in it and return its path."""
        path = os.path.join(self.path, name)
        os.mkdir(path, 0o700)
        return path


def remove_tree(path: bytes) -> None:
    """Remove a directory tree, also the mode-000 directories that overlays leave; never follows a link."""
    os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(path)


def _sweep(state_dir: bytes) -> None:
    with os.scandir(state_dir) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for path in left:
        _try_remove(path)


def _try_remove(path: bytes) -> None:
    lock_fd = _lock(path)
    if lock_fd < 0:
        return
    try:
        remove_tree(path)
    except OSError:
        return  # what can't be removed does not keep a probe from working
    finally:
        os.close(lock_fd)


def _lock(path: bytes) -> int:
    """Return a descriptor that locks the directory, -1 if somebody else holds it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd
