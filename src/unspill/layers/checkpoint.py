# SPDX-License-Identifier: Apache-2.0
"""A copy of an open layer that is exact as of one moment, though commands go on writing to the layer.

Everything is copied while they go on (`begin`), then all of them stand still and what has moved is copied again
(`catch_up`). Whether an entry has moved, its inode, mode, size, times and links tell. They don't tell of a write to a
page that is mapped and dirty already, so what was mapped and shared at the last copy, at the beginning of this one or
when all stood still is copied again too, and so is what changed since that beginning: it may have been mapped for a
moment. Where the filesystem's clock is coarse, a change within two ticks of the last look can't be told, and counts as
one.

Commands may put a link in the place of a directory at any moment, so all trees are reached by descriptors, and what is
read must be what was looked at.

Unchanged files are hard links to the last copy's. Whatever the last copy had and the layer no longer has is marked as
deleted: it may be in the project by now. A repository's own directory is left out.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import Beneath, Copier
from unspill.host.overlay import (
    ALIAS,
    FOREIGN,
    OPAQUE,
    ORIGIN,
    is_opaque,
    is_user_attribute,
    is_whiteout,
    list_attributes,
    make_whiteout,
)
from unspill.layers.trees import close_again, open_to_owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    # Mode, inode, size, mtime, ctime, links
    Look = tuple[int, int, int, int, int, int]

# Two ticks of the slowest clock that kernels have
_TICKS_NS = 20_000_000
# How far the clock that filesystems stamp with may be behind
_TICK_NS = int(time.clock_getres(5) * 1_000_000_000)
_DELETED = b" (deleted)"
_SMALL = 1 << 20
_BLOCK = 512
_TRIES = 3
_PROBES = 3
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOKUP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REPOSITORY = b".git"
# Marks that say what an entry was made from
_KEPT = (ALIAS, ORIGIN)
_REMEDY = "Run it again, or wait for the other commands."


class LayerCopy:
    """One copy of an upper directory; `last` is the one before."""

    def __init__(self, upper: bytes, dest: bytes, last: LayerCopy | None = None) -> None:
        self.upper = upper
        self.dest = dest
        self._last = last
        # What entries looked like before they were copied; None where that can't be told
        self._looks: dict[bytes, Look | None] = {}
        self._opaque: set[bytes] = set()
        self._mapped: set[int] = set()
        self._buried: set[bytes] = set()
        self._copier = Copier()
        self._is_coarse = False
        # While something is copied: the layer, the copy, and the last copy
        self._from: Beneath
        self._to: Beneath
        self._before: Beneath | None = None

    def begin(self, begun_ns: int, mapped: Collection[bytes] | None) -> None:
        """Copy everything while commands may go on; `mapped` was so after the moment that it begun."""
        os.mkdir(self.dest, 0o700)
        self._is_coarse = is_coarse(self.dest)
        found = walk(self.upper)
        is_known = mapped is not None and all(path in found for path in mapped)
        shared = self._inodes(found, mapped if is_known else None)
        since = begun_ns - _TICK_NS
        with _Trees(self):
            for path, look in found.items():
                may_be_written = stat.S_ISREG(look[0]) and (look[1] in shared or look[4] >= since)
                self._looks[path] = None if may_be_written else self._told(look)
                try:
                    self._copy(path, look)
                except OSError:
                    # It moves, or can't be read: looked at again when everything stands still
                    self._looks[path] = None

    def catch_up(self, mapped: Collection[bytes] | None) -> None:
        """Copy again what has moved; `mapped` are paths in the layer, None for any. Everything stands still.

        Raises:
            SandboxUnavailable: something can't be read, or is not still.
        """
        last = set() if self._last is None else self._last._mapped
        try:
            found = walk(self.upper, is_strict=True)
            self._mapped = self._inodes(found, mapped)
            for _ in range(_TRIES):
                moved = [path for path, look in found.items() if self._has_moved(path, look, self._mapped | last)]
                gone = [path for path in self._looks if path not in found]
                with _Trees(self):
                    has_copied = self._copy_again(found, moved, gone)
                if not has_copied:
                    break
                last, before = set(), found
                found = walk(self.upper, is_strict=True)
                if found == before:
                    break
                self._mapped = self._inodes(found, mapped)
            else:
                raise SandboxUnavailable("its files kept moving", remedy=_REMEDY)
        except OSError as error:
            name = os.fsdecode(error.filename or b"").rpartition("/")[2]
            raise SandboxUnavailable(f"{name or 'a file'} can't be copied: {error.strerror}", remedy=_REMEDY) from error
        self._looks = {path: self._told(look) for path, look in found.items()}
        self._modes = {path: look[0] for path, look in found.items() if stat.S_ISDIR(look[0])}

    def finish(self) -> None:
        """Mark what is gone since the last copy, and give directories their modes; commands may go on."""
        with Beneath(os.open(self.dest, _DIRECTORY)) as tree:
            self._buried = self._bury(tree, self._looks, self._modes, self._opaque)
            for path, mode in sorted(self._modes.items(), reverse=True):
                os.fchmod(tree.directory(path), stat.S_IMODE(mode))
        # Only the next copy needs this one
        self._last = None

    def bury_in_layer(self) -> None:
        """Mark in the layer itself what is gone since this copy: nothing has it mounted any more."""
        found = walk(self.upper)
        directories = {path for path, look in found.items() if stat.S_ISDIR(look[0])}
        follower = LayerCopy(self.upper, self.upper, self)
        with Beneath(os.open(self.upper, _DIRECTORY)) as tree:
            opaque = {path for path in directories if _is_opaque_in(tree, path)}
            follower._bury(tree, found, directories, opaque)

    def _bury(
        self, tree: Beneath, looks: Collection[bytes], directories: Collection[bytes], opaque: set[bytes]
    ) -> set[bytes]:
        if self._last is None:
            return set()
        known = {path for path, look in self._last._looks.items() if look is None or not stat.S_ISCHR(look[0])}
        gone = (known | self._last._buried).difference(looks)
        made: set[bytes] = set()
        for path in gone:
            above = path.rpartition(b"/")[0]
            if above in directories and not _hidden(above, opaque):
                try:
                    _mark_deleted(*tree.parent(path))
                except FileExistsError:
                    continue
                made.add(path)
        return made

    def _told(self, look: Look) -> Look | None:
        """Return what an entry looks like, unless it may change without looking different."""
        is_young = self._is_coarse and time.time_ns() - look[4] < _TICKS_NS
        return None if is_young else look

    def _has_moved(self, path: bytes, look: Look, mapped: Collection[int]) -> bool:
        return self._looks.get(path) != look or (look[1] in mapped and stat.S_ISREG(look[0]))

    def _inodes(self, found: dict[bytes, Look], mapped: Collection[bytes] | None) -> set[int]:
        # What was deleted may have another name here, which nothing tells
        if mapped is None or any(path.endswith(_DELETED) for path in mapped):
            return {look[1] for look in found.values()}
        return {found[path][1] for path in mapped if path in found}

    def _copy_again(self, found: dict[bytes, Look], moved: Iterable[bytes], gone: Iterable[bytes]) -> bool:
        """Bring the copy up to date; tell whether anything but directories was copied."""
        for path in sorted(gone, reverse=True):
            self._remove(path)
            del self._looks[path]
            self._opaque.discard(path)
        has_copied = False
        for path in moved:
            look = found[path]
            is_dir = stat.S_ISDIR(look[0])
            if not (is_dir and self._has_directory(path)):
                self._remove(path)
            self._copy(path, look, is_fresh=True)
            self._looks[path] = look
            has_copied |= not is_dir
        return has_copied

    def _has_directory(self, path: bytes) -> bool:
        there = self._to.find(path) if path else os.fstat(self._to.root_fd)
        return there is not None and stat.S_ISDIR(there.st_mode)

    def _remove(self, path: bytes) -> None:
        try:
            fd, name = self._to.parent(path)
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            self._to.forget(path)
            fd, name = self._to.parent(path)
            os.rmdir(name, dir_fd=fd)

    def _copy(self, path: bytes, look: Look, *, is_fresh: bool = False) -> None:
        """Copy an entry.

        Raises:
            OSError: it can't be copied, or is not what was looked at.
        """
        mode = look[0]
        if stat.S_ISDIR(mode):
            self._copy_directory(path, look)
            return
        source, name = self._from.parent(path)
        dest, _name = self._to.parent(path)
        match stat.S_IFMT(mode):
            case stat.S_IFREG:
                if is_fresh or not self._link(path, look, dest):
                    self._copy_file(source, dest, name, look)
            case stat.S_IFLNK:
                fd = os.open(name, _LOOKUP, dir_fd=source)
                try:
                    _check(_look(os.fstat(fd)) == look)
                    os.symlink(os.readlink(b"", dir_fd=fd), name, dir_fd=dest)
                finally:
                    os.close(fd)
            case stat.S_IFCHR | stat.S_IFBLK:
                status = os.stat(name, dir_fd=source, follow_symlinks=False)
                _check(_look(status) == look)
                if is_whiteout(status):
                    make_whiteout(name, dest)
            case _:
                os.mknod(name, mode, dir_fd=dest)
                os.chmod(name, stat.S_IMODE(mode), dir_fd=dest)

    def _link(self, path: bytes, look: Look, dest: int) -> bool:
        """Take a file of the last copy, if it is still the same."""
        last = self._last
        if last is None or self._before is None or last._looks.get(path) != look or look[1] in last._mapped:
            return False
        try:
            source, name = self._before.parent(path)
            os.link(name, name, src_dir_fd=source, dst_dir_fd=dest, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _copy_file(self, source: int, dest: int, name: bytes, look: Look) -> None:
        from_fd = os.open(name, _SOURCE, dir_fd=source)
        try:
            status = os.fstat(from_fd)
            _check(_look(status) == look)
            to_fd = os.open(name, _NEW, 0o600, dir_fd=dest)
            try:
                size = status.st_size
                if size > _SMALL or status.st_blocks * _BLOCK < size:
                    self._copier.copy(from_fd, to_fd, status)
                elif size:
                    _send(from_fd, to_fd, size)
                for attribute in os.listxattr(from_fd):
                    if is_user_attribute(attribute) or attribute in (*_KEPT, *FOREIGN):
                        os.setxattr(to_fd, attribute, os.getxattr(from_fd, attribute))
                os.fchmod(to_fd, stat.S_IMODE(status.st_mode))
                os.utime(to_fd, ns=(look[3], status.st_mtime_ns))
            finally:
                os.close(to_fd)
        finally:
            os.close(from_fd)

    def _copy_directory(self, path: bytes, look: Look) -> None:
        source = self._from.directory(path)
        # What else it looks like changes with every entry that comes or goes
        _check(os.fstat(source).st_ino == look[1])
        if not self._has_directory(path):
            fd, name = self._to.parent(path)
            os.mkdir(name, 0o700, dir_fd=fd)
        dest = self._to.directory(path)
        kept = {one for one in list_attributes(source) if is_user_attribute(one) or one in (OPAQUE, ORIGIN, *FOREIGN)}
        for attribute in list_attributes(dest):
            if attribute not in kept and attribute.startswith("user."):
                os.removexattr(dest, attribute)
        for attribute in kept:
            os.setxattr(dest, attribute, os.getxattr(source, attribute))
        if OPAQUE in kept and is_opaque(dest):
            self._opaque.add(path)
        else:
            self._opaque.discard(path)


class _Trees:
    """The trees of a copy, open while something is copied."""

    def __init__(self, copy: LayerCopy) -> None:
        self._copy = copy
        self._opened: list[Beneath] = []

    def __enter__(self) -> None:
        copy = self._copy
        copy._from = self._open(copy.upper)
        copy._to = self._open(copy.dest)
        copy._before = None if copy._last is None else self._open(copy._last.dest)

    def _open(self, top: bytes) -> Beneath:
        try:
            self._opened.append(Beneath(os.open(top, _DIRECTORY)))
        except BaseException:
            self.__exit__()
            raise
        return self._opened[-1]

    def __exit__(self, *_details: object) -> None:
        while self._opened:
            self._opened.pop().close()


def walk(top: bytes, *, is_strict: bool = False) -> dict[bytes, Look]:
    """Return what every entry of a layer looks like, by its path, a directory before what is in it.

    What vanishes meanwhile or can't be read is left out.

    Raises:
        OSError: `is_strict`, and there is something like that.
    """
    found: dict[bytes, Look] = {}
    waiting = [b""]
    with Beneath(os.open(top, _DIRECTORY)) as tree:
        found[b""] = _look(os.fstat(tree.root_fd))
        while waiting:
            here = waiting.pop()
            prefix = here + b"/" if here else b""
            try:
                fd = tree.directory(here)
                _check(os.fstat(fd).st_ino == found[here][1])
                with os.scandir(fd) as entries:
                    for entry in entries:
                        name = os.fsencode(entry.name)
                        if name == _REPOSITORY:
                            continue
                        look = found[prefix + name] = _look(entry.stat(follow_symlinks=False))
                        # Not what the entry says: it may be another one by now
                        if stat.S_ISDIR(look[0]):
                            waiting.append(prefix + name)
            except OSError:
                if is_strict:
                    raise
    return found


def is_coarse(directory: bytes) -> bool:
    """Tell whether two changes right after one another may leave the same time in a directory's filesystem."""
    for _ in range(_PROBES):
        first = os.lstat(directory).st_ctime_ns
        os.chmod(directory, 0o700)
        if os.lstat(directory).st_ctime_ns == first:
            return True
    return False


