# SPDX-License-Identifier: Apache-2.0
"""Copies of entries that can't be moved into the live tree themselves, and the metadata of directories.

An entry of a layer goes to the live tree as it is, unless it has other names, special bits, capabilities, access lists
or attributes that only overlayfs may have: then a clean copy goes. A copy has the content, the permission bits, the
mtime and the `user.*` attributes, and belongs to the caller. No attribute that overlayfs would take for a mark of its
own goes to a live tree, where it would hide what is live from the next sandbox. Those that a person's directory has
already stay as they are.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.apply.journal import operation_dir
from unspill.host.dirfd import Copier, digest_of, write_whole
from unspill.host.overlay import ESCAPED, OWN, is_plain_attribute
from unspill.model.operation import Metadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.operation import Attributes, OperationId, Step


SPECIAL_BITS = 0o7000
_PATH_MAX = 4096
_NEVER_APPLIED = ("system.posix_acl_", "security.capability", "trusted.", ESCAPED)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE_NOTE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ACCESS_LIST = "system.posix_acl_access"
# The second is what a directory gives to what is made in it
_ACCESS_LISTS = (_ACCESS_LIST, "system.posix_acl_default")
_NO_ATTRIBUTES = (errno.ENODATA, errno.ENOTSUP)
_copier = Copier()


def is_copy_needed(status: os.stat_result) -> bool:
    """Tell from its lstat whether an entry of a layer can't go to the live tree itself."""
    # Another name of the same file may stay in a layer, and an edit of the live one would change it
    return status.st_nlink > 1 or bool(status.st_mode & SPECIAL_BITS and stat.S_ISREG(status.st_mode))


def drop_marks(layer: bytes, path: bytes, dir_fd: int, name: bytes, modes: OperationModes) -> bool:
    """Take overlayfs's own marks off a file of a layer; tell whether it has attributes that make a copy necessary."""
    full = layer + b"/" + path
    if len(full) >= _PATH_MAX:
        full = b"/proc/self/fd/%d/%s" % (dir_fd, name)
    names = os.listxattr(full, follow_symlinks=False)
    for known in names:
        if known.startswith(_NEVER_APPLIED):
            return True
    for known in names:
        if known.startswith(OWN):
            _remove_mark(full, known, modes)
    return False


def has_command_marks(dir_fd: int, name: bytes) -> bool:
    """Tell whether an entry of a layer has attributes that a command named like overlayfs's own."""
    names = os.listxattr(b"/proc/self/fd/%d/%s" % (dir_fd, name), follow_symlinks=False)
    return any(known.startswith(ESCAPED) for known in names)


def copy_entry(
    source_fd: int,
    source: bytes,
    status: os.stat_result,
    dest_fd: int,
    dest: bytes,
    modes: OperationModes,
    content: bytes | None = None,
) -> os.stat_result:
    """Copy an entry that is no directory, with other `content` if there is some; return the lstat of the copy."""
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source, dir_fd=source_fd), dest, dir_fd=dest_fd)
    elif not stat.S_ISREG(status.st_mode):
        # FIFOs and sockets that a person has in the project: nothing but a name, but theirs
        os.mknod(dest, status.st_mode, dir_fd=dest_fd)
    else:
        _copy_file(source_fd, source, status, dest_fd, dest, modes, content)
    if content is None:
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(dest, ns=times, dir_fd=dest_fd, follow_symlinks=False)
    return os.stat(dest, dir_fd=dest_fd, follow_symlinks=False)


def has_access_list(dir_fd: int, name: bytes) -> bool:
    """Tell whether a file has an access list beyond its permission bits."""
    try:
        return _ACCESS_LIST in os.listxattr(b"/proc/self/fd/%d/%b" % (dir_fd, name), follow_symlinks=False)
    except OSError:
        return False


