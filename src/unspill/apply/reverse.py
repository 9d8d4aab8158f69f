# SPDX-License-Identifier: Apache-2.0
"""The steps that take back an operation that was done: each step's inverse, in reverse order; a repository as a whole.

What the person or a later operation changed since is a conflict and stays. The very entries that were displaced go
back, from where they lie, and what they displace in turn lies there afterwards: so a reversal can be reversed. Entries
may have gone and come back by later operations meanwhile; their journals are read only where nothing else tells.

A repository goes back only if it still stands where the operation left it. Objects stay: later commits may need them,
and git removes what nothing leads to. What the reversal displaces is pinned. Logs get a line more, as with `git reset`.
Operations of unspill 0.1 wrote into repositories file by file: of their steps, objects are only ever brought back, and
what says where the repository stands becomes one move like any other.
"""

from __future__ import annotations

import os
import stat
import time

from unspill.apply.bases import LARGEST_DIGESTED, digest_at, is_kept_content, unpack
from unspill.apply.draft import backup_problem, invert
from unspill.apply.git_draft import (
    REPOSITORY_GONE,
    LiveRepository,
    core_names,
    stashed,
)
from unspill.apply.journal import FIRST_VERSION, journal_of
from unspill.apply.perform import CHANGED, OCCUPIED, explain_error
from unspill.apply.recover import RolledBackEntries
from unspill.apply.staging import has_access_list, has_metadata, opened_and_closed
from unspill.apply.steps import entry_of, make_step, matches
from unspill.changes.merge import LARGEST_TEXT, merge_texts
from unspill.git.files import (
    LARGEST_FILE,
    STASH_LOG,
    is_index,
    is_object_name,
    is_ref_name,
    part_of,
    repository_of,
    says_at,
    short_ref,
)
from unspill.git.state import SYMBOLIC, is_own_ref, owner_of, parse_packed, parse_ref
from unspill.host.dirfd import have_same_content, read_unchanged
from unspill.host.overlay import FORMAT, KINDS, list_attributes, user_attributes
from unspill.model.operation import Metadata, RefMove, Skipped
from unspill.policy.paths import quote
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from unspill.apply.draft import Draft
    from unspill.apply.journal import Journal
    from unspill.apply.staging import OperationModes
    from unspill.apply.steps import OpenDirs
    from unspill.model.operation import (
        Action,
        Entry,
        GitEnding,
        GitMove,
        GitStep,
        Operation,
        OperationKind,
        Step,
        Why,
    )
    from unspill.store.db import Store

    # Why a step can't be taken back, if it can't
    _Problem = tuple[Why, str] | None

    # A root, a path and an inode
    Key = tuple[bytes, bytes, int]


_NEW_DIRECTORY = Metadata(mode=0o700)
# What is looked at is as the reversal would make it
_DONE: tuple[Why, str] = ("conflict", "")
_CHANGED: tuple[Why, str] = ("conflict", CHANGED)
_TAKEN: tuple[Why, str] = ("conflict", "what this left held was applied or discarded since")

_STAYS = "you {what} since, so git stays as it is{advice}"
_LOST = "{name} can't go back: its old commit no longer exists"
_MOVED_SINCE = "you moved it since, so it stays where it is"


