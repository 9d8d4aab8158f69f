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
    from unspill.changes.walk import Dir
    from unspill.model.change import Aspect, ChangeKind


class Difference:
    """What was found about one pair. `touched`: looking changed the ctime of the upper entry."""

    __slots__ = ("aspects", "touched", "unreadable")

    @property
    def kind(self) -> ChangeKind:
        return "modified" if "content" in self.aspects or "target" in self.aspects else "metadata"

    def __init__(self) -> None:
        self.aspects: list[Aspect] = []
        self.touched = False
        self.unreadable = False


def compare_files(
    name: bytes, upper: Dir, status: os.stat_result, base: Dir, base_status: os.stat_result
) -> Difference:
    """Compare two regular files of the same name."""
    if status.st_mode & base_status.st_mode & 0o400:
        return _compare_readable(name, upper, status, base, base_status)
    with Unlocked(upper, name, status) as was_closed, Unlocked(base, name, base_status):
        found = _compare_readable(name, upper, status, base, base_status)
    found.touched = was_closed
    return found


def _compare_readable(
    name: bytes, upper: Dir, status: os.stat_result, base: Dir, base_status: os.stat_result
) -> Difference:
    found = Difference()
    aspects = found.aspects
    size = status.st_size
    if size != base_status.st_size or (size and _contents_differ(found, name, upper, base, size)):
        aspects.append("content")
    if (status.st_mode ^ base_status.st_mode) & 0o7777:
        aspects.append("mode")
    if status.st_mtime_ns != base_status.st_mtime_ns:
        aspects.append("mtime")
    if _attributes_differ(found, upper.attribute_path(name), base.attribute_path(name)):
        aspects.append("xattrs")
    return found


def compare_directories(upper: Dir, base: Dir) -> Difference:
    """Compare two directories by themselves."""
    found = Difference()
    if (upper.status.st_mode ^ base.status.st_mode) & 0o7777:
        found.aspects.append("mode")
    # The attribute calls refuse a descriptor that was opened for look-ups only.
    entry = base.descriptor() if base.is_listable else base.attribute_path(b"")
    if _attributes_differ(found, upper.descriptor(), entry, upper.attributes):
        found.aspects.append("xattrs")
    return found


def compare_symlinks(name: bytes, upper: Dir, base: Dir) -> Difference:
    """Compare two symlinks by their text."""
    found = Difference()
    if upper.readlink(name) != base.readlink(name):
        found.aspects.append("target")
    return found


def compare_specials(status: os.stat_result, base_status: os.stat_result) -> Difference | None:
    """Compare two special files; None when they are not even of the same type."""
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(base_status.st_mode) or status.st_rdev != base_status.st_rdev:
        return None
    found = Difference()
    if stat.S_IMODE(status.st_mode) != stat.S_IMODE(base_status.st_mode):
        found.aspects.append("mode")
    return found


def _contents_differ(found: Difference, name: bytes, upper: Dir, base: Dir, size: int) -> bool:
    try:
        ours = upper.open_file(name)
        try:
            theirs = base.open_file(name)
            try:
                return not have_same_content(ours, theirs, size)
            finally:
                os.close(theirs)
        finally:
            os.close(ours)
    except OSError:
        found.unreadable = True
        return True


def _attributes_differ(
    found: Difference, upper: bytes | int, base: bytes | int, names: list[str] | None = None
) -> bool:
    try:
        if names is None:
            names = list_attributes(upper)
            refuse_foreign(names, upper if isinstance(upper, bytes) else b".")
        base_names = list_attributes(base)
        if not names and not base_names:
            return False
        return user_attributes(upper, names) != user_attributes(base, base_names)
    except OSError:
        found.unreadable = True
        return True