def copy_access_lists(source_fd: int, source: bytes, dest_fd: int, dest: bytes) -> os.stat_result:
    """Give a copy the access lists of another entry; its own bits stay, as after a chmod. Return its lstat.

    Where the list was lost, the bits of the group would be those of the mask: open to more people than before.
    """
    path = b"/proc/self/fd/%d/%b" % (dest_fd, dest)
    found = os.lstat(path)
    for known in _ACCESS_LISTS:
        try:
            value = os.getxattr(b"/proc/self/fd/%d/%b" % (source_fd, source), known, follow_symlinks=False)
            os.setxattr(path, known, value, follow_symlinks=False)
            os.chmod(path, stat.S_IMODE(found.st_mode))
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
    return os.lstat(path)


def digest_entry(dir_fd: int, name: bytes, status: os.stat_result, modes: OperationModes) -> bytes:
    """Return a digest of a file's content, of a symlink's target, nothing for anything else."""
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(name, dir_fd=dir_fd)[:64]
    if not stat.S_ISREG(status.st_mode):
        return b""
    with _Readable(dir_fd, name, status, modes) as fd:
        return digest_of(fd, status.st_size)


def metadata_of(fd: int) -> Metadata:
    """Return the bits and attributes of a directory; the descriptor may be one for look-ups only."""
    return Metadata(mode=stat.S_IMODE(os.fstat(fd).st_mode), attributes=_attributes(fd))


def has_metadata(fd: int, expected: Metadata) -> bool:
    """Tell whether a directory has these bits and attributes."""
    return metadata_of(fd) == expected


def was_between(fd: int, was: Metadata, becomes: Metadata) -> bool:
    """Tell whether a directory has a mixture of two: a change that was interrupted, done, or not begun."""
    found = metadata_of(fd)
    # For as long as its attributes change, the owner may write it
    if not {found.mode, found.mode & ~0o200} & {was.mode, becomes.mode, was.mode & ~0o200, becomes.mode & ~0o200}:
        return False
    known = {*was.attributes, *becomes.attributes}
    kept = {*was.attributes} & {*becomes.attributes}
    return {*found.attributes} <= known and kept <= {*found.attributes}


def change_metadata(fd: int, was: Metadata, becomes: Metadata) -> None:
    """Give a directory other attributes and bits, in place: it keeps its inode and what is in it."""
    path = _proc_path(fd)
    if was.attributes != becomes.attributes:
        # Attributes can be set by whoever may write the directory, which the owner may be about to lose or get
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if not mode & 0o200:
            os.chmod(path, mode | 0o200)
        wanted = {name: value for name, value in becomes.attributes if is_plain_attribute(name)}
        for name in dict(_attributes(fd)):
            if name not in wanted:
                os.removexattr(path, name)
        for name, value in wanted.items():
            os.setxattr(path, name, value)
        if not mode & 0o200 and mode == becomes.mode:
            os.chmod(path, mode)
    if stat.S_IMODE(os.fstat(fd).st_mode) != becomes.mode:
        os.chmod(path, becomes.mode)


def opened_and_closed(steps: Sequence[Step]) -> set[tuple[int, bytes]]:
    """Return the directories whose metadata is after all steps what it was before, though some step set it."""
    first: dict[tuple[int, bytes], Metadata | None] = {}
    last: dict[tuple[int, bytes], Metadata | None] = {}
    for step in steps:
        if step.action == "set_metadata":
            first.setdefault((step.root, step.path), step.was)
            last[step.root, step.path] = step.becomes
    return {key for key, was in first.items() if was == last[key]}


class OperationModes:
    """More rights for a moment: what an owner may not read or write, and we must, has another mode meanwhile.

    The mode is written down first, one entry at a time, so that a process which dies in between leaves no trace:
    whoever ends its operation gives the entry its mode back.
    """

    __slots__ = ("_note",)

    def __init__(self, state: bytes, operation: OperationId) -> None:
        self._note = _mode_note(state, operation)

    def borrow(self, handle: int, mode: int, rights: int) -> None:
        """Give the owner of the entry behind a descriptor for look-ups more rights."""
        link, found = _proc_path(handle), os.fstat(handle)
        text = b"%d %d %o %b" % (found.st_dev, found.st_ino, mode, os.readlink(link))
        fd = os.open(self._note, _WRITE_NOTE, 0o600)
        try:
            os.write(fd, text)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.chmod(link, mode | rights)

    def give_back(self, handle: int, mode: int) -> None:
        """Give the entry its mode back."""
        os.chmod(_proc_path(handle), mode)
        os.unlink(self._note)