class Reversal:
    """Drafts the inverse of what one operation did."""

    def __init__(self, journal: Journal, later: LaterOperations, kind: OperationKind, *, may_merge: bool) -> None:
        """Take the journal of what was done."""
        assert journal.end is not None
        self._may_merge = may_merge
        # Undo of an apply that a person asked for holds the entry again, so it must still be there
        self._may_be_done = may_merge or kind == "redo"
        # What files get that the person has edited since, None for the backup's content, and as what they were seen
        self._merged: dict[tuple[int, bytes], tuple[bytes | None, int, os.stat_result]] = {}
        self._git = tuple(zip(journal.git, journal.end.git, strict=True))
        self._kind = kind
        self._steps = [journal.steps[index] for index in journal.end.done]
        self._old_moves: dict[tuple[int, bytes], list[Step]] = {}
        if journal.version == FIRST_VERSION and any(b".git/" in step.path for step in self._steps):
            self._steps, self._old_moves = split_old(self._steps)
        self._operation: Operation = journal.end.operation
        self._later = later
        self._failed: dict[int, Skipped] = {}
        # Steps that are done already, because somebody else did the same; and groups of which something is to be done
        self._done: dict[tuple[int, bytes, str], Step] = {}
        self._undone: set[int] = set()
        # What the reversal itself will have taken away and brought back by the time of the step that is looked at
        self._gone: set[tuple[int, bytes]] = set()
        self._back: set[tuple[int, bytes]] = set()
        self._refreshed: dict[tuple[int, bytes], Entry] = {}
        # The metadata that a directory will have by then
        self._metadata: dict[tuple[int, bytes], Metadata | None] = {}
        self._made = {(step.root, step.path) for step in self._steps if step.action == "put"}
        self._taken = {
            (step.root, step.path)
            for step in self._steps
            if step.action == "take" and step.before is not None and step.before.kind == "dir"
        }
        self._made_directories = {
            (step.root, step.path)
            for step in self._steps
            if step.action == "put" and step.after is not None and step.after.kind == "dir"
        }
        # What directories had before the operation changed that: steps of their own compare it
        self._old_metadata: dict[tuple[int, bytes], Metadata | None] = {}
        for step in self._steps:
            if step.action == "set_metadata":
                self._old_metadata.setdefault((step.root, step.path), step.was)
        self._unchanged = opened_and_closed(self._steps) - self._made
        # Directories that somebody else has given other bits since: nothing of their metadata is taken back
        self._lost: set[tuple[int, bytes]] = set()
        # Where what it left held was applied or discarded since, by root and path; repositories too
        self.taken: set[tuple[bytes, bytes]] = set()
        # Directories that the operation closed to their owner: the reversal opens them before it looks into them
        self._opened: set[tuple[int, bytes]] = set()

    def draft(self, draft: Draft, dirs: OpenDirs) -> None:
        """Add the inverse steps to a draft; whole groups are skipped where one of their steps is in conflict."""
        for step in reversed(self._steps):
            if step.group not in self._failed:
                self._check(dirs, step, draft.modes)
        needless = {step.group for step in self._done.values()} - self._undone - self._failed.keys()
        draft.is_settled = bool(needless) or not (self._steps or self._git)
        for skipped in self._failed.values():
            if not self._matters_to_nobody(skipped):
                draft.skip(skipped)
        left_out = needless | self._failed.keys()
        self._draft_git(draft, dirs, left_out)
        rest = [step for step in self._steps if step.group not in left_out and step.action != "set_metadata"]
        if rest and not draft.git and all(self._matters_to_nobody(step) for step in rest):
            # That alone is no reason to call the operation undone
            return
        last: list[Step] = []
        remade: set[tuple[int, bytes]] = set()
        unchanged = self._lost | (self._unchanged - self._busy(left_out))
        for step in reversed(self._steps):
            if step.group in left_out or (step.root, step.path, step.action) in self._done:
                continue
            if step.action == "set_metadata" and (step.root, step.path) in unchanged:
                continue
            inverse = self._inverse(draft, dirs, step)
            if self._is_slight(dirs, step):
                draft.slight.add((step.root, step.path))
            if step.staged and step.action == "take" and step.was is not None:
                # A directory that is made anew there has no metadata yet, whatever the old one had at which time
                last.append(_set_metadata_anew(inverse, step.was))
                remade.add((step.root, step.path))
            is_remade = (step.root, step.path) in remade
            if step.action != "set_metadata" or not is_remade:
                draft.add_in_order(inverse)
        for step in reversed(last):
            draft.add_in_order(step)

    def _draft_git(self, draft: Draft, dirs: OpenDirs, left_out: Container[int]) -> None:
        if not (self._git or self._old_moves):
            return

        for (root, top), steps in self._old_moves.items():
            draft_old_move(draft, dirs, root, top, steps)
        has_files = any(
            step.group not in left_out and step.action != "set_metadata" and not self._matters_to_nobody(step)
            for step in self._steps
        )
        aim = ReversalAim(kind=self._kind, number=self._operation.number, has_files=has_files)
        for git, ending in reversed(self._git):
            if (self._operation.roots[git.root], git.top) in self.taken:
                draft.skip(Skipped(root=git.root, path=git.top, why=_TAKEN[0], reason=_TAKEN[1]))
            else:
                draft_reversal(draft, dirs, git, ending, aim)

    @staticmethod
    def _is_slight(dirs: OpenDirs, step: Step) -> bool:
        """Tell whether a step has changed nothing of a file but its time."""
        before, after = step.before, step.after
        if step.action != "put" or before is None or after is None or before.kind != "file":
            return False
        if (before.kind, before.mode, before.size) != (after.kind, after.mode, after.size):
            return False
        live, kept = dirs.roots[step.root].find(step.path), dirs.operations.find(step.backup)
        if live is None or kept is None:
            return False
        digest = digest_at(dirs.roots[step.root], step.path, live)
        return bool(digest) and digest == digest_at(dirs.operations, step.backup, kept)

    def _matters_to_nobody(self, at: Skipped | Step) -> bool:
        """Tell whether git writes a file anew with its next command, the message of the last commit for example."""
        if not self._git:
            return False

        return any(is_along(git, at) for git, _ending in self._git)

    def _check(self, dirs: OpenDirs, step: Step, modes: OperationModes) -> None:
        try:
            problem = self._problem(dirs, step, modes)
        except OSError as error:
            problem = explain_error(error)
        if problem is None and (self._operation.roots[step.root], step.path) in self.taken:
            problem = _TAKEN
        if problem is _DONE:
            self._done[step.root, step.path, step.action] = step
        elif problem is not None:
            why, reason = problem
            self._failed[step.group] = Skipped(root=step.root, path=step.path, why=why, reason=reason)
        elif step.action != "set_metadata":
            self._undone.add(step.group)

    def _problem(self, dirs: OpenDirs, step: Step, modes: OperationModes) -> _Problem:
        # Nobody can have changed names in what is closed; what is there is compared when the step is done
        is_hidden = self._is_hidden(step)
        if step.action == "set_metadata":
            return self._problem_of_metadata(dirs, step, is_hidden=is_hidden)
        live = None if is_hidden else self._find(dirs, step)
        if step.action == "take":
            if live is not None:
                return _DONE if self._is_done(dirs, step, live, modes) else ("conflict", OCCUPIED)
            if not is_hidden and not self._is_coming_back(step):
                # It can't come back where its directory is gone
                dirs.roots[step.root].directory(step.path.rpartition(b"/")[0])
            self._back.add((step.root, step.path))
            return backup_problem(dirs, step, step.before, modes)
        if not is_hidden and (live is None or not self._is_ours(dirs, step, live)):
            is_same = live is not None and self._is_the_same(dirs, step, live)
            if self._may_be_done and not is_same and self._is_done(dirs, step, live, modes):
                return _DONE
            problem = None if is_same else _CHANGED if live is None else self._merge(dirs, step, live, modes)
            if problem is not None:
                return problem
        if step.before is None:
            self._gone.add((step.root, step.path))
            return None
        return backup_problem(dirs, step, step.before, modes)

    def _is_done(self, dirs: OpenDirs, step: Step, live: os.stat_result | None, modes: OperationModes) -> bool:
        """Tell whether the project has what the reversal of a step would put there, or lacks what it would remove."""
        before = step.before
        if before is None or live is None:
            return before is None and live is None and (step.root, step.path) not in self._gone
        if KINDS.get(live.st_mode & FORMAT) != before.kind or (step.root, step.path) in self._back:
            return False
        if before.kind == "dir":
            return step.action == "take"
        if stat.S_IMODE(live.st_mode) != before.mode or live.st_size != before.size:
            return False
        kept = dirs.operations.find(step.backup)
        is_before = kept is not None and backup_problem(dirs, step, before, modes) is None
        if kept is None or not is_before or kept.st_ino == live.st_ino:
            return False
        digest = digest_at(dirs.operations, step.backup, kept)
        return bool(digest) and digest == digest_at(dirs.roots[step.root], step.path, live)

    def _problem_of_metadata(self, dirs: OpenDirs, step: Step, *, is_hidden: bool) -> _Problem:
        key = (step.root, step.path)
        if key in self._lost:
            return None
        is_made = self._may_be_done and not is_hidden and key in self._made_directories
        if is_made and dirs.roots[step.root].find(step.path) is None:
            # The directory that was made is gone already
            return _DONE
        if is_hidden or self._has_metadata(dirs, step):
            self._note_opening(step)
            return None
        self._lost.add(key)
        was_there = self._may_be_done and key not in self._made_directories
        if key in self._taken or (was_there and self._has_old_metadata(dirs, step)):
            # Somebody else made a directory there, which is as good, or has set back its permissions
            return _DONE
        return None if key in self._unchanged else ("conflict", CHANGED)

    def _busy(self, left_out: Container[int]) -> set[tuple[int, bytes]]:
        """Return directories in which something is to be done, or that themselves come or go; but for some groups."""
        busy = set()
        for step in self._steps:
            if step.action != "set_metadata" and step.group not in left_out:
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
        try:
            return dirs.roots[step.root].find(step.path)
        except NotADirectoryError:
            return None

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

    def _has_old_metadata(self, dirs: OpenDirs, step: Step) -> bool:
        """Tell whether a directory has again what it had before the operation."""
        old = self._old_metadata[step.root, step.path]
        fd = dirs.roots[step.root].directory(b"" if step.path == b"." else step.path)
        return old is not None and has_metadata(fd, old)

    def _is_coming_back(self, step: Step) -> bool:
        """Tell whether the directory of a step is one that the reversal itself puts back."""
        return (step.root, step.path.rpartition(b"/")[0]) in self._back

    def _is_ours(self, dirs: OpenDirs, step: Step, live: os.stat_result) -> bool:
        """Tell whether the live entry is the one that the operation put there, unchanged since."""
        assert step.after is not None
        if not matches(live, step.after):
            return self._is_refreshed(dirs, step, live)
        if step.after.kind == "dir":
            return (step.root, step.path) in self._old_metadata or stat.S_IMODE(live.st_mode) == step.after.mode
        if live.st_ctime_ns < self._operation.marks[step.root]:
            return True
        return self._later.explains(step.root, step.path, live)

    def _is_the_same(self, dirs: OpenDirs, step: Step, live: os.stat_result) -> bool:
        """Tell whether a file was only written anew: by somebody, or by a later operation, but as it was."""
        assert step.after is not None
        is_file = step.after.kind == "file" and stat.S_ISREG(live.st_mode)
        if not is_file or stat.S_IMODE(live.st_mode) != step.after.mode or live.st_size != step.after.size:
            return False
        is_same = self._is_as_kept(dirs, step, live)
        if is_same is None:
            is_plain = not _attributes(*dirs.live(step)) and not has_access_list(*dirs.live(step))
            is_same = is_plain and is_kept_content(self._later.find_kept(step.root, step.path), *dirs.live(step), live)
        if is_same:
            self._refreshed[step.root, step.path] = entry_of(live)
        return is_same

    def _is_as_kept(self, dirs: OpenDirs, step: Step, live: os.stat_result) -> bool | None:
        """Compare a file with what the operation had put, where a later one has displaced that; None where not."""
        assert step.after is not None
        place = self._later.find_displaced(step.root, step.path, step.after.inode)
        if place is None:
            return None
        kept = dirs.operations.find(place)
        if kept is None or not matches(kept, step.after):
            return None
        kept_at, live_at = dirs.operations.parent(place), dirs.live(step)
        if kept.st_size != live.st_size:
            return False
        if _attributes(*kept_at) != _attributes(*live_at) or has_access_list(*live_at):
            return False
        return _read_same(kept_at, kept, live_at, live)

    def _merge(self, dirs: OpenDirs, step: Step, live: os.stat_result, modes: OperationModes) -> _Problem:
        """Have a file that somebody edited since keep those edits; return why it can't, None where it can."""
        before, after = step.before, step.after
        assert after is not None
        is_file = before is not None and before.kind == after.kind == "file" and stat.S_ISREG(live.st_mode)
        if not is_file or before is None or not self._may_merge or b".git/" in step.path:
            return _CHANGED
        backup, live_at = dirs.operations.find(step.backup), dirs.live(step)
        if backup is None or backup_problem(dirs, step, before, modes) is not None:
            # A later redo kept edits, and left here what it should have put
            return _CHANGED
        backup_at = dirs.operations.parent(step.backup)
        now = stat.S_IMODE(live.st_mode)
        mode = before.mode if now == after.mode else now if before.mode in (after.mode, now) else None
        if mode is None or _attributes(*live_at) != _attributes(*backup_at):
            return _CHANGED
        kept = self._later.find_kept(step.root, step.path)
        if is_kept_content(kept, *live_at, live) or self._is_as_kept(dirs, step, live):
            # At most its bits have changed; size and time alone don't tell that
            self._merged[step.root, step.path] = None, mode, live
            return None
        ours, theirs = (read_unchanged(*at, LARGEST_DIGESTED) for at in ((*live_at, live), (*backup_at, backup)))
        if ours is None or theirs is None:
            return _CHANGED
        merged, base = theirs, unpack(kept)
        if is_kept_content(kept, *backup_at, backup):
            # The operation changed the bits alone
            merged = ours
        elif ours != theirs:
            is_short = max(len(ours), len(theirs)) <= LARGEST_TEXT
            merge = merge_texts(base, ours, theirs) if base is not None and is_short else None
            if merge is None or merge.clashes:
                why = CHANGED if merge is None else f"you changed the same lines since: {merge.where()}"
                return "conflict", why
            merged = merge.text()
        if merged == ours and mode == now:
            # The operation changed nothing of it but its time, or somebody has done the same
            return _DONE
        self._merged[step.root, step.path] = merged, mode, live
        return None

    def _is_refreshed(self, dirs: OpenDirs, step: Step, live: os.stat_result) -> bool:
        """Tell whether git only wrote anew what it remembers of an index that the operation put."""
        if not step.says or says_at(*dirs.live(step)) != step.says:
            return False
        self._refreshed[step.root, step.path] = entry_of(live)
        return True

    def _inverse(self, draft: Draft, dirs: OpenDirs, step: Step) -> Step:
        if step.action == "set_metadata":
            return step.replace(was=step.becomes, becomes=step.was)
        if (step.root, step.path) in self._merged:
            return self._merged_inverse(draft, dirs, step)
        # Where a directory gave way to a file, two steps have one path
        there = step.after if step.action == "take" else self._refreshed.get((step.root, step.path), step.after)
        live = None if there is None else self._find(dirs, step)
        if there is not None and live is not None and matches(live, there):
            # With the time of now: should this be rolled back, the operation itself is no older than that
            there = entry_of(live)
        return invert(draft, dirs, step, there)

    def _merged_inverse(self, draft: Draft, dirs: OpenDirs, step: Step) -> Step:
        """Return the step that puts the old text with the edits since; the backup stays where it is."""
        content, mode, live = self._merged[step.root, step.path]
        fd, name = dirs.operations.parent(step.backup)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        place, _ = draft.stage(step.root, fd, name, status, content, mode)
        made = draft.give_access_lists(step.root, place, *dirs.live(step))
        draft.note(step.path, "your edits since were kept")
        inverse = make_step(step.root, step.path, "put", step.group, place, entry_of(live), entry_of(made))
        return inverse.replace(staged=True) if step.staged else inverse


