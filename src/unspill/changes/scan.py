# SPDX-License-Identifier: Apache-2.0
"""What layers changed, found by reading upper directories: the one algorithm behind every ChangeSet.

Names come from the layers alone; beneath them only those names are looked up, except where a directory hides all
that lies beneath it. So the cost follows the change, never the project. Nothing is followed, nothing live is written.
"""

from __future__ import annotations

from unspill.changes.attributes import list_attributes
from unspill.changes.classify import TABLE
from unspill.changes.collector import CollectorPaused
from unspill.changes.compare import (
    compare_directories,
    compare_files,
    compare_specials,
    compare_symlinks,
    has_attributes,
)
from unspill.changes.kinds import FORMAT, KINDS, is_whiteout, refuse_foreign
from unspill.changes.merge import find_entry, open_merged, read_marks
from unspill.changes.report import Report
from unspill.changes.walk import Pool
from unspill.model.change import ChangeSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from unspill.changes.classify import UpperKind
    from unspill.changes.report import Found
    from unspill.changes.walk import Dir
    from unspill.model.change import ChangeKind

# A regular file that its owner may read
_PLAIN, _READABLE_FILE = 0o170400, 0o100400

MAX_ENTRIES = 1_000_000
MAX_DEPTH = 10_000


def scan(
    layers: Sequence[bytes],
    below: Sequence[bytes],
    live: bytes,
    *,
    max_entries: int = MAX_ENTRIES,
    max_depth: int = MAX_DEPTH,
) -> ChangeSet:
    """Return what `layers` change in the view that `below` and `live` make without them.

    The changes are sorted by the components of their paths, so a directory comes before what is in it.

    Args:
        layers: Upper directories whose effect is asked, the topmost first.
        below: Sealed upper directories under them, the topmost first.
        live: The root that all of them lie over.
        max_entries: More changes than this are cut, with a finding.
        max_depth: Deeper directories are not entered, with a finding.

    Raises:
        SandboxUnavailable: A layer holds marks that no mount of unspill makes.
        OSError: A layer or the live root can't be opened.
    """
    report = Report(live, max_entries)
    if layers:
        with CollectorPaused(), Pool() as pool:
            uppers = [pool.upper_root(path) for path in layers]
            bases = [*(pool.upper_root(path) for path in below), pool.live_root(live)]
            _Scan(pool, report, max_depth).run(uppers, bases)
            report.refresh(pool.restore())
    return report.as_change_set()


def join(parts: Iterable[ChangeSet]) -> ChangeSet:
    """Make one ChangeSet of those of several roots."""
    parts = tuple(parts)
    return ChangeSet(
        roots=tuple(root for part in parts for root in part.roots),
        findings=tuple(finding for part in parts for finding in part.findings),
        is_cut=any(part.is_cut for part in parts),
    )


class _Frame:
    """A directory that is being walked: what merges there in the layers, and what beneath them.

    `hides`: nothing beneath shows through, so what is missing here is deleted.
    """

    __slots__ = ("bases", "hides", "items", "prefix", "uppers")

    def __init__(self, uppers: list[Dir], bases: list[Dir], prefix: bytes, *, hides: bool) -> None:
        self.uppers = uppers
        self.bases = bases
        self.prefix = prefix
        self.hides = hides
        self.items = iter(self._items())

    def _items(self) -> Iterable[tuple[bytes, bool, Dir | None]]:
        if len(self.uppers) == 1 and not (self.hides and self.bases):
            return sorted(self.uppers[0].names())
        found: dict[bytes, tuple[bytes, bool, Dir | None]] = {}
        for directory in self.uppers:
            for item in directory.names():
                found.setdefault(item[0], item)
        if self.hides:
            for directory in self.bases:
                for name, _, _ in directory.names():
                    found.setdefault(name, (name, False, None))
        return sorted(found.values())


