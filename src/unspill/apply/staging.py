# SPDX-License-Identifier: Apache-2.0
"""Copies of entries, where an entry itself must not or can't change hands.

An entry of a layer goes to the live tree as it is, unless it has other names, special bits, capabilities, access lists
or attributes that only overlayfs may have: then a clean copy goes. A copy has the content, the permission bits, the
mtime and the `user.*` attributes, and belongs to the caller. No attribute that overlayfs would take for a mark of its
own goes to a live tree: there, below the next sandbox, it would hide what is live.
"""

from __future__ import annotations

import os
import stat

from unspill.host.content import Copier, digest_of
from unspill.host.overlay import ESCAPED, OWN, is_plain_attribute
from unspill.host.writing import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.apply.loans import Loans

SPECIAL_BITS = 0o7000
PATH_MAX = 4096

_NEVER_APPLIED = ("system.posix_acl_", "security.capability", "trusted.", ESCAPED)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_copier = Copier()


def is_copy_needed(status: os.stat_result) -> bool:
    """Tell from its lstat whether an entry of a layer can't go to the live tree itself."""
    # Another name of the same file may stay in a layer, and an edit of the live one would change it
    return status.st_nlink > 1 or bool(status.st_mode & SPECIAL_BITS and stat.S_ISREG(status.st_mode))


def drop_marks(layer: bytes, path: bytes, dir_fd: int, name: bytes, loans: Loans) -> bool:
    """Take overlayfs's own marks off a file of a layer; tell whether it has attributes that make a copy necessary."""
    full = layer + b"/" + path
    if len(full) >= PATH_MAX:
        full = b"/proc/self/fd/%d/%s" % (dir_fd, name)
    names = os.listxattr(full, follow_symlinks=False)
    for known in names:
        if known.startswith(_NEVER_APPLIED):
            return True
    for known in names:
        if known.startswith(OWN):
            _remove_mark(full, known, loans)
    return False


def _remove_mark(full: bytes, name: str, loans: Loans) -> None:
    try:
        os.removexattr(full, name, follow_symlinks=False)
    except PermissionError:
        # The owner of a file without the right to write it may give that right, and take it back
        handle = os.open(full, _HANDLE)
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            loans.lend(handle, mode, 0o200)
            os.removexattr(full, name, follow_symlinks=False)
            loans.give_back(handle, mode)
        finally:
            os.close(handle)


def copy_entry(
    source_fd: int,
    source: bytes,
    status: os.stat_result,
    dest_fd: int,
    dest: bytes,
    loans: Loans,
    content: bytes | None = None,
) -> os.stat_result:
    """Copy an entry that is no directory, with other `content` if there is some; return the lstat of the copy."""
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source, dir_fd=source_fd), dest, dir_fd=dest_fd)
    elif not stat.S_ISREG(status.st_mode):
        # FIFOs and sockets that a person has in the project: nothing but a name, but theirs
        os.mknod(dest, status.st_mode, dir_fd=dest_fd)
    else:
        _copy_file(source_fd, source, status, dest_fd, dest, loans, content)
    if content is None:
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(dest, ns=times, dir_fd=dest_fd, follow_symlinks=False)
    return os.stat(dest, dir_fd=dest_fd, follow_symlinks=False)


def _copy_file(
    source_fd: int,
    source: bytes,
    status: os.stat_result,
    dest_fd: int,
    dest: bytes,
    loans: Loans,
    content: bytes | None,
) -> None:
    out = os.open(dest, _WRITE, 0o600, dir_fd=dest_fd)
    try:
        with _Readable(source_fd, source, status, loans) as fd:
            if content is None:
                _copier.copy(fd, out, status)
            else:
                write_whole(out, content)
            copy_attributes(fd, out)
        os.fchmod(out, status.st_mode & 0o777)
    finally:
        os.close(out)


def copy_attributes(source: int, dest: int) -> None:
    """Copy the attributes that a command can set, but for those that overlayfs would take for its own marks."""
    for name in os.listxattr(source):
        if is_plain_attribute(name):
            os.setxattr(dest, name, os.getxattr(source, name))


def has_command_marks(dir_fd: int, name: bytes) -> bool:
    """Tell whether an entry of a layer has attributes that a command named like overlayfs's own."""
    names = os.listxattr(b"/proc/self/fd/%d/%s" % (dir_fd, name), follow_symlinks=False)
    return any(known.startswith(ESCAPED) for known in names)


def digest_entry(dir_fd: int, name: bytes, status: os.stat_result, loans: Loans) -> bytes:
    """Return a digest of a file's content, of a symlink's target, nothing for anything else."""
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(name, dir_fd=dir_fd)[:64]
    if not stat.S_ISREG(status.st_mode):
        return b""
    with _Readable(dir_fd, name, status, loans) as fd:
        return digest_of(fd, status.st_size)


class _Readable:
    """A file open for reading, whatever its owner's own rights are; it keeps its mode."""

    def __init__(self, dir_fd: int, name: bytes, status: os.stat_result, loans: Loans) -> None:
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o400 or os.geteuid() == 0:
            self._fd = os.open(name, _READ, dir_fd=dir_fd)
            return
        handle = os.open(name, _HANDLE, dir_fd=dir_fd)
        try:
            loans.lend(handle, mode, 0o400)
            self._fd = os.open(b"/proc/self/fd/%d" % handle, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            loans.give_back(handle, mode)
        finally:
            os.close(handle)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_details: object) -> None:
        os.close(self._fd)