def _read_same(
    one: tuple[int, bytes], one_status: os.stat_result, other: tuple[int, bytes], other_status: os.stat_result
) -> bool:
    """Tell whether two files have the same content, and stay as they were looked at meanwhile."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with (
        open(os.open(one[1], flags, dir_fd=one[0]), "rb", buffering=0) as first,
        open(os.open(other[1], flags, dir_fd=other[0]), "rb", buffering=0) as second,
    ):
        is_same = have_same_content(first.fileno(), second.fileno(), one_status.st_size)
        found = os.fstat(second.fileno())
    return is_same and (found.st_ino, found.st_ctime_ns) == (other_status.st_ino, other_status.st_ctime_ns)


def _attributes(fd: int, name: bytes) -> dict[str, bytes]:
    path = b"/proc/self/fd/%d/%b" % (fd, name)
    return user_attributes(path, list_attributes(path))


class LaterOperations:
    """What later operations did to the entries of one: they may have gone and come back, with another ctime.

    Where the project is on another mount than our state, what comes back is a copy with another inode as well. Reads
    the journals of all later operations, and only where something can't be told without them.
    """

    def __init__(self, store: Store, operation: Operation) -> None:
        self._store = store
        self._operation = operation
        self._rolled_back = [RolledBackEntries(store, operation.project, root) for root in operation.roots]
        # Redos of a part of it, the oldest first
        again = () if operation.kind == "undo" else store.operations.of_origin(operation.origin or operation.id)
        later = [one for one in again if one.kind == "redo" and one.number > operation.number]
        self._redos = sorted(later, key=lambda one: one.number)
        self._is_read = False
        self._put: dict[Key, int] = {}
        self._edited: set[Key] = set()
        # Where what was displaced lies, relative to the directory of operations
        self._displaced: dict[Key, bytes] = {}
        self._copies: dict[Key, int] = {}
        # The other way round
        self._originals: dict[Key, int] = {}

    def explains(self, root: int, path: bytes, status: os.stat_result) -> bool:
        """Tell whether a later operation of ours gave an entry the ctime that it has, and nobody else any before."""
        self._read()
        key = (self._operation.roots[root], path, status.st_ino)
        if key in self._edited:
            return False
        mark = self._put.get(key, self._operation.marks[root])
        return status.st_ctime_ns < mark or self._rolled_back[root].explains(path, status, mark)

    def find_displaced(self, root: int, path: bytes, inode: int) -> bytes | None:
        """Return where a later operation has laid what was at a path, relative to the directory of operations."""
        self._read()
        key = (self._operation.roots[root], path, inode)
        return None if key in self._edited else self._displaced.get(key)

    def as_of_now(self, journal: Journal) -> Journal:
        """Return the operation's journal as if it had put the copies that have come back since, and displaced again."""
        journal = self._redone(journal)
        later = self._store.operations.has_later_edits(self._operation.project, self._operation.number)
        if not later and not any(step.staged or step.copied for step in journal.steps):
            return journal
        self._read()
        return journal.replace(steps=tuple(map(self._renumbered, journal.steps))) if self._copies else journal

    def find_kept(self, root: int, path: bytes) -> bytes | None:
        """Return what was kept of a file's content when the operation, or the last redo of a part of it, had put it."""
        where = self._operation.roots[root], path
        kept = (self._store.texts.find(one.id, *where) for one in (*reversed(self._redos), self._operation))
        return next((one for one in kept if one is not None), None)

    def _redone(self, journal: Journal) -> Journal:
        """Return a journal with the steps of redos of a part: somebody may have written the same anew, or edited it."""
        found: dict[tuple[int, bytes, Action], Step] = {}
        for one in self._redos:
            later = journal_of(self._store.state, one)
            if later is None or later.end is None:
                continue
            for step in (later.steps[index] for index in later.end.done):
                if step.before is not None and step.action != "set_metadata":
                    found[step.root, step.path, step.action] = step
        latest = (found.get((one.root, one.path, one.action), one).replace(group=one.group) for one in journal.steps)
        return journal.replace(steps=tuple(latest)) if found else journal

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
        own = journal_of(self._store.state, self._operation)
        if own is not None and own.end is not None:
            displaced[self._operation.id] = _displaced(own)
        for one in self._store.operations.later(self._operation.project, self._operation.number):
            journal = journal_of(self._store.state, one)
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
            if step.before is not None and operation.kind in ("apply", "restore", "edit"):
                key = (root, step.path, step.copied or step.before.inode)
                if step.before.ctime_ns >= self._put.get(key, own_marks.get(root, 0)):
                    self._edited.add(key)
                self._displaced[key] = step.backup
            if step.action == "put" and step.after is not None:
                key = (root, step.path, step.after.inode)
                self._put[key] = operation.marks[step.root]
                self._note_copy(key, originals.get((root, step.path)))

    def _note_copy(self, key: Key, original: int | None) -> None:
        root, path, inode = key
        if original is None:
            return
        # A number that was given again begins anew
        self._copies.pop(key, None)
        if original == inode:
            # It went and came back; it may be a copy itself
            original = self._originals.get(key)
            if original is None:
                return
        self._originals[key] = original
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
        (roots[step.root], step.path): step.copied or step.before.inode
        for step in steps
        if step.before is not None and step.action != "set_metadata"
    }


