# SPDX-License-Identifier: Apache-2.0
"""Which time mark counts for a path of a stack: live entries that are not older were changed meanwhile.

Looks into upper directories, which nothing writes any more, and never follows a link there. Where it can't look it
takes the older mark: a conflict too many is asked about, one too few would overwrite somebody's work.
"""

from __future__ import annotations

import os
import stat

from unspill.host.dirfd import Beneath
from unspill.host.overlay import is_opaque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from unspill.model.change import Change

# What a layer says about a path by the directories above it: nothing, look further, or it hides what is beneath.
_ABSENT, _THROUGH, _HIDES = range(3)


class Marks:
    """The marks of one stack: of each layer, oldest first, the upper directory, the mark, and marks of single paths."""

    __slots__ = ("_layers", "_only")

    def __init__(self, layers: Sequence[tuple[bytes, int, Mapping[bytes, int]]]) -> None:
        self._layers = [_Layer(*layer) for layer in layers]
        self._only = layers[0][1] if len(layers) == 1 and not layers[0][2] else None

    def of(self, path: bytes) -> int:
        """Return the mark of the oldest layer that says anything about a path: newer ones were made on top of it."""
        if self._only is not None:
            return self._only
        for layer in self._layers if len(self._layers) > 1 else ():
            if layer.has_a_say(path):
                return layer.mark_of(path)
        return self._layers[0].mark_of(path)


def carry_over(
    live_root: bytes, remaining: Iterable[Change], marks: Marks, new_mark: int, *, renewed: Container[bytes] = ()
) -> dict[bytes, int]:
    """Return the marks that paths of a residue keep in place of its own one, because they were in conflict.

    `new_mark` must have been taken before: so a live entry that changes after it was looked at here is not older.

    Args:
        live_root: The live directory.
        remaining: The changes that the residue holds.
        marks: The marks of the layers that it was made from.
        new_mark: The mark of the residue.
        renewed: Paths whose live entry has a new ctime by what the caller itself did there, such as the directories
            that it put something into; they get the new mark.
    """
    kept: dict[bytes, int] = {}
    with _open_live(live_root) as live:
        for change in remaining:
            path = change.path
            mark = marks.of(path)
            if mark >= new_mark or path in renewed:
                continue
            try:
                found = _find(live, path)
            except OSError:
                # Nobody can tell, so the older mark it is.
                kept[path] = mark
                continue
            if found is not None and (found.st_ctime_ns >= mark or _hides_directory(change, found)):
                kept[path] = mark
    return kept


def unedited_directories(live_root: bytes, changes: Iterable[Change], marks: Marks) -> set[bytes]:
    """Return live directories that are to get other bits and that nobody has changed since their marks.

    An operation asks before its first step: what it puts into a directory renews the directory's own time.
    """
    changed = [change.path for change in changes if change.kind == "metadata" and change.base_kind == "dir"]
    if not changed:
        return set()
    unedited: set[bytes] = set()
    with _open_live(live_root) as live:
        for path in changed:
            try:
                found = _find(live, path)
            except OSError:
                continue
            if found is not None and found.st_ctime_ns < marks.of(path):
                unedited.add(path)
    return unedited


class _Layer:
    __slots__ = ("_directories", "_mark", "_overrides", "_upper")

    def __init__(self, upper: bytes, mark_ns: int, overrides: Mapping[bytes, int]) -> None:
        self._upper = upper
        self._mark = mark_ns
        self._overrides = overrides
        self._directories = {b"": _THROUGH}

    def mark_of(self, path: bytes) -> int:
        """Return the mark of this layer, or an older one of the path or of something above that hides it."""
        if not self._overrides:
            return self._mark
        mark = min(self._mark, self._overrides.get(path, self._mark))
        above = path.rpartition(b"/")[0]
        while above:
            own = self._overrides.get(above, self._mark)
            if own < mark and self._look(above) != _THROUGH:
                mark = own
            above = above.rpartition(b"/")[0]
        return mark

    def has_a_say(self, path: bytes) -> bool:
        """Tell whether there is an entry at the path, or something above it that hides what is beneath."""
        if path == b".":
            return True
        found = self._look(path.rpartition(b"/")[0])
        if found != _THROUGH:
            return found == _HIDES
        try:
            os.lstat(self._upper + b"/" + path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def _look(self, path: bytes) -> int:
        """Go down to a directory step by step, as far as it is not known yet."""
        unknown = []
        while (found := self._directories.get(path)) is None:
            unknown.append(path)
            path = path.rpartition(b"/")[0]
        for step in reversed(unknown):
            if found == _THROUGH:
                found = _look_at(self._upper + b"/" + step)
            self._directories[step] = found
        return found


def _look_at(path: bytes) -> int:
    try:
        return _THROUGH if stat.S_ISDIR(os.lstat(path).st_mode) and not is_opaque(path) else _HIDES
    except FileNotFoundError:
        return _ABSENT
    except OSError:
        # Too long a path, or a directory that is closed to its owner: it may hide something.
        return _HIDES


def _open_live(root: bytes) -> Beneath:
    return Beneath(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))


def _find(live: Beneath, path: bytes) -> os.stat_result | None:
    return os.fstat(live.root_fd) if path == b"." else live.find(path)


def _hides_directory(change: Change, found: os.stat_result) -> bool:
    """Tell whether a live directory is to give way: what is in it was not looked at, so the mark stays."""
    is_merged = change.entry is not None and change.entry.kind == "dir" and change.kind != "replaced"
    return stat.S_ISDIR(found.st_mode) and not is_merged