def _look(found: os.stat_result) -> Look:
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_nlink


def _check(is_same: bool) -> None:
    """Give up on what is not what was looked at.

    Raises:
        OSError: it is not.
    """
    if not is_same:
        raise OSError(errno.ESTALE, "it moves")


def _is_opaque_in(tree: Beneath, path: bytes) -> bool:
    try:
        return is_opaque(tree.directory(path))
    except OSError:
        return False


def _mark_deleted(directory: int, name: bytes) -> None:
    """Make a whiteout, also in a directory that a command has closed."""
    try:
        make_whiteout(name, directory)
        return
    except PermissionError:
        pass
    mode, path = stat.S_IMODE(os.fstat(directory).st_mode), b"/proc/self/fd/%d" % directory
    open_to_owner(path, mode)
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        make_whiteout(name, opened)
    finally:
        close_again(opened, mode)
        os.close(opened)


def _hidden(path: bytes, opaque: set[bytes]) -> bool:
    """Tell whether a directory, or one above it, hides what lies below."""
    while path:
        if path in opaque:
            return True
        path = path.rpartition(b"/")[0]
    return False


def _send(source: int, dest: int, size: int) -> None:
    at = 0
    while at < size and (sent := os.sendfile(dest, source, at, size - at)):
        at += sent
