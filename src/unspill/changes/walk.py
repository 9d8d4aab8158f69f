# SPDX-License-Identifier: Apache-2.0
"""Read directories of layers and of live trees: by descriptor, one name at a time, never through a link.

A Pool bounds how many stay open; a closed directory is opened again from its nearest open ancestor, so neither
PATH_MAX nor the descriptor limit bounds the depth. Directories of a layer that a command closed to their owner are
opened until the Pool closes; the live tree is only ever read. `measure` says how much lies in a directory.
"""

from __future__ import annotations

import os
import stat
import sys

from unspill.host.libc import Statx
from unspill.host.overlay import MODE_MARK
from unspill.layers.trees import BorrowedModes, close_again, open_to_owner, with_true_mode
from unspill.progress import COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

OPEN_AT_MOST = 192

_BLOCK = 512
_ENCODING = sys.getfilesystemencoding()
_ERRORS = sys.getfilesystemencodeerrors()
_OPEN_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTABLE = os.O_RDONLY | _OPEN_DIRECTORY
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Dir:
    """One directory of a tree. `upper` is the path of its root, `status` as it was found.

    `attributes` are the names of its extended attributes, once someone has asked for them.
    """

    __slots__ = ("attributes", "fd", "is_borrowed", "is_listable", "name", "owned", "parent", "pool", "status", "upper")

    def __init__(self, pool: Pool, parent: Dir | None, name: bytes, upper: bytes, *, owned: bool) -> None:
        self.pool = pool
        self.parent = parent
        self.name = name
        self.upper = upper
        self.owned = owned
        self.fd = -1
        self.is_listable = True
        self.is_borrowed = False
        self.status: os.stat_result
        self.attributes: list[str]

    def descriptor(self) -> int:
        """Return the open descriptor, opening the directory again if the Pool has closed it."""
        if self.fd < 0:
            self.pool.reopen(self)
        return self.fd

    def open_child(self, name: bytes) -> Dir:
        """Open a subdirectory.

        Raises:
            FileNotFoundError: There is no such name.
            NotADirectoryError: It is something else, perhaps a link to a directory.
            PermissionError: It is in the live tree and closed to us, or in an upper and not ours.
        """
        child = Dir(self.pool, self, name, self.upper, owned=self.owned)
        child.open(self.descriptor())
        return child

    def open(self, parent_fd: int | None) -> None:
        try:
            self.fd = fd = os.open(self.name, _LISTABLE, dir_fd=parent_fd)
        except PermissionError:
            if self.owned:
                _open_closed(self, parent_fd)
            else:
                _open_for_lookups(self, parent_fd)
        else:
            self.status = status = os.fstat(fd)
            if status.st_mode & 0o500 != 0o500 and self.owned:
                self.unlock()
        self.pool.keep(self)

    def make_sure_of_mode(self, names: list[str]) -> None:
        """Look again if another scan may have opened this directory to its owner, or just closed it."""
        if self.is_borrowed:
            return
        if MODE_MARK in names or os.fstat(self.fd).st_ctime_ns != self.status.st_ctime_ns:
            self.unlock()

    def unlock(self) -> None:
        """Open to its owner an open directory of an upper that is closed or was left open by a scan that died."""
        self.pool.modes.lock(self.upper)
        self.status = os.fstat(self.fd)
        if MODE_MARK in os.listxattr(self.fd):
            # Whoever set it had the lock, and is dead.
            self.status = with_true_mode(self.status, self.fd)
            self.pool.add_borrowed(self)
        elif self.status.st_mode & 0o500 != 0o500 and os.geteuid() != 0:
            _borrow_mode(self, b"/proc/self/fd/%d" % self.fd)

    def names(self) -> list[tuple[bytes, bool, Dir]]:
        """Return each name with whether it is a directory and this directory, unsorted."""
        # Names come as str from a descriptor; bytes would need a path.
        with os.scandir(self.descriptor()) as entries:
            return [
                (entry.name.encode(_ENCODING, _ERRORS), entry.is_dir(follow_symlinks=False), self) for entry in entries
            ]

    def lstat(self, name: bytes) -> os.stat_result:
        fd = self.fd if self.fd >= 0 else self.descriptor()
        return os.stat(name, dir_fd=fd, follow_symlinks=False)

    def readlink(self, name: bytes) -> bytes:
        return os.readlink(name, dir_fd=self.descriptor())

    def attribute_path(self, name: bytes) -> bytes:
        """Return a path for the attribute calls, which know no directory descriptor."""
        return b"/proc/self/fd/%d/%s" % (self.descriptor(), name)

    def open_file(self, name: bytes) -> int:
        """Open a regular file for reading.

        Raises:
            OSError: It can't be read, or is not a regular file.
        """
        try:
            fd = os.open(name, _FILE | os.O_NOATIME, dir_fd=self.descriptor())
        except PermissionError:
            # O_NOATIME is for the owner of a file only.
            fd = os.open(name, _FILE, dir_fd=self.descriptor())
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(f"{name!r} is not a regular file")
        return fd


