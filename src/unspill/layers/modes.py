# SPDX-License-Identifier: Apache-2.0
"""Open entries of a layer that a command closed to their owner, and give them the command's mode back.

An attribute keeps that mode meanwhile: after a process that was killed the next one puts it right. A directory has the
attribute itself, where overlayfs hides it. Files are opened one at a time, and the directory that all layers lie in has
theirs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from unspill.host.overlay import MODE_MARK, before_opening, half_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOCK_TIMEOUT_S = 30.0

# In states that exist: an older unspill wrote it, and may have been killed
_BORROWED = "user.unspill.loan."
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PAUSE_S = 0.002


class BorrowedModes:
    """The right to change modes for a while, in one layer and all that lie beside it; one process has it at a time.

    Otherwise scans at the same time would take each other's modes for those of the command.
    """

    __slots__ = ("_parent",)

    def __init__(self) -> None:
        # The directory that the layers lie in
        self._parent = -1

    def lock(self, upper: bytes) -> None:
        """Wait until nobody else has this right, then give files their modes back that a dead process could not.

        After `LOCK_TIMEOUT_S` seconds it goes on all the same: a wrong mode is better than a command that never ends.
        """
        if self._parent < 0:
            self._parent = os.open(os.path.dirname(upper), _DIRECTORY)
            _wait_for_lock(self._parent)
            self.restore_files()

    def lock_if_borrowed(self, upper: bytes) -> None:
        """Lock where somebody has a file open to its owner, in this layer or in one beside it."""
        if self._parent < 0 and _borrowed(os.path.dirname(upper)):
            self.lock(upper)

    def open_file(self, handle: int, mode: int) -> None:
        """Let the owner of a file read it; `handle` is a descriptor for look-ups."""
        path = b"/proc/self/fd/%d" % handle
        try:
            os.setxattr(self._parent, _name_of(handle), b"%o %b" % (mode, os.readlink(path)))
        except OSError as error:
            # Too long a path, or no attributes here: if this process dies now, the owner can read that file
            if error.errno not in (errno.ENOTSUP, errno.ENAMETOOLONG, errno.E2BIG):
                raise
        os.chmod(path, mode | 0o400)

    def restore_file(self, handle: int, mode: int) -> None:
        """Give a file its mode back."""
        os.chmod(b"/proc/self/fd/%d" % handle, mode)
        _forget(self._parent, _name_of(handle))

    def restore_files(self) -> None:
        """Give all files their modes back that this process, or one that died, has not."""
        for name in _borrowed(self._parent) if self._parent >= 0 else ():
            mode, path = os.getxattr(self._parent, name).split(b" ", 1)
            try:
                handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                _forget(self._parent, name)
                continue
            try:
                if _name_of(handle) == name:
                    os.chmod(b"/proc/self/fd/%d" % handle, int(mode, 8))
                _forget(self._parent, name)
            finally:
                os.close(handle)

    def close(self) -> None:
        """Let others have the right."""
        if self._parent >= 0:
            fd, self._parent = self._parent, -1
            os.close(fd)


def open_to_owner(path: bytes, mode: int) -> None:
    """Let the owner of a directory read, search and change it; `mode` is what it has now."""
    if _is_marked(path):
        # Whoever did that died before the last step
        os.chmod(path, mode | 0o700)
        return
    mode = before_opening(mode)
    # An attribute can't be set on what its owner can't write, and nobody may find it open without the mark.
    os.chmod(path, half_open(mode))
    try:
        os.setxattr(path, MODE_MARK, b"%o" % mode)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            os.chmod(path, mode)
            raise
    os.chmod(path, mode | 0o700)


def close_again(fd: int, mode: int) -> None:
    """Give a directory its mode back."""
    if MODE_MARK in os.listxattr(fd):
        os.fchmod(fd, half_open(mode))
        os.removexattr(fd, MODE_MARK)
    os.fchmod(fd, mode)


def open_closed(path: bytes) -> int:
    """Return a descriptor of a directory of ours, also where a command has closed it to its owner."""
    try:
        return os.open(path, _DIRECTORY | os.O_NOFOLLOW)
    except PermissionError:
        open_to_owner(path, stat.S_IMODE(os.lstat(path).st_mode))
        return os.open(path, _DIRECTORY | os.O_NOFOLLOW)


def true_mode(directory: bytes | int, mode: int) -> int:
    """Return the permissions that a command left on a directory; `mode` is what it has, or had when it was opened."""
    try:
        return int(os.getxattr(directory, MODE_MARK), 8)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EACCES):
            return before_opening(mode)
        raise


def with_true_mode(status: os.stat_result, directory: bytes | int) -> os.stat_result:
    """Return the status of a directory with the permissions that the command left on it."""
    mode = stat.S_IFMT(status.st_mode) | true_mode(directory, stat.S_IMODE(status.st_mode))
    reduced: Any = status.__reduce__()
    kind, (values, named) = reduced
    result: os.stat_result = kind((mode, *values[1:]), named)
    return result


def _wait_for_lock(fd: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            break


def _name_of(handle: int) -> str:
    """Return the attribute that keeps the mode of a file."""
    return f"{_BORROWED}{os.fstat(handle).st_ino}"


def _borrowed(parent: int | bytes) -> list[str]:
    try:
        return [name for name in os.listxattr(parent) if name.startswith(_BORROWED)]
    except OSError:
        return []


def _forget(parent: int, name: str) -> None:
    try:
        os.removexattr(parent, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise


def _is_marked(path: bytes) -> bool:
    try:
        return MODE_MARK in os.listxattr(path)
    except OSError:
        return False