class ReversalAim(Record):
    """Which operation is undone or redone; `has_files` if files of it are, whatever becomes of its repositories."""

    kind: OperationKind
    number: int
    has_files: bool


def draft_reversal(draft: Draft, dirs: OpenDirs, step: GitStep, ending: GitEnding, aim: ReversalAim) -> None:
    """Draft the inverse of what was done to one repository."""
    if ending == "left":
        return
    live = LiveRepository(draft, dirs, step.root, step.top)
    if live.state is None:
        draft.skip(Skipped(root=step.root, path=step.top, why="conflict", reason=REPOSITORY_GONE))
    elif ending == "arrived":
        _remove_arrived(live, step)
    elif step.move is not None:
        _MoveReversal(draft, dirs, live, step.move, aim).draft()


def is_along(step: GitStep, at: Skipped | Step) -> bool:
    """Tell whether a path only goes along with a repository, and decides nothing there."""
    top = step.top + b"/"
    if at.root != step.root or not at.path.startswith(top):
        return False
    name = at.path[len(top) :]
    return part_of(name[len(owner_of(name, step.members)) :]) == "along"


def split_old(steps: Sequence[Step]) -> tuple[list[Step], dict[tuple[int, bytes], list[Step]]]:
    """Part the steps that go file by file from those that say where a repository stands, by root and git directory."""
    whole = {(step.root, step.path) for step in steps if step.action != "set_metadata"}
    plain: list[Step] = []
    moves: dict[tuple[int, bytes], list[Step]] = {}
    for step in steps:
        top = repository_of(step.path)
        if top is None or (step.root, top) in whole:
            plain.append(step)
            continue
        part = part_of(step.path[len(top) + 1 :])
        if part == "other" or (part in ("object", "pack", "derived") and step.action == "take"):
            plain.append(step)
        elif part in ("ref", "file") and step.action != "set_metadata":
            moves.setdefault((step.root, top), []).append(step)
    return plain, moves


