# SPDX-License-Identifier: Apache-2.0
"""Where things lie below the rootfs directory, who may own it, and how its errors are told.

Whoever can write there decides what every sandbox runs, so a directory of another person is never used; one of root
is (a rootfs that was baked into a machine), though an ordinary user can build nothing in it.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import RootfsError, RootfsUnsafe
from unspill.host.trusted import find_changeable
from unspill.policy.rootfs_wish import is_name

ROOTS = b"roots"
STAGING = b"staging"
DOWNLOADS = b"downloads"
LOCKS = b"locks"
CURRENT = b"current"
MANIFEST = b"manifest.json"
TREE = b"tree"
SCRATCH = b"scratch"

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def shown(path: bytes) -> str:
    """Return a path for a message."""
    return path.decode("utf-8", "backslashreplace")


def checked_name(text: str) -> str:
    """Return a name that may be one; parts of it can come from a server.

    Raises:
        RootfsUnsafe: it may not.
    """
    if not is_name(text):
        raise RootfsUnsafe(
            f"{text[:80]!r} can't be the name of a rootfs",
            remedy="Use letters, digits and . - _ + ~ only, at most 180, with a letter or digit first.",
        )
    return text


def is_trusted(found: os.stat_result) -> bool:
    """Tell whether only the caller and root can change an entry."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_directory(path: bytes) -> bool:
    """Tell whether there is a directory, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def check_trusted(path: bytes) -> bool:
    """Tell whether there is a directory, which then is one that only the caller and root can change.

    Raises:
        RootfsUnsafe: it is another person's, others can write in it, or it is no directory.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise failed(error, path) from error
    if not stat.S_ISDIR(found.st_mode):
        raise RootfsUnsafe(f"{shown(path)} is no directory", remedy="Move it away, or choose another rootfs directory.")
    if not is_trusted(found):
        whose = "can be written by others" if found.st_uid in (0, os.geteuid()) else "belongs to somebody else"
        raise _others(path, whose)
    return True


def check_all_trusted(directory: bytes) -> bool:
    """Tell whether there is a rootfs directory: neither it nor one above it can be changed or replaced by others.

    Raises:
        RootfsUnsafe: others could.
    """
    if not check_trusted(directory):
        return False
    found = find_changeable(directory)
    if found is not None:
        raise _others(found.path, found.reason)
    return True


def _others(path: bytes, whose: str) -> RootfsUnsafe:
    return RootfsUnsafe(
        f"{shown(path)} {whose}, who could put a rootfs of theirs there",
        remedy=f"chmod go-w {shown(path)}, have it owned by yourself or root, or choose another rootfs directory.",
    )


def make_layout(directory: bytes) -> None:
    """Make the rootfs directory and what lies in it.

    Raises:
        RootfsUnsafe: a part of it is not the caller's or root's alone.
        RootfsError: it can't be made, or only be read.
    """
    try:
        if not check_all_trusted(directory):
            os.makedirs(os.path.dirname(directory), _own_mode(), exist_ok=True)
            _make(directory, _own_mode())
            check_all_trusted(directory)
        for name, mode in ((ROOTS, 0o755), (STAGING, 0o700), (DOWNLOADS, 0o700), (LOCKS, 0o700)):
            path = os.path.join(directory, name)
            if not check_trusted(path):
                _make(path, mode)
    except OSError as error:
        if error.errno in _READ_ONLY and not os.path.lexists(directory):
            raise RootfsError(
                f"{shown(directory)} does not exist, and can't be made: {error.strerror}",
                remedy="Make it, or name a directory of your own: ROOTFS_DIR, or `rootfs_dir` in the configuration.",
            ) from error
        raise failed(error, directory) from error
    if not os.access(os.path.join(directory, LOCKS), os.W_OK):
        raise read_only(directory)


def _own_mode() -> int:
    # What root bakes is for the users of the machine; a person's own is nobody else's business
    return 0o755 if os.geteuid() == 0 else 0o700


def _make(path: bytes, mode: int) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        check_trusted(path)
        return
    # The umask may have taken more
    os.chmod(path, mode)


def read_only(directory: bytes) -> RootfsError:
    """Return the error that nothing can be made here."""
    return RootfsError(
        f"{shown(directory)} can only be read: what is ready there can be used, but nothing made or removed",
        remedy="Do it as its owner, or name a directory of your own: ROOTFS_DIR, or `rootfs_dir` in the configuration.",
    )


def failed(error: OSError, directory: bytes) -> RootfsError:
    """Return our error for one of the system's."""
    if error.errno in _FULL:
        return RootfsError(
            f"There is no space left where rootfs are kept ({shown(directory)})",
            remedy="Free some: `unspill rootfs remove --unused`; or choose another rootfs directory.",
        )
    if error.errno in _READ_ONLY:
        return read_only(directory)
    name = error.filename
    where = shown(os.fsencode(name)) if isinstance(name, (str, bytes)) else shown(directory)
    return RootfsError(
        f"{where}: {error.strerror or error}", remedy="Mend that, and try again; nothing half-built is used."
    )
