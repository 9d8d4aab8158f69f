# SPDX-License-Identifier: Apache-2.0
"""What layers changed, found by reading upper directories: the one algorithm behind every ChangeSet.

Names come from the layers alone; beneath them only those names are looked up, except where a directory hides all
that lies beneath it. So the cost follows the change, never the project. Nothing is followed, nothing live is written.

Directories of several layers make one view, topmost first, as overlayfs merges them: a directory merges with those of
the same name beneath it until one is opaque or something else has the name. `TABLE` says what a pair of entries means.
What counts: permission bits, content, symlink target, `user.*` attributes, and the mtime of regular files. Copy-up
alone changes none of these. Everything that was cut, skipped or unreadable leaves a finding.

A `Reader` opens the files before and after a change. After: the entry in the layer that a Change names. Before: what
the sealed layers beneath and the live root show, as a `MergedTree`.
"""

from __future__ import annotations

import gc
import os
import posixpath
import stat

from unspill.changes.walk import Pool, Unlocked
from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import have_same_content
from unspill.host.overlay import (
    MODE_MARK,
    OPAQUE,
    foreign_layer,
    is_opaque,
    is_plain_attribute,
    is_whiteout,
    kind_of,
    list_attributes,
    refuse_foreign,
    user_attributes,
    was_copied_up,
)
from unspill.layers.locks import missing_layer
from unspill.model.change import (
    Change,
    ChangeSet,
    Identity,
    RootChanges,
)
from unspill.policy.paths import quote
from unspill.progress import COUNT
from unspill.record import setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal, Self

    from unspill.changes.walk import Dir
    from unspill.model.change import Aspect, ChangeKind, EntryKind

    # An entry where it was found: its directory, its name there, its lstat, its kind.
    Found = tuple[Dir, bytes, os.stat_result, EntryKind]

    # In which aspects two entries differ, and whether one of them could not be read for it.
    Difference = tuple[tuple[Aspect, ...], bool]

    # Why merging ended: at the last layer, at an opaque directory, or at something that is no directory.
    End = Literal["bottom", "opaque", "other"]

    UpperKind = Literal["none", "whiteout", "file", "dir", "opaque", "symlink", "special"]

    BaseKind = Literal["none", "file", "dir", "symlink", "special"]

    Verdict = Literal[
        "nothing",
        "added",
        "deleted",
        "replaced",
        "compare files",
        "compare directories",
        "compare hidden directory",
        "compare symlinks",
        "compare specials",
    ]


MAX_ENTRIES = 1_000_000
MAX_DEPTH = 10_000
MAX_FINDINGS = 200
# A chain of directories has a path per level: their sum grows with the square of the depth.
MAX_PATH_BYTES = 512 * 1024 * 1024


# What a pair of entries means: the one in the layers and the one beneath them. Every pair is listed, so that a kind
# added later fails a test instead of being guessed. An entry that is missing in a directory which hides everything
# beneath it counts as a whiteout.
TABLE: dict[tuple[UpperKind, BaseKind], Verdict] = {
    ("none", "none"): "nothing",
    ("none", "file"): "nothing",
    ("none", "dir"): "nothing",
    ("none", "symlink"): "nothing",
    ("none", "special"): "nothing",
    # A file that one run made and a later one deleted leaves a whiteout over nothing.
    ("whiteout", "none"): "nothing",
    ("whiteout", "file"): "deleted",
    ("whiteout", "dir"): "deleted",
    ("whiteout", "symlink"): "deleted",
    ("whiteout", "special"): "deleted",
    ("file", "none"): "added",
    ("file", "file"): "compare files",
    ("file", "dir"): "replaced",
    ("file", "symlink"): "replaced",
    ("file", "special"): "replaced",
    ("dir", "none"): "added",
    ("dir", "file"): "replaced",
    ("dir", "dir"): "compare directories",
    ("dir", "symlink"): "replaced",
    ("dir", "special"): "replaced",
    ("opaque", "none"): "added",
    ("opaque", "file"): "replaced",
    ("opaque", "dir"): "compare hidden directory",
    ("opaque", "symlink"): "replaced",
    ("opaque", "special"): "replaced",
    ("symlink", "none"): "added",
    ("symlink", "file"): "replaced",
    ("symlink", "dir"): "replaced",
    ("symlink", "symlink"): "compare symlinks",
    ("symlink", "special"): "replaced",
    ("special", "none"): "added",
    ("special", "file"): "replaced",
    ("special", "dir"): "replaced",
    ("special", "symlink"): "replaced",
    ("special", "special"): "compare specials",
}

