# SPDX-License-Identifier: Apache-2.0
"""Finds the bubblewrap that may be trusted: root's own, and written by nobody else.

Only looks at the file and the directories above it; whether it works is for `probe`. A candidate that can't be trusted
is passed over, never repaired. The same looks tell who could put something else in the place of any directory.
"""

from __future__ import annotations

import os
import pwd
import stat

from unspill.errors import BwrapMissing, BwrapUnsafe
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_OVERFLOW_UID = 65534

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40


def find_bwrap(configured: bytes | None, path: str, forbidden: Sequence[bytes]) -> bytes:
    """Return the resolved path of a bwrap that only root can have written.

    Args:
        configured: the person's own choice; then no other is looked for.
        path: the value of PATH; its relative entries are ignored.
        forbidden: directories that a sandboxed command may write: the roots and the working directory.

    Raises:
        BwrapMissing: there is none.
        BwrapUnsafe: there is one, but someone else could have written it.
    """
    candidates = _candidates(path) if configured is None else [configured]
    unsafe: list[tuple[bytes, str]] = []
    for candidate in candidates:
        if not os.path.lexists(candidate):
            continue
        resolved = os.path.realpath(candidate)
        reason = _is_inside(candidate, forbidden) or _is_inside(resolved, forbidden) or why_unsafe(resolved)
        if not reason:
            return resolved
        unsafe.append((candidate, reason))
    raise _refusal(configured, unsafe)


def why_unsafe(path: bytes) -> str:
    """Return why this resolved path can't be trusted, an empty string if it can."""
    if not path.startswith(b"/"):
        return "its path is not absolute"
    try:
        found = os.lstat(path)
        parents = [(parent, os.lstat(parent)) for parent in _parents(path)]
    except OSError as error:
        return f"it can't be looked at: {error.strerror}"
    return _why_bad_file(path, found) or _why_bad_owner(path, found, parents)


def _why_bad_file(path: bytes, found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if not found.st_mode & stat.S_IXUSR:
        return "it is not executable"
    if found.st_mode & _SPECIAL_BITS:
        return "it is setuid or setgid"
    try:
        os.getxattr(path, "security.capability", follow_symlinks=False)
    except OSError:
        return ""
    return "it has file capabilities, which is setuid by another name"


def _why_bad_owner(path: bytes, found: os.stat_result, parents: list[tuple[bytes, os.stat_result]]) -> str:
    owner = 0 if os.geteuid() and not found.st_uid else owner_of_the_system()
    for place, entry in ((path, found), *parents):
        # In a namespace without root the top directory is often a tmpfs of the caller's, whose entries are mounts
        if entry.st_uid != owner and (place != b"/" or not owner):
            return f"{os.fsdecode(place)} is owned by uid {entry.st_uid}, not by root"
        if entry.st_mode & _OTHERS_MAY_WRITE:
            return f"{os.fsdecode(place)} can be written by others than its owner"
    return ""


def owner_of_the_system() -> int:
    """Return the uid that the system's files have here.

    In a user namespace that maps only its caller, root's files have the overflow uid; and if that caller is
    called 0 there (unshare -r), files of uid 0 are the caller's own.
    """
    try:
        with open("/proc/self/uid_map", "rb") as file:
            extents = [tuple(map(int, line.split())) for line in file]
    except (OSError, ValueError):
        return 0
    has_root = any(first == 0 and count > 1 for first, _outside, count in extents)
    return 0 if has_root else _OVERFLOW_UID


def _candidates(path: str) -> list[bytes]:
    entries = os.fsencode(path).split(b":")
    return [os.path.join(entry, b"bwrap") for entry in entries if entry.startswith(b"/")]


def _parents(path: bytes) -> list[bytes]:
    parents = []
    while path != b"/":
        path = os.path.dirname(path)
        parents.append(path)
    return parents


def _is_inside(path: bytes, directories: Sequence[bytes]) -> str:
    for directory in directories:
        for spelling in {directory.rstrip(b"/"), os.path.realpath(directory).rstrip(b"/")}:
            if spelling and (path == spelling or path.startswith(spelling + b"/")):
                return f"it is inside {os.fsdecode(directory)}, which a sandboxed command may write"
    return ""


def _refusal(configured: bytes | None, unsafe: list[tuple[bytes, str]]) -> BwrapMissing | BwrapUnsafe:
    from unspill.host.diagnosis import remedy_for  # lazy: doctor

    if unsafe:
        listed = "; ".join(f"{os.fsdecode(path)}: {reason}" for path, reason in unsafe)
        return BwrapUnsafe(f"No bwrap can be trusted. {listed}", remedy=remedy_for("bwrap-unsafe"))
    where = "on PATH" if configured is None else f"at {os.fsdecode(configured)}, as configured"
    return BwrapMissing(f"There is no bwrap {where}.", remedy=remedy_for("bwrap-missing"))


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

    if found.st_mode & stat.S_IWOTH or found.st_uid != os.geteuid():
        return False
    try:
        person, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    is_own = found.st_gid == person.pw_gid and group.gr_name == person.pw_name
    return is_own and set(group.gr_mem) <= {person.pw_name}
