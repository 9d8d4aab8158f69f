# SPDX-License-Identifier: Apache-2.0
"""How much lies in an upper directory: nothing at all, or so many bytes and entries.

Both are asked while or right after a command runs, so a run that changed nothing costs one listing here.
"""

from __future__ import annotations

import os
import stat
import sys

from unspill.changes.kinds import is_user_attribute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.changes.walk import Dir

BLOCK = 512


def is_empty(upper: bytes, beneath: bytes | None = None) -> bool:
    """Tell whether an upper directory has no entry.

    With `beneath`, the directory that the upper was laid over, also tell a `chmod` or a new attribute of the root
    itself, which leaves no entry. False means that a scan has to look.
    """
    try:
        with os.scandir(upper) as entries:
            if next(entries, None) is not None:
                return False
    except PermissionError:
        return False
    return beneath is None or _is_same_root(upper, beneath)


def _is_same_root(upper: bytes, beneath: bytes) -> bool:
    if stat.S_IMODE(os.lstat(upper).st_mode) != stat.S_IMODE(os.lstat(beneath).st_mode):
        return False
    return not any(map(is_user_attribute, (*os.listxattr(upper), *os.listxattr(beneath))))


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
    from unspill.changes.walk import Pool

    total = count = 0
    bytes_left = bytes_cap if bytes_cap is not None else sys.maxsize
    entries_left = entries_cap if entries_cap is not None else sys.maxsize
    linked: set[int] = set()
    with Pool() as pool:
        root = pool.upper_root(upper) if unlock else pool.live_root(upper)
        for _directory, _name, status in _all_entries(root, closed):
            count += 1
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                # All whiteouts are links of one inode.
                if status.st_ino in linked:
                    continue
                linked.add(status.st_ino)
            total += status.st_blocks * BLOCK
            if total > bytes_left or count > entries_left:
                return total, count
    return total, count


def has_fresh(directory: bytes, since_ns: int, *, over_bytes: int, over_entries: int) -> bool:
    """Tell whether more than so much was made in a directory since a moment.

    By the time at which each entry was made, which no command can set: all others change when something is removed or
    closed too. Where the filesystem does not know it, nothing is fresh.
    """
    from unspill.changes.walk import Pool
    from unspill.host.statx import Statx

    statx = Statx()
    total = count = 0
    with Pool() as pool:
        for above, name, status in _all_entries(pool.live_root(directory), None):
            if (statx.born_ns(above.descriptor(), name) or 0) >= since_ns:
                count += 1
                total += status.st_blocks * BLOCK
                if total > over_bytes or count > over_entries:
                    return True
    return False


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
