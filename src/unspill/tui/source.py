# SPDX-License-Identifier: Apache-2.0
"""Where the review screen has its lists from: what a sandbox holds, or what operations did. Reads; draws nothing.

A list comes first and is cheap; what is held, flagged or edited by the person too is found out afterwards, and what is
in a file when it is looked at. All of it may be called in a thread.
"""

from __future__ import annotations

import os

from unspill.apply.bases import read_live
from unspill.apply.fold import FoldedLayers, layers_of
from unspill.apply.recover import RolledBackEntries
from unspill.changes.diff import MAX_FILE_BYTES, describe, numbered_lines
from unspill.changes.merge import digest_of_merge, merge_texts
from unspill.changes.scan import Reader
from unspill.errors import UnspillError, UsageError
from unspill.host.dirfd import Beneath
from unspill.model.change import ChangeSet, Consent
from unspill.policy.paths import is_cut, quote
from unspill.record import Record
from unspill.sandbox.history import PastOperation
from unspill.sandbox.review import beside_hunks, changes_of, digest_of_hunks, is_same, layers_below
from unspill.tui.model import Detail, Picks, entries_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unspill.model.change import Change
    from unspill.model.operation import Operation
    from unspill.model.run import Stack
    from unspill.sandbox.project import Project
    from unspill.sandbox.review import HeldPart
    from unspill.sandbox.sandbox import Sandbox
    from unspill.tui.model import ListEntry

    Texts = tuple[bytes, bytes]

# Of one file so many lines are shown
MOST_LINES = 20_000
_EDITED = "You changed it too, during or after the run, and it can't be merged"
_NO_BASE = f"{_EDITED}: unspill has no copy of it from before the run."
_NO_TEXT = f"{_EDITED}: it is no text, is too large, or is held."


class Findings(Record):
    """What is found out about a list after it is shown, by place: why something is held or flagged, what is edited."""

    held: dict[int, str]
    flagged: dict[int, str]
    edited: frozenset[int]


class HeldSource:
    """What a sandbox holds: it can be picked from."""

    can_pick = True

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._reviews = sandbox.reviews
        self._project = self._reviews.project
        self._parts: dict[bytes, HeldPart] = {}
        self._edits: dict[bytes, _Edits] = {}

    @property
    def title(self) -> str:
        """What the screen is about."""
        name = self.sandbox.name
        return "held" + ("" if name == "default" else f" in sandbox {quote(os.fsencode(name))}")

    def load(self) -> Picks:
        """Return the list of what is held."""
        picks = Picks(changes_of(self._project, None))
        self._parts = {}
        self._edits = {stack.live: _Edits(self._project, stack) for stack in self._reviews.stacks()}
        return picks

    def find_out(self, picks: Picks) -> Findings:
        """Find out what of a list is held, flagged, or edited by the person too."""
        _changes, parts = self._reviews.look(picks.changes)
        self._parts = {part.root: part for part in parts}
        edits = self._edits
        places = picks.place_of()
        held = {(part.root, path): why for part in parts for path, why in part.held}
        flagged = {(part.root, path): why for part in parts for path, why in part.flagged}
        return Findings(
            held={places[key]: why for key, why in held.items() if key in places},
            flagged={places[key]: why for key, why in flagged.items() if key in places},
            edited=frozenset(
                at for at, one in enumerate(picks.entries) if one.root in edits and edits[one.root].has(one)
            ),
        )

    def detail(self, entry: ListEntry) -> Detail:
        """Return what there is to see of an entry."""
        change = entry.change
        if change is None:
            return _git_detail(entry)
        with Reader(entry.root, layers_below(self._project, None).get(entry.root, ())) as reader:
            detail, texts = read_detail(change, reader)
            if texts is not None and entry.has_lines:
                digest = digest_of_hunks(entry.path, *texts, beside_hunks(change, reader))
                detail = detail.replace(digest=digest)
        detail = self._with_consent(entry, detail.replace(live=live_state(entry)))
        edits = self._edits.get(entry.root)
        if edits is not None and edits.has(entry):
            detail = edits.merged(entry, detail, None if texts is None else texts[1])
        return detail

    def look_again(self, picks: Picks, shown: Mapping[int, Detail]) -> tuple[Picks, dict[int, int]]:
        """Return the list as it is now, and by the place in the old one the place of what is still the same.

        What was shown is compared with the project, too.
        """
        fresh = self.load()
        places = fresh.place_of()
        same: dict[int, int] = {}
        for at, entry in enumerate(picks.entries):
            now = places.get((entry.root, entry.path))
            if now is not None and _is_equal(entry.change, fresh.entries[now].change):
                seen = shown.get(at)
                if seen is None or entry.change is None or seen.live == live_state(entry):
                    same[at] = now
        return fresh, same

    def _with_consent(self, entry: ListEntry, detail: Detail) -> Detail:
        part = self._parts.get(entry.root)
        covered = () if part is None else part.covered(entry.path)
        if part is None or not covered or entry.path not in {path for path, _why in part.held}:
            return detail
        try:
            digest = part.digest(entry.path)
        except (OSError, UnspillError):
            return detail.replace(is_whole=False)
        is_there = part.meets_own(entry.path)
        consent = Consent(root=entry.root, path=entry.path, digest=digest, is_there=is_there)
        own = ("Careful: you have a file of your own there, which it would replace.",) if is_there else ()
        covers = frozenset(one.path for one in covered)
        return detail.replace(consent=consent, covers=covers, notes=(*detail.notes, *own))


