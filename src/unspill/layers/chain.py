# SPDX-License-Identifier: Apache-2.0
"""Where a walk through one tree is: the directories from its top down to the one it is in, by descriptor.

Never follows a link. Only the deepest few stay open: the others are opened again through "..", and checked to be
the same, so neither PATH_MAX nor the descriptor limit bounds the depth, and going up costs the same everywhere.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import SandboxUnavailable

OPEN_AT_MOST = 64

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Chain:
    """A walk through one tree.

    `rights` are the owner's permissions that a directory must have while the walk is in it; they are given back
    when it leaves. 0 is for the live tree, which is never changed.
    """

    __slots__ = ("_fds", "_first_open", "_ids", "_modes", "_names", "_window", "rights")

    def __init__(self, top: bytes, *, rights: int = 0, window: int = OPEN_AT_MOST) -> None:
        self.rights = rights
        self._window = window
        self._first_open = 0
        self._fds: list[int] = []
        self._ids: list[tuple[int, int]] = []
        self._modes: list[int | None] = []
        self._names: list[bytes] = [top]
        self._open(top, None)

    @property
    def fd(self) -> int:
        """The directory that the walk is in."""
        return self._fds[-1]

    @property
    def id(self) -> tuple[int, int]:
        """Device and inode of that directory."""
        return self._ids[-1]

    @property
    def found_mode(self) -> int:
        """Its permissions, as they were before the walk came."""
        given_back = self._modes[-1]
        return stat.S_IMODE(os.fstat(self.fd).st_mode) if given_back is None else given_back

    def path(self, name: bytes = b"") -> bytes:
        """Return the path of an entry, or of the directory itself, from the top of the tree; to be shown."""
        return b"/".join([*self._names[1:], name] if name else self._names[1:]) or b"."

    def enter(self, name: bytes) -> None:
        """Go into a subdirectory.

        Raises:
            FileNotFoundError: There is no such name.
            NotADirectoryError: It is something else, perhaps a link to a directory.
            PermissionError: It is in the live tree and closed to us.
        """
        self._open(name, self.fd)
        self._names.append(name)
        if len(self._fds) - self._first_open > self._window:
            os.close(self._fds[self._first_open])
            self._fds[self._first_open] = -1
            self._first_open += 1

    def give_mode(self, mode: int) -> None:
        """Let the directory have these permissions when the walk leaves it."""
        self._modes[-1] = mode

    def leave(self) -> None:
        """Go up."""
        fd, mode = self._fds.pop(), self._modes.pop()
        del self._ids[-1], self._names[-1]
        try:
            # Before the mode: it may forbid to look up "..".
            if self._fds and self._fds[-1] < 0:
                self._reopen(fd)
        finally:
            try:
                if mode is not None:
                    os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Leave every directory, and so the tree."""
        while self._fds:
            if self._fds[-1] < 0:
                # Only where the live tree was moved under the walk, and there is nothing to give back there.
                self._fds.pop()
            else:
                self.leave()

    def open_file(self, name: bytes) -> tuple[int, os.stat_result]:
        """Open a regular file for reading, and return its status as found; `close_file` takes both back.

        Raises:
            PermissionError: It is in the live tree and closed to us.
            OSError: It is gone, or no regular file.
        """
        found = None
        try:
            fd = _open_quietly(name, self.fd)
        except PermissionError:
            if not self.rights:
                raise
            fd, found = _open_closed(name, self.fd, 0o400, _FILE)
        try:
            found = found or os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{name!r} is no regular file")
        except BaseException:
            os.close(fd)
            raise
        return fd, found

    def close_file(self, fd: int, found: os.stat_result) -> None:
        """Close a file, and give it back the mode that it was found with."""
        try:
            if self.rights and not found.st_mode & 0o400:
                os.fchmod(fd, stat.S_IMODE(found.st_mode))
        finally:
            os.close(fd)

    def _open(self, name: bytes, parent: int | None) -> None:
        found = None
        try:
            fd = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=parent)
        except PermissionError:
            if not self.rights:
                raise
            fd, found = _open_closed(name, parent, self.rights, os.O_RDONLY | _DIRECTORY)
        try:
            found = found or os.fstat(fd)
            lacking = self.rights & ~found.st_mode
            if lacking:
                os.fchmod(fd, stat.S_IMODE(found.st_mode) | self.rights)
        except BaseException:
            os.close(fd)
            raise
        self._fds.append(fd)
        self._ids.append((found.st_dev, found.st_ino))
        self._modes.append(stat.S_IMODE(found.st_mode) if lacking else None)

    def _reopen(self, child: int) -> None:
        fd = os.open(b"..", os.O_RDONLY | _DIRECTORY, dir_fd=child)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self._ids[-1]:
            os.close(fd)
            raise SandboxUnavailable("A directory was moved while it was being read.", remedy="Try again.")
        self._fds[-1] = fd
        self._first_open = len(self._fds) - 1


def _open_quietly(name: bytes, parent: int) -> int:
    try:
        return os.open(name, _FILE | os.O_NOATIME, dir_fd=parent)
    except PermissionError:
        # Not to touch the time of access is a right of the owner only.
        return os.open(name, _FILE, dir_fd=parent)


def _open_closed(name: bytes, parent: int | None, rights: int, flags: int) -> tuple[int, os.stat_result]:
    """Open what its owner may not open, through a descriptor that needs no right; return it as it was found."""
    path_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        found = os.fstat(path_fd)
        path = b"/proc/self/fd/%d" % path_fd
        os.chmod(path, stat.S_IMODE(found.st_mode) | rights)
        try:
            return os.open(path, flags & ~os.O_NOFOLLOW), found
        except BaseException:
            os.chmod(path, stat.S_IMODE(found.st_mode))
            raise
    finally:
        os.close(path_fd)
