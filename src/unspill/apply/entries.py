# SPDX-License-Identifier: Apache-2.0
"""What identifies an entry, and whether a status is still that entry.

A rename changes the ctime and nothing else, so the ctime is not compared. A write changes the mtime, a replacement the
inode, a chmod the mode. Directories are identified by their inode alone: what is in them is compared by itself.
"""

from __future__ import annotations

from unspill.changes.kinds import FORMAT, KINDS
from unspill.model.operation import Entry
from unspill.record import setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

# Called one by one, because checking keyword arguments takes longer than the system calls of a step
_new = object.__new__
_set_kind, _set_mode, _set_inode, _set_size, _set_mtime, _set_ctime = setters(Entry)


def entry_of(status: os.stat_result) -> Entry:
    """Return what identifies an entry from its lstat."""
    entry = _new(Entry)
    _set_kind(entry, KINDS.get(status.st_mode & FORMAT, "special"))
    _set_mode(entry, status.st_mode & 0o7777)
    _set_inode(entry, status.st_ino)
    _set_size(entry, status.st_size)
    _set_mtime(entry, status.st_mtime_ns)
    _set_ctime(entry, status.st_ctime_ns)
    return entry


def matches(status: os.stat_result, entry: Entry) -> bool:
    """Tell whether this is still that entry, with the same content as far as the filesystem tells."""
    if status.st_ino != entry.inode:
        return False
    kind = KINDS.get(status.st_mode & FORMAT, "special")
    if kind != entry.kind:
        return False
    if kind == "dir":
        return True
    return (
        status.st_mtime_ns == entry.mtime_ns and status.st_size == entry.size and status.st_mode & 0o7777 == entry.mode
    )