class Unlocked:
    """Keep a file of an upper readable for its owner while the context lasts; leave all other files alone."""

    __slots__ = ("_fd", "_mode", "_modes")

    def __init__(self, directory: Dir, name: bytes, status: os.stat_result) -> None:
        self._fd = -1
        self._modes = directory.pool.modes
        self._mode = stat.S_IMODE(status.st_mode)
        if directory.owned and not self._mode & 0o400 and os.geteuid() != 0:
            directory.pool.modes.lock(directory.upper)
            self._fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.descriptor())

    def __enter__(self) -> None:
        if self._fd >= 0:
            self._modes.open_file(self._fd, self._mode)

    def __exit__(self, *_ignored: object) -> None:
        if self._fd >= 0:
            try:
                self._modes.restore_file(self._fd, self._mode)
            finally:
                os.close(self._fd)


class Pool:
    """The open directories of one walk, at most `limit` of them besides pinned roots."""

    def __init__(self, limit: int = OPEN_AT_MOST) -> None:
        self._limit = limit
        self._opened: dict[Dir, None] = {}
        self._pinned: list[int] = []
        self.modes = BorrowedModes()
        self._borrowed: list[Dir] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_ignored: object) -> None:
        try:
            self.restore()
        finally:
            self.close()

    def upper_root(self, path: bytes) -> Dir:
        """Open an upper directory of ours by its path, which nothing else writes."""
        self.modes.lock_if_borrowed(path)
        root = Dir(self, None, path, path, owned=True)
        root.open(None)
        return root

    def live_root(self, path: bytes) -> Dir:
        """Open the live root once; its path is not used again."""
        root = Dir(self, None, path, path, owned=False)
        root.open(None)
        del self._opened[root]
        self._pinned.append(root.fd)
        return root

    def reopen(self, closed: Dir) -> None:
        """Open a directory again, and the ancestors on the way, of which the nearest stay open."""
        chain = [closed]
        while (parent := chain[-1].parent) and parent.fd < 0:
            chain.append(parent)
        for link in reversed(chain):
            flags = (os.O_RDONLY if link.is_listable else os.O_PATH) | _OPEN_DIRECTORY
            link.fd = os.open(link.name, flags, dir_fd=link.parent.fd if link.parent else None)
            self.keep(link)

    def release(self, done: Dir) -> None:
        """Close a directory that is not needed now."""
        if self._opened.pop(done, self) is None:
            os.close(done.fd)
            done.fd = -1

    def add_borrowed(self, opened: Dir) -> None:
        """Remember a directory that has to be closed again."""
        opened.is_borrowed = True
        self._borrowed.append(opened)

    def restore(self) -> list[Dir]:
        """Give directories that were opened to their owner their mode back, the deepest first, and return them."""
        restored = []
        while self._borrowed:
            opened = self._borrowed.pop()
            close_again(opened.descriptor(), stat.S_IMODE(opened.status.st_mode))
            opened.status = os.fstat(opened.fd)
            opened.is_borrowed = False
            restored.append(opened)
        self.modes.restore_files()
        return restored

    def close(self) -> None:
        self.modes.close()
        while self._pinned:
            os.close(self._pinned.pop())
        for directory in list(self._opened):
            self.release(directory)

    def keep(self, directory: Dir) -> None:
        """Count a directory that was just opened, and close the one that was opened first if there are too many."""
        self._opened[directory] = None
        if len(self._opened) > self._limit:
            self.release(next(iter(self._opened)))


