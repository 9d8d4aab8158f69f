# SPDX-License-Identifier: Apache-2.0
"""Merge upper directories into one that shows the same over any lower directory.

Nothing is copied: files, links and whiteouts are hard-linked, only directories are new. The sources must be
sealed. A path too long for the kernel fails with OSError; a link is never followed, because a directory is only
entered in those layers in which every step to it is a directory.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    Names = dict[bytes, list[os.DirEntry[bytes]]]

OPAQUE = "user.overlay.opaque"
_ESCAPED = "user.overlay.overlay."


class _Part(Record):
    """A directory to merge: `sources` have it, the newest first; an opaque one shows nothing from below."""

    path: bytes
    sources: tuple[bytes, ...]
    opaque: bool = False


def merge_uppers(uppers: tuple[bytes, ...], dest: bytes) -> None:
    """Fill the empty directory `dest` with what `uppers` (the oldest first) show together.

    Raises:
        OSError: something in there can't be linked or read.
    """
    # The root of an upper is never opaque: it always covers a live directory.
    waiting = [_Part(path=b"", sources=tuple(reversed(uppers)))]
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
    below: list[_Part] = []
    for name, entries in _collect(part).items():
        path = os.path.join(part.path, name)
        target = os.path.join(dest, path)
        if entries[0].is_dir(follow_symlinks=False):
            os.mkdir(target, 0o700)
            below.append(_descend(path, entries))
        else:
            _link(entries[0].path, target)
    return below


def _collect(part: _Part) -> Names:
    """Return the entries of a directory by name, the newest layer's first."""
    found: Names = {}
    for source in part.sources:
        with os.scandir(os.path.join(source, part.path)) as entries:
            for entry in entries:
                found.setdefault(entry.name, []).append(entry)
    return found


def _descend(path: bytes, entries: list[os.DirEntry[bytes]]) -> _Part:
    """Return the directories that show through at `path`: down to the first that is opaque, or no directory."""
    sources: list[bytes] = []
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            return _Part(path=path, sources=tuple(sources), opaque=True)
        # Cut the path itself off again: what is left is the upper that the entry lies in.
        sources.append(entry.path[: -len(path) - 1])
        if _is_opaque(entry.path):
            return _Part(path=path, sources=tuple(sources), opaque=True)
    return _Part(path=path, sources=tuple(sources))


def _is_opaque(path: bytes) -> bool:
    try:
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise


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
