# SPDX-License-Identifier: Apache-2.0
"""Directory trees that a command filled (links, modes and depth are its choice): walked, removed, copied, opened.

Everything works by descriptor and never follows a link. A `Chain` keeps only the deepest few directories open and opens
the others again through "..", checked to be the same. `remove_tree` moves a directory that is not empty to the top of
the tree and empties it there. So neither PATH_MAX nor the descriptor limit bounds the depth, and nothing recurses.

An entry of a layer that a command closed to its owner is opened for a while. An attribute keeps its mode meanwhile:
after a process that was killed the next one puts it right. A directory has the attribute itself, where overlayfs hides
it. Files are opened one at a time, and the directory that all layers lie in has theirs.

`flatten` copies what an overlay would show into a plain directory. Each directory is visited once, in all trees that
make it up, and only what is seen in the end is copied. The trees are only read, and blocks are shared where they can.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from itertools import count

from unspill.errors import SandboxUnavailable, UsageError
from unspill.host.dirfd import Copier
from unspill.host.overlay import (
    MODE_MARK,
    before_opening,
    half_open,
    is_opaque,
    is_user_attribute,
    list_attributes,
    refuse_foreign,
    shown_name,
    user_attributes,
)
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any


# How many directories a Chain keeps open
WINDOW = 64

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOKUP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

LOCK_TIMEOUT_S = 30.0
# In states that exist: an older unspill wrote it, and may have been killed
_BORROWED = "user.unspill.loan."
_PAUSE_S = 0.002

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE, errno.ENOTSUP, errno.EPERM})


class Chain:
    """A walk through one tree.

    `rights` are the owner's permissions that a directory must have while the walk is in it; they are given back
    when it leaves. 0 is for the live tree, which is never changed.
    """

    __slots__ = ("_fds", "_first_open", "_ids", "_modes", "_names", "_window", "rights")

    def __init__(self, top: bytes, *, rights: int = 0, window: int = WINDOW) -> None:
        self.rights = rights
        self._window = window
        self._first_open = 0
        self._fds: list[int] = []
        self._ids: list[tuple[int, int]] = []
        self._modes: list[int | None] = []
        self._names: list[bytes] = [top]
        self._open(top, None)

    @property
    def fd(self) -> int:
        """The directory that the walk is in."""
        return self._fds[-1]

    @property
    def id(self) -> tuple[int, int]:
        """Device and inode of that directory."""
        return self._ids[-1]

    @property
    def found_mode(self) -> int:
        """Its permissions, as they were before the walk came."""
        given_back = self._modes[-1]
        return stat.S_IMODE(os.fstat(self.fd).st_mode) if given_back is None else given_back

    def path(self, name: bytes = b"") -> bytes:
        """Return the path of an entry, or of the directory itself, from the top of the tree; to be shown."""
        return b"/".join([*self._names[1:], name] if name else self._names[1:]) or b"."

    def enter(self, name: bytes) -> None:
        """Go into a subdirectory.

        Raises:
            FileNotFoundError: There is no such name.
            NotADirectoryError: It is something else, perhaps a link to a directory.
            PermissionError: It is in the live tree and closed to us.
        """
        self._open(name, self.fd)
        self._names.append(name)
        if len(self._fds) - self._first_open > self._window:
            os.close(self._fds[self._first_open])
            self._fds[self._first_open] = -1
            self._first_open += 1

    def give_mode(self, mode: int) -> None:
        """Let the directory have these permissions when the walk leaves it."""
        self._modes[-1] = mode

    def leave(self) -> None:
        """Go up."""
        fd, mode = self._fds.pop(), self._modes.pop()
        del self._ids[-1], self._names[-1]
        try:
            # Before the mode: it may forbid to look up "..".
            if self._fds and self._fds[-1] < 0:
                self._reopen(fd)
        finally:
            try:
                if mode is not None:
                    os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Leave every directory, and so the tree."""
        while self._fds:
            if self._fds[-1] < 0:
                # Only where the live tree was moved under the walk, and there is nothing to give back there.
                self._fds.pop()
            else:
                self.leave()

    def open_file(self, name: bytes) -> tuple[int, os.stat_result]:
        """Open a regular file for reading, and return its status as found; `close_file` takes both back.

        Raises:
            PermissionError: It is in the live tree and closed to us.
            OSError: It is gone, or no regular file.
        """
        found = None
        try:
            fd = _open_quietly(name, self.fd)
        except PermissionError:
            if not self.rights:
                raise
            fd, found = _open_with_rights(name, self.fd, 0o400, _FILE)
        try:
            found = found or os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{name!r} is not a regular file")
        except BaseException:
            os.close(fd)
            raise
        return fd, found

    def close_file(self, fd: int, found: os.stat_result) -> None:
        """Close a file, and give it back the mode that it was found with."""
        try:
            if self.rights and not found.st_mode & 0o400:
                os.fchmod(fd, stat.S_IMODE(found.st_mode))
        finally:
            os.close(fd)

    def _open(self, name: bytes, parent: int | None) -> None:
        found = None
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=parent)
        except PermissionError:
            if not self.rights:
                raise
            fd, found = _open_with_rights(name, parent, self.rights, _DIRECTORY)
        try:
            found = found or os.fstat(fd)
            lacking = self.rights & ~found.st_mode
            if lacking:
                os.fchmod(fd, stat.S_IMODE(found.st_mode) | self.rights)
        except BaseException:
            os.close(fd)
            raise
        self._fds.append(fd)
        self._ids.append((found.st_dev, found.st_ino))
        self._modes.append(stat.S_IMODE(found.st_mode) if lacking else None)

    def _reopen(self, child: int) -> None:
        fd = os.open(b"..", _DIRECTORY, dir_fd=child)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self._ids[-1]:
            os.close(fd)
            raise SandboxUnavailable("A directory was moved while unspill read it.", remedy="Try again.")
        self._fds[-1] = fd
        self._first_open = len(self._fds) - 1


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