def give_mode_back(state: bytes, operation: OperationId) -> None:
    """Give an entry its mode back that a process has left with another one; before anything of it is moved.

    Raises:
        OSError: the filesystem fails.
    """
    note = _mode_note(state, operation)
    try:
        with open(note, "rb") as file:
            _device, inode, mode, path = file.read().split(b" ", 3)
    except FileNotFoundError:
        return
    except ValueError:
        # The mode was not changed yet
        os.unlink(note)
        return
    try:
        fd = os.open(path, _HANDLE)
    except (FileNotFoundError, NotADirectoryError):
        os.unlink(note)
        return
    try:
        # By the inode alone: on some filesystems the device has another number after a reboot
        if os.fstat(fd).st_ino == int(inode):
            os.chmod(_proc_path(fd), int(mode, 8))
    finally:
        os.close(fd)
    os.unlink(note)


def _mode_note(state: bytes, operation: OperationId) -> bytes:
    return operation_dir(state, operation) + b"/loan"


def _remove_mark(full: bytes, name: str, modes: OperationModes) -> None:
    try:
        os.removexattr(full, name, follow_symlinks=False)
    except PermissionError:
        # The owner of a file without the right to write it may give that right, and take it back
        handle = os.open(full, _HANDLE)
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            modes.borrow(handle, mode, 0o200)
            os.removexattr(full, name, follow_symlinks=False)
            modes.give_back(handle, mode)
        finally:
            os.close(handle)


def _copy_file(
    source_fd: int,
    source: bytes,
    status: os.stat_result,
    dest_fd: int,
    dest: bytes,
    modes: OperationModes,
    content: bytes | None,
) -> None:
    out = os.open(dest, _WRITE, 0o600, dir_fd=dest_fd)
    try:
        with _Readable(source_fd, source, status, modes) as fd:
            if content is None:
                _copier.copy(fd, out, status)
            else:
                write_whole(out, content)
            _copy_attributes(fd, out)
        os.fchmod(out, status.st_mode & 0o777)
    finally:
        os.close(out)


def _copy_attributes(source: int, dest: int) -> None:
    """Copy the attributes that a command can set, but for those that overlayfs would take for its own marks."""
    for name in os.listxattr(source):
        if is_plain_attribute(name):
            os.setxattr(dest, name, os.getxattr(source, name))


class _Readable:
    """A file open for reading, whatever its owner's own rights are; it keeps its mode."""

    def __init__(self, dir_fd: int, name: bytes, status: os.stat_result, modes: OperationModes) -> None:
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o400 or os.geteuid() == 0:
            self._fd = os.open(name, _READ, dir_fd=dir_fd)
            return
        handle = os.open(name, _HANDLE, dir_fd=dir_fd)
        try:
            modes.borrow(handle, mode, 0o400)
            self._fd = os.open(_proc_path(handle), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            modes.give_back(handle, mode)
        finally:
            os.close(handle)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_details: object) -> None:
        os.close(self._fd)


def _attributes(fd: int) -> Attributes:
    path = _proc_path(fd)
    try:
        names = os.listxattr(path)
        return tuple((name, os.getxattr(path, name)) for name in sorted(names) if is_plain_attribute(name))
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES or error.errno == errno.EACCES:
            return ()
        raise


def _proc_path(fd: int) -> bytes:
    # The attribute calls and chmod refuse a descriptor for look-ups; the kernel's link to it leads to that very inode
    return b"/proc/self/fd/%d" % fd
