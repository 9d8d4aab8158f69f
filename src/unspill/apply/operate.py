# SPDX-License-Identifier: Apache-2.0
"""One operation from its marker to its end: draft, stage, journal, steps, end, record. In that order, always.

Layers that are applied become part of the operation first. Until the journal is durable nothing live has changed.
Until its end is durable everything can be taken back, and is if anything fails. From then on it is done, and whoever
comes next writes down what is missing in the store.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.apply.bases import KeptTexts
from unspill.apply.draft import Draft
from unspill.apply.journal import (
    End,
    Journal,
    Settled,
    Unsettled,
    journal_file,
    marker_file,
    operation_dir,
    staging_name,
    tree_dir,
    write_end,
    write_journal,
)
from unspill.apply.perform import NOT_EMPTY, keep_edits, look_again, perform, sync_done, sync_staged, wait_for_opens
from unspill.apply.recover import changed_paths, finish, forget, remove_staging, roll_back, settle_mark, tidy_up
from unspill.apply.staging import opened_and_closed
from unspill.apply.steps import OpenDirs, move_upper
from unspill.changes.scan import CollectorPaused
from unspill.errors import ApplyFailed, SandboxUnavailable, StoreError
from unspill.host.dirfd import sync_directory
from unspill.host.places import check_own_place
from unspill.layers.locks import upper_dir
from unspill.model.operation import Operation, OperationId, Skipped
from unspill.model.run import LayerId
from unspill.progress import COUNT
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from unspill.apply.journal import Taken
    from unspill.model.operation import GitEnding, OperationKind, Step
    from unspill.store.db import Store

    # Adds the steps to a draft; told what was skipped and the moment after the steps, makes the residues
    Drafter = Callable[[Draft, OpenDirs], None]
    Settler = Callable[[OperationId, Sequence[Skipped], Sequence[int]], Settled]

# What is being done, for whoever waits
_WORDS: dict[OperationKind, str] = {
    "apply": "Applying",
    "discard": "Discarding",
    "undo": "Undoing",
    "redo": "Redoing",
    "restore": "Restoring",
    "edit": "Recording",
}


class Task(Record):
    """What is to be done: who asks for what, and how its steps and residues are made.

    `trees` are layers that become part of the operation; `dropped` are those whose rows go and whose directories stay
    until nobody has them mounted any more; `restored` are held again. `check` is the last word before anything live
    changes: it raises where that is not wanted any more. `changed` counts what is changed besides steps: with it the
    operation is recorded even if there is no step. `paths` are those that a discard is about, none for all. `flagged`
    says, told what was skipped, which paths to write down as flagged. `is_dry`: only what would be done is found out.
    """

    kind: OperationKind
    sandbox: str
    project: bytes
    roots: tuple[bytes, ...]
    asked_by: str
    draft: Drafter
    settle: Settler | None = None
    of: OperationId | None = None
    origin: OperationId | None = None
    runs: tuple[str, ...] = ()
    trees: tuple[Taken, ...] = ()
    dropped: tuple[str, ...] = ()
    restored: tuple[Taken, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    changed: int = 0
    paths: tuple[tuple[bytes, bytes], ...] = ()
    check: Callable[[], None] | None = None
    flagged: Callable[[Sequence[Skipped]], tuple[tuple[bytes, str], ...]] | None = None
    is_dry: bool = False


def operate(store: Store, task: Task) -> Operation:
    """Do a task; return what came of it. One that changes nothing is not recorded: its number is 0.

    Raises:
        ApplyFailed: the filesystem failed; everything was taken back, or will be at the next start.
        SandboxUnavailable: it was done, but can't be recorded before the next start.
        ProjectBusy: another operation is under way on one of the roots.
        RootRefused: a root is not a directory any more, or unspill itself lies in it.
    """
    # A root of an earlier run, which was not looked at when the sandbox was opened, may be among them
    check_own_place(task.roots)
    operation = OperationId(os.urandom(8).hex())
    try:
        with Marker(store.state, operation) as marker, OpenDirs(store.state, staging_name(operation)) as dirs:
            dirs.open_roots(task.roots, check=task.check)
            marker.note([root for root, staged in zip(task.roots, dirs.staged, strict=True) if staged])
            with CollectorPaused():
                return _Work(store, task, operation, dirs, marker).run()
    except OSError as error:
        raise _failure(task, error) from error


def _failure(task: Task, error: OSError, taken_back: Operation | None = None) -> ApplyFailed:
    result = "nothing was changed"
    if taken_back is not None and taken_back.left:
        result = "some paths could not be restored, see `unspill log`"
    elif taken_back is not None and taken_back.notes:
        result += f"; files that you edited in the meantime are kept, see `unspill show op{taken_back.number}`"
    return ApplyFailed(f"{task.kind} failed: {error.strerror}; {result}")


class Marker:
    """A file that says that an operation is under way; locked by the process that performs it."""

    def __init__(self, state: bytes, operation: OperationId) -> None:
        self._path = marker_file(state, operation)
        self.must_stay = False
        self._make()
        # Whoever looked before it was locked took it for one of a dead process, and removed it
        while not os.fstat(self._fd).st_nlink:
            os.close(self._fd)
            self._make()

    def note(self, roots: Sequence[bytes]) -> None:
        """Remember in which roots something may be staged, before it is."""
        if roots:
            os.write(self._fd, b"\0".join(roots))
            os.fsync(self._fd)
            sync_directory(os.path.dirname(self._path))

    def __enter__(self) -> Marker:
        return self

    def __exit__(self, *_details: object) -> None:
        try:
            if not self.must_stay:
                os.unlink(self._path)
        except OSError:
            # The next start finds that there is nothing to do
            pass
        finally:
            os.close(self._fd)

    def _make(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            self.__exit__()
            raise


class _Work:
    """The state of one operation while it is performed."""

    def __init__(self, store: Store, task: Task, operation: OperationId, dirs: OpenDirs, marker: Marker) -> None:
        self._store = store
        self._task = task
        self._dirs = dirs
        self._marker = marker
        self._id = operation
        self._skipped: list[Skipped] = []
        self._slight: set[tuple[int, bytes]] = set()
        self._texts = KeptTexts()
        self._arriving: dict[tuple[int, bytes], list[bytes]] = {}
        self._is_settled = False
        # Somebody edited an entry of ours while it was live, and it is not live any more
        self._is_edited = False
        self._operation = Operation(
            id=operation,
            number=0,
            kind=task.kind,
            sandbox=task.sandbox,
            project=task.project,
            roots=task.roots,
            at_ns=time.time_ns(),
            asked_by=task.asked_by,
            of=task.of,
            origin=task.origin or operation,
            runs=task.runs,  # type: ignore[arg-type]
            session=store.session,
        )

    def run(self) -> Operation:
        os.mkdir(operation_dir(self._store.state, self._id), 0o700)
        journal: Journal | None = None
        end: End | None = None
        try:
            self._take_layers()
            journal = self._prepare()
            if self._task.is_dry:
                return self._planned(journal)
            if journal.steps or journal.git or self._task.changed or self._is_settled:
                end = self._perform(journal)
        except BaseException as error:
            self._take_back(journal, error)
            raise
        if end is None:
            kept = self._take_back(journal if self._is_edited else None, None)
            return self._operation.replace(number=0, left=tuple(self._skipped), notes=(*journal.operation.notes, *kept))
        return self._finish(journal.replace(end=end))

    def _planned(self, journal: Journal) -> Operation:
        """Return what the operation would do, and remove what was staged for it."""
        self._take_back(None, None)
        going = {(step.root, step.path) for step in journal.steps if step.action == "take"}
        staying: dict[tuple[int, bytes], Skipped] = {}
        for step in journal.steps:
            # Steps that take a directory away fail where something stays in it; what is in it goes before
            inner = self._names_in(step) if step.action == "take" else ()
            if any((step.root, path) not in going or (step.root, path) in staying for path in inner):
                left = Skipped(root=step.root, path=step.path, why="conflict", reason=NOT_EMPTY)
                staying[step.root, step.path] = left
        self._skipped += staying.values()
        done = [index for index, step in enumerate(journal.steps) if (step.root, step.path) not in staying]
        if _changes_nothing([journal.steps[index] for index in done]):
            done = []
        paths = changed_paths(journal, done, ["moved"] * len(journal.git), self._slight)
        return self._operation.replace(
            number=0, left=tuple(self._skipped), changed=len(paths) + self._task.changed, paths=paths
        )

    def _names_in(self, step: Step) -> list[bytes]:
        """Return the paths of what is in the directory of a step, as far as that can be listed."""
        if step.before is None or step.before.kind != "dir":
            return []
        try:
            return [step.path + b"/" + name for name in os.listdir(self._dirs.paths[step.root] + b"/" + step.path)]
        except OSError:
            return []

    def _prepare(self) -> Journal:
        """Make steps, staged entries and the journal; nothing live has changed when this returns."""
        draft = Draft(self._id, self._dirs, lambda: self._store.operations.next_number(self._task.project))
        self._task.draft(draft, self._dirs)
        steps = draft.steps()
        self._skipped = [*self._task.skipped, *draft.skipped]
        self._slight = draft.slight
        self._texts = draft.texts(steps)
        self._arriving = draft.arriving
        self._is_settled = draft.is_settled and not draft.skipped
        is_recorded = bool(steps or draft.git or self._task.changed or self._is_settled)
        number = draft.number() if is_recorded and not self._task.is_dry else 0
        self._operation = self._operation.replace(number=number, notes=tuple(draft.notes))
        journal = Journal(
            operation=self._operation.replace(left=tuple(self._skipped)),
            steps=steps,
            git=tuple(draft.git),
            identities=tuple((found.st_dev, found.st_ino) for found in self._statuses()),
            trees=self._task.trees,
            staging=self._dirs.staging if any(self._dirs.staged) else b"",
            paths=self._task.paths,
        )
        if is_recorded and not self._task.is_dry:
            sync_staged(self._dirs, steps, everything=bool(draft.git))
            if self._task.check is not None:
                self._task.check()
            # From here on a crash must find the marker
            write_journal(journal_file(self._store.state, self._id), journal)
            sync_directory(operation_dir(self._store.state, self._id))
            sync_directory(self._store.state + b"/operations")
            sync_directory(self._store.state + b"/pending")
        return journal

    def _statuses(self) -> list[os.stat_result]:
        return [os.fstat(root.root_fd) for root in self._dirs.roots]

    def _perform(self, journal: Journal) -> End | None:
        """Do the steps and write the end; None where not one of them could be done."""
        unsure: list[int] = []
        git = self._perform_git(journal)
        left_out = {
            group
            for step, ending in zip(journal.git, git, strict=True)
            if ending != "moved"
            for group in (*step.dependent, *(step.committed if ending == "arrived" else ()))
        }
        COUNT.begin(_WORDS[self._operation.kind], len(journal.steps))
        done, failed = perform(self._dirs, journal.steps, unsure, left_out)
        steps = [journal.steps[index] for index in done]
        marks = tuple(settle_mark(self._dirs, index, steps) for index in range(len(self._dirs.roots)))
        done, late = look_again(self._dirs, journal.steps, done, unsure)
        known = {(one.root, one.path) for one in failed}
        self._skipped += [*failed, *(one for one in late if (one.root, one.path) not in known)]
        notes = self._keep_edits_of_returned(journal.steps, done)
        steps = [journal.steps[index] for index in done]
        # Directories that a reversal opened, to find that nothing can be done in them, are closed again by now
        is_idle = not done or (self._task.of is not None and _changes_nothing(steps))
        is_idle &= not self._is_settled or bool(failed)
        if is_idle and all(ending == "left" for ending in git) and not self._task.changed:
            return None
        settled = Settled() if self._task.settle is None else self._task.settle(self._id, self._skipped, marks)
        self._dirs.look_anew()
        sync_done(self._dirs, steps, everything=bool(settled.residues) or bool(git))
        # As late as can be: who was opening a displaced file when it was displaced has had it open for a while
        notes += keep_edits(self._dirs, self._id, journal.steps, set(done), done)
        paths = changed_paths(journal, done, git, self._slight)
        operation = self._operation.replace(
            left=tuple(self._skipped),
            marks=marks,
            changed=len(paths) + self._task.changed,
            paths=paths,
            flagged=() if self._task.flagged is None else self._task.flagged(self._skipped),
            notes=(*self._operation.notes, *notes),
        )
        end = End(
            done=tuple(done),
            operation=operation,
            residues=settled.residues,
            held=settled.held,
            dropped=self._task.dropped,
            restored=self._task.restored,
            git=git,
        )
        self._keep_texts()
        # From here on what the journal says is true, whatever happens to this process
        self._marker.must_stay = True
        try:
            write_end(journal_file(self._store.state, self._id), end)
        except OSError:
            self._marker.must_stay = False
            raise
        return end

    def _keep_texts(self) -> None:
        """Keep what a merge with later edits starts from; where that fails, an undo beside an edit is a conflict."""
        try:
            self._store.texts.put(self._id, self._texts.kept)
        except StoreError:
            return

    def _perform_git(self, journal: Journal) -> tuple[GitEnding, ...]:
        """Do what is to be done to repositories; what was skipped is named."""
        if not journal.git:
            return ()
        from unspill.apply.git_draft import arrival_notes, moved_note  # lazy: git
        from unspill.apply.git_move import perform_git  # lazy: git

        endings: list[GitEnding] = []
        for step in journal.git:
            ending, reason = perform_git(self._dirs, step)
            endings.append(ending)
            if ending == "left" and (step.move is not None or step.arrival):
                paths = (step.top, *self._arriving.get((step.root, step.top), ()))
                self._skipped += [Skipped(root=step.root, path=path, why="conflict", reason=reason) for path in paths]
            elif ending == "arrived":
                self._note(arrival_notes(step))
            elif ending == "moved" and (step.move is None or step.move.refs or step.move.files):
                self._note([moved_note(step)])
        return tuple(endings)

    def _note(self, notes: Iterable[str]) -> None:
        self._operation = self._operation.replace(notes=(*self._operation.notes, *notes))

    def _keep_edits_of_returned(self, steps: Sequence[Step], done: Sequence[int]) -> tuple[str, ...]:
        """Keep what somebody made of our entries while they were live, where they are not live any more."""
        returned = sorted(set(range(len(steps))).difference(done))
        if not returned:
            return ()
        wait_for_opens()
        notes = keep_edits(self._dirs, self._id, steps, (), returned)
        self._is_edited = bool(notes)
        return notes

    def _finish(self, journal: Journal) -> Operation:
        """Record what was done; whatever fails is made good at the next start."""
        is_clean = remove_staging(self._dirs, journal.staging)
        try:
            finished = finish(self._store, journal)
        except (OSError, StoreError) as error:
            raise SandboxUnavailable(
                f"the {self._task.kind} is done, but unspill can't record it yet: {error}",
                remedy="Repair the disk or free some space. The next unspill command records it.",
            ) from error
        self._marker.must_stay = not is_clean
        return finished

    def _take_layers(self) -> None:
        state = self._store.state
        if self._task.trees:
            os.mkdir(operation_dir(state, self._id) + b"/tree", 0o700)
        for tree in self._task.trees:
            move_upper(upper_dir(state, LayerId(tree.layer)), tree_dir(state, self._id, tree.layer))

    def _take_back(self, journal: Journal | None, error: BaseException | None) -> tuple[str, ...]:
        """Take everything back; if even that fails, leave the marker for the next start. Return what was kept where.

        Without a journal nothing live was changed, and nothing is recorded.
        """
        if isinstance(error, Unsettled):
            raise self._not_yet(error.__cause__) from error
        if self._marker.must_stay:
            return ()
        self._marker.must_stay = True
        try:
            taken_back = None if journal is None else roll_back(self._store, self._dirs, journal)
            if taken_back is None:
                is_tidy = forget(self._store.state, self._id)
            else:
                is_tidy = tidy_up(self._store.state, taken_back)
            self._marker.must_stay = not (remove_staging(self._dirs, self._dirs.staging) and is_tidy)
        except (OSError, StoreError) as failure:
            raise self._not_yet(failure) from failure
        if isinstance(error, OSError):
            raise _failure(self._task, error, taken_back) from error
        return () if taken_back is None else taken_back.notes

    def _not_yet(self, failure: BaseException | None) -> ApplyFailed:
        return ApplyFailed(
            f"{self._task.kind} failed ({failure}), and unspill can't roll it back yet",
            remedy="Repair the disk or free some space. The next unspill command rolls it back.",
        )


def _changes_nothing(steps: Sequence[Step]) -> bool:
    unchanged = opened_and_closed(steps)
    return all(step.action == "set_metadata" and (step.root, step.path) in unchanged for step in steps)