_PATH_MAX = 4096
# A regular file that its owner may read
_PLAIN, _READABLE_FILE = 0o170400, 0o100400

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

MAX_COMPARISONS = 500
MAX_BYTES = 64 * 1024 * 1024
_CHUNK = 1024 * 1024


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
        LayerMissing: A layer is not in its place.
        SandboxUnavailable: A layer holds marks that no mount of unspill makes.
        OSError: A layer or the live root can't be opened.
    """
    report = _Report(live, max_entries, (*layers, *below))
    if layers:
        with CollectorPaused(), Pool() as pool:
            uppers = [_open_layer(pool, path, live) for path in layers]
            bases = [*(_open_layer(pool, path, live) for path in below), pool.live_root(live)]
            _Scan(pool, report, max_depth).run(uppers, bases)
            report.refresh(pool.restore())
    return report.as_change_set()


def _open_layer(pool: Pool, path: bytes, live: bytes) -> Dir:
    try:
        return pool.upper_root(path)
    except FileNotFoundError as error:
        raise missing_layer(path, live) from error


def join(parts: Iterable[ChangeSet]) -> ChangeSet:
    """Make one ChangeSet of those of several roots."""
    parts = tuple(parts)
    return ChangeSet(
        roots=tuple(root for part in parts for root in part.roots),
        findings=tuple(finding for part in parts for finding in part.findings),
        is_cut=any(part.is_cut for part in parts),
    )


def open_merged(directories: list[Dir], name: bytes) -> tuple[list[Dir], End]:
    """Open the subdirectories of one name that merge, the topmost first.

    Raises:
        PermissionError: One of them is closed to us.
        SandboxUnavailable: One of them has marks that no mount of unspill makes.
    """
    opened: list[Dir] = []
    for directory in directories:
        try:
            child = directory.open_child(name)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            return opened, "other"
        opened.append(child)
        if child.owned and _read_marks(child):
            return opened, "opaque"
    return opened, "bottom"


def find_entry(directories: list[Dir], name: bytes) -> Found | None:
    """Find what a merged directory shows under a name.

    Raises:
        PermissionError: Its directory in the live tree is closed to us.
    """
    for directory in directories:
        try:
            fd = directory.fd if directory.fd >= 0 else directory.descriptor()
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            # The second one where the live directory itself was replaced meanwhile.
            continue
        kind = kind_of(status)
        # overlayfs honours a whiteout in every layer, also one that someone has put into the live tree.
        if kind == "special" and is_whiteout(status):
            return None
        return directory, name, status, kind
    return None


def open_file(found: Found) -> int:
    """Open a regular file for reading, and leave one that is closed to its owner closed.

    Raises:
        OSError: It can't be read, or is no regular file.
    """
    if found[2].st_mode & 0o400:
        return found[0].open_file(found[1])
    with Unlocked(*found[:3]):
        return found[0].open_file(found[1])


def leads_out(path: bytes, target: bytes, root: bytes) -> bool:
    """Tell whether the symlink at `path` (relative to `root`) points outside of the root, by its text alone."""
    if target.startswith(b"/"):
        place: list[bytes] = []
        needed = _parts(root)
    else:
        place = path.split(b"/")[:-1]
        needed = []
    for part in _parts(target):
        if part != b"..":
            place.append(part)
        elif place:
            place.pop()
        elif not target.startswith(b"/"):
            return True
    return place[: len(needed)] != needed


class CollectorPaused:
    """Python's search for garbage cycles, paused where records are made by the thousand: none of them is in one.

    The searches would take as long as the work itself. It ends enabled if it was, whatever other threads do meanwhile.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_details: object) -> None:
        if self._was_enabled:
            gc.enable()


class _Scan:
    """One walk, depth first in the order of the names, without recursion."""

    def __init__(self, pool: Pool, report: _Report, max_depth: int) -> None:
        self._pool = pool
        self._report = report
        self._max_depth = max_depth

    def run(self, uppers: list[Dir], bases: list[Dir]) -> None:
        top = uppers[0]
        _read_marks(top)
        self._both_directories(b".", top, bases[0])
        frames = [_Frame(uppers, bases, b"", hides=False)]
        COUNT.begin("Reading changes")
        while frames and not self._report.is_full:
            frame = frames[-1]
            for name, is_dir, upper in frame.items:
                COUNT.done += 1
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
            entry_kind = kind_of(status)
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
            aspects, unreadable = _compare_files(path, entry, base)
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
        if _has_attributes(path, layer, name, base):
            return False
        self._report.add_resized(path, layer, status, base_status)
        return True

    def _both(self, path: bytes, entry: Found, base: Found) -> None:
        """Compare two symlinks or two special files."""
        upper, name, status, kind = entry
        found = _compare_symlinks(name, upper, base[0]) if kind == "symlink" else _compare_specials(status, base[2])
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
            self._report.leave_out("can't be opened", path)
            return None
        if not uppers:
            self._report.leave_out("was removed while it was read", path)
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
        aspects, unreadable = _compare_directories(top, base)
        if aspects:
            entry: Found = (top, top.name, top.status, "dir")
            beneath: Found = (base, base.name, base.status, "dir")
            self._report.add(path, "metadata", top.upper, entry, beneath, aspects, unreadable=unreadable)


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


