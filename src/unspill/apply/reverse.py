# SPDX-License-Identifier: Apache-2.0
"""The steps that take back an operation that was done: each step's inverse, in reverse order.

What the person or a later operation changed since is a conflict and stays. The very entries that were displaced go
back, from where they lie, and what they displace in turn lies there afterwards: so a reversal can be reversed. Entries
may have gone and come back by later operations meanwhile; their journals are read only where nothing else tells.
"""

from __future__ import annotations

import os

from unspill.apply.draft import backup_problem, invert
from unspill.apply.journal import FIRST_VERSION, journal_file, read_journal
from unspill.apply.perform import CHANGED, explain_error
from unspill.apply.recover import RolledBackEntries
from unspill.apply.staging import has_metadata, opened_and_closed
from unspill.apply.steps import entry_of, matches
from unspill.git.index import says_at
from unspill.model.operation import Metadata, Skipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.apply.draft import Draft
    from unspill.apply.journal import Journal
    from unspill.apply.staging import OperationModes
    from unspill.apply.steps import OpenDirs
    from unspill.model.operation import Entry, Operation, OperationKind, Step, Why
    from unspill.store.db import Store

    # Tells whether a live entry with this inode and ctime was put at a path by a later operation of ours
    Explains = Callable[[int, bytes, os.stat_result], bool]
    # A root, a path and an inode
    Key = tuple[bytes, bytes, int]

_NEW_DIRECTORY = Metadata(mode=0o700)


class Reversal:
    """Drafts the inverse of what one operation did."""

    def __init__(self, journal: Journal, explains: Explains, kind: OperationKind = "undo") -> None:
        assert journal.end is not None
        self._git = tuple(zip(journal.git, journal.end.git, strict=True))
        self._message = f"unspill: {kind} op {journal.end.operation.number}"
        self._steps = [journal.steps[index] for index in journal.end.done]
        self._old_moves: dict[tuple[int, bytes], list[Step]] = {}
        if journal.version == FIRST_VERSION and any(b".git/" in step.path for step in self._steps):
            from unspill.apply.git_reverse import split_old  # lazy: git

            self._steps, self._old_moves = split_old(self._steps)
        self._operation: Operation = journal.end.operation
        self._explains = explains
        self._failed: dict[int, Skipped] = {}
        # What the reversal itself will have taken away and brought back by the time of the step that is looked at
        self._gone: set[tuple[int, bytes]] = set()
        self._back: set[tuple[int, bytes]] = set()
        self._refreshed: dict[tuple[int, bytes], Entry] = {}
        # The metadata that a directory will have by then
        self._metadata: dict[tuple[int, bytes], Metadata | None] = {}
        made = {(step.root, step.path) for step in self._steps if step.action == "put"}
        self._unchanged = opened_and_closed(self._steps) - made
        # Directories that somebody else has given other bits since: nothing of their metadata is taken back
        self._lost: set[tuple[int, bytes]] = set()
        # Directories that the operation closed to their owner: the reversal opens them before it looks into them
        self._opened: set[tuple[int, bytes]] = set()

    def draft(self, draft: Draft, dirs: OpenDirs) -> None:
        """Add the inverse steps to a draft; whole groups are skipped where one of their steps is in conflict."""
        for step in reversed(self._steps):
            if step.group not in self._failed:
                self._check(dirs, step, draft.modes)
        for skipped in self._failed.values():
            if not self._matters_to_nobody(skipped):
                draft.skip(skipped)
        self._draft_git(draft, dirs)
        rest = [step for step in self._steps if step.group not in self._failed and step.action != "set_metadata"]
        if rest and not draft.git and all(self._matters_to_nobody(step) for step in rest):
            # That alone is no reason to call the operation undone
            return
        last: list[Step] = []
        remade: set[tuple[int, bytes]] = set()
        left_out = self._lost | (self._unchanged - self._busy())
        for step in reversed(self._steps):
            if step.group in self._failed or (step.action == "set_metadata" and (step.root, step.path) in left_out):
                continue
            inverse = self._inverse(draft, dirs, step)
            if step.staged and step.action == "take" and step.was is not None:
                # A directory that is made anew there has no metadata yet, whatever the old one had at which time
                last.append(_set_metadata_anew(inverse, step.was))
                remade.add((step.root, step.path))
            is_remade = (step.root, step.path) in remade
            if step.action != "set_metadata" or not is_remade:
                draft.add_in_order(inverse)
        for step in reversed(last):
            draft.add_in_order(step)

    def _draft_git(self, draft: Draft, dirs: OpenDirs) -> None:
        if not (self._git or self._old_moves):
            return
        from unspill.apply.git_reverse import draft_old_move, draft_reversal  # lazy: git

        for (root, top), steps in self._old_moves.items():
            draft_old_move(draft, dirs, root, top, steps)
        for git, ending in reversed(self._git):
            draft_reversal(draft, dirs, git, ending, self._message)

    def _matters_to_nobody(self, at: Skipped | Step) -> bool:
        """Tell whether git writes a file anew with its next command, the message of the last commit for example."""
        if not self._git:
            return False
        from unspill.apply.git_reverse import is_along  # lazy: git

        return any(is_along(git, at) for git, _ending in self._git)

    def _check(self, dirs: OpenDirs, step: Step, modes: OperationModes) -> None:
        try:
            problem = self._problem(dirs, step, modes)
        except OSError as error:
            problem = explain_error(error)
        if problem is not None:
            why, reason = problem
            self._failed[step.group] = Skipped(root=step.root, path=step.path, why=why, reason=reason)

    def _problem(self, dirs: OpenDirs, step: Step, modes: OperationModes) -> tuple[Why, str] | None:
        # Nobody can have changed names in what is closed; what is there is compared when the step is done
        is_hidden = self._is_hidden(step)
        if step.action == "set_metadata":
            return self._problem_of_metadata(dirs, step, is_hidden=is_hidden)
        live = None if is_hidden else self._find(dirs, step)
        if step.action == "take":
            if live is not None:
                return "conflict", "something else is there now"
            self._back.add((step.root, step.path))
            return backup_problem(dirs, step, step.before, modes)
        if not is_hidden and (live is None or not self._is_ours(dirs, step, live)):
            return "conflict", CHANGED
        if step.before is None:
            self._gone.add((step.root, step.path))
            return None
        return backup_problem(dirs, step, step.before, modes)

    def _problem_of_metadata(self, dirs: OpenDirs, step: Step, *, is_hidden: bool) -> tuple[Why, str] | None:
        key = (step.root, step.path)
        if key in self._lost:
            return None
        if is_hidden or self._has_metadata(dirs, step):
            self._note_opening(step)
            return None
        self._lost.add(key)
        return None if key in self._unchanged else ("conflict", CHANGED)

    def _busy(self) -> set[tuple[int, bytes]]:
        """Return the directories in which something is to be done, or that themselves come or go."""
        busy = set()
        for step in self._steps:
            if step.action != "set_metadata" and step.group not in self._failed:
                busy |= {(step.root, step.path), (step.root, step.path.rpartition(b"/")[0] or b".")}
        return busy

    def _note_opening(self, step: Step) -> None:
        assert step.was is not None
        assert step.becomes is not None
        if step.was.mode & 0o100 and not step.becomes.mode & 0o100:
            self._opened.add((step.root, step.path))

    def _is_hidden(self, step: Step) -> bool:
        """Tell whether a step is in a directory that can't be searched until the reversal has opened it."""
        # On another mount what a step displaces is copied before, and that can't be read
        above = step.path if self._opened and not step.staged else b""
        while above := above.rpartition(b"/")[0]:
            if (step.root, above) in self._opened:
                return True
        return False

    def _find(self, dirs: OpenDirs, step: Step) -> os.stat_result | None:
        """Look at what will be there when the step's turn comes."""
        if (self._gone and (step.root, step.path) in self._gone) or (self._back and self._is_coming_back(step)):
            return None
        return dirs.roots[step.root].find(step.path)

    def _has_metadata(self, dirs: OpenDirs, step: Step) -> bool:
        assert step.before is not None
        assert step.becomes is not None
        if (step.root, step.path) in self._back or self._is_coming_back(step):
            return True
        then = self._metadata.get((step.root, step.path))
        self._metadata[step.root, step.path] = step.was
        if then is not None:
            return then == step.becomes
        fd = dirs.roots[step.root].directory(b"" if step.path == b"." else step.path)
        return os.fstat(fd).st_ino == step.before.inode and has_metadata(fd, step.becomes)

    def _is_coming_back(self, step: Step) -> bool:
        """Tell whether the directory of a step is one that the reversal itself puts back."""
        return (step.root, step.path.rpartition(b"/")[0]) in self._back

    def _is_ours(self, dirs: OpenDirs, step: Step, live: os.stat_result) -> bool:
        """Tell whether the live entry is the one that the operation put there, unchanged since."""
        assert step.after is not None
        if not matches(live, step.after):
            return self._is_refreshed(dirs, step, live)
        if step.after.kind == "dir" or live.st_ctime_ns < self._operation.marks[step.root]:
            return True
        return self._explains(step.root, step.path, live)

    def _is_refreshed(self, dirs: OpenDirs, step: Step, live: os.stat_result) -> bool:
        """Tell whether git only wrote anew what it remembers of an index that the operation put."""
        if not step.says or says_at(*dirs.live(step)) != step.says:
            return False
        self._refreshed[step.root, step.path] = entry_of(live)
        return True

    def _inverse(self, draft: Draft, dirs: OpenDirs, step: Step) -> Step:
        if step.action == "set_metadata":
            return step.replace(was=step.becomes, becomes=step.was)
        there = self._refreshed.get((step.root, step.path), step.after) if self._refreshed else step.after
        return invert(draft, dirs, step, there)