def draft_old_move(draft: Draft, dirs: OpenDirs, root: int, top: bytes, steps: Sequence[Step]) -> None:
    """Draft the inverse of what an old operation did to where a repository stands."""
    live = LiveRepository(draft, dirs, root, top)
    files = [step for step in steps if part_of(step.path[len(top) + 1 :]) == "file" and _is_file(step)]
    problem = live.state is None or any(
        not _is_as_left(dirs, live, step) or _has_no_backup(draft, dirs, step) for step in steps if _is_file(step)
    )
    if problem or live.state is None:
        draft.skip(Skipped(root=root, path=top, why="conflict", reason=_MOVED_SINCE))
        return
    state = live.state
    refs: dict[bytes, bytes | None] = {}
    for step in steps:
        name = step.path[len(live.top) :]
        if name == b"packed-refs":
            old = parse_packed(_displaced_content(dirs, step)) if step.before is not None else {}
            refs |= {name: value for name, value in old.items() if name not in state.refs}
    for step in steps:
        name = step.path[len(live.top) :]
        if is_ref_name(name) and _is_file(step):
            refs[name] = None if step.before is None else parse_ref(_displaced_content(dirs, step))
    moves = [
        RefMove(name=name, old=state.refs.get(name), new=value)
        for name, value in refs.items()
        if state.refs.get(name) != value
    ]
    inverse = [draft.complete(invert(draft, dirs, step, _live_entry(live, step))) for step in reversed(files)]
    moved = {move.name: move.new for move in moves}
    moves += live.pins(live.displaced_by(moves), live.kept_by(moves), live.objects)
    names = core_names(state, members=()) | set(moved)
    before = {name: state.value(name) for name in names}
    after = before | moved
    for step in files:
        after.pop(step.path[len(live.top) :], None)
    live.add_step(live.move(moves, inverse, (), before, after))


