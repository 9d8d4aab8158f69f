# SPDX-License-Identifier: Apache-2.0
"""Locks on rootfs: shared by whoever uses one, alone by whoever removes one, and one per name for its builder.

The first two are on the directory `roots/<name>` itself, which works where it can only be read. The kernel gives each
of them back when its holder dies.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.errors import RootfsError
from unspill.rootfs.layout import DIRECTORY, LOCKS, failed
from unspill.rootfs.staging import is_at, let_go

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from unspill.model.rootfs import Rootfs

_PAUSE_S = 0.005
_LONGEST_S = 30.0


class Hold:
    """The right to use a rootfs: as long as it is held, nobody removes that rootfs. `fd` is its open directory."""

    def __init__(self, rootfs: Rootfs) -> None:
        """Take it.

        Raises:
            RootfsError: the rootfs has gone, or somebody keeps it for themselves.
        """
        self.rootfs = rootfs
        # One that the person made by hand has nothing around its tree
        self._path = os.path.dirname(rootfs.tree) if rootfs.manifest is not None else rootfs.tree
        self.fd = self._take()

    def _take(self) -> int:
        """Open, lock and look again: between opening and locking it may have been removed."""
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            fd = take(self._path, fcntl.LOCK_SH)
            if fd is not None:
                return fd
            time.sleep(_PAUSE_S)
        raise RootfsError(f"{self.rootfs.name} is kept locked by somebody", remedy="Try again when they have finished.")

    def release(self) -> None:
        """Give it back; one that is not held stays so."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            let_go(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.release()


def take(path: bytes, how: int) -> int | None:
    """Return the descriptor of a directory, locked, or None if others have a lock that forbids it.

    Raises:
        RootfsError: there is no such directory, or it can't be locked.
    """
    try:
        fd = os.open(path, DIRECTORY)
    except OSError as error:
        raise RootfsError(f"There is no rootfs {os.path.basename(path).decode('utf-8', 'replace')} any more") from error
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        if is_at(fd, path):
            return fd
    except OSError as error:
        if not isinstance(error, BlockingIOError):
            os.close(fd)
            raise failed(error, path) from error
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


class NameLock:
    """The right to make or remove what has a name. Its file stays: to remove it would let two hold it at once."""

    def __init__(self, directory: bytes, name: str) -> None:
        self._path = os.path.join(directory, LOCKS, os.fsencode(name) + b".lock")
        self._directory = directory
        self._fd = -1

    def acquire(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Wait for it; say so before, if somebody has it.

        Raises:
            RootfsError: its file can't be made.
        """
        if not self.try_acquire():
            waiting()
            self._take(fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Take it if nobody has it; tell whether that was so."""
        return self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _take(self, how: int) -> bool:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise failed(error, self._directory) from error
        try:
            fcntl.flock(fd, how)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return False
            raise failed(error, self._directory) from error
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def release(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            let_go(fd)

    def __enter__(self) -> Self:
        if self._fd < 0:
            self.acquire()
        return self

    def __exit__(self, *_details: object) -> None:
        self.release()
