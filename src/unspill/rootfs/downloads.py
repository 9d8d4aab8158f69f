# SPDX-License-Identifier: Apache-2.0
"""What was fetched and lies below the rootfs directory: how much it is, and how it goes.

All of it can be fetched again. What somebody fetches or builds from right now is left alone: a part has a lock, so
has the directory of Debian's packages, and whoever uses what is whole has a staging directory.
"""

from __future__ import annotations

import fcntl
import os

from unspill.host.writing import sync_directory
from unspill.rootfs.layout import DIRECTORY, DOWNLOADS, STAGING, check_trusted, failed
from unspill.rootfs.staging import sweep

_BLOCK = 512
_ENDINGS = (b".part", b".state")
_LOCK = b"lock"
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def measure_downloads(directory: bytes) -> int:
    """Return how many bytes of the disk they take."""
    top = os.path.join(directory, DOWNLOADS)
    return sum(_size(os.path.join(parent, name)) for parent, _, names in os.walk(top) for name in names)


def empty_downloads(directory: bytes) -> int:
    """Remove them; return how many bytes of the disk that gave back.

    Raises:
        RootfsUnsafe: the directory is another person's, or others can write in it.
        RootfsError: it can only be read.
    """
    top = os.path.join(directory, DOWNLOADS)
    if not (check_trusted(directory) and check_trusted(top)):
        return 0
    try:
        names = sorted(os.listdir(top))
        stems = sorted({os.path.splitext(name)[0] for name in names if name.endswith(_ENDINGS)})
        freed = sum(_drop_part(top, stem) for stem in stems)
        for name in names:
            path = os.path.join(top, name)
            if os.path.isdir(path) and not os.path.islink(path):
                freed += _empty_packages(path)
            elif not name.endswith(_ENDINGS) and not _is_building(directory):
                freed += _unlink(path)
        sync_directory(top)
    except OSError as error:
        raise failed(error, directory) from error
    return freed


def _is_building(directory: bytes) -> bool:
    """Tell whether somebody makes a rootfs, who may be about to open what is whole; the dead do not count."""
    sweep(directory)
    with os.scandir(os.path.join(directory, STAGING)) as entries:
        return any(entry.is_dir(follow_symlinks=False) for entry in entries)


def _drop_part(top: bytes, stem: bytes) -> int:
    """Remove a download that nobody goes on with; whoever waits for its state sees that it has gone, and begins."""
    path = os.path.join(top, stem)
    fd = _lock(path + b".state")
    if fd is None:
        return 0
    try:
        # Finished meanwhile: the name may be another's by now
        return sum(_unlink(path + ending) for ending in _ENDINGS) if os.fstat(fd).st_nlink else 0
    finally:
        os.close(fd)


def _empty_packages(path: bytes) -> int:
    """Remove what apt has fetched, not the directories and the lock: somebody may wait for it."""
    os.close(os.open(path, DIRECTORY))
    fd = _lock(os.path.join(path, _LOCK))
    if fd is None:
        return 0
    try:
        found = [os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names]
        return sum(map(_unlink, (file for file in found if file != os.path.join(path, _LOCK))))
    finally:
        os.close(fd)


def _lock(path: bytes) -> int | None:
    """Return the descriptor of a lock file, None where somebody has it."""
    fd = os.open(path, _FILE, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _unlink(path: bytes) -> int:
    size = _size(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return size


def _size(path: bytes) -> int:
    try:
        return os.lstat(path).st_blocks * _BLOCK
    except FileNotFoundError:
        return 0
