# SPDX-License-Identifier: Apache-2.0
"""What later operations did to the entries of one: they may have gone and come back, with another ctime.

Where the project is on another mount than our state, what comes back is a copy with another inode as well. Reads the
journals of all later operations, and only where something can't be told without them.
"""

from __future__ import annotations

from unspill.apply.journal import read_journal
from unspill.apply.places import journal_file
from unspill.apply.touched import Touched

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from unspill.apply.journal import Journal
    from unspill.model.operation import Entry, Operation, Step
    from unspill.store.db import Store

    # A root, a path and an inode
    Key = tuple[bytes, bytes, int]


class Later:
    """The history of one operation's entries since."""

    def __init__(self, store: Store, operation: Operation) -> None:
        self._store = store
        self._operation = operation
        self._touched = [Touched(store, operation.project, root) for root in operation.roots]
        self._is_read = False
        self._put: dict[Key, int] = {}
        self._edited: set[Key] = set()
        self._copies: dict[Key, int] = {}

    def explains(self, root: int, path: bytes, status: os.stat_result) -> bool:
        """Tell whether a later operation of ours gave an entry the ctime that it has, and nobody else any before."""
        self._read()
        key = (self._operation.roots[root], path, status.st_ino)
        if key in self._edited:
            return False
        mark = self._put.get(key, self._operation.marks[root])
        return status.st_ctime_ns < mark or self._touched[root].explains(path, status, mark)

    def as_of_now(self, journal: Journal) -> Journal:
        """Return the operation's journal as if it had put the copies that have come back since."""
        if not any(step.staged for step in journal.steps):
            return journal
        self._read()
        return journal.replace(steps=tuple(map(self._renumbered, journal.steps))) if self._copies else journal

    def _renumbered(self, step: Step) -> Step:
        root = self._operation.roots[step.root]
        if step.action == "dress":
            return step.replace(before=self._latest(root, step.path, step.before))
        return step.replace(after=self._latest(root, step.path, step.after))

    def _latest(self, root: bytes, path: bytes, entry: Entry | None) -> Entry | None:
        inode = entry.inode if entry is not None else 0
        while (copy := self._copies.get((root, path, inode))) is not None:
            inode = copy
        return entry if entry is None or inode == entry.inode else entry.replace(inode=inode)

    def _read(self) -> None:
        if self._is_read:
            return
        self._is_read = True
        displaced: dict[str, dict[tuple[bytes, bytes], int]] = {}
        own = read_journal(journal_file(self._store.state, self._operation.id))
        if own is not None and own.end is not None:
            displaced[self._operation.id] = _displaced(own)
        for one in self._store.operations.later(self._operation.project, self._operation.number):
            journal = read_journal(journal_file(self._store.state, one.id))
            if journal is not None and journal.end is not None:
                self._add(journal, displaced.get(one.of or "", {}))
                displaced[one.id] = _displaced(journal)

    def _add(self, journal: Journal, originals: dict[tuple[bytes, bytes], int]) -> None:
        assert journal.end is not None
        operation = journal.end.operation
        own_marks = dict(zip(self._operation.roots, self._operation.marks, strict=True))
        for index in journal.end.done:
            step = journal.steps[index]
            if step.action == "dress":
                continue
            root = operation.roots[step.root]
            # A reversal displaces only what nobody had changed
            if step.before is not None and operation.kind in ("apply", "restore"):
                key = (root, step.path, step.before.inode)
                if step.before.ctime_ns >= self._put.get(key, own_marks.get(root, 0)):
                    self._edited.add(key)
            if step.action == "put" and step.after is not None:
                key = (root, step.path, step.after.inode)
                self._put[key] = operation.marks[step.root]
                if step.staged:
                    self._note_copy(key, originals.get((root, step.path)))

    def _note_copy(self, key: Key, original: int | None) -> None:
        root, path, inode = key
        if original is None or original == inode:
            return
        # A number that was given again begins anew
        self._copies.pop(key, None)
        self._copies[root, path, original] = inode
        if (root, path, original) in self._edited:
            self._edited.add(key)


def _displaced(journal: Journal) -> dict[tuple[bytes, bytes], int]:
    """Return the inodes that an operation displaced, by root and path; a path has at most one."""
    assert journal.end is not None
    roots = journal.end.operation.roots
    steps = (journal.steps[index] for index in journal.end.done)
    return {
        (roots[step.root], step.path): step.before.inode
        for step in steps
        if step.before is not None and step.action != "dress"
    }