def _from(upper: Dir, uppers: list[Dir]) -> list[Dir]:
    return uppers if uppers[0] is upper else uppers[uppers.index(upper) :]


def _refuse_metacopy(entry: Found) -> None:
    # A renamed file without its content looks like an added one; it has a size but no blocks.
    upper, name, status, kind = entry
    if status.st_blocks == 0 and status.st_size and kind == "file":
        refuse_foreign(list_attributes(upper.attribute_path(name)), name)


def _read_marks(directory: Dir) -> bool:
    """Read the attribute names of a directory of an upper; tell whether it hides what is beneath it."""
    names = directory.attributes = list_attributes(directory.descriptor())
    if directory.status.st_mode & 0o077 == 0 or MODE_MARK in names:
        directory.make_sure_of_mode(names)
    if not names:
        return False
    refuse_foreign(names, directory.name)
    if OPAQUE not in names:
        return False
    mark = os.getxattr(directory.descriptor(), OPAQUE)
    if mark == b"x":
        raise foreign_layer(f"whiteouts stored as attributes below {directory.name!r}")
    return mark == b"y"


def _compare_files(path: bytes, entry: Found, base: Found) -> Difference:
    """Compare two regular files. One of an upper that is closed to its owner gets another ctime by this."""
    status, base_status = entry[2], base[2]
    if status.st_ino == base_status.st_ino and status.st_dev == base_status.st_dev:
        return (), False
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


def _file_attributes_differ(path: bytes, entry: Found, base: Found) -> bool:
    # The attribute calls know no directory descriptor. Nothing moves in an upper, so there its own path is as good
    # as one through /proc, and twice as fast.
    full = entry[0].upper + b"/" + path
    if len(full) >= _PATH_MAX:
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


def _compare_directories(upper: Dir, base: Dir) -> Difference:
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


def _compare_symlinks(name: bytes, upper: Dir, base: Dir) -> Difference:
    """Compare two symlinks by their text."""
    try:
        return ((), False) if upper.readlink(name) == base.readlink(name) else (("target",), False)
    except OSError:
        return ("target",), True


def _compare_specials(status: os.stat_result, base_status: os.stat_result) -> Difference | None:
    """Compare two special files; None when they are not even of the same type."""
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(base_status.st_mode) or status.st_rdev != base_status.st_rdev:
        return None
    return (("mode",), False) if (status.st_mode ^ base_status.st_mode) & 0o7777 else ((), False)


def _has_attributes(path: bytes, layer: bytes, name: bytes, base: Dir) -> bool:
    """Tell whether a file of a layer or the one beneath it may have any attribute at all."""
    try:
        full = layer + b"/" + path
        base_path = b"/proc/self/fd/%d/%s" % (base.descriptor(), name)
        return bool(os.listxattr(full, follow_symlinks=False) or os.listxattr(base_path, follow_symlinks=False))
    except OSError:
        return True


