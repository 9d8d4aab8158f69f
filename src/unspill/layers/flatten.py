# SPDX-License-Identifier: Apache-2.0
"""Copy what an overlay would show, a directory and the layers over it, into a plain directory.

Each directory is visited once, in all trees that make it up, and only what is seen in the end is copied. The trees are
only read. Blocks are shared with the originals where the filesystem can.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, closing

from unspill.errors import UsageError
from unspill.host.dirfd import Copier
from unspill.host.overlay import is_opaque, list_attributes, refuse_foreign, shown_name
from unspill.layers.trees import WINDOW, Chain
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
    window = max(1, WINDOW // (len(uppers) + 1))
    with ExitStack() as opened:
        trees = [opened.enter_context(closing(Chain(path, rights=0o500, window=window))) for path in reversed(uppers)]
        trees.append(opened.enter_context(closing(Chain(base))))
        copy = opened.enter_context(closing(Chain(dest, rights=0o700)))
        work = _Copy(copy, dest)
        work.walk(trees)
        return work.unreadable


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