class PastSource:
    """What operations did, the oldest first: it can be read, and undone."""

    can_pick = False

    def __init__(
        self, sandbox: Sandbox, operations: Sequence[Operation], title: str, session: str | None = None
    ) -> None:
        self.sandbox = sandbox
        self.operations = operations
        self.session = session
        self.title = title
        self._project = sandbox.reviews.project

    def load(self) -> Picks:
        """Return the list of what the operations changed; those that are not kept any more have nothing in it."""
        entries = []
        for one in self.operations:
            try:
                with PastOperation(self._project, one.number) as past:
                    changes = past.changes
            except UsageError:
                if len(self.operations) == 1:
                    raise
                continue
            parts = [
                part.replace(changes=tuple(sorted(part.changes, key=lambda change: change.path.split(b"/"))))
                for part in changes.roots
            ]
            entries += entries_of(changes.replace(roots=tuple(parts)), one.number)
        return Picks(ChangeSet(roots=()), entries)

    def find_out(self, _picks: Picks) -> Findings:
        """Return nothing: what was done waits for nobody."""
        return Findings(held={}, flagged={}, edited=frozenset())

    def detail(self, entry: ListEntry) -> Detail:
        """Return what there is to see of an entry."""
        if entry.change is None:
            return _git_detail(entry)
        with PastOperation(self._project, entry.group) as past, past.reader(entry.root) as reader:
            return read_detail(entry.change, reader)[0]

    def undo(self) -> tuple[Operation, ...]:
        """Undo all of it, the newest first."""
        if self.session is not None:
            return self.sandbox.undo_session(self.session)
        return tuple(self.sandbox.undo(one.number) for one in reversed(self.operations))


def read_detail(change: Change, reader: Reader) -> tuple[Detail, Texts | None]:
    """Return what there is to see of a change, and both its texts, if it has them."""
    told = describe(change, reader, MAX_FILE_BYTES, quote(change.path))
    if told.texts is None:
        return Detail(notes=told.lines, is_whole=told.is_whole), None
    lines = []
    for line in numbered_lines(*told.texts):
        lines.append(line)
        if len(lines) > MOST_LINES:
            more = "It has more lines than are shown here; they can only be picked together."
            return Detail(notes=(*told.lines, more), lines=tuple(lines[:MOST_LINES]), is_whole=False), None
    notes = told.lines if lines else (*told.lines, "(empty)")
    is_whole = not any(is_cut(line.text) for line in lines)
    return Detail(notes=notes, lines=tuple(lines), is_whole=is_whole), told.texts


def live_state(entry: ListEntry) -> tuple[int, ...]:
    """Return what tells what the project has at the place of an entry from anything else; nothing for nothing."""
    try:
        found = os.lstat(entry.root + b"/" + entry.path)
    except OSError:
        return ()
    # The time of a directory is that of whatever happens in it
    times = () if entry.is_directory else (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return (found.st_mode, found.st_ino, *times)


def _git_detail(entry: ListEntry) -> Detail:
    text = f"{quote(entry.path)}: {entry.below} files that git keeps for itself"
    return Detail(notes=(text, "They go together: unspill moves a repository as a whole, or not at all."))


def _is_equal(before: Change | None, now: Change | None) -> bool:
    return before is now or (before is not None and now is not None and is_same(before, now))


class _Edits:
    """What the person has edited of the files that a stack holds, since the runs that changed them."""

    def __init__(self, project: Project, stack: Stack) -> None:
        self._project = project
        self._stack = stack
        self._layers = FoldedLayers(project.store, stack.live, layers_of(project.store, stack))
        self._rolled_back = RolledBackEntries(project.store, project.path, stack.live)

    def has(self, entry: ListEntry) -> bool:
        """Tell whether the person changed a file after the run began that first changed it."""
        change = entry.change
        if change is None or change.base_kind in (None, "dir"):
            return False
        try:
            found = os.lstat(entry.root + b"/" + entry.path)
        except OSError:
            return False
        mark = self._layers.marks.of(entry.path)
        if found.st_ctime_ns < mark or self._rolled_back.explains(entry.path, found, mark):
            return False
        base = self._layers.bases.of(entry.path)
        with self._open_live() as live:
            return base is None or not base.is_at(live, entry.path, found)

    def merged(self, entry: ListEntry, detail: Detail, theirs: bytes | None) -> Detail:
        """Return what there is to see of a file that both changed: what a merge makes of it, or why none does."""
        change = entry.change
        assert change is not None
        # Whose bits it has, only a base could tell; and who consents, consents to what the run left
        is_plain = change.kind == "modified" and not {"mode", "xattrs"}.intersection(change.aspects)
        if not is_plain or theirs is None or detail.consent is not None:
            return detail.replace(conflict=_NO_TEXT, digest="")
        base = self._layers.bases.text(entry.path)
        if base is None:
            return detail.replace(conflict=_NO_BASE, digest="")
        with self._open_live() as live:
            ours = read_live(live, entry.path)
        merge = None if ours is None else merge_texts(base, ours, theirs)
        if merge is None or ours is None:
            return detail.replace(conflict=_NO_TEXT, digest="")
        digest = digest_of_merge(base, ours, theirs)
        return detail.replace(merge=merge, ours=ours, merge_digest=digest, lines=(), digest="")

    def _open_live(self) -> Beneath:
        return Beneath(os.open(self._stack.live, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