class LaterOperations:
    """What later operations did to the entries of one: they may have gone and come back, with another ctime.

    Where the project is on another mount than our state, what comes back is a copy with another inode as well. Reads
    the journals of all later operations, and only where something can't be told without them.
    """

    def __init__(self, store: Store, operation: Operation) -> None:
        self._store = store
        self._operation = operation
        self._rolled_back = [RolledBackEntries(store, operation.project, root) for root in operation.roots]
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
        return status.st_ctime_ns < mark or self._rolled_back[root].explains(path, status, mark)

    def as_of_now(self, journal: Journal) -> Journal:
        """Return the operation's journal as if it had put the copies that have come back since."""
        if not any(step.staged for step in journal.steps):
            return journal
        self._read()
        return journal.replace(steps=tuple(map(self._renumbered, journal.steps))) if self._copies else journal

    def _renumbered(self, step: Step) -> Step:
        root = self._operation.roots[step.root]
        if step.action == "set_metadata":
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
            if step.action == "set_metadata":
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


def _set_metadata_anew(made: Step, becomes: Metadata) -> Step:
    step = made.replace(action="set_metadata", place=b"", staged=False, before=made.after, after=None)
    return step.replace(was=_NEW_DIRECTORY, becomes=becomes)


def _displaced(journal: Journal) -> dict[tuple[bytes, bytes], int]:
    """Return the inodes that an operation displaced, by root and path; a path has at most one."""
    assert journal.end is not None
    roots = journal.end.operation.roots
    steps = (journal.steps[index] for index in journal.end.done)
    return {
        (roots[step.root], step.path): step.before.inode
        for step in steps
        if step.before is not None and step.action != "set_metadata"
    }
