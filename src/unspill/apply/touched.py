# SPDX-License-Identifier: Apache-2.0
"""What operations that were taken back have touched: those entries have a ctime of ours, not of a person.

A rollback puts the very entries back, but the kernel has noted each of its renames. Without this the next try would
take every one of them for a conflict. Reads journals only when something looks like one.
"""

from __future__ import annotations

from unspill.apply.entries import matches
from unspill.apply.journal import read_journal
from unspill.apply.places import journal_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from unspill.model.operation import Entry
    from unspill.store.db import Store

    # By path and inode: what each rollback put back there, and a moment after it, the oldest first
    Known = dict[tuple[bytes, int], list[tuple[Entry, int]]]


class Touched:
    """The entries below one root that operations on a project have moved and put back."""

    def __init__(self, store: Store, project: bytes, root: bytes) -> None:
        self._store = store
        self._project = project
        self._root = root
        self._known: Known | None = None

    def explains(self, path: bytes, status: os.stat_result, mark: int) -> bool:
        """Tell whether an entry that is not older than a mark was so before we touched it, and is unchanged since."""
        if self._known is None:
            self._known = self._read()
        ctime = status.st_ctime_ns
        for entry, later in reversed(self._known.get((path, status.st_ino), ())):
            if ctime >= later or not entry.ctime_ns or not matches(status, entry):
                return False
            ctime = entry.ctime_ns
            if ctime < mark:
                return True
        return False

    def _read(self) -> Known:
        known: Known = {}
        for operation in self._store.operations.rolled_back(self._project):
            if self._root not in operation.roots:
                continue
            journal = read_journal(journal_file(self._store.state, operation.id))
            kept = {(left.root, left.path) for left in operation.left}
            index = operation.roots.index(self._root)
            for step in journal.steps if journal is not None else ():
                if step.root == index and step.before is not None and (index, step.path) not in kept:
                    found = known.setdefault((step.path, step.before.inode), [])
                    found.append((step.before, operation.marks[index]))
        return known
