# SPDX-License-Identifier: Apache-2.0
"""What an operation changed, told from its steps and read from where its entries lie now. Changes nothing.

An entry that was displaced or put may be in the operation's own directory, in the live tree, or where a later
operation put it; it is known by its identity, wherever it is. One that was changed or pruned since is not shown.
"""

from __future__ import annotations

import os

from unspill.apply.journal import journal_file, kept_base_dir, read_journal, tree_dir
from unspill.apply.steps import matches
from unspill.changes.diff import MAX_FILE_BYTES, MAX_LINES, change_diff, diff_lines, painted
from unspill.changes.reader import Reader, read_up_to
from unspill.changes.scan import scan
from unspill.errors import UsageError
from unspill.host.dirfd import Beneath
from unspill.model.change import Change, ChangeSet, Identity, RootChanges
from unspill.sandbox.masking import load_masked
from unspill.sandbox.operations import get_operation, steps_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from unspill.model.operation import Entry, Operation, Step
    from unspill.sandbox.opening import Opened

    # A directory of ours or a live root, and the path of an entry in it.
    Place = tuple[Beneath, bytes]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def operation_changes(opened: Opened, operation: str | int) -> ChangeSet:
    """Return what an operation changed.

    Raises:
        UsageError: there is no such operation, or its journal is not kept any more.
    """
    found = get_operation(opened, operation)
    discarded = _discarded(opened, found)
    if discarded is not None:
        return discarded[0]
    with _Trace(opened, found) as trace:
        return ChangeSet(roots=tuple(trace.part(index) for index in range(len(found.roots))))


def operation_diff(
    opened: Opened,
    operation: str | int,
    paths: Sequence[bytes],
    *,
    colour: bool,
    skip: Callable[[bytes], bool] = lambda _path: False,
) -> str:
    """Return what an operation changed as a text that is safe to print; without paths that `skip` is true of.

    Raises:
        UsageError: there is no such operation, or its journal is not kept any more.
    """
    found = get_operation(opened, operation)
    lines: list[str] = []
    discarded = _discarded(opened, found)
    if discarded is not None:
        changes, below = discarded
        kept = [
            part.replace(
                changes=tuple(
                    change
                    for change in part.changes
                    if (not paths or _is_below(change.path, part.root, paths))
                    and not skip(part.root + b"/" + change.path)
                )
            )
            for part in changes.roots
        ]
        lines = diff_lines(changes.replace(roots=tuple(kept)), below, colour=colour)
        return "".join(line + "\n" for line in lines)
    with _Trace(opened, found) as trace:
        for index, root in enumerate(found.roots):
            part = trace.part(index)
            with _Retraced(root, index, trace) as reader:
                for change in part.changes:
                    if change.is_mere_touch or (paths and not _is_below(change.path, root, paths)):
                        continue
                    if not skip(root + b"/" + change.path):
                        lines += painted(change_diff(change, reader, MAX_FILE_BYTES), colour=colour)
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"... cut here: {len(lines) - MAX_LINES} more lines"]
    return "".join(line + "\n" for line in lines)


def _discarded(opened: Opened, operation: Operation) -> tuple[ChangeSet, dict[bytes, tuple[bytes, ...]]] | None:
    """Return what a discard dropped, with the layers below it by root; None for another operation.

    Where it was undone nothing is there to be told of: it is held again.
    """
    state = opened.store.state
    journal = read_journal(journal_file(state, operation.id))
    if journal is None or journal.end is None or journal.steps or journal.git:
        return None
    uppers: dict[bytes, list[bytes]] = {}
    below: dict[bytes, tuple[bytes, ...]] = {}
    masks = {stack.live: stack.mask for stack in load_masked(opened)}
    for tree in reversed(journal.trees):
        place, base = tree_dir(state, operation.id, tree.layer), kept_base_dir(state, operation.id, tree.layer)
        if os.path.lexists(place):
            uppers.setdefault(tree.root, []).append(place)
            below[tree.root] = tuple(path for path in (masks.get(tree.root), base) if path and os.path.lexists(path))
    chosen = set(journal.paths)
    parts = [
        part.replace(
            changes=tuple(change for change in part.changes if not chosen or (part.root, change.path) in chosen)
        )
        for root, layers in uppers.items()
        if os.path.isdir(root)
        for part in scan(tuple(layers), below[root], root).roots
    ]
    return ChangeSet(roots=tuple(parts)), below


