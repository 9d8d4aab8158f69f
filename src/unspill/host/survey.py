# SPDX-License-Identifier: Apache-2.0
"""Looks through a whole project for what an overlay in a user namespace can't do, before a run meets it.

Its cost grows with the project, so only `doctor PROJECT` does it. Goes by descriptor, follows no symlink, enters no
other filesystem, opens no file.
"""

from __future__ import annotations

import os
import posixpath
import stat

from unspill.host.places import mounts_below
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    FindingKind = Literal[
        "other-owner",
        "setuid",
        "capabilities",
        "immutable",
        "hard-link",
        "link-out",
        "special",
        "mount-point",
        "overlay-mark",
        "unreadable",
    ]

SHOWN = 10
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID


class Finding(Record):
    """One kind of thing that was found: how often, and the first paths below the project."""

    kind: FindingKind
    count: int
    examples: tuple[bytes, ...]


class Survey(Record):
    """What was found in a project, and how many entries were looked at."""

    root: bytes
    entries: int
    findings: tuple[Finding, ...]


def survey_project(root: bytes, *, shown: int = SHOWN) -> Survey:
    """Walk a resolved project directory and count what needs a word to the person.

    Raises:
        OSError: the directory itself can't be read.
    """
    walk = _Walk(root, shown)
    top = os.open(root, _OPEN)
    if _has_marks(top, b"."):
        walk.add("overlay-mark", b".")
    walk.walk(top, b"")
    for point in mounts_below(root):
        walk.add("mount-point", posixpath.relpath(point, root))
    findings = (Finding(kind=kind, count=count, examples=tuple(paths)) for kind, (count, paths) in walk.found.items())
    return Survey(root=root, entries=walk.entries, findings=tuple(sorted(findings, key=lambda one: one.kind)))


class _Walk:
    """One walk: who the caller is, and what was seen so far."""

    def __init__(self, root: bytes, shown: int) -> None:
        from unspill.host.libc import Statx

        self._root = root
        self._shown = shown
        self._owner = (os.getuid(), os.getgid())
        self._device = os.stat(root).st_dev
        self._flags = Statx()
        self.entries = 0
        self.found: dict[FindingKind, tuple[int, list[bytes]]] = {}

    def add(self, kind: FindingKind, path: bytes) -> None:
        count, paths = self.found.get(kind, (0, []))
        if count < self._shown:
            paths.append(path)
        self.found[kind] = (count + 1, paths)

    def walk(self, top_fd: int, above: bytes) -> None:
        """Look at a directory and all below it; one descriptor per level of depth, each closed again."""
        levels = [(top_fd, above, self._subdirectories(top_fd, above))]
        while levels:
            dir_fd, here, pending = levels[-1]
            name = next(pending, None)
            if name is None:
                levels.pop()
                os.close(dir_fd)
                continue
            path = posixpath.join(here, name)
            try:
                child_fd = os.open(name, _OPEN, dir_fd=dir_fd)
            except OSError:
                self.add("unreadable", path)
                continue
            levels.append((child_fd, path, self._subdirectories(child_fd, path)))

    def _subdirectories(self, dir_fd: int, here: bytes) -> Iterator[bytes]:
        """Look at every entry of a directory and return the names of those to go into."""
        try:
            names = sorted(map(os.fsencode, os.listdir(dir_fd)))
        except OSError:
            self.add("unreadable", here)
            names = []
        return iter([name for name in names if self._look(dir_fd, name, posixpath.join(here, name))])

    def _look(self, dir_fd: int, name: bytes, path: bytes) -> bool:
        """Judge one entry; tell whether it is a directory to go into."""
        try:
            found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except OSError:
            return False
        if found.st_dev != self._device:
            return False
        self.entries += 1
        if (found.st_uid, found.st_gid) != self._owner:
            self.add("other-owner", path)
        if self._flags.is_immutable(dir_fd, name):
            self.add("immutable", path)
        if _has_marks(dir_fd, name):
            self.add("overlay-mark", path)
        if stat.S_ISREG(found.st_mode):
            self._look_at_file(dir_fd, name, path, found)
        elif stat.S_ISLNK(found.st_mode):
            self._look_at_link(dir_fd, name, path)
        elif not stat.S_ISDIR(found.st_mode):
            self.add("special", path)
        return stat.S_ISDIR(found.st_mode)

    def _look_at_file(self, dir_fd: int, name: bytes, path: bytes, found: os.stat_result) -> None:
        if found.st_mode & _SPECIAL_BITS:
            self.add("setuid", path)
        if found.st_nlink > 1:
            self.add("hard-link", path)
        if found.st_mode & 0o111 and _has_capabilities(dir_fd, name):
            self.add("capabilities", path)

    def _look_at_link(self, dir_fd: int, name: bytes, path: bytes) -> None:
        try:
            target = os.readlink(name, dir_fd=dir_fd)
        except OSError:
            return
        if leads_out(self._root, path, target):
            self.add("link-out", path)


def leads_out(root: bytes, path: bytes, target: bytes) -> bool:
    """Tell by names alone whether a symlink at `path` below `root` leads out of it."""
    end = posixpath.normpath(posixpath.join(root, posixpath.dirname(path), target))
    return end != root and not end.startswith(root.rstrip(b"/") + b"/")


def _has_marks(dir_fd: int, name: bytes) -> bool:
    """Tell whether an overlay over the project would take an attribute of an entry for a mark of its own."""
    try:
        names = os.listxattr(b"/proc/self/fd/%d/%s" % (dir_fd, name), follow_symlinks=False)
    except OSError:
        return False
    return any(known.startswith("user.overlay.") for known in names)


def _has_capabilities(dir_fd: int, name: bytes) -> bool:
    try:
        os.getxattr(b"/proc/self/fd/%d/%s" % (dir_fd, name), "security.capability", follow_symlinks=False)
    except OSError:
        return False
    return True
