# SPDX-License-Identifier: Apache-2.0
"""Whether two files hold the same bytes, read from descriptors.

Where both have a hole nothing is read: a sparse file of a terabyte with one byte in it is compared at once.
"""

from __future__ import annotations

import errno
import os

CHUNK = 256 * 1024


def have_same_content(one: int, other: int, size: int) -> bool:
    """Compare two open files of the same size."""
    at = 0
    while at < size:
        if size > CHUNK:
            at = min(_next_written(one, at, size), _next_written(other, at, size))
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


def _next_written(fd: int, at: int, size: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno == errno.EINVAL:
            return at  # this filesystem knows no holes
        raise


def _read_at(fd: int, at: int, length: int) -> bytes:
    """Read that many bytes, or up to the end of the file."""
    chunk = os.pread(fd, length, at)
    while chunk and len(chunk) < length and (more := os.pread(fd, length - len(chunk), at + len(chunk))):
        chunk += more
    return chunk
