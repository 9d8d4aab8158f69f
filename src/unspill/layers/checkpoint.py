# SPDX-License-Identifier: Apache-2.0
"""A copy of an open layer that is exact as of one moment, though commands go on writing to the layer.

Everything is copied while they go on (`begin`), then all of them stand still and what has moved is copied again
(`catch_up`). Whether an entry has moved, its inode, mode, size, times and links tell. They don't tell of a write to a
page that is mapped and dirty already, so what was mapped and shared at the last copy, at the beginning of this one or
when all stood still is copied again too, and so is what changed since that beginning: it may have been mapped for a
moment. Where the filesystem's clock is coarse, a change within two ticks of the last look can't be told, and counts as
one.

Unchanged files are hard links to the last copy's. Whatever the last copy had and the layer no longer has is marked as
deleted: it may be in the project by now. A repository's own directory is left out.
"""

from __future__ import annotations

import os
import stat
import time

from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import Copier
from unspill.host.overlay import FOREIGN, OPAQUE, is_user_attribute, is_whiteout, list_attributes, make_whiteout

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
_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REPOSITORY = b".git"
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

    def begin(self, begun_ns: int, mapped: Collection[bytes] | None) -> None:
        """Copy everything while commands may go on; `mapped` was so after the moment that it begun."""
        os.mkdir(self.dest, 0o700)
        self._is_coarse = is_coarse(self.dest)
        found = walk(self.upper)
        is_known = mapped is not None and all(path in found or path.endswith(_DELETED) for path in mapped)
        shared = self._inodes(found, mapped if is_known else None)
        since = begun_ns - _TICK_NS
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
                if not self._copy_again(found, moved, gone):
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
        self._buried = self._bury(self.dest, self._looks, self._opaque)
        for path, mode in sorted(self._modes.items(), reverse=True):
            os.chmod(_join(self.dest, path), stat.S_IMODE(mode))
        # Only the next copy needs this one
        self._last = None

    def bury_in_layer(self) -> None:
        """Mark in the layer itself what is gone since this copy: nothing has it mounted any more."""
        found = walk(self.upper)
        opaque = {path for path, look in found.items() if stat.S_ISDIR(look[0]) and _is_opaque(self.upper, path)}
        follower = LayerCopy(self.upper, self.upper, self)
        follower._bury(self.upper, found, opaque)

    def _bury(self, top: bytes, looks: Collection[bytes], opaque: set[bytes]) -> set[bytes]:
        if self._last is None:
            return set()
        known = {path for path, look in self._last._looks.items() if look is None or not stat.S_ISCHR(look[0])}
        gone = (known | self._last._buried).difference(looks)
        made: set[bytes] = set()
        for path in gone:
            above = path.rpartition(b"/")[0]
            if above in looks and not _hidden(above, opaque):
                try:
                    make_whiteout(_join(top, path))
                except (FileExistsError, NotADirectoryError):
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
        if mapped is None:
            return {look[1] for look in found.values()}
        return {found[path][1] for path in mapped if path in found}

    def _copy_again(self, found: dict[bytes, Look], moved: Iterable[bytes], gone: Iterable[bytes]) -> bool:
        """Bring the copy up to date; tell whether anything but directories was copied."""
        for path in sorted(gone, reverse=True):
            _remove(_join(self.dest, path))
            del self._looks[path]
            self._opaque.discard(path)
        has_copied = False
        for path in moved:
            look = found[path]
            place = _join(self.dest, path)
            is_dir = stat.S_ISDIR(look[0])
            if not (is_dir and os.path.isdir(place) and not os.path.islink(place)):
                _remove(place)
            self._copy(path, look, is_fresh=True)
            self._looks[path] = look
            has_copied |= not is_dir
        return has_copied

    def _copy(self, path: bytes, look: Look, *, is_fresh: bool = False) -> None:
        source, dest, mode = _join(self.upper, path), _join(self.dest, path), look[0]
        match stat.S_IFMT(mode):
            case stat.S_IFREG:
                if is_fresh or not self._link(path, look, dest):
                    self._copy_file(source, dest, look)
            case stat.S_IFDIR:
                self._copy_directory(path, source, dest)
            case stat.S_IFLNK:
                os.symlink(os.readlink(source), dest)
            case stat.S_IFCHR | stat.S_IFBLK:
                if is_whiteout(os.lstat(source)):
                    make_whiteout(dest)
            case _:
                os.mknod(dest, mode)
                os.chmod(dest, stat.S_IMODE(mode))

    def _link(self, path: bytes, look: Look, dest: bytes) -> bool:
        """Take a file of the last copy, if it is still the same."""
        last = self._last
        if last is None or last._looks.get(path) != look or look[1] in last._mapped:
            return False
        try:
            os.link(_join(last.dest, path), dest, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _copy_file(self, source: bytes, dest: bytes, look: Look) -> None:
        names = os.listxattr(source, follow_symlinks=False)
        from_fd = os.open(source, _SOURCE)
        try:
            to_fd = os.open(dest, _NEW, 0o600)
            try:
                status = os.fstat(from_fd)
                size = status.st_size
                if size > _SMALL or status.st_blocks * _BLOCK < size:
                    self._copier.copy(from_fd, to_fd, status)
                elif size:
                    _send(from_fd, to_fd, size)
                for name in names:
                    if is_user_attribute(name) or name in FOREIGN:
                        os.setxattr(to_fd, name, os.getxattr(from_fd, name))
                os.fchmod(to_fd, stat.S_IMODE(status.st_mode))
                os.utime(to_fd, ns=(look[3], status.st_mtime_ns))
            finally:
                os.close(to_fd)
        finally:
            os.close(from_fd)

    def _copy_directory(self, path: bytes, source: bytes, dest: bytes) -> None:
        if not os.path.isdir(dest):
            os.mkdir(dest, 0o700)
        names = {name for name in list_attributes(source) if is_user_attribute(name) or name in (OPAQUE, *FOREIGN)}
        for name in list_attributes(dest):
            if name not in names and name.startswith("user."):
                os.removexattr(dest, name, follow_symlinks=False)
        for name in names:
            os.setxattr(dest, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
        if _is_opaque(dest, b""):
            self._opaque.add(path)
        else:
            self._opaque.discard(path)


def walk(top: bytes, *, is_strict: bool = False) -> dict[bytes, Look]:
    """Return what every entry of a layer looks like, by its path, a directory before what is in it.

    What vanishes meanwhile or can't be read is left out.

    Raises:
        OSError: `is_strict`, and there is something like that.
    """
    found: dict[bytes, Look] = {b"": _look(os.lstat(top))}
    waiting = [b""]
    while waiting:
        here = waiting.pop()
        prefix = here + b"/" if here else b""
        try:
            with os.scandir(_join(top, here)) as entries:
                for entry in entries:
                    name = entry.name
                    if name == _REPOSITORY:
                        continue
                    found[prefix + name] = _look(entry.stat(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
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


def _join(top: bytes, path: bytes) -> bytes:
    return top + b"/" + path if path else top


def _is_opaque(top: bytes, path: bytes) -> bool:
    try:
        return os.getxattr(_join(top, path), OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


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


def _remove(path: bytes) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        os.rmdir(path)
