# SPDX-License-Identifier: Apache-2.0
"""Merge upper directories into one that shows the same over the directories below them.

Nothing is copied: files, links and whiteouts are hard-linked, only directories are new. The sources must be
sealed. A path too long for the kernel fails with OSError; a link is never followed, because a directory is only
entered in those layers in which every step to it is a directory.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Entries = list[os.DirEntry[bytes]]

OPAQUE = "user.overlay.opaque"
_ESCAPED = "user.overlay.overlay."


class _Part(Record):
    """A directory to merge: `sources` have it, the newest first, and so have those `below` that show through."""

    path: bytes
    sources: tuple[bytes, ...]
    below: tuple[bytes, ...]
    opaque: bool = False


def merge_uppers(uppers: tuple[bytes, ...], below: tuple[bytes, ...], dest: bytes) -> None:
    """Fill the empty directory `dest` with what `uppers` show together over `below`; both have the oldest first.

    Raises:
        OSError: something in there can't be linked or read.
    """
    # The root of an upper is never opaque: it always covers a live directory.
    waiting = [_Part(path=b"", sources=uppers[::-1], below=below[::-1])]
    done: list[_Part] = []
    while waiting:
        part = waiting.pop()
        waiting.extend(_merge_one(part, dest))
        done.append(part)
    # Parents come before children in `done`, and a directory without the right to write must be filled first.
    for part in reversed(done):
        _dress(part, dest)


def _merge_one(part: _Part, dest: bytes) -> list[_Part]:
    """Link the entries of one directory that are none themselves; make and return those that are."""
    parts: list[_Part] = []
    for name, entries in _collect(part).items():
        path = os.path.join(part.path, name)
        target = os.path.join(dest, path)
        if entries[0].is_dir(follow_symlinks=False):
            os.mkdir(target, 0o700)
            parts.append(_descend(part, path, entries))
        # In a directory that only one layer has, the kernel does not look for whiteouts: it lists them as names.
        elif part.below or not _is_whiteout(entries[0]):
            _link(entries[0].path, target)
    return parts


def _collect(part: _Part) -> dict[bytes, Entries]:
    """Return the entries of a directory by name, the newest layer's first."""
    found: dict[bytes, Entries] = {}
    for source in part.sources:
        with os.scandir(os.path.join(source, part.path)) as entries:
            for entry in entries:
                found.setdefault(entry.name, []).append(entry)
    return found


def _descend(parent: _Part, path: bytes, entries: Entries) -> _Part:
    """Return which directories show at `path`: down to the first that is opaque, or no directory."""
    # Cut the path itself off again: what is left is the upper that the entry lies in.
    having = [entry.path[: -len(path) - 1] for entry in entries]
    sources, is_closed = _showing(having, path)
    if is_closed:
        return _Part(path=path, sources=sources, below=(), opaque=True)
    return _Part(path=path, sources=sources, below=_showing(parent.below, path)[0])


def _showing(tops: Iterable[bytes], path: bytes) -> tuple[tuple[bytes, ...], bool]:
    """Return those of `tops` whose directory at `path` shows, and whether it hides all that is further below."""
    found: list[bytes] = []
    for top in tops:
        full = os.path.join(top, path)
        try:
            state = os.lstat(full)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(state.st_mode):
            return tuple(found), True
        found.append(top)
        if _is_opaque(full):
            return tuple(found), True
    return tuple(found), False


def _is_opaque(path: bytes) -> bool:
    try:
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise


def _is_whiteout(entry: os.DirEntry[bytes]) -> bool:
    state = entry.stat(follow_symlinks=False)
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == 0


def _link(source: bytes, target: bytes) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        # All whiteouts of a mount are one inode, so they are the first to have too many links.
        if error.errno != errno.EMLINK or not stat.S_ISCHR(os.lstat(source).st_mode):
            raise
        os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))


def _dress(part: _Part, dest: bytes) -> None:
    """Give a merged directory the mode, times and attributes of the newest one."""
    newest, target = os.path.join(part.sources[0], part.path), os.path.join(dest, part.path)
    for name in os.listxattr(newest, follow_symlinks=False):
        # What overlayfs keeps for itself (origin, impure, uuid) belongs to the old directory.
        if name.startswith(_ESCAPED) or (name.startswith("user.") and not name.startswith("user.overlay.")):
            os.setxattr(target, name, os.getxattr(newest, name, follow_symlinks=False))
    if part.opaque:
        os.setxattr(target, OPAQUE, b"y")
    state = os.lstat(newest)
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.chmod(target, stat.S_IMODE(state.st_mode))
