# SPDX-License-Identifier: Apache-2.0
"""Entries of an upper that are closed to their owner, opened for as long as they are read.

Whoever does so takes a turn, so that scans at the same time do not see each other's modes. Meanwhile the mode that
the command left is kept in an attribute: after a scan that was killed the next puts it right. A directory has it
itself, where overlayfs hides it; of files, which are opened one at a time, the directory of all uppers has it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from unspill.host.half_open import before_opening, half_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "user.overlay.unspill.mode"
LOAN = "user.unspill.loan."
PATIENCE_S = 30.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def take_turn(upper: bytes) -> int:
    """Wait until no other scan has directories open to their owner; the turn lasts until the result is closed.

    After `PATIENCE_S` seconds it goes on all the same: a wrong mode is better than a command that never ends.
    """
    fd = os.open(os.path.dirname(upper), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.002)
        else:
            break
    return fd


def open_to_owner(path: bytes, mode: int) -> None:
    """Let the owner of a directory read, search and change it."""
    if _is_marked(path):
        # Whoever did that died before the last step
        os.chmod(path, mode | 0o700)
        return
    mode = before_opening(mode)
    # An attribute can't be set on what its owner can't write, and nobody may find it open without the mark.
    os.chmod(path, half_open(mode))
    try:
        os.setxattr(path, MARK, b"%o" % mode)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            os.chmod(path, mode)
            raise
    os.chmod(path, mode | 0o700)


def lend(turn: int, handle: int, mode: int) -> None:
    """Let the owner of a file read it; `turn` is the caller's, `handle` a descriptor for look-ups."""
    path = b"/proc/self/fd/%d" % handle
    try:
        os.setxattr(turn, _loan(handle), b"%o %b" % (mode, os.readlink(path)))
    except OSError as error:
        # Too long a path, or no attributes here: if this process dies now, the owner can read that file
        if error.errno not in (errno.ENOTSUP, errno.ENAMETOOLONG, errno.E2BIG):
            raise
    os.chmod(path, mode | 0o400)


def give_back(turn: int, handle: int, mode: int) -> None:
    """Give a file its mode back."""
    os.chmod(b"/proc/self/fd/%d" % handle, mode)
    _forget(turn, _loan(handle))


def end_loans(turn: int) -> None:
    """Give all files their modes back that the caller, or somebody who died, could not."""
    for name in _loans(turn):
        mode, path = os.getxattr(turn, name).split(b" ", 1)
        try:
            handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            _forget(turn, name)
            continue
        try:
            if _loan(handle) == name:
                os.chmod(b"/proc/self/fd/%d" % handle, int(mode, 8))
            _forget(turn, name)
        finally:
            os.close(handle)


def is_lent(upper: bytes) -> bool:
    """Tell whether somebody has a file of an upper, or of another one beside it, open to its owner."""
    return bool(_loans(os.path.dirname(upper)))


def _loan(handle: int) -> str:
    return f"{LOAN}{os.fstat(handle).st_ino}"


def _loans(directory: int | bytes) -> list[str]:
    try:
        return [name for name in os.listxattr(directory) if name.startswith(LOAN)]
    except OSError:
        return []


def _forget(turn: int, name: str) -> None:
    try:
        os.removexattr(turn, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise


def _is_marked(path: bytes) -> bool:
    try:
        return MARK in os.listxattr(path)
    except OSError:
        return False


def with_own_mode(status: os.stat_result, path: bytes) -> os.stat_result:
    """Return an earlier status of a directory that is open now, with the mode that it had before anybody opened it."""
    try:
        return with_marked_mode(status, os.getxattr(path, MARK))
    except OSError:
        return with_marked_mode(status, b"%o" % before_opening(stat.S_IMODE(status.st_mode)))


def close_again(fd: int, mode: int) -> None:
    """Give a directory its mode back."""
    if MARK in os.listxattr(fd):
        os.fchmod(fd, half_open(mode))
        os.removexattr(fd, MARK)
    os.fchmod(fd, mode)


def with_marked_mode(status: os.stat_result, mark: bytes) -> os.stat_result:
    """Return a status with the mode that the command left."""
    reduced: Any = status.__reduce__()
    kind, (values, named) = reduced
    result: os.stat_result = kind((stat.S_IFMT(status.st_mode) | int(mark, 8), *values[1:]), named)
    return result


def open_closed(path: bytes) -> int:
    """Return a descriptor of a directory of ours, also where a command has closed it to its owner."""
    try:
        return os.open(path, _DIRECTORY)
    except PermissionError:
        open_to_owner(path, stat.S_IMODE(os.lstat(path).st_mode))
        return os.open(path, _DIRECTORY)
