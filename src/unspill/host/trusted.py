# SPDX-License-Identifier: Apache-2.0
"""Who could put something else in the place of a directory: whoever owns it, or may write in it or in one above.

Looks only. What it says is true for as long as the caller and root do not change it.
"""

from __future__ import annotations

import os
import stat

from unspill.host.bwrap import owner_of_the_system
from unspill.record import Record

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40


class Changeable(Record):
    """Why a directory is not the caller's and root's alone: `reason` is a part of a sentence about `path`."""

    path: bytes
    reason: str


def find_changeable(directory: bytes, *, is_above_only: bool = False) -> Changeable | None:
    """Return the first of a directory and all above it that others could change; None where there is none.

    `directory` is an absolute path without links. The caller's own group of one person is nobody else. With
    `is_above_only` it is some entry, and only the directories above it count.
    """
    path = os.path.dirname(directory) if is_above_only else directory
    while True:
        reason = _why(path, is_above=path != directory)
        if reason:
            return Changeable(path=path, reason=reason)
        if path in (b"/", b""):
            return None
        path = os.path.dirname(path)


def find_changeable_way(path: bytes) -> Changeable | None:
    """Return the first link on the way to an absolute path that others could have laid; None where there is none.

    Where the way ends by now may be the caller's own, and still be another place than the caller means.
    """
    at, todo, left = b"/", path.split(b"/")[::-1], _MOST_LINKS
    while todo:
        name = todo.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            at = os.path.dirname(at)
            continue
        entry = os.path.join(at, name)
        try:
            found = os.lstat(entry)
            target = os.readlink(entry) if stat.S_ISLNK(found.st_mode) else None
        except OSError:
            return None  # what is not there yet leads nowhere
        if target is None:
            at = entry
            continue
        left -= 1
        if found.st_uid not in (0, os.geteuid()) or not left:
            return Changeable(path=entry, reason="is a link of somebody else")
        # As seen from an entry of it: so it may be sticky, since that entry is the caller's or root's
        above = find_changeable(entry, is_above_only=True)
        if above is not None:
            return above
        at = b"/" if target.startswith(b"/") else at
        todo += target.split(b"/")[::-1]
    return None


def _why(path: bytes, *, is_above: bool) -> str:
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a directory"
    if found.st_uid not in (0, os.geteuid(), owner_of_the_system()):
        return "belongs to somebody else"
    if not found.st_mode & OTHERS_MAY_WRITE:
        return ""
    # In a sticky directory such as /tmp nobody else can rename what is the caller's
    if is_above and (found.st_mode & stat.S_ISVTX or _is_private(found)):
        return ""
    return "can be changed by others"


def _is_private(found: os.stat_result) -> bool:
    """Tell whether only a group may write that is the caller's alone: where each person has one, umasks leave it."""
    import grp
    import pwd

    if found.st_mode & stat.S_IWOTH or found.st_uid != os.geteuid():
        return False
    try:
        person, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    is_own = found.st_gid == person.pw_gid and group.gr_name == person.pw_name
    return is_own and set(group.gr_mem) <= {person.pw_name}
