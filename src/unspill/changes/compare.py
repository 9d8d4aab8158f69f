# SPDX-License-Identifier: Apache-2.0
"""In which fields an entry of a layer differs from the one beneath it.

What counts: permission bits, content, symlink target, `user.*` attributes, and the mtime of regular files.
Copy-up alone changes none of these. Where one side can't be read the answer is "differs, unreadable".
"""

from __future__ import annotations

import os
import stat

from unspill.changes.attributes import list_attributes, user_attributes
from unspill.changes.content import have_same_content
from unspill.changes.kinds import refuse_foreign
from unspill.changes.walk import Unlocked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.changes.report import Found
    from unspill.changes.walk import Dir
    from unspill.model.change import Aspect

    # In which aspects two entries differ, and whether one of them could not be read for it.
    Difference = tuple[tuple[Aspect, ...], bool]

PATH_MAX = 4096


def compare_files(path: bytes, entry: Found, base: Found) -> Difference:
    """Compare two regular files. One of an upper that is closed to its owner gets another ctime by this."""
    status, base_status = entry[2], base[2]
    aspects: list[Aspect] = []
    unreadable = False
    try:
        if status.st_size != base_status.st_size or (status.st_size and _contents_differ(entry, base)):
            aspects.append("content")
    except OSError:
        unreadable = True
        aspects.append("content")
    if (status.st_mode ^ base_status.st_mode) & 0o7777:
        aspects.append("mode")
    if status.st_mtime_ns != base_status.st_mtime_ns:
        aspects.append("mtime")
    try:
        if _file_attributes_differ(path, entry, base):
            aspects.append("xattrs")
    except OSError:
        unreadable = True
        aspects.append("xattrs")
    return tuple(aspects), unreadable


def compare_directories(upper: Dir, base: Dir) -> Difference:
    """Compare two directories by themselves."""
    aspects: tuple[Aspect, ...] = ("mode",) if (upper.status.st_mode ^ base.status.st_mode) & 0o7777 else ()
    # The attribute calls refuse a descriptor that was opened for look-ups only.
    entry = base.descriptor() if base.is_listable else base.attribute_path(b"")
    try:
        names = list_attributes(entry)
        if not names and not upper.attributes:
            return aspects, False
        if user_attributes(upper.descriptor(), upper.attributes) == user_attributes(entry, names):
            return aspects, False
    except OSError:
        return (*aspects, "xattrs"), True
    return (*aspects, "xattrs"), False


def compare_symlinks(name: bytes, upper: Dir, base: Dir) -> Difference:
    """Compare two symlinks by their text."""
    try:
        return ((), False) if upper.readlink(name) == base.readlink(name) else (("target",), False)
    except OSError:
        return ("target",), True


def compare_specials(status: os.stat_result, base_status: os.stat_result) -> Difference | None:
    """Compare two special files; None when they are not even of the same type."""
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(base_status.st_mode) or status.st_rdev != base_status.st_rdev:
        return None
    return (("mode",), False) if (status.st_mode ^ base_status.st_mode) & 0o7777 else ((), False)


def _contents_differ(entry: Found, base: Found) -> bool:
    ours = open_file(entry)
    try:
        theirs = open_file(base)
        try:
            return not have_same_content(ours, theirs, entry[2].st_size)
        finally:
            os.close(theirs)
    finally:
        os.close(ours)


def open_file(found: Found) -> int:
    """Open a regular file for reading, and leave one that is closed to its owner closed.

    Raises:
        OSError: It can't be read, or is no regular file.
    """
    if found[2].st_mode & 0o400:
        return found[0].open_file(found[1])
    with Unlocked(*found[:3]):
        return found[0].open_file(found[1])


def has_attributes(path: bytes, layer: bytes, name: bytes, base: Dir) -> bool:
    """Tell whether a file of a layer or the one beneath it may have any attribute at all."""
    try:
        full = layer + b"/" + path
        base_path = b"/proc/self/fd/%d/%s" % (base.descriptor(), name)
        return bool(os.listxattr(full, follow_symlinks=False) or os.listxattr(base_path, follow_symlinks=False))
    except OSError:
        return True


def _file_attributes_differ(path: bytes, entry: Found, base: Found) -> bool:
    # The attribute calls know no directory descriptor. Nothing moves in an upper, so there its own path is as good
    # as one through /proc, and twice as fast.
    full = entry[0].upper + b"/" + path
    if len(full) >= PATH_MAX:
        full = entry[0].attribute_path(entry[1])
    base_path = b"/proc/self/fd/%d/%s" % (base[0].descriptor(), base[1])
    try:
        names, base_names = os.listxattr(full, follow_symlinks=False), os.listxattr(base_path, follow_symlinks=False)
    except OSError:
        names, base_names = list_attributes(full), list_attributes(base_path)
    if not names and not base_names:
        return False
    refuse_foreign(names, path)
    with Unlocked(*entry[:3]), Unlocked(*base[:3]):
        return user_attributes(full, names) != user_attributes(base_path, base_names)
