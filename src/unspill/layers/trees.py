# SPDX-License-Identifier: Apache-2.0
"""Make another entry like one of a layer, where a hard link can't be had: content, mode, times and attributes.

The attributes that overlayfs keeps for itself stay behind. The source is read only, or opened for reading for the
moment that takes.

MERGED
[remove] Remove directory trees that a sandboxed command filled: links, modes and depth are the command's choice.

Works by descriptor and never follows a link. Uses two descriptors at any depth: a directory that is not empty is
moved to the top of the tree and emptied there, so no path grows and nothing recurses.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import count

from unspill.host.content import Copier
from unspill.host.overlay import list_attributes, shown_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: bytes) -> bool:
    """Remove what is at `path`, whatever it is; return False if something resists (an immutable file).

    Several processes may remove one tree at a time. A tree of which half was removed looks like none that
    unspill made: call it only when the store no longer knows it, or knows that its owner is dead.
    """
    try:
        top = open_private(path)
        try:
            _empty_top(top)
            os.rmdir(path)
        finally:
            os.close(top)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        os.unlink(path)
    except OSError:
        return False
    return True


def open_private(name: bytes | str, dir_fd: int | None = None) -> int:
    """Open a directory that is not a link, and give its owner all rights over it if they are missing."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        _grant_owner(name, dir_fd)
        fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(fd, 0o700)
    return fd


def _grant_owner(name: bytes | str, dir_fd: int | None) -> None:
    # chmod by name follows links. A descriptor that only names the directory does not need any right on it,
    # and the kernel's link to it leads to that very directory.
    fd = os.open(name, _HANDLE, dir_fd=dir_fd)
    try:
        os.chmod(b"/proc/self/fd/%d" % fd, 0o700)
    finally:
        os.close(fd)


def _empty_top(top: int) -> None:
    """Pass over the top directory until it is empty; give up after a pass that got nowhere."""
    names = map(f"{os.urandom(8).hex()}-{{}}".format, count())
    progress = True
    while progress:
        progress = False
        with os.scandir(top) as entries:
            for entry in entries:
                try:
                    _remove_entry(top, entry, names)
                    progress = True
                except FileNotFoundError:
                    progress = True
                except OSError:
                    continue


def _remove_entry(top: int, entry: os.DirEntry[str], names: Iterator[str]) -> None:
    """Remove an entry of `top`; where it is a directory, move what it has of full directories to `top`."""
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.name, dir_fd=top)
        return
    fd = open_private(entry.name, top)
    try:
        with os.scandir(fd) as children:
            for child in children:
                if not child.is_dir(follow_symlinks=False):
                    os.unlink(child.name, dir_fd=fd)
                elif not _is_gone(fd, child.name):
                    _move(fd, child.name, top, next(names))
    finally:
        os.close(fd)
    # A directory that is changed while it is read may hide entries: then it is there in the next pass again.
    _is_gone(top, entry.name)


def _is_gone(dir_fd: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _move(source: int, name: str, dest: int, new_name: str) -> None:
    try:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=dest)
    except PermissionError:
        # To move a directory is to write its "..", which needs the right to write it.
        _grant_owner(name, source)
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=dest)


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