def measure(
    upper: bytes,
    *,
    bytes_cap: int | None = None,
    entries_cap: int | None = None,
    unlock: bool = False,
    closed: list[bytes] | None = None,
) -> tuple[int, int]:
    """Return the bytes on disk and the number of entries of an upper directory.

    Stops early once a cap is exceeded: the result is then more than that cap, and less than the truth.
    May be asked while a command still writes. Directories closed to the caller are then passed over, and their names
    added to `closed`; once every process is dead, `unlock` opens them for the time of the measuring.
    """
    total = count = 0
    bytes_left = bytes_cap if bytes_cap is not None else sys.maxsize
    entries_left = entries_cap if entries_cap is not None else sys.maxsize
    linked: set[int] = set()
    with Pool() as pool:
        root = pool.upper_root(upper) if unlock else pool.live_root(upper)
        for _directory, _name, status in _all_entries(root, closed):
            count += 1
            COUNT.done += 1
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                # All whiteouts are links of one inode.
                if status.st_ino in linked:
                    continue
                linked.add(status.st_ino)
            total += status.st_blocks * _BLOCK
            if total > bytes_left or count > entries_left:
                return total, count
    return total, count


def has_fresh(directory: bytes, since_ns: int, *, over_bytes: int, over_entries: int) -> bool:
    """Tell whether more than so much was made in a directory since a moment.

    By the time at which each entry was made, which no command can set: all others change when something is removed or
    closed too. Where the filesystem does not know it, nothing is fresh.
    """
    statx = Statx()
    total = count = 0
    with Pool() as pool:
        for above, name, status in _all_entries(pool.live_root(directory), None):
            if (statx.born_ns(above.descriptor(), name) or 0) >= since_ns:
                count += 1
                total += status.st_blocks * _BLOCK
                if total > over_bytes or count > over_entries:
                    return True
    return False


def _open_closed(child: Dir, parent_fd: int | None) -> None:
    child.pool.modes.lock(child.upper)
    path_fd = os.open(child.name, os.O_PATH | _OPEN_DIRECTORY, dir_fd=parent_fd)
    try:
        child.status = os.fstat(path_fd)
        _borrow_mode(child, b"/proc/self/fd/%d" % path_fd)
        child.fd = os.open(b"/proc/self/fd/%d" % path_fd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(path_fd)


def _open_for_lookups(child: Dir, parent_fd: int | None) -> None:
    child.fd = os.open(child.name, os.O_PATH | _OPEN_DIRECTORY, dir_fd=parent_fd)
    child.is_listable = False
    child.status = os.fstat(child.fd)


def _borrow_mode(child: Dir, path: bytes) -> None:
    open_to_owner(path, stat.S_IMODE(child.status.st_mode))
    child.status = with_true_mode(child.status, path)
    child.pool.add_borrowed(child)


def _all_entries(root: Dir, closed: list[bytes] | None) -> Iterator[tuple[Dir, bytes, os.stat_result]]:
    """Yield all that is below a directory, with the directory that it is in."""
    pending: list[tuple[Dir, bytes]] = []
    directory: Dir | None = root
    while directory is not None:
        for name, status in _entries(directory, closed):
            if stat.S_ISDIR(status.st_mode):
                pending.append((directory, name))
            yield directory, name, status
        directory = _next_open(pending)


def _entries(directory: Dir, closed: list[bytes] | None) -> Iterator[tuple[bytes, os.stat_result]]:
    try:
        with os.scandir(directory.descriptor()) as entries:
            for entry in entries:
                try:
                    yield os.fsencode(entry.name), entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
    except OSError as error:
        # Removed, or closed to us, since its name was read.
        if closed is not None and (not directory.is_listable or isinstance(error, PermissionError)):
            closed.append(directory.name)


def _next_open(pending: list[tuple[Dir, bytes]]) -> Dir | None:
    while pending:
        parent, name = pending.pop()
        try:
            return parent.open_child(name)
        except OSError:
            continue
    return None
