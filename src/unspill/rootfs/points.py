# SPDX-License-Identifier: Apache-2.0
"""Mount points in a staging tree: a rootfs that is read-only must have had them before.

Made by descriptor, nothing through a link: a link of the tree leads the maker to a place on the host. What is there
already stays, whatever it is; a link at etc/resolv.conf does not, because nothing can be mounted on it safely.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.rootfs.layout import DIRECTORY
from unspill.rootfs.tidy import change_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = (b"workspace", b"tmp", b"proc", b"dev", b"run", b"var/tmp", b"sys", b"playground")
RESOLV_CONF = b"etc/resolv.conf"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_points(tree: bytes) -> None:
    """Make what is missing of the usual mount points.

    Raises:
        OSError: it can't be made.
    """
    top = os.open(tree, DIRECTORY)
    try:
        for point in POINTS:
            parent, _, name = point.rpartition(b"/")
            _within(top, parent, name, _make_directory)
        parent, _, name = RESOLV_CONF.rpartition(b"/")
        _within(top, parent, name, _make_file)
    finally:
        os.close(top)


def _within(top: int, parent: bytes, name: bytes, make: Callable[[int, bytes], None]) -> None:
    """Make an entry of the top or of a directory at the top; where that is a link or a file, nothing."""
    if not parent:
        make(top, name)
        return
    _make_directory(top, parent)
    try:
        fd = os.open(parent, DIRECTORY, dir_fd=top)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return
        raise
    try:
        make(fd, name)
    finally:
        os.close(fd)


def _find(fd: int, name: bytes) -> int | None:
    """Return the mode of an entry, None where there is nothing."""
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _make_directory(fd: int, name: bytes) -> None:
    if _find(fd, name) is None:
        change_within(fd, lambda: os.mkdir(name, 0o755, dir_fd=fd))
        # Not the umask's choice
        os.chmod(name, 0o755, dir_fd=fd)


def _make_file(fd: int, name: bytes) -> None:
    mode = _find(fd, name)
    if mode is not None and stat.S_ISLNK(mode):
        change_within(fd, lambda: os.unlink(name, dir_fd=fd))
    elif mode is not None:
        return
    change_within(fd, lambda: os.close(os.open(name, _NEW_FILE, 0o644, dir_fd=fd)))
