# SPDX-License-Identifier: Apache-2.0
"""One digest over a whole tree: names, kinds, modes, link targets and contents; not times, owners or inode numbers.

Two trees have the same digest only if a sandbox sees the same in both. Entries go in the order of their names as
bytes, each field with its length, so that no two trees give one stream. No link is followed.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsUnsafe, RootfsUnverified
from unspill.rootfs.attributes import is_unsafe, list_attributes
from unspill.rootfs.layout import DIRECTORY, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DEEPEST = 256

_START = b"unspill tree 1\n"
_AT_ONCE = 1 << 20
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def tree_digest(tree: bytes) -> tuple[str, int, int]:
    """Return a tree's digest, how many entries it has, and the bytes of its files.

    Raises:
        RootfsUnsafe: it is deeper than any real one, or has extended attributes that make it other than it looks.
        RootfsUnverified: a file changes while it is read.
        OSError: something in it can't be read.
    """
    from hashlib import sha256

    hashed = sha256(_START)
    reading = _Reading(hashed.update, tree)
    fd = os.open(tree, DIRECTORY)
    try:
        hashed.update(b"%o\n" % stat.S_IMODE(os.fstat(fd).st_mode))
        reading.directory(fd, 0)
    finally:
        os.close(fd)
    return hashed.hexdigest(), reading.entries, reading.size_bytes


class _Reading:
    """A walk through a tree that gives everything it finds to `take`."""

    def __init__(self, take: Callable[[bytes], None], tree: bytes) -> None:
        self._take = take
        self._tree = tree
        self.entries = 0
        self.size_bytes = 0

    def directory(self, fd: int, depth: int) -> None:
        """Give all entries of a directory, and then its end."""
        self._check_attributes(fd, b"")
        if depth > DEEPEST:
            raise RootfsUnsafe(f"The tree {shown(self._tree)} is more than {DEEPEST} directories deep")
        with os.scandir(fd) as found:
            entries = sorted((os.fsencode(entry.name), entry) for entry in found)
        self.entries += len(entries)
        for name, entry in entries:
            if entry.is_symlink():
                target = os.readlink(name, dir_fd=fd)
                self._check_attributes(fd, name)
                self._take(b"l%d:%s%d:%s" % (len(name), name, len(target), target))
            elif entry.is_dir(follow_symlinks=False):
                self._below(fd, name, depth)
            elif entry.is_file(follow_symlinks=False):
                self._file(fd, name)
            else:
                self._other(fd, name)
        self._take(b"e")

    def _below(self, fd: int, name: bytes, depth: int) -> None:
        inner = os.open(name, DIRECTORY, dir_fd=fd)
        try:
            mode = stat.S_IMODE(os.fstat(inner).st_mode)
            self._take(b"d%d:%s%o:" % (len(name), name, mode))
            self.directory(inner, depth + 1)
        finally:
            os.close(inner)

    def _file(self, fd: int, name: bytes) -> None:
        inner = os.open(name, _FILE, dir_fd=fd)
        try:
            self._check_attributes(inner, b"")
            found = os.fstat(inner)
            size = found.st_size
            head = b"f%d:%s%o:%d:" % (len(name), name, stat.S_IMODE(found.st_mode), size)
            # One byte more than there is: where fewer come, that was the end
            asked, done, block = min(size + 1, _AT_ONCE), 0, head
            while block and done <= size:
                block = os.read(inner, asked)
                self._take(head + block if not done else block)
                done += len(block)
                if done == size and len(block) < asked:
                    break
        finally:
            os.close(inner)
        if done != size:
            raise RootfsUnverified(f"{shown(name)} in {shown(self._tree)} changes while it is read")
        self.size_bytes += size

    def _check_attributes(self, fd: int, name: bytes) -> None:
        """Refuse what makes an entry other than it looks: of a descriptor, or of a link in that directory."""
        found = list_attributes(b"/proc/self/fd/%d/%s" % (fd, name) if name else fd)
        if any(map(is_unsafe, found)):
            raise RootfsUnsafe(
                f"The tree {shown(self._tree)} has extended attributes that make it other than it looks",
                remedy="Do not use it: remove it, and make it again.",
            )

    def _other(self, fd: int, name: bytes) -> None:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        self._take(b"o%d:%s%o:%d:" % (len(name), name, found.st_mode, found.st_rdev))