def _is_below(path: bytes, root: bytes, wanted: Sequence[bytes]) -> bool:
    for top in wanted:
        if top in (b".", path) or path.startswith(top + b"/"):
            return True
        if top.startswith(b"/") and (root + b"/" + path + b"/").startswith(top + b"/"):
            return True
    return False


class _Sides:
    """What one path had before an operation and had after it."""

    def __init__(self) -> None:
        self.before: Entry | None = None
        self.after: Entry | None = None
        self.dress: list[Step] = []
        self.places: list[bytes] = []


class _Trace:
    """Knows the sides of each path and finds their entries."""

    def __init__(self, opened: Opened, operation: Operation) -> None:
        self._opened = opened
        self._operation = operation
        steps = steps_of(opened, operation)
        if not steps:
            raise UsageError(
                f"what op {operation.number} changed is not kept any more", remedy="See `keep_days` in the settings."
            )
        self._sides: dict[tuple[int, bytes], _Sides] = {}
        for step in steps:
            self._add(step)
        self._ours = Beneath(os.open(opened.store.state + b"/operations", _DIRECTORY))
        self._live = [_open_live(root) for root in operation.roots]
        self._later: dict[tuple[bytes, bytes], list[bytes]] | None = None

    def part(self, root: int) -> RootChanges:
        """Return the changes of one root, sorted."""
        found = [(path, sides) for (index, path), sides in self._sides.items() if index == root]
        changes = [self._change(root, path, sides) for path, sides in sorted(found, key=lambda pair: pair[0])]
        return RootChanges(
            root=self._operation.roots[root], changes=tuple(change for change in changes if change is not None)
        )

    def open(self, root: int, path: bytes, *, after: bool) -> int:
        """Open the file that was at a path before, or after.

        Raises:
            OSError: it is not kept any more.
        """
        sides = self._sides[root, path]
        place = self._find(root, path, sides, sides.after if after else sides.before)
        if place is None:
            raise FileNotFoundError(2, "it is not kept any more")
        fd, name = place[0].parent(place[1])
        return os.open(name, _FILE, dir_fd=fd)

    def _add(self, step: Step) -> None:
        sides = self._sides.setdefault((step.root, step.path), _Sides())
        if step.action == "set_metadata":
            sides.dress.append(step)
            return
        if step.before is not None and sides.before is None:
            sides.before = step.before
        sides.after = step.after if step.action == "put" else None
        sides.places.append(step.backup)

    def _change(self, root: int, path: bytes, sides: _Sides) -> Change | None:
        before, after = sides.before, sides.after
        if before is None and after is None:
            return _dress_change(path, sides.dress)
        change = Change(
            path=path,
            kind=_kind(before, after),
            entry=None if after is None else _identity(after, sides.dress),
            base_kind=None if before is None else before.kind,
            base_size=0 if before is None else before.size,
            base_mode=0 if before is None else before.mode,
            target=self._target(root, path, sides, after),
            base_target=self._target(root, path, sides, before),
        )
        if change.kind != "modified" or before is None or after is None:
            return change
        aspects = ("mode",) if before.mode != after.mode else ()
        is_same = before.size == after.size and self._has_same_content(root, path, change)
        return change.replace(kind="metadata" if is_same else "modified", aspects=aspects or ("mtime",) * is_same)

    def _has_same_content(self, root: int, path: bytes, change: Change) -> bool:
        if change.base_kind != "file" or change.base_size > MAX_FILE_BYTES:
            return change.base_kind == "symlink" and change.target == change.base_target
        try:
            sides = (read_up_to(self.open(root, path, after=after), MAX_FILE_BYTES) for after in (False, True))
            return next(sides) == next(sides)
        except OSError:
            return False

    def _target(self, root: int, path: bytes, sides: _Sides, entry: Entry | None) -> bytes | None:
        if entry is None or entry.kind != "symlink":
            return None
        place = self._find(root, path, sides, entry)
        if place is None:
            return None
        fd, name = place[0].parent(place[1])
        return os.readlink(name, dir_fd=fd)

    def _find(self, root: int, path: bytes, sides: _Sides, entry: Entry | None) -> Place | None:
        if entry is None:
            return None
        live = self._live[root]
        candidates: list[Place] = [(self._ours, place) for place in sides.places if place]
        candidates += [] if live is None else [(live, path)]
        return self._first(candidates, entry) or self._first(
            [(self._ours, place) for place in self._later_places(root, path)], entry
        )

    def _first(self, candidates: Iterable[Place], entry: Entry) -> Place | None:
        for tree, path in candidates:
            try:
                found = tree.find(path)
            except OSError:
                continue
            if found is None:
                continue
            # The copy of what was displaced from another filesystem has an inode and a mode of its own
            is_copy = tree is self._ours and found.st_mtime_ns == entry.mtime_ns and found.st_size == entry.size
            if matches(found, entry) or (is_copy and entry.kind != "dir"):
                return tree, path
        return None

    def _later_places(self, root: int, path: bytes) -> list[bytes]:
        if self._later is None:
            self._later = {}
            store = self._opened.store
            for one in store.operations.later(self._operation.project, self._operation.number):
                journal = read_journal(journal_file(store.state, one.id))
                for step in () if journal is None else journal.steps:
                    self._later.setdefault((one.roots[step.root], step.path), []).append(step.backup)
        return [place for place in self._later.get((self._operation.roots[root], path), ()) if place]

    def __enter__(self) -> _Trace:
        return self

    def __exit__(self, *_rest: object) -> None:
        self._ours.close()
        for live in self._live:
            if live is not None:
                live.close()


