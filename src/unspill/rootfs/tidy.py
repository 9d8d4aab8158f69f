# SPDX-License-Identifier: Apache-2.0
"""Makes a filled staging tree into one that may be kept: what is in it can be read, and harms nobody outside.

Everything in it belongs to the caller on the host. So a setuid bit that a package set would make anybody who can
reach the file the caller, and in a directory that all may write anybody could plant something. Extended attributes go
too: some of them make an overlay show something else than what is there.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import RootfsUnsafe
from unspill.rootfs.attributes import is_removable, list_attributes
from unspill.rootfs.digest import DEEPEST
from unspill.rootfs.layout import DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_SETID = stat.S_ISUID | stat.S_ISGID


def tidy_tree(tree: bytes) -> tuple[tuple[str, int], ...]:
    """Make all of it readable by its owner, take away what may not be in it; return what was taken, by kind.

    Directories and files keep their modes but for setuid and setgid bits and others' right to write. Devices, fifos
    and sockets go: in the lower directory of an overlay some devices even hide things.

    Raises:
        RootfsUnsafe: it is deeper than any real one.
        OSError: something resists.
    """
    taken: dict[str, int] = {}
    _strip(tree, os.lstat(tree).st_mode, taken)
    _set_mode(tree, None, os.lstat(tree).st_mode, 0o500, taken)
    fd = os.open(tree, DIRECTORY)
    try:
        _tidy(fd, 0, taken)
    finally:
        os.close(fd)
    return tuple(sorted(taken.items()))


def _tidy(fd: int, depth: int, taken: dict[str, int]) -> None:
    if depth > DEEPEST:
        raise RootfsUnsafe(f"It is more than {DEEPEST} directories deep")
    with os.scandir(fd) as found:
        entries = list(found)
    for entry in entries:
        name = os.fsencode(entry.name)
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        _strip(b"/proc/self/fd/%d/%s" % (fd, name), mode, taken)
        if stat.S_ISLNK(mode):
            continue
        if stat.S_ISDIR(mode):
            _set_mode(name, fd, mode, 0o500, taken)
            inner = os.open(name, DIRECTORY, dir_fd=fd)
            try:
                _tidy(inner, depth + 1, taken)
            finally:
                os.close(inner)
        elif stat.S_ISREG(mode):
            _set_mode(name, fd, mode, 0o400, taken)
        else:
            _take_away(name, fd, mode, taken)


def _strip(path: bytes, mode: int, taken: dict[str, int]) -> None:
    """Remove the extended attributes of an entry; those that the host's own security module gives stay."""
    names = [name for name in list_attributes(path) if is_removable(name)]
    if not names:
        return
    try:
        _remove_attributes(path, names)
    except PermissionError:
        # Those of users need the right to write
        if stat.S_ISLNK(mode):
            raise
        os.chmod(path, stat.S_IMODE(mode) | 0o600)
        try:
            _remove_attributes(path, names)
        finally:
            os.chmod(path, stat.S_IMODE(mode))
    taken["xattr"] = taken.get("xattr", 0) + 1


def _remove_attributes(path: bytes, names: list[str]) -> None:
    for name in names:
        try:
            os.removexattr(path, name, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise


def _set_mode(name: bytes, fd: int | None, mode: int, owner: int, taken: dict[str, int]) -> None:
    old = stat.S_IMODE(mode)
    new = (old | owner) & ~(_SETID | stat.S_IWGRP | stat.S_IWOTH)
    if new == old:
        return
    # chmod by name follows links; the kernel's link to a descriptor leads to that very entry
    handle = os.open(name, _HANDLE, dir_fd=fd)
    try:
        os.chmod(b"/proc/self/fd/%d" % handle, new)
    finally:
        os.close(handle)
    if old & _SETID and stat.S_ISREG(mode):
        taken["setuid"] = taken.get("setuid", 0) + 1


def _take_away(name: bytes, fd: int, mode: int, taken: dict[str, int]) -> None:
    kind = "fifo" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    change_within(fd, lambda: os.unlink(name, dir_fd=fd))
    taken[kind] = taken.get(kind, 0) + 1


def change_within(fd: int, change: Callable[[], object]) -> None:
    """Change entries of an open directory of ours, which its owner may be forbidden; its mode stays what it is."""
    try:
        change()
    except PermissionError:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.fchmod(fd, mode | 0o700)
        try:
            change()
        finally:
            os.fchmod(fd, mode)