class _MoveReversal:
    """The inverse of one move."""

    def __init__(self, draft: Draft, dirs: OpenDirs, live: LiveRepository, move: GitMove, aim: ReversalAim) -> None:
        self._aim = aim
        self._draft = draft
        self._dirs = dirs
        self._live = live
        self._move = move
        # What the logs of the repository say of it
        self._message = f"unspill: {aim.kind} op {aim.number}"

    def draft(self) -> None:
        problem = self._problem()
        if problem:
            top = self._live.top[:-1]
            self._draft.skip(Skipped(root=self._live.root, path=top, why="conflict", reason=problem))
            return
        state = self._live.state
        assert state is not None
        refs = [
            RefMove(name=ref.name, old=ref.new, new=ref.old)
            for ref in self._move.refs
            if state.refs.get(ref.name) == ref.new
        ]
        steps = [self._invert(step) for step in reversed(self._move.files)]
        refs += self._pins(refs, steps)
        move = self._live.move(refs, steps, list(self._lines(refs)), dict(self._move.after), dict(self._move.before))
        self._live.add_step(move)

    def _problem(self) -> str:
        """Say why the repository can't go back, empty if it can."""
        state = self._live.state
        assert state is not None
        moved = [name for name, value in self._move.after if state.value(name) != value]
        if moved:
            what, advice = self._describe(moved)
            return _STAYS.format(what=what, advice=advice)
        for ref in self._move.refs:
            if ref.old is not None and is_object_name(ref.old) and not self._live.objects.has(ref.old):
                return _LOST.format(name=_shown_ref(ref.name))
        for step in self._move.files:
            problem = None if step.before is None else backup_problem(self._dirs, step, step.before, self._draft.modes)
            if problem is not None:
                return problem[1]
        return ""

    def _describe(self, names: Sequence[bytes]) -> tuple[str, str]:
        """Return what the person did, and what to do about it; after a commit the branch says more than the index."""
        refs = [name for name in names if b"refs/" in name and not name.endswith(STASH_LOG)]
        if refs:
            name = min(refs, key=lambda name: b"refs/heads/" not in name)
            return f"moved {_shown_ref(name)}", self._by_hand(name)
        inner = {self._live.inner(name) for name in names}
        if b"HEAD" in inner:
            return "switched to another branch", self._again("switch back")
        if inner == {b"index"}:
            return "staged something", self._again("unstage it")
        return "started or finished a merge, a rebase or something similar", ""

    def _again(self, act: str) -> str:
        """Return what to do so that the repository goes back as well; what was done of the files comes first."""
        if self._aim.kind != "undo":
            return ""
        first = "`unspill redo`, " if self._aim.has_files else ""
        return f"; to undo it too: {first}{act}, `unspill undo op{self._aim.number}`"

    def _by_hand(self, name: bytes) -> str:
        """Return the command that undoes the commits of the operation on top of the person's, or does them again."""
        for ref in self._move.refs:
            old, new = ref.old, ref.new
            if ref.name == name and old is not None and new is not None:
                if self._live.objects.is_ancestor(old, new):
                    revert = f"git revert {old[:7].decode()}..{new[:7].decode()}"
                    # Git reverts nothing where the files are other than its commit says
                    before = "commit your files as they are now, or `unspill redo`, " if self._aim.has_files else ""
                    return f"; to undo its commits: {before}{revert}"
                if self._live.objects.is_ancestor(new, old):
                    return f"; to get its commits back: git cherry-pick {new[:7].decode()}..{old[:7].decode()}"
        return ""

    def _invert(self, step: Step) -> Step:
        return self._draft.complete(invert(self._draft, self._dirs, step, _live_entry(self._live, step)))

    def _pins(self, refs: Sequence[RefMove], steps: Sequence[Step]) -> list[RefMove]:
        displaced = self._live.displaced_by(refs)
        kept = self._live.kept_by(refs)
        for step in steps:
            name = step.path[len(self._live.top) :]
            if name.endswith(STASH_LOG):
                displaced += [(self._live.common(name), entry) for entry in stashed(self._live.read(name))]
                kept += stashed(self._content_put(step))
            elif self._live.inner(name) == b"index":
                displaced += self._live.lost_blobs(name, self._content_put(step), self._live.objects)
        return self._live.pins(displaced, kept, self._live.objects)

    def _content_put(self, step: Step) -> bytes:
        """Return the content that a step puts, nothing where it only takes something away."""
        if step.action != "put":
            return b""
        fd, name = self._dirs.place(step)
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
            return file.read()

    def _lines(self, refs: Sequence[RefMove]) -> Iterator[tuple[bytes, bytes]]:
        """Yield a line for each log of what moves, as git itself would write it."""
        values = {ref.name: (ref.old, ref.new) for ref in refs}
        for name, (old, new) in values.items():
            if new is not None and not is_own_ref(name, self._live.members) and not name.endswith(b"refs/stash"):
                log = self._live.log_of(name)
                if self._live.files.find(self._live.top + log) is not None:
                    yield log, self._line(self._resolved(name, old), self._resolved(name, new))
        for member in {owner_of(name, self._live.members) for name in values}:
            head = member + b"HEAD"
            state = self._live.state
            branch = None if state is None else state.branch(member)
            if head not in values and branch in values and values[branch][1] is not None:
                log = self._live.log_of(head)
                if self._live.files.find(self._live.top + log) is not None:
                    yield log, self._line(*values[branch])

    def _resolved(self, name: bytes, value: bytes | None) -> bytes | None:
        state = self._live.state
        if value is None or state is None or not value.startswith(SYMBOLIC):
            return value
        target = value.removeprefix(SYMBOLIC)
        by_name: Mapping[bytes, bytes | None] = {ref.name: ref.old for ref in self._move.refs}
        return by_name.get(target, state.refs.get(target))

    def _line(self, old: bytes | None, new: bytes | None) -> bytes:
        nothing = b"0" * (2 * self._live.size)
        before, after = (name if name and is_object_name(name) else nothing for name in (old, new))
        return b"%b %b unspill <unspill> %d +0000\t%b\n" % (before, after, int(time.time()), self._message.encode())


