# SPDX-License-Identifier: Apache-2.0
"""Make another entry like one of a layer, where a hard link can't be had: content, mode, times and attributes.

The attributes that overlayfs keeps for itself stay behind. The source is read only, or opened for reading for the
moment that takes.
"""

from __future__ import annotations

import os
import stat

from unspill.layers.content import Copier
from unspill.layers.overlay_form import list_attributes, shown_name

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def duplicate(source: bytes, source_fd: int | None, name: bytes, dest_fd: int) -> None:
    """Copy an entry that is no directory to a new name; both may count from directory descriptors.

    Raises:
        OSError: it can't be read, or there is no room for it.
    """
    status = os.stat(source, dir_fd=source_fd, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        _copy_file(source, source_fd, name, dest_fd, status)
        return
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source, dir_fd=source_fd), name, dir_fd=dest_fd)
    else:
        os.mknod(name, status.st_mode, status.st_rdev, dir_fd=dest_fd)
        # The umask took its part of the mode; nothing can have put a link there.
        os.chmod(b"/proc/self/fd/%d/%s" % (dest_fd, name), stat.S_IMODE(status.st_mode))
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=dest_fd, follow_symlinks=False)


def _copy_file(source: bytes, source_fd: int | None, name: bytes, dest_fd: int, status: os.stat_result) -> None:
    from_fd = _open(source, source_fd, status)
    try:
        to_fd = os.open(name, _NEW, 0o600, dir_fd=dest_fd)
        try:
            Copier().copy(from_fd, to_fd, status)
            copy_look(from_fd, to_fd, status)
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


def copy_look(source: int, dest: int, status: os.stat_result) -> None:
    """Give an open file the attributes of another one, and the mode and times of `status`."""
    mode = stat.S_IMODE(status.st_mode)
    names = [name for name in list_attributes(source) if shown_name(name) is not None]
    if names and not mode & 0o400:
        # Attributes are only for those who may read the file now, unlike its content.
        os.fchmod(source, mode | 0o400)
    try:
        for name in names:
            os.setxattr(dest, name, os.getxattr(source, name))
    finally:
        if names and not mode & 0o400:
            os.fchmod(source, mode)
    os.fchmod(dest, mode)
    os.utime(dest, ns=(status.st_atime_ns, status.st_mtime_ns))


def _open(source: bytes, source_fd: int | None, status: os.stat_result) -> int:
    try:
        return os.open(source, _READ, dir_fd=source_fd)
    except PermissionError:
        fd = os.open(source, _NAMED, dir_fd=source_fd)
    # Its owner closed it to themselves; that right is taken back as soon as it is open.
    path = b"/proc/self/fd/%d" % fd
    try:
        os.chmod(path, stat.S_IMODE(status.st_mode) | 0o400)
        return os.open(path, _READ & ~os.O_NOFOLLOW)
    finally:
        os.chmod(path, stat.S_IMODE(status.st_mode))
        os.close(fd)