class _Scan:
    """One walk, depth first in the order of the names, without recursion."""

    def __init__(self, pool: Pool, report: Report, max_depth: int) -> None:
        self._pool = pool
        self._report = report
        self._max_depth = max_depth

    def run(self, uppers: list[Dir], bases: list[Dir]) -> None:
        top = uppers[0]
        read_marks(top)
        self._both_directories(b".", top, bases[0])
        frames = [_Frame(uppers, bases, b"", hides=False)]
        while frames and not self._report.is_full:
            frame = frames[-1]
            for name, is_dir, upper in frame.items:
                if upper is None or not is_dir:
                    self._leaf(frame, name, upper)
                elif (inner := self._directory(frame, name, upper, len(frames))) is not None:
                    frames.append(inner)
                    break
            else:
                frames.pop()
                for directory in (*frame.uppers, *frame.bases):
                    self._pool.release(directory)

    def _leaf(self, frame: _Frame, name: bytes, upper: Dir | None) -> None:
        """Compare one name that is no directory in the layers, or missing where they hide what is beneath."""
        path = frame.prefix + name
        kind: UpperKind = "whiteout"
        entry: Found | None = None
        layer = (upper or frame.uppers[0]).upper
        if upper is not None:
            status = upper.lstat(name)
            if len(frame.bases) == 1 and self._is_resized(path, name, layer, status, frame.bases[0]):
                return
            entry_kind = KINDS.get(status.st_mode & FORMAT, "special")
            if entry_kind != "special" or not is_whiteout(status):
                kind = entry_kind
                entry = (upper, name, status, entry_kind)
        try:
            base = find_entry(frame.bases, name)
        except OSError:
            self._report.add(path, "modified" if entry else "deleted", layer, entry, None, unreadable=True)
            return
        verdict = TABLE[kind, base[3] if base is not None else "none"]
        if verdict == "compare files" and entry is not None and base is not None:
            aspects, unreadable = compare_files(path, entry, base)
            if aspects:
                if not entry[2].st_mode & 0o400:
                    entry = (entry[0], name, entry[0].lstat(name), "file")
                change: ChangeKind = "modified" if aspects[0] == "content" else "metadata"
                self._report.add(path, change, layer, entry, base, aspects, unreadable=unreadable)
        elif verdict == "added" or verdict == "deleted" or verdict == "replaced":
            if verdict == "added" and entry is not None:
                _refuse_metacopy(entry)
            self._report.add(path, verdict, layer, entry, base)
        elif entry is not None and base is not None:
            self._both(path, entry, base)

    def _is_resized(self, path: bytes, name: bytes, layer: bytes, status: os.stat_result, base: Dir) -> bool:
        """Report a readable file without attributes that has another size than the one beneath; tell whether it is one.

        The most frequent change by far, and the only one that needs no look inside: a short way to the same verdict.
        """
        if status.st_mode & _PLAIN != _READABLE_FILE or not status.st_blocks:
            return False
        try:
            base_status = base.lstat(name)
        except OSError:
            return False
        if base_status.st_mode & _PLAIN != _READABLE_FILE or base_status.st_size == status.st_size:
            return False
        if has_attributes(path, layer, name, base):
            return False
        self._report.add_resized(path, layer, status, base_status)
        return True

    def _both(self, path: bytes, entry: Found, base: Found) -> None:
        """Compare two symlinks or two special files."""
        upper, name, status, kind = entry
        found = compare_symlinks(name, upper, base[0]) if kind == "symlink" else compare_specials(status, base[2])
        if found is None:
            self._report.add(path, "replaced", upper.upper, entry, base)
        elif found[0]:
            change: ChangeKind = "modified" if kind == "symlink" else "metadata"
            self._report.add(path, change, upper.upper, entry, base, found[0], unreadable=found[1])

    def _directory(self, frame: _Frame, name: bytes, upper: Dir, depth: int) -> _Frame | None:
        """Compare one directory by itself and return the frame of what is in it."""
        path = frame.prefix + name
        try:
            uppers, end = open_merged(_from(upper, frame.uppers), name)
        except PermissionError:
            entry: Found = (upper, name, upper.lstat(name), "dir")
            self._report.add(path, "modified", upper.upper, entry, None, unreadable=True)
            self._report.leave_out("closed to us", path)
            return None
        hides = frame.hides or end != "bottom"
        bases = self._beneath(frame, path, name, uppers[0], hides=hides)
        if depth >= self._max_depth:
            self._report.leave_out(f"deeper than {self._max_depth} directories", path)
            return None
        return _Frame(uppers, bases, path + b"/", hides=hides)

    def _beneath(self, frame: _Frame, path: bytes, name: bytes, top: Dir, *, hides: bool) -> list[Dir]:
        """Report what a directory does to what is beneath it; return the directories that its entries lie over."""
        entry: Found = (top, name, top.status, "dir")
        base: Found | None = None
        bases: list[Dir] = []
        try:
            if frame.bases:
                bases, end = open_merged(frame.bases, name)
                if end == "other" and not bases:
                    base = find_entry(frame.bases, name)
                if base is not None and base[3] == "dir":
                    # It was something else a moment ago: somebody changes it right now
                    raise BlockingIOError
        except OSError:
            self._report.add(path, "replaced", top.upper, entry, None, unreadable=True)
            return []
        if bases:
            base = (bases[0], name, bases[0].status, "dir")
        verdict = TABLE["opaque" if hides else "dir", base[3] if base is not None else "none"]
        if verdict == "added" or verdict == "replaced":
            self._report.add(path, verdict, top.upper, entry, base)
        elif verdict == "compare hidden directory" and not all(directory.is_listable for directory in bases):
            # What is missing can't be told: the whole directory gives way to the new one.
            self._report.add(path, "replaced", top.upper, entry, base, unreadable=True)
            return []
        else:
            self._both_directories(path, top, bases[0])
        return bases

    def _both_directories(self, path: bytes, top: Dir, base: Dir) -> None:
        aspects, unreadable = compare_directories(top, base)
        if aspects:
            entry: Found = (top, top.name, top.status, "dir")
            beneath: Found = (base, base.name, base.status, "dir")
            self._report.add(path, "metadata", top.upper, entry, beneath, aspects, unreadable=unreadable)


def _refuse_metacopy(entry: Found) -> None:
    # A renamed file without its content looks like an added one; it has a size but no blocks.
    upper, name, status, kind = entry
    if status.st_blocks == 0 and status.st_size and kind == "file":
        refuse_foreign(list_attributes(upper.attribute_path(name)), name)


def _from(upper: Dir, uppers: list[Dir]) -> list[Dir]:
    return uppers if uppers[0] is upper else uppers[uppers.index(upper) :]