def _remove_arrived(live: LiveRepository, step: GitStep) -> None:
    """Remove the references under which a run's work arrived; its commits stay pinned."""
    assert live.state is not None
    refs = [
        RefMove(name=ref.name, old=ref.new, new=ref.old)
        for ref in step.arrival
        if live.state.refs.get(ref.name) == ref.new
    ]
    kept = live.kept_by(refs)
    # What arrived is below our own name, and yet all that leads to it
    displaced = [(live.common(ref.name), ref.old) for ref in refs if ref.old is not None]
    refs += live.pins(displaced, kept, live.objects)
    if refs:
        live.add_step(live.move(refs, (), (), {}, {}))


def _shown_ref(name: bytes) -> str:
    return quote(short_ref(name))


def _is_file(step: Step) -> bool:
    entry = step.before if step.before is not None else step.after
    return entry is not None and entry.kind == "file"


def _live_entry(live: LiveRepository, step: Step) -> Entry | None:
    found = live.files.find(step.path)
    return None if found is None else entry_of(found)


def _is_as_left(dirs: OpenDirs, live: LiveRepository, step: Step) -> bool:
    found = live.files.find(step.path)
    if step.action == "take" or step.after is None:
        return found is None
    if found is None:
        return False
    if matches(found, step.after):
        return True
    return is_index(step.path) and bool(step.says) and says_at(*dirs.live(step)) == step.says


def _has_no_backup(draft: Draft, dirs: OpenDirs, step: Step) -> bool:
    return step.before is not None and backup_problem(dirs, step, step.before, draft.modes) is not None


def _displaced_content(dirs: OpenDirs, step: Step) -> bytes:
    """Return the content that a step displaced."""
    fd, name = dirs.operations.parent(step.backup)
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
        return file.read(LARGEST_FILE)
