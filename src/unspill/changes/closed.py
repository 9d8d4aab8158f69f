# SPDX-License-Identifier: Apache-2.0
"""Directories of an upper that are closed to their owner, opened for as long as they are read.

Whoever does so takes a turn, so that scans at the same time do not see each other's modes. Meanwhile the mode that
the command left is kept in an attribute, which overlayfs hides: after a scan that was killed the next puts it right.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "user.overlay.unspill.mode"
PATIENCE_S = 30.0


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
    """Let the owner of a directory read and search it."""
    # An attribute can't be set on what its owner can't write, and nobody may find it open without the mark.
    os.chmod(path, mode & ~0o500 | 0o200)
    try:
        os.setxattr(path, MARK, b"%o" % mode)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            os.chmod(path, mode)
            raise
    os.chmod(path, mode | 0o700)


def close_again(fd: int, mode: int) -> None:
    """Give a directory its mode back."""
    if MARK in os.listxattr(fd):
        os.fchmod(fd, mode & ~0o500 | 0o200)
        os.removexattr(fd, MARK)
    os.fchmod(fd, mode)


def with_marked_mode(status: os.stat_result, mark: bytes) -> os.stat_result:
    """Return a status with the mode that the command left."""
    reduced: Any = status.__reduce__()
    kind, (values, named) = reduced
    result: os.stat_result = kind((stat.S_IFMT(status.st_mode) | int(mark, 8), *values[1:]), named)
    return result
