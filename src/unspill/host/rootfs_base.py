# SPDX-License-Identifier: Apache-2.0
"""Looks at a rootfs as far as a plan has to know it: what is at its top, its shell, its mount points.

Nothing is read through a link of the tree but as if the tree were the root, and nothing is changed.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsError
from unspill.host.dirfd import find_inside
from unspill.model.rootfs import RootfsBase

MOST_AT_TOP = 256
SHELLS = (b"/bin/bash", b"/usr/bin/bash", b"/bin/sh")
_POINTS = (b"/var/tmp", b"/etc/resolv.conf", b"/etc/passwd")
_MOST_PASSWD = 64 * 1024
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def look_at_rootfs(tree: bytes, name: str, uid: int, *, is_own: bool) -> RootfsBase:
    """Return what a plan has to know of the tree. `is_own`: it was unpacked by us.

    Raises:
        RootfsError: it is no directory, or has no shell.
    """
    try:
        fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RootfsError(f"The rootfs {name} can't be used: {error.strerror}.") from None
    try:
        directories, links = look_at_top(fd, name)
        empty = tuple(top for top in directories if _is_empty(fd, top[1:]))
        shell = next((path for path in SHELLS if _is_program(fd, path)), None)
        # Whatever runs texts, it is this one that goes to a working directory
        if shell is None or not _is_program(fd, b"/bin/sh"):
            raise RootfsError(f"The rootfs {name} has no /bin/sh.", remedy="Choose another one: `unspill rootfs use`.")
        points = tuple(point for point in _POINTS if _is_point(fd, point))
        return RootfsBase(
            name=name,
            tree=tree,
            directories=directories,
            empty=empty,
            links=links,
            shell=shell,
            points=points,
            passwd=_passwd_without(fd, uid) if b"/etc/passwd" in points else b"",
            is_own=is_own,
        )
    finally:
        os.close(fd)


def look_at_top(fd: int, name: str) -> tuple[tuple[bytes, ...], tuple[tuple[bytes, bytes], ...]]:
    """Return the directories and the links at the top of a tree, as paths inside it.

    Raises:
        RootfsError: it has too many entries there, or is being removed.
    """
    directories: list[bytes] = []
    links: list[tuple[bytes, bytes]] = []
    entries = sorted(os.listdir(fd))
    if len(entries) > MOST_AT_TOP:
        raise RootfsError(
            f"The rootfs {name} has more than {MOST_AT_TOP} entries at its top.",
            remedy="This is no root file system: one has some twenty directories there.",
        )
    for entry in entries:
        raw = os.fsencode(entry)
        try:
            mode = os.stat(raw, dir_fd=fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            raise RootfsError(f"The rootfs {name} is being removed.") from None
        if stat.S_ISDIR(mode):
            directories.append(b"/" + raw)
        elif stat.S_ISLNK(mode):
            links.append((b"/" + raw, os.readlink(raw, dir_fd=fd)))
    return tuple(directories), tuple(links)


def _is_empty(fd: int, name: bytes) -> bool:
    try:
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return False
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    finally:
        os.close(directory)


def _is_program(fd: int, path: bytes) -> bool:
    found = find_inside(fd, path)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def _is_point(fd: int, path: bytes) -> bool:
    """Tell whether something can be mounted there: a directory, or a plain file in /etc, and no link on the way."""
    _root, top, name = path.split(b"/")
    try:
        above = os.open(top, _DIRECTORY, dir_fd=fd)
    except OSError:
        return False
    try:
        mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    except OSError:
        return False
    finally:
        os.close(above)
    return stat.S_ISREG(mode) if top == b"etc" else stat.S_ISDIR(mode)


def _passwd_without(fd: int, uid: int) -> bytes:
    """Return the tree's /etc/passwd if a line for the caller can be added to it, nothing if there is one already."""
    above = os.open(b"etc", _DIRECTORY, dir_fd=fd)
    try:
        file = os.open(b"passwd", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(above)
    try:
        text = os.read(file, _MOST_PASSWD)
    finally:
        os.close(file)
    if not text or len(text) == _MOST_PASSWD:
        return b""
    known = any(line.split(b":")[2:3] == [b"%d" % uid] for line in text.splitlines())
    return b"" if known else text.rstrip(b"\n") + b"\n"
