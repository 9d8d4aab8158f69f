# SPDX-License-Identifier: Apache-2.0
"""The changes and findings of one scan while they are collected, in the order of the walk.

Everything that was cut, skipped or unreadable leaves a finding here: nothing is dropped in silence.
"""

from __future__ import annotations

from unspill.changes.links import leads_out
from unspill.model.change import Change, ChangeSet, Identity, RootChanges
from unspill.record import setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from unspill.changes.walk import Dir
    from unspill.model.change import Aspect, ChangeKind, EntryKind

    # An entry where it was found: its directory, its name there, its lstat, its kind.
    Found = tuple[Dir, bytes, os.stat_result, EntryKind]

MAX_FINDINGS = 200
# A chain of directories has a path per level: their sum grows with the square of the depth.
MAX_PATH_BYTES = 512 * 1024 * 1024


# Called one by one because checking the keyword arguments of a record costs more than the system calls of a change.
_new = object.__new__
(
    _set_path, _set_kind, _set_entry, _set_base_kind, _set_base_size, _set_base_mode, _set_aspects, _set_target,
    _set_base_target, _set_leads_out, _set_broke_link, _set_unreadable, _set_layer,
) = setters(Change)  # fmt: skip
_set_entry_kind, _set_mode, _set_inode, _set_size, _set_ctime = setters(Identity)


# The aspects of a file with another size, by whether mode and mtime differ as well
_RESIZED: dict[tuple[bool, bool], tuple[Aspect, ...]] = {
    (False, False): ("content",),
    (False, True): ("content", "mtime"),
    (True, False): ("content", "mode"),
    (True, True): ("content", "mode", "mtime"),
}


class Report:
    """What a scan has found so far below one root."""

    def __init__(self, root: bytes, max_entries: int) -> None:
        self._root = root
        self._max_entries = max_entries
        self._path_bytes = 0
        self._findings: list[str] = []
        self._findings_left_out = 0
        self._changes: list[Change] = []
        self.is_full = False
        self._is_cut = False

    def add(
        self,
        path: bytes,
        kind: ChangeKind,
        layer: bytes,
        upper: Found | None,
        base: Found | None,
        aspects: tuple[Aspect, ...] = (),
        *,
        unreadable: bool = False,
    ) -> None:
        """Record one change of the entry `upper` over the entry `base`."""
        self._path_bytes += len(path)
        if len(self._changes) >= self._max_entries or self._path_bytes > MAX_PATH_BYTES:
            self._cut(path)
            return
        entry = target = base_kind = base_target = None
        base_size = base_mode = 0
        escapes = broke_link = False
        if upper is not None:
            entry = identify(upper[2], upper[3])
            if upper[3] == "symlink":
                target = upper[0].readlink(upper[1])
                self._path_bytes += len(target)
                escapes = leads_out(path, target, self._root)
        if base is not None:
            status, base_kind = base[2], base[3]
            base_size, base_mode = status.st_size, status.st_mode & 0o7777
            if base_kind == "symlink":
                base_target = _target_of(base)
            elif base_kind == "file" and status.st_nlink > 1:
                broke_link = kind == "modified" or kind == "metadata"
        change = _new(Change)
        _set_path(change, path)
        _set_kind(change, kind)
        _set_entry(change, entry)
        _set_base_kind(change, base_kind)
        _set_base_size(change, base_size)
        _set_base_mode(change, base_mode)
        _set_aspects(change, aspects)
        _set_target(change, target)
        _set_base_target(change, base_target)
        _set_leads_out(change, escapes)
        _set_broke_link(change, broke_link)
        _set_unreadable(change, unreadable)
        _set_layer(change, layer)
        self._changes.append(change)
        if unreadable:
            self.find("can't be compared: not readable", path)

    def add_resized(self, path: bytes, layer: bytes, status: os.stat_result, base: os.stat_result) -> None:
        """Record a regular file over one of another size."""
        self._path_bytes += len(path)
        if len(self._changes) >= self._max_entries or self._path_bytes > MAX_PATH_BYTES:
            self._cut(path)
            return
        mode, base_mode = status.st_mode & 0o7777, base.st_mode & 0o7777
        has_other_time = status.st_mtime_ns != base.st_mtime_ns
        change = _new(Change)
        _set_path(change, path)
        _set_kind(change, "modified")
        _set_entry(change, identify(status, "file"))
        _set_base_kind(change, "file")
        _set_base_size(change, base.st_size)
        _set_base_mode(change, base_mode)
        _set_aspects(change, _RESIZED[mode != base_mode, has_other_time])
        _set_target(change, None)
        _set_base_target(change, None)
        _set_leads_out(change, False)
        _set_broke_link(change, base.st_nlink > 1)
        _set_unreadable(change, False)
        _set_layer(change, layer)
        self._changes.append(change)

    def leave_out(self, why: str, path: bytes) -> None:
        """Record that what is in a directory is not listed."""
        self._is_cut = True
        self.find(f"{why}: what is in it is not listed", path)

    def find(self, what: str, path: bytes) -> None:
        """Record something that no change shows."""
        if len(self._findings) < MAX_FINDINGS:
            from unspill.changes.quote import quote

            self._findings.append(f"{quote(path)}: {what}")
        else:
            self._findings_left_out += 1

    def refresh(self, directories: list[Dir]) -> None:
        """Take the identity of directories anew whose ctime a scan changed by opening them to their owner."""
        fresh = {path_of(directory): identify(directory.status, "dir") for directory in directories}
        if fresh:
            self._changes = [
                change.replace(entry=fresh[change.path])
                if change.path in fresh and change.entry is not None and change.entry.kind == "dir"
                else change
                for change in self._changes
            ]

    def as_change_set(self) -> ChangeSet:
        findings = self._findings
        if self._findings_left_out:
            findings = [*findings, f"and {self._findings_left_out} more findings like these"]
        part = RootChanges(root=self._root, changes=tuple(self._changes))
        return ChangeSet(roots=(part,), findings=tuple(findings), is_cut=self.is_full or self._is_cut)

    def _cut(self, path: bytes) -> None:
        if not self.is_full:
            self.is_full = True
            self.find(f"too large to review: only the first {len(self._changes)} changes are listed", path)


def _target_of(base: Found) -> bytes | None:
    try:
        return base[0].readlink(base[1])
    except OSError:
        return None  # replaced in the live tree meanwhile


def identify(status: os.stat_result, kind: EntryKind) -> Identity:
    """Return the identity of an entry from its lstat."""
    identity = _new(Identity)
    _set_entry_kind(identity, kind)
    _set_mode(identity, status.st_mode & 0o7777)
    _set_inode(identity, status.st_ino)
    _set_size(identity, status.st_size)
    _set_ctime(identity, status.st_ctime_ns)
    return identity


def path_of(directory: Dir) -> bytes:
    """Return the path of a directory from its root, `.` for the root itself."""
    parts = []
    while directory.parent is not None:
        parts.append(directory.name)
        directory = directory.parent
    return b"/".join(reversed(parts)) or b"."