def empty_tree(path: bytes) -> bool:
    """Remove all that is in a directory, and keep the directory; return False if something resists.

    Raises:
        NotADirectoryError: it is something else, perhaps a link to a directory.
    """
    top = open_private(path)
    try:
        _empty_top(top)
        with os.scandir(top) as left:
            return next(left, None) is None
    finally:
        os.close(top)


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


def duplicate(source: bytes, source_fd: int | None, name: bytes, dest_fd: int) -> None:
    """Copy an entry that is no directory to a new name, where a hard link can't be had: content and metadata.

    Both names may count from directory descriptors.

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


def copy_metadata(source: int, dest: int, status: os.stat_result) -> None:
    """Give an open file the attributes of another one, and the mode and times of `status`.

    The attributes that overlayfs keeps for itself stay behind.
    """
    mode = stat.S_IMODE(status.st_mode)
    names = [name for name in list_attributes(source) if is_user_attribute(name)]
    if names and not mode & 0o400:
        # Attributes are only for those who may read the file now, unlike its content.
        os.fchmod(source, mode | 0o400)
    try:
        for name, value in user_attributes(source, names).items():
            os.setxattr(dest, name, value)
    finally:
        if names and not mode & 0o400:
            os.fchmod(source, mode)
    os.fchmod(dest, mode)
    os.utime(dest, ns=(status.st_atime_ns, status.st_mtime_ns))


def _open_quietly(name: bytes, parent: int) -> int:
    try:
        return os.open(name, _FILE | os.O_NOATIME, dir_fd=parent)
    except PermissionError:
        # Not to touch the time of access is a right of the owner only.
        return os.open(name, _FILE, dir_fd=parent)


def _open_with_rights(name: bytes, parent: int | None, rights: int, flags: int) -> tuple[int, os.stat_result]:
    """Open what its owner may not open, through a descriptor that needs no right; return it as it was found."""
    path_fd = os.open(name, _LOOKUP, dir_fd=parent)
    try:
        found = os.fstat(path_fd)
        path = b"/proc/self/fd/%d" % path_fd
        os.chmod(path, stat.S_IMODE(found.st_mode) | rights)
        try:
            return os.open(path, flags & ~os.O_NOFOLLOW), found
        except BaseException:
            os.chmod(path, stat.S_IMODE(found.st_mode))
            raise
    finally:
        os.close(path_fd)


def _grant_owner(name: bytes | str, dir_fd: int | None) -> None:
    # chmod by name follows links. A descriptor that only names the directory does not need any right on it,
    # and the kernel's link to it leads to that very directory.
    fd = os.open(name, _LOOKUP | os.O_DIRECTORY, dir_fd=dir_fd)
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


def _copy_file(source: bytes, source_fd: int | None, name: bytes, dest_fd: int, status: os.stat_result) -> None:
    from_fd = _open_source(source, source_fd)
    try:
        to_fd = os.open(name, _NEW, 0o600, dir_fd=dest_fd)
        try:
            Copier().copy(from_fd, to_fd, status)
            copy_metadata(from_fd, to_fd, status)
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


def _open_source(name: bytes, parent: int | None) -> int:
    try:
        return os.open(name, _FILE, dir_fd=parent)
    except PermissionError:
        # Its owner closed it to themselves; that right is taken back as soon as it is open.
        fd, found = _open_with_rights(name, parent, 0o400, _FILE)
    try:
        os.fchmod(fd, stat.S_IMODE(found.st_mode))
    except BaseException:
        os.close(fd)
        raise
    return fd


class BorrowedModes:
    """The right to change modes for a while, in one layer and all that lie beside it; one process has it at a time.

    Otherwise scans at the same time would take each other's modes for those of the command.
    """

    __slots__ = ("_parent",)

    def __init__(self) -> None:
        # The directory that the layers lie in
        self._parent = -1

    def lock(self, upper: bytes) -> None:
        """Wait until nobody else has this right, then give files their modes back that a dead process could not.

        After `LOCK_TIMEOUT_S` seconds it goes on all the same: a wrong mode is better than a command that never ends.
        """
        if self._parent < 0:
            self._parent = os.open(os.path.dirname(upper), _DIRECTORY)
            _wait_for_lock(self._parent)
            self.restore_files()

    def lock_if_borrowed(self, upper: bytes) -> None:
        """Lock where somebody has a file open to its owner, in this layer or in one beside it."""
        if self._parent < 0 and _borrowed(os.path.dirname(upper)):
            self.lock(upper)

    def open_file(self, handle: int, mode: int) -> None:
        """Let the owner of a file read it; `handle` is a descriptor for look-ups."""
        path = b"/proc/self/fd/%d" % handle
        try:
            os.setxattr(self._parent, _name_of(handle), b"%o %b" % (mode, os.readlink(path)))
        except OSError as error:
            # Too long a path, or no attributes here: if this process dies now, the owner can read that file
            if error.errno not in (errno.ENOTSUP, errno.ENAMETOOLONG, errno.E2BIG):
                raise
        os.chmod(path, mode | 0o400)

    def restore_file(self, handle: int, mode: int) -> None:
        """Give a file its mode back."""
        os.chmod(b"/proc/self/fd/%d" % handle, mode)
        _forget(self._parent, _name_of(handle))

    def restore_files(self) -> None:
        """Give all files their modes back that this process, or one that died, has not."""
        for name in _borrowed(self._parent) if self._parent >= 0 else ():
            mode, path = os.getxattr(self._parent, name).split(b" ", 1)
            try:
                handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                _forget(self._parent, name)
                continue
            try:
                if _name_of(handle) == name:
                    os.chmod(b"/proc/self/fd/%d" % handle, int(mode, 8))
                _forget(self._parent, name)
            finally:
                os.close(handle)

    def close(self) -> None:
        """Let others have the right."""
        if self._parent >= 0:
            fd, self._parent = self._parent, -1
            os.close(fd)


def open_to_owner(path: bytes, mode: int) -> None:
    """Let the owner of a directory read, search and change it; `mode` is what it has now."""
    if _is_marked(path):
        # Whoever did that died before the last step
        os.chmod(path, mode | 0o700)
        return
    mode = before_opening(mode)
    # An attribute can't be set on what its owner can't write, and nobody may find it open without the mark.
    os.chmod(path, half_open(mode))
    try:
        os.setxattr(path, MODE_MARK, b"%o" % mode)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            os.chmod(path, mode)
            raise
    os.chmod(path, mode | 0o700)


def close_again(fd: int, mode: int) -> None:
    """Give a directory its mode back."""
    if MODE_MARK in os.listxattr(fd):
        os.fchmod(fd, half_open(mode))
        os.removexattr(fd, MODE_MARK)
    os.fchmod(fd, mode)


def open_closed(path: bytes) -> int:
    """Return a descriptor of a directory of ours, also where a command has closed it to its owner."""
    try:
        return os.open(path, _DIRECTORY)
    except PermissionError:
        open_to_owner(path, stat.S_IMODE(os.lstat(path).st_mode))
        return os.open(path, _DIRECTORY)


def unlink_in_closed(path: bytes) -> None:
    """Remove a file from a layer, also where a command has closed its directory to its owner.

    Raises:
        OSError: it can't be removed.
    """
    above = os.path.dirname(path)
    mode = stat.S_IMODE(os.lstat(above).st_mode)
    if mode & 0o300 == 0o300:
        os.unlink(path)
        return
    open_to_owner(above, mode)
    fd = os.open(above, _DIRECTORY)
    try:
        os.unlink(path)
    finally:
        close_again(fd, mode)
        os.close(fd)


def true_mode(directory: bytes | int, mode: int) -> int:
    """Return the permissions that a command left on a directory; `mode` is what it has, or had when it was opened."""
    try:
        return int(os.getxattr(directory, MODE_MARK), 8)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EACCES):
            return before_opening(mode)
        raise


def with_true_mode(status: os.stat_result, directory: bytes | int) -> os.stat_result:
    """Return the status of a directory with the permissions that the command left on it."""
    mode = stat.S_IFMT(status.st_mode) | true_mode(directory, stat.S_IMODE(status.st_mode))
    reduced: Any = status.__reduce__()
    kind, (values, named) = reduced
    result: os.stat_result = kind((mode, *values[1:]), named)
    return result


def _wait_for_lock(fd: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            break


def _name_of(handle: int) -> str:
    """Return the attribute that keeps the mode of a file."""
    return f"{_BORROWED}{os.fstat(handle).st_ino}"


def _borrowed(parent: int | bytes) -> list[str]:
    try:
        return [name for name in os.listxattr(parent) if name.startswith(_BORROWED)]
    except OSError:
        return []


def _forget(parent: int, name: str) -> None:
    try:
        os.removexattr(parent, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise


def _is_marked(path: bytes) -> bool:
    try:
        return MODE_MARK in os.listxattr(path)
    except OSError:
        return False


def flatten(base: bytes, uppers: Sequence[bytes], dest: bytes) -> int:
    """Copy what an overlay of `base` and the sealed `uppers`, the oldest first, would show into an empty `dest`.

    Copied are type, permissions, content, link target, `user.*` attributes as far as there is room for them, and mtime.
    Hard links become files of their own and devices are left out. What can't be read in `base` becomes an empty entry
    of mode 000; the number of these is returned.

    Raises:
        OSError: the copy can't be made; `dest` is to be thrown away.
        SandboxUnavailable: a layer has marks that unspill never makes.
        UsageError: `dest` lies in `base`.
    """
    # The base needs two: in a directory that can be listed but not searched ".." can't be looked up.
    window = max(1, WINDOW // (len(uppers) + 1))
    opened: list[Chain] = []
    try:
        for path in reversed(uppers):
            opened.append(Chain(path, rights=0o500, window=window))
        opened.append(Chain(base))
        trees = [*opened]
        opened.append(Chain(dest, rights=0o700))
        work = _Copy(opened[-1], dest)
        work.walk(trees)
        return work.unreadable
    finally:
        for chain in opened:
            chain.close()


class _Copy:
    """One copy in the making."""

    def __init__(self, copy: Chain, dest: bytes) -> None:
        self.copy = copy
        self.dest, self.dest_id = dest, copy.id
        self.copier = Copier()
        self.unreadable = 0

    def walk(self, trees: list[Chain]) -> None:
        frames = [_Directory(trees)]
        self._arrive(frames[0])
        while frames:
            frame = frames[-1]
            if frame.todo:
                frames.append(self._descend(*frame.todo.pop()))
            else:
                frames.pop()
                self._depart(frame, is_top=not frames)

    def _descend(self, name: bytes, trees: list[Chain]) -> _Directory:
        """Go into a subdirectory in those trees that show through, and make its copy."""
        entered: list[Chain] = []
        for tree in trees:
            try:
                tree.enter(name)
            except PermissionError:
                self.unreadable += 1
                break
            entered.append(tree)
            if tree.id == self.dest_id:
                raise UsageError(
                    f"{show(self.dest)} is inside the directory that is copied into it.",
                    remedy="Choose a place outside that directory with `rootfs_dir` in your configuration.",
                )
            if tree.rights and is_opaque(tree.fd):
                break
        os.mkdir(name, 0o700, dir_fd=self.copy.fd)
        self.copy.enter(name)
        child = _Directory(entered)
        self._arrive(child)
        return child

    def _arrive(self, frame: _Directory) -> None:
        """Give the copy of a directory its metadata, and copy all in it that is no directory."""
        if not frame.trees:
            self.copy.give_mode(0)
            return
        top = frame.trees[0]
        frame.mtime_ns = os.fstat(top.fd).st_mtime_ns
        self.copy.give_mode(top.found_mode)
        _copy_attributes(top, top.fd, self.copy.fd, b"")
        leaves, directories = _list_shown(frame.trees)
        frame.todo = list(directories.items())
        for tree, name, is_file in leaves:
            if is_file:
                self._copy_file(tree, name)
            else:
                self._copy_other(tree, name)

    def _depart(self, frame: _Directory, *, is_top: bool) -> None:
        if frame.mtime_ns is not None:
            os.utime(self.copy.fd, ns=(frame.mtime_ns, frame.mtime_ns))
        if not is_top:
            self.copy.leave()
            for tree in frame.trees:
                tree.leave()

    def _copy_file(self, tree: Chain, name: bytes) -> None:
        try:
            source, found = tree.open_file(name)
        except PermissionError:
            self._make_stand_in(name)
            return
        try:
            dest = os.open(name, _NEW, 0o600, dir_fd=self.copy.fd)
            try:
                self.copier.copy(source, dest, found)
                _copy_attributes(tree, source, dest, name)
                os.fchmod(dest, stat.S_IMODE(found.st_mode))
                os.utime(dest, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(dest)
        finally:
            tree.close_file(source, found)

    def _copy_other(self, tree: Chain, name: bytes) -> None:
        """Copy a symlink, a FIFO or a socket; a deletion is nothing to copy."""
        try:
            status = os.stat(name, dir_fd=tree.fd, follow_symlinks=False)
        except PermissionError:
            self._make_stand_in(name)
            return
        match stat.S_IFMT(status.st_mode):
            case stat.S_IFLNK:
                os.symlink(os.readlink(name, dir_fd=tree.fd), name, dir_fd=self.copy.fd)
            case stat.S_IFIFO | stat.S_IFSOCK:
                self._make_node(name, status.st_mode)
            case stat.S_IFCHR | stat.S_IFBLK:
                return
            case _:
                raise OSError(errno.EBUSY, "changed while unspill copied it", tree.path(name))
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=self.copy.fd, follow_symlinks=False)

    def _make_node(self, name: bytes, mode: int) -> None:
        os.mknod(name, mode, dir_fd=self.copy.fd)
        # What the umask took away. Nobody else can write here yet, and no link has this name.
        os.chmod(name, stat.S_IMODE(mode), dir_fd=self.copy.fd)

    def _make_stand_in(self, name: bytes) -> None:
        self.unreadable += 1
        os.close(os.open(name, _NEW, 0, dir_fd=self.copy.fd))


class _Directory:
    """A directory that is being copied. `trees` are the walks that are in it, the topmost first."""

    __slots__ = ("mtime_ns", "todo", "trees")

    def __init__(self, trees: list[Chain]) -> None:
        self.trees = trees
        self.mtime_ns: int | None = None
        self.todo: list[tuple[bytes, list[Chain]]] = []


def _copy_attributes(tree: Chain, source: int, dest: int, name: bytes) -> None:
    names = list_attributes(source)
    if tree.rights:
        refuse_foreign(names, tree.path(name))
    for stored in names:
        shown = shown_name(stored)
        if shown is not None:
            try:
                os.setxattr(dest, shown, os.getxattr(source, stored))
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise


def _list_shown(trees: list[Chain]) -> tuple[list[tuple[Chain, bytes, bool]], dict[bytes, list[Chain]]]:
    """Find what a directory shows that several trees make up, the topmost first.

    Return the entries that are no directories, each with its tree and whether it is a file; and by name of each
    subdirectory the trees that have it, down to the first one in which that name is something else.
    """
    leaves: list[tuple[Chain, bytes, bool]] = []
    directories: dict[bytes, list[Chain]] = {}
    settled: set[bytes] = set()
    for tree in trees:
        with os.scandir(tree.fd) as entries:
            for entry in entries:
                # Names come as str from a descriptor; bytes would need a path.
                name = os.fsencode(entry.name)
                if name in settled:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    directories.setdefault(name, []).append(tree)
                    continue
                settled.add(name)
                if name not in directories:
                    leaves.append((tree, name, entry.is_file(follow_symlinks=False)))
    return leaves, directories