class _Retraced(Reader):
    """Opens files on both sides of what an operation changed."""

    def __init__(self, live: bytes, root: int, trace: _Trace) -> None:
        super().__init__(live)
        self._root = root
        self._trace = trace

    def open_before(self, change: Change) -> int:
        return self._trace.open(self._root, change.path, after=False)

    def open_after(self, change: Change) -> int:
        return self._trace.open(self._root, change.path, after=True)


def _open_live(root: bytes) -> Beneath | None:
    try:
        return Beneath(os.open(root, _DIRECTORY))
    except OSError:
        return None


def _kind(before: Entry | None, after: Entry | None):  # type: ignore[no-untyped-def]
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    return "modified" if before.kind == after.kind else "replaced"


def _identity(entry: Entry, dress: Sequence[Step]) -> Identity:
    worn = dress[-1].becomes if dress else None
    mode = entry.mode if worn is None else worn.mode
    return Identity(kind=entry.kind, mode=mode, inode=entry.inode, size=entry.size, ctime_ns=0)


def _dress_change(path: bytes, dress: Sequence[Step]) -> Change | None:
    """Tell what a directory wears that it did not; one that was only opened for the operation does not differ."""
    was, becomes, entry = dress[0].was, dress[-1].becomes, dress[-1].before
    assert entry is not None
    if was is None or becomes is None or was == becomes:
        return None
    aspects = ("mode",) * (was.mode != becomes.mode) + ("xattrs",) * (was.attributes != becomes.attributes)
    return Change(
        path=path,
        kind="metadata",
        entry=_identity(entry, dress),
        base_kind="dir",
        base_mode=was.mode,
        aspects=aspects,  # type: ignore[arg-type]
    )
