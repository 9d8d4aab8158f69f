# SPDX-License-Identifier: Apache-2.0
"""Copy what an overlay would show, a directory and the layers over it, into a plain directory.

Each directory is visited once, in all trees that make it up, and only what is seen in the end is copied. The trees are
only read. Blocks are shared with the originals where the filesystem can.

MERGED
[chain] Where a walk through one tree is: the directories from its top down to the one it is in, by descriptor.

Never follows a link. Only the deepest few stay open: the others are opened again through "..", and checked to be the
same, so neither PATH_MAX nor the descriptor limit bounds the depth, and going up costs the same everywhere.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, closing

from unspill.errors import SandboxUnavailable, UsageError
from unspill.host.content import Copier
from unspill.host.overlay import (
    is_opaque,
    list_attributes,
    refuse_foreign,
    shown_name,
)
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


OPEN_AT_MOST = 64

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Chain:
    """A walk through one tree.

    `rights` are the owner's permissions that a directory must have while the walk is in it; they are given back
    when it leaves. 0 is for the live tree, which is never changed.
    """

    __slots__ = ("_fds", "_first_open", "_ids", "_modes", "_names", "_window", "rights")

    def __init__(self, top: bytes, *, rights: int = 0, window: int = OPEN_AT_MOST) -> None:
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
            fd, found = _open_closed(name, self.fd, 0o400, _FILE)
        try:
            found = found or os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{name!r} is no regular file")
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
            fd = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=parent)
        except PermissionError:
            if not self.rights:
                raise
            fd, found = _open_closed(name, parent, self.rights, os.O_RDONLY | _DIRECTORY)
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
        fd = os.open(b"..", os.O_RDONLY | _DIRECTORY, dir_fd=child)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self._ids[-1]:
            os.close(fd)
            raise SandboxUnavailable("A directory was moved while it was being read.", remedy="Try again.")
        self._fds[-1] = fd
        self._first_open = len(self._fds) - 1


def _open_quietly(name: bytes, parent: int) -> int:
    try:
        return os.open(name, _FILE | os.O_NOATIME, dir_fd=parent)
    except PermissionError:
        # Not to touch the time of access is a right of the owner only.
        return os.open(name, _FILE, dir_fd=parent)


def _open_closed(name: bytes, parent: int | None, rights: int, flags: int) -> tuple[int, os.stat_result]:
    """Open what its owner may not open, through a descriptor that needs no right; return it as it was found."""
    path_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
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


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE, errno.ENOTSUP, errno.EPERM})


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
    window = max(1, OPEN_AT_MOST // (len(uppers) + 1))
    with ExitStack() as opened:
        trees = [opened.enter_context(closing(Chain(path, rights=0o500, window=window))) for path in reversed(uppers)]
        trees.append(opened.enter_context(closing(Chain(base))))
        copy = opened.enter_context(closing(Chain(dest, rights=0o700)))
        flattening = _Flattening(copy, dest)
        flattening.walk(trees)
        return flattening.unreadable


class _Frame:
    """A directory that is being copied. `trees` are the walks that are in it, the topmost first."""

    __slots__ = ("mtime_ns", "todo", "trees")

    def __init__(self, trees: list[Chain]) -> None:
        self.trees = trees
        self.mtime_ns: int | None = None
        self.todo: list[tuple[bytes, list[Chain]]] = []


class _Flattening:
    """One copy in the making."""

    def __init__(self, copy: Chain, dest: bytes) -> None:
        self.copy = copy
        self.dest, self.dest_id = dest, copy.id
        self.copier = Copier()
        self.unreadable = 0

    def walk(self, trees: list[Chain]) -> None:
        frames = [_Frame(trees)]
        self._arrive(frames[0])
        while frames:
            frame = frames[-1]
            if frame.todo:
                frames.append(self._descend(*frame.todo.pop()))
            else:
                frames.pop()
                self._depart(frame, is_top=not frames)

    def _descend(self, name: bytes, trees: list[Chain]) -> _Frame:
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
                    f"{show(self.dest)} lies in the directory that is to be copied into it.",
                    remedy="Choose a place outside of that directory, with `rootfs_dir` in your configuration.",
                )
            if tree.rights and is_opaque(tree.fd):
                break
        os.mkdir(name, 0o700, dir_fd=self.copy.fd)
        self.copy.enter(name)
        child = _Frame(entered)
        self._arrive(child)
        return child

    def _arrive(self, frame: _Frame) -> None:
        """Give the copy of a directory its looks, and copy all in it that is no directory."""
        if not frame.trees:
            self.copy.give_mode(0)
            return
        top = frame.trees[0]
        frame.mtime_ns = os.fstat(top.fd).st_mtime_ns
        self.copy.give_mode(top.found_mode)
        _copy_attributes(top, top.fd, self.copy.fd, b"")
        leaves, directories = _look(frame.trees)
        frame.todo = list(directories.items())
        for tree, name, is_file in leaves:
            if is_file:
                self._copy_file(tree, name)
            else:
                self._copy_other(tree, name)

    def _depart(self, frame: _Frame, *, is_top: bool) -> None:
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
                raise OSError(errno.EBUSY, "changed while it was copied", tree.path(name))
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=self.copy.fd, follow_symlinks=False)

    def _make_node(self, name: bytes, mode: int) -> None:
        os.mknod(name, mode, dir_fd=self.copy.fd)
        # What the umask took away. Nobody else can write here yet, and no link has this name.
        os.chmod(name, stat.S_IMODE(mode), dir_fd=self.copy.fd)

    def _make_stand_in(self, name: bytes) -> None:
        self.unreadable += 1
        os.close(os.open(name, _NEW, 0, dir_fd=self.copy.fd))


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


def _look(trees: list[Chain]) -> tuple[list[tuple[Chain, bytes, bool]], dict[bytes, list[Chain]]]:
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
