# SPDX-License-Identifier: Apache-2.0
"""The content of open files: copied, compared, and told by a digest.

Holes stay holes and are never read: a sparse file of a terabyte with one byte in it takes no time. Copies share blocks
where the filesystem can, else the kernel copies, else memory does. Neither modes nor names are looked at here.
"""

from __future__ import annotations

import errno
import fcntl
import os

CHUNK = 256 * 1024

# From linux/fs.h; fcntl has it from Python 3.12 on.
FICLONE = 0x40049409

_NEVER_CLONES = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS})
_USE_MEMORY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EPERM, errno.ETXTBSY}
)
_BLOCK = 512


class Copier:
    """Copies files, and remembers from which filesystems blocks can't be shared."""

    def __init__(self) -> None:
        self._never_clone: set[int] = set()

    def copy(self, source: int, dest: int, status: os.stat_result) -> None:
        """Fill an empty file with the content of another, as long as `status` says that is."""
        size = status.st_size
        if size == 0:
            return
        if status.st_dev not in self._never_clone and self._clone(source, dest, status.st_dev):
            # A file that grows meanwhile is cloned with more than its status said.
            os.ftruncate(dest, size)
        elif size <= CHUNK and status.st_blocks * _BLOCK >= size:
            _copy_through_memory(source, dest, 0, size)
        else:
            _copy_ranges(source, dest, size)

    def _clone(self, source: int, dest: int, device: int) -> bool:
        try:
            fcntl.ioctl(dest, FICLONE, source)
        except OSError as error:
            if error.errno in _NEVER_CLONES:
                self._never_clone.add(device)
            return False
        return True


def digest_of(fd: int, size: int) -> bytes:
    """Return a digest of the content; two files of one size have the same if they hold the same bytes."""
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    at = 0
    while at < size and (start := next_written(fd, at, size)) < size:
        at = start // CHUNK * CHUNK
        chunk = os.pread(fd, CHUNK, at)
        # Zeros may be a hole at one time and written at another.
        if chunk.count(0) != len(chunk):
            digest.update(at.to_bytes(8, "big"))
            digest.update(chunk)
        at += CHUNK
    return digest.digest()


def next_written(fd: int, at: int, size: int) -> int:
    """Return where the next written part begins, at or after `at`."""
    try:
        return min(os.lseek(fd, at, os.SEEK_DATA), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno == errno.EINVAL:
            return at  # this filesystem knows no holes
        raise


def _next_hole(fd: int, at: int, size: int) -> int:
    try:
        return min(os.lseek(fd, at, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EINVAL):
            return size
        raise


def _copy_ranges(source: int, dest: int, size: int) -> None:
    at = 0
    while at < size and (start := next_written(source, at, size)) < size:
        at = max(_next_hole(source, start, size), start + 1)
        _copy_range(source, dest, start, at)
    os.ftruncate(dest, size)


def _copy_range(source: int, dest: int, start: int, end: int) -> None:
    while start < end:
        try:
            done = os.copy_file_range(source, dest, end - start, start, start)
        except OSError as error:
            if error.errno not in _USE_MEMORY:
                raise
            done = 0
        if done == 0:
            # The end of the file, or a filesystem that can't: reading tells.
            _copy_through_memory(source, dest, start, end)
            return
        start += done


def _copy_through_memory(source: int, dest: int, start: int, end: int) -> None:
    while start < end and (chunk := os.pread(source, min(CHUNK, end - start), start)):
        rest = memoryview(chunk)
        while rest:
            done = os.pwrite(dest, rest, start)
            start += done
            rest = rest[done:]


def have_same_content(one: int, other: int, size: int) -> bool:
    """Compare two open files of the same size."""
    at = 0
    while at < size:
        if size > CHUNK:
            at = min(next_written(one, at, size), next_written(other, at, size))
            if at >= size:
                break
        length = min(CHUNK, size - at)
        ours, theirs = _read_at(one, at, length), _read_at(other, at, length)
        if ours != theirs:
            return False
        if not ours:
            # Both ended before their size: shortened meanwhile, and alike as far as anyone can tell.
            break
        at += len(ours)
    return True


def _read_at(fd: int, at: int, length: int) -> bytes:
    """Read that many bytes, or up to the end of the file."""
    chunk = os.pread(fd, length, at)
    while chunk and len(chunk) < length and (more := os.pread(fd, length - len(chunk), at + len(chunk))):
        chunk += more
    return chunk