class _Report:
    """What a scan has found so far below one root, in the order of the walk."""

    def __init__(self, root: bytes, max_entries: int, layers: Sequence[bytes] = ()) -> None:
        """Take the layers that are read, the topmost first."""
        self._root = root
        self._max_entries = max_entries
        self._uppers = layers[::-1]
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
            entry = _identify(upper[2], upper[3])
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
        _set_entry(change, _identify(status, "file"))
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
        self.find(f"{why}: its contents are not listed", path)

    def find(self, what: str, path: bytes) -> None:
        """Record something that no change shows."""
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(f"{quote(path)}: {what}")
        else:
            self._findings_left_out += 1

    def refresh(self, directories: list[Dir]) -> None:
        """Take the identity of directories anew whose ctime a scan changed by opening them to their owner."""
        fresh = {_path_of(directory): _identify(directory.status, "dir") for directory in directories}
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
        part = RootChanges(root=self._root, changes=tuple(self._without_copied_up()))
        return ChangeSet(roots=(part,), findings=tuple(findings), is_cut=self.is_full or self._is_cut)

    def _without_copied_up(self) -> list[Change]:
        """Leave out a directory that the person deleted or replaced, where the layers only delete what was in it."""
        kept: list[Change] = []
        following = b""
        # From the end, so that it is known what stays in a directory
        for change in reversed(self._changes):
            is_dir = change.entry is not None and change.entry.kind == "dir"
            is_new = is_dir and change.kind in ("added", "replaced") and change.base_kind != "dir"
            is_filled = following.startswith(change.path + b"/")
            if not is_new or is_filled or not self._only_deletes_in(change.path):
                kept.append(change)
                following = change.path
        return kept[::-1]

    def _only_deletes_in(self, path: bytes) -> bool:
        """Tell whether a directory of the layers, in which nothing is new, is one of the live tree with deletions.

        One that a run took away and made again as it was hides what is in the live one.
        """
        if not was_copied_up(self._uppers, path):
            return False
        places = (upper + b"/" + path for upper in self._uppers)
        return any(os.path.isdir(place) and (os.listdir(place) or is_opaque(place)) for place in places)

    def _cut(self, path: bytes) -> None:
        if not self.is_full:
            self.is_full = True
            self.find(f"too large to review: only the first {len(self._changes)} changes are listed", path)


def _identify(status: os.stat_result, kind: EntryKind) -> Identity:
    """Return the identity of an entry from its lstat."""
    identity = _new(Identity)
    _set_entry_kind(identity, kind)
    _set_mode(identity, status.st_mode & 0o7777)
    _set_inode(identity, status.st_ino)
    _set_size(identity, status.st_size)
    _set_ctime(identity, status.st_ctime_ns)
    return identity


def _path_of(directory: Dir) -> bytes:
    """Return the path of a directory from its root, `.` for the root itself."""
    parts = []
    while directory.parent is not None:
        parts.append(directory.name)
        directory = directory.parent
    return b"/".join(reversed(parts)) or b"."


def _target_of(base: Found) -> bytes | None:
    try:
        return base[0].readlink(base[1])
    except OSError:
        return None  # replaced in the live tree meanwhile


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


class Reader:
    """Opens files on both sides of the changes of one root, for as long as the context lasts."""

    def __init__(self, live: bytes, below: Sequence[bytes] = ()) -> None:
        self._pool = Pool()
        self._before = MergedTree(live, below, self._pool)
        self._uppers: dict[bytes, Dir] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._pool.__exit__(*details)

    def open_after(self, change: Change) -> int:
        """Open the file that a change leaves.

        Raises:
            SandboxUnavailable: The layer no longer holds what was scanned.
            OSError: It can't be read.
        """
        return open_file(self._find_after(change))

    def attributes_after(self, change: Change) -> list[tuple[str, bytes]]:
        """Return the attributes that a change leaves on a file or directory, by name.

        Raises:
            SandboxUnavailable: The layer no longer holds what was scanned.
            OSError: They can't be read.
        """
        if change.entry is None or change.entry.kind not in ("file", "dir"):
            return []
        found = self._find_after(change)
        if found[3] == "dir":
            entry = found[0].open_child(found[1]).descriptor()
            return sorted(user_attributes(entry, _plain(entry)).items())
        path = found[0].attribute_path(found[1])
        with Unlocked(*found[:3]):
            return sorted(user_attributes(path, _plain(path)).items())

    def open_before(self, change: Change) -> int:
        """Open the file that was there before a change.

        Raises:
            OSError: It is gone, or can't be read.
        """
        found = self._before.find(change.path)
        if found is None:
            raise FileNotFoundError(change.path)
        return open_file(found)

    def _find_after(self, change: Change) -> Found:
        assert change.layer is not None
        root = self._uppers.get(change.layer)
        if root is None:
            root = self._uppers[change.layer] = self._pool.upper_root(change.layer)
        found = _find([root], change.path)
        entry = change.entry
        if (
            found is None
            or entry is None
            or (found[3], found[2].st_ino, found[2].st_size) != (entry.kind, entry.inode, entry.size)
        ):
            raise SandboxUnavailable(
                f"{change.path!r} in {change.layer!r} changed after it was scanned",
                remedy="List the changes again.",
            )
        return found

    def kind_before(self, path: bytes) -> EntryKind | None:
        """Say what was at a path before, changed or not; None where there was nothing.

        Raises:
            OSError: A directory on the way can't be read.
        """
        found = self._before.find(path)
        return None if found is None else found[3]


def _plain(entry: bytes | int) -> list[str]:
    return [name for name in list_attributes(entry) if is_plain_attribute(name)]


class MergedTree:
    """A live directory and the layers over it, the topmost first, as overlayfs shows them to a command."""

    def __init__(self, live: bytes, layers: Sequence[bytes] = (), pool: Pool | None = None) -> None:
        self._live = live
        self._layers = layers
        self._pool = pool or Pool()
        self._roots: list[Dir] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._pool.__exit__(*details)

    def find(self, path: bytes) -> Found | None:
        """Return what is at a path, None where there is nothing.

        Raises:
            OSError: A directory on the way can't be read.
        """
        return _find(self._open_roots(), path)

    def read(self, path: bytes, limit: int) -> bytes | None:
        """Return the beginning of a file, None where there is none that can be read."""
        try:
            found = self.find(path)
            return None if found is None or found[3] != "file" else read_up_to(open_file(found), limit)
        except OSError:
            return None

    def names(self, path: bytes) -> dict[bytes, EntryKind]:
        """Return what is in a directory, nothing where there is none that can be read."""
        directories = self._open_roots()
        try:
            for part in path.split(b"/") if path else ():
                directories, _ = open_merged(directories, part)
            names = dict.fromkeys(name for directory in directories for name, _, _ in directory.names())
            found = ((name, find_entry(directories, name)) for name in sorted(names))
            return {name: entry[3] for name, entry in found if entry is not None}
        except OSError:
            return {}

    def _open_roots(self) -> list[Dir]:
        if not self._roots:
            layers = [self._pool.upper_root(path) for path in self._layers]
            self._roots = [*layers, self._pool.live_root(self._live)]
        return self._roots


def read_up_to(fd: int, limit: int) -> bytes:
    """Read a file from its beginning, at most `limit` bytes of it, and close it."""
    with open(fd, "rb", buffering=0) as file:
        chunks = []
        while limit > 0 and (chunk := os.read(file.fileno(), min(limit, _CHUNK))):
            chunks.append(chunk)
            limit -= len(chunk)
    return b"".join(chunks)


def digest_of(change: Change, reader: Reader) -> str | None:
    """Return the SHA-256 of a file's content or of a symlink's target; None where there is neither.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    if change.entry is None:
        return None
    if change.entry.kind == "symlink":
        return _sha256((change.target or b"",))
    return digest_of_file(reader.open_after(change)) if change.entry.kind == "file" else None


def digest_of_file(fd: int) -> str:
    """Return the SHA-256 of an open file, read from its beginning, and close it."""
    try:
        return _sha256(iter(lambda: os.read(fd, _CHUNK), b""))
    finally:
        os.close(fd)


def find_renames(changes: Sequence[Change], reader: Reader) -> dict[bytes, bytes]:
    """Return the old path of each added file that was there under another name, by its new path.

    For display, never part of a ChangeSet. The work is bounded; a rename that is not recognised is shown as what it is,
    two changes.
    """
    gone: dict[int, list[Change]] = {}
    for change in changes:
        if change.kind == "deleted" and change.base_kind == "file" and change.base_size:
            gone.setdefault(change.base_size, []).append(change)
    renames: dict[bytes, bytes] = {}
    comparisons, bytes_left = MAX_COMPARISONS, MAX_BYTES
    for change in changes:
        if not gone or comparisons <= 0 or bytes_left <= 0:
            break
        if change.kind != "added" or change.entry is None or change.entry.kind != "file":
            continue
        for old in _likeliest_first(gone.get(change.entry.size, ()), change):
            comparisons -= 1
            bytes_left -= change.entry.size
            if _is_same_file(old, change, reader):
                renames[change.path] = old.path
                gone[change.entry.size].remove(old)
                break
            if comparisons <= 0 or bytes_left <= 0:
                break
    return renames


def _find(directories: list[Dir], path: bytes) -> Found | None:
    *parents, name = path.split(b"/")
    for parent in parents:
        directories, _ = open_merged(directories, parent)
    return find_entry(directories, name)


def _likeliest_first(candidates: Sequence[Change], added: Change) -> list[Change]:
    name = posixpath.basename(added.path)
    return sorted(candidates, key=lambda old: posixpath.basename(old.path) != name)


def _is_same_file(old: Change, new: Change, reader: Reader) -> bool:
    if new.entry is None or new.entry.size > MAX_BYTES:
        return False
    try:
        before = reader.open_before(old)
    except OSError:
        return False
    try:
        after = reader.open_after(new)
        try:
            return have_same_content(before, after, new.entry.size)
        finally:
            os.close(after)
    except OSError:
        return False
    finally:
        os.close(before)


def _sha256(chunks: Iterable[bytes]) -> str:
    import hashlib  # lazy: approvals

    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
