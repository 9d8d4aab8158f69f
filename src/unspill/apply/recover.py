# SPDX-License-Identifier: Apache-2.0
"""End operations: record what was done, or roll it back; at each start also those that a dead process left half done.

A marker that nobody has locked belongs to a dead process. With an end in its journal the operation is finished, without
one it is rolled back; without a journal nothing live was touched. A rollback decides from what is there, step by step
in reverse, so it may itself be interrupted and begun again. When all steps are taken back that is recorded, and only
then do the layers go back. What somebody changed since is skipped, and the record names where its old version is kept.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from unspill.apply.journal import (
    Residue,
    journal_file,
    journal_of,
    kept_base_dir,
    kept_entry,
    marker_file,
    operation_dir,
    read_journal,
    residue_dir,
    staging_name,
    tree_dir,
)
from unspill.apply.perform import (
    CHANGED,
    explain_error,
    keep_edits,
    make_kept,
    note_of,
    sync_done,
    take_back,
    wait_for_opens,
)
from unspill.apply.staging import give_mode_back
from unspill.apply.steps import OpenDirs, matches, move_upper, open_root
from unspill.changes.scan import scan
from unspill.errors import ProjectBusy, RootRefused, SandboxUnavailable
from unspill.host.dirfd import sync_directory
from unspill.layers.locks import base_dir, upper_dir
from unspill.layers.trees import remove_tree
from unspill.model.operation import OperationId, Skipped
from unspill.model.run import LayerId, RunId, SandboxId
from unspill.store.layers import LayerRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

    from unspill.apply.journal import End, Journal
    from unspill.model.operation import Entry, GitEnding, GitStep, Operation, Step
    from unspill.store.db import Store

    # By path and inode: what each rollback put back there, and a moment after it, the oldest first
    Known = dict[tuple[bytes, int], list[tuple[Entry, int]]]

_TICK_PATIENCE_S = 1.0
_TICK_PAUSE_S = 0.0005
_LONGEST_MARKER = 1 << 20
_ROOT_GONE = "the project directory no longer exists"
_BEFORE = "the earlier version is kept in"


def recover_operations(store: Store) -> tuple[Operation, ...]:
    """Finish or take back every interrupted operation; return their records.

    Raises:
        SandboxUnavailable: the filesystem fails; the next start tries again.
        StoreError: the store can't be written; likewise.
    """
    try:
        names = os.listdir(store.state + b"/pending")
        found = [_recover(store, OperationId(name.decode())) for name in sorted(names)] if names else []
    except OSError as error:
        raise SandboxUnavailable(
            f"unspill can't finish an interrupted operation yet: {error.strerror}",
            remedy="Repair the disk or free some space. Every unspill command tries again.",
        ) from error
    return tuple(operation for operation in found if operation is not None)


def finish(store: Store, journal: Journal) -> Operation:
    """Record an operation that has its end: its row, the layers that went, the residues that came.

    May be repeated any number of times. One durable transaction: a row that a power cut took back would make the next
    sweep remove a held layer.
    """
    end = journal.end
    assert end is not None
    operation = end.operation
    sandbox = SandboxId(operation.sandbox)
    rows = [
        LayerRow(
            id=LayerId(rest.layer),
            sandbox=sandbox,
            root=rest.root,
            run=RunId(rest.run),
            mark_ns=rest.mark_ns,
            seq=rest.seq,
        )
        for rest in _coming(end)
    ]
    with store.durable:
        # What is recorded is recorded for good: what it skipped may have been applied or discarded since
        is_new = store.operations.find(operation.id) is None
        recorded = store.operations.add(operation)
        if is_new:
            _swap_layers(store, journal, end, rows)
    for row in rows:
        _move_layer(store, journal, row)
    for tree in journal.trees:
        _keep_base(store.state, journal.operation.id, LayerId(tree.layer))
    return recorded.replace(paths=operation.paths or _paths_of(journal, end))


def roll_back(store: Store, dirs: OpenDirs, journal: Journal, gone: Collection[int] = ()) -> Operation:
    """Take every step back that was done; return the record of it. Roots that are `gone` are not touched.

    The journal stays: it explains why the entries that were put back have a new ctime.

    Raises:
        OSError: the filesystem fails; the journal stays, and the next start begins again.
        StoreError: it can't be recorded; likewise.
    """
    operation = journal.operation.id
    recorded = store.operations.find(operation)
    if recorded is None:
        dirs.look_anew()
        _remove_residues(dirs.state, operation)
        skipped, notes = _take_steps_back(dirs, journal, gone)
        marks = tuple(settle_mark(dirs, index, journal.steps[::-1]) for index in range(len(dirs.roots)))
        ended = journal.operation.replace(ending="rolled back", left=tuple(skipped), marks=marks, notes=tuple(notes))
        with store.durable:
            recorded = store.operations.add(ended)
    give_mode_back(dirs.state, operation)
    _give_layers_back(dirs.state, operation)
    sync_directory(dirs.state + b"/layers")
    return recorded


def forget(state: bytes, operation: OperationId) -> bool:
    """Remove all of an operation that has changed nothing; the layers that it took go back. Tell whether it is gone.

    Raises:
        OSError: the filesystem fails; the next start begins again.
    """
    journal = journal_file(state, operation)
    if os.path.lexists(journal):
        # Without one nobody looks for steps, of which the layers that go back are a part
        os.unlink(journal)
    give_mode_back(state, operation)
    _give_layers_back(state, operation)
    return remove_tree(operation_dir(state, operation))


def remove_staging(dirs: OpenDirs, staging: bytes, gone: Collection[int] = ()) -> bool:
    """Remove the hidden directories that an operation has in roots on other mounts; tell whether all are gone."""
    is_clean = True
    for index, root in enumerate(dirs.roots if staging else ()):
        if index not in gone:
            root.forget(staging)
            is_clean &= _remove_from_root(root.root_fd, staging)
    return is_clean


def tidy_up(state: bytes, operation: Operation) -> bool:
    """Remove what is of no use any more of an operation that was taken back whole; tell whether all of it is gone."""
    if operation.left or operation.notes:
        return True
    top = operation_dir(state, operation.id)
    names = [name for name in os.listdir(top) if name != b"journal"]
    return sum(remove_tree(top + b"/" + name) for name in names) == len(names)


def changed_paths(
    journal: Journal, done: Iterable[int], git: Iterable[GitEnding], slight: Set[tuple[int, bytes]] = frozenset()
) -> tuple[bytes, ...]:
    """Return the paths that steps changed, and the repositories that moved; without those that are `slight`."""
    roots, steps = journal.operation.roots, (journal.steps[index] for index in done)
    moved = [(step.root, step.top) for step, ending in zip(journal.git, git, strict=True) if ending != "left"]
    changed = dict.fromkeys((step.root, step.path) for step in steps if (step.root, step.path) not in slight)
    return tuple(b"%b/%b" % (roots[root], path) for root, path in (*sorted(changed), *moved))


def settle_mark(dirs: OpenDirs, root: int, steps: Sequence[Step]) -> int:
    """Return a moment of a root's own filesystem that is later than the last change made there.

    Its clock may stand still for 4 ms. Without waiting for the next tick, what we put and what a person writes right
    after it would have one time, and the next run's mark as well.
    """
    last = _last_change(dirs, root, steps)
    try:
        fd = os.open(b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=dirs.roots[root].root_fd)
    except OSError:
        # No file without a name here: the system's clock, which every filesystem of this machine stamps with
        time.sleep(0.02)
        return time.time_ns() - 10_000_000
    try:
        deadline = time.monotonic() + _TICK_PATIENCE_S
        while (now := os.fstat(fd).st_ctime_ns) <= last and time.monotonic() < deadline:
            # Since Linux 6.13 a time that somebody has looked at is followed by a finer one, so this need not wait
            os.fchmod(fd, 0o600)
            if os.fstat(fd).st_ctime_ns <= last:
                time.sleep(_TICK_PAUSE_S)
        return now
    finally:
        os.close(fd)


class RolledBackEntries:
    """The entries below one root that operations on a project moved and a rollback put back.

    The kernel has noted each of these renames in the ctime. Without this the next try would take every such entry for
    a conflict. Reads journals only when something looks like one.
    """

    def __init__(self, store: Store, project: bytes, root: bytes, own: OwnEntries | None = None) -> None:
        self._store = store
        self._project = project
        self._root = root
        self._own = own
        self._known: Known | None = None

    def explains(self, path: bytes, status: os.stat_result, mark: int, *, names: bool = False) -> bool:
        """Tell whether an entry that is not older than a mark was so before we touched it, and is unchanged since.

        With `names` what is in a directory is unchanged too.
        """
        own = self._own
        if own is not None and (own.explains_names(path, status) if names else own.explains(path, status)):
            return True
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
            journal = journal_of(self._store.state, operation)
            skipped = {(one.root, one.path) for one in operation.left}
            index = operation.roots.index(self._root)
            for step in journal.steps if journal is not None else ():
                if step.root == index and step.before is not None and (index, step.path) not in skipped:
                    found = known.setdefault((step.path, step.before.inode), [])
                    found.append((step.before, operation.marks[index]))
        return known


class OwnEntries:
    """The entries below one root that checkpoints of the same layers have put there: nobody else's edits."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Entry, int]] = {}
        # Directories in which only we have put or taken anything, and until when
        self._filled: dict[bytes, int] = {}

    def unedited(self, root: bytes, paths: Iterable[bytes], mark: int) -> dict[bytes, dict[bytes, int]]:
        """Return the directories at or above some paths that nobody else has changed since a mark, with their names."""
        found: dict[bytes, dict[bytes, int]] = {}
        for directory in {one for path in paths for one in (path, path.rpartition(b"/")[0] or b".")}:
            try:
                status = os.lstat(root + b"/" + directory)
            except OSError:
                continue
            is_unedited = status.st_ctime_ns < mark or self.explains_names(directory, status)
            if stat.S_ISDIR(status.st_mode) and is_unedited:
                found[directory] = _names_in(root + b"/" + directory)
        return found

    def note(
        self, store: Store, operation: Operation, root: bytes, unedited: Mapping[bytes, Mapping[bytes, int]]
    ) -> None:
        """Take in what an operation has done; directories that were `unedited` before it are so after it.

        A directory in which another name has changed meanwhile is left out: somebody else was there.
        """
        journal = journal_of(store.state, operation)
        if journal is None or journal.end is None or root not in operation.roots:
            return
        index = operation.roots.index(root)
        until = journal.end.operation.marks[index]
        own = {journal.steps[number].path for number in journal.end.done if journal.steps[number].root == index}
        for directory, before in unedited.items():
            after = _names_in(root + b"/" + directory)
            above = b"" if directory == b"." else directory + b"/"
            if all(above + name in own for name, _inode in before.items() ^ after.items()):
                self._filled[directory] = until
        for step in (journal.steps[number] for number in journal.end.done):
            entry = step.before if step.action == "set_metadata" else step.after
            if step.root != index:
                continue
            if entry is None or step.action == "take":
                self._known.pop(step.path, None)
                self._filled.pop(step.path, None)
            else:
                self._known[step.path] = entry, until
                if step.action == "put" and entry.kind == "dir":
                    self._filled[step.path] = until

    def explains_names(self, path: bytes, status: os.stat_result) -> bool:
        """Tell whether nobody else has put anything into a directory, or taken anything out of it."""
        return status.st_ctime_ns < self._filled.get(path or b".", 0)

    def explains(self, path: bytes, status: os.stat_result) -> bool:
        """Tell whether this is such an entry, and unchanged since; what others put into a directory is no change."""
        if self.explains_names(path, status):
            return True
        entry, until = self._known.get(path or b".", (None, 0))
        if entry is None or not matches(status, entry):
            return False
        is_filled = entry.kind == "dir" and status.st_ctime_ns == status.st_mtime_ns
        return status.st_ctime_ns < until or is_filled


def _names_in(directory: bytes) -> dict[bytes, int]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except OSError:
        return {}


def _recover(store: Store, operation: OperationId) -> Operation | None:
    marker = marker_file(store.state, operation)
    try:
        fd = os.open(marker, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had the lock before may have ended it
        if not os.path.lexists(marker):
            return None
        recorded, is_clean = _recover_locked(store, operation, os.read(fd, _LONGEST_MARKER))
        if is_clean:
            os.unlink(marker)
        return recorded
    except (BlockingIOError, ProjectBusy):
        return None
    finally:
        os.close(fd)


def _recover_locked(store: Store, operation: OperationId, noted: bytes) -> tuple[Operation | None, bool]:
    """End an operation; return its record, and whether nothing of it is left to be removed."""
    journal = read_journal(journal_file(store.state, operation))
    if journal is None:
        roots = [root for root in noted.split(b"\0") if root]
        is_clean = sum(_remove_noted(root, staging_name(operation)) for root in roots) == len(roots)
        return None, forget(store.state, operation) and is_clean
    with OpenDirs(store.state, journal.staging) as dirs:
        gone = _open_roots(dirs, journal)
        if journal.end is not None:
            return finish(store, journal), remove_staging(dirs, journal.staging, gone)
        recorded = roll_back(store, dirs, journal, gone)
        return recorded, remove_staging(dirs, journal.staging, gone) and tidy_up(store.state, recorded)


def _remove_noted(root: bytes, staging: bytes) -> bool:
    """Remove what was staged in a root before there was a journal; tell whether it is gone."""
    try:
        fd = open_root(root)
    except RootRefused:
        return True
    try:
        return remove_tree(b"/proc/self/fd/%d/%s" % (fd, staging))
    finally:
        os.close(fd)


def _open_roots(dirs: OpenDirs, journal: Journal) -> set[int]:
    """Open the roots that are still the same directories; return the indices of the others."""
    roots: list[bytes] = []
    gone: set[int] = set()
    for index, (root, (_device, inode)) in enumerate(zip(journal.operation.roots, journal.identities, strict=True)):
        try:
            found = os.lstat(root)
        except OSError:
            found = None
        # By the inode alone: on some filesystems the device has another number after a reboot
        is_same = found is not None and found.st_ino == inode
        if not is_same:
            gone.add(index)
        # A stand-in, so that the others keep their numbers; no step of it is looked at
        roots.append(root if is_same else dirs.state + b"/empty")
    try:
        dirs.open_roots(roots, patience_s=5.0)
    except RootRefused:
        return set(range(len(roots)))
    return gone


def _paths_of(journal: Journal, end: End) -> tuple[bytes, ...]:
    return changed_paths(journal, end.done, end.git) or tuple(b"%b/%b" % pair for pair in journal.paths)


def _coming(end: End) -> tuple[Residue, ...]:
    """Return the layers that are held from now on."""
    return (*end.residues, *(Residue(**tree.as_dict()) for tree in end.restored))


def _keep_base(state: bytes, operation: OperationId, layer: LayerId) -> None:
    """Take along the repository as it stood before a layer that an operation took."""
    source, dest = base_dir(state, layer), kept_base_dir(state, operation, layer)
    if os.path.lexists(source):
        os.makedirs(os.path.dirname(dest), 0o700, exist_ok=True)
        os.rename(source, dest)


def _swap_layers(store: Store, journal: Journal, end: End, rows: list[LayerRow]) -> None:
    """Put the residues in the place of the layers that they were made from."""
    gone = [LayerId(tree.layer) for tree in journal.trees]
    store.layers.remove(gone)
    store.layers.retire(LayerId(layer) for layer in end.dropped)
    for row, rest in zip(rows, _coming(end), strict=True):
        if row.seq:
            store.layers.add_sealed_at(row)
        else:
            store.layers.add_sealed(row)
        store.marks.put(row.id, dict(rest.overrides))
    if gone or end.dropped or rows:
        sandbox = SandboxId(end.operation.sandbox)
        store.runs.drop_held(sandbox)
        store.runs.hold(row.run for row in store.layers.sealed(sandbox))


def _move_layer(store: Store, journal: Journal, row: LayerRow) -> None:
    """Bring a layer to its place: a residue of this operation, or one that the operation took which this one reverses.

    Whoever did that may have died before the rest of it.
    """
    state, operation = store.state, journal.operation
    source = residue_dir(state, operation.id, row.id)
    taken = () if operation.of is None else (tree_dir(state, operation.of, row.id),)
    for place in (source, *taken):
        if os.path.lexists(place):
            move_upper(place, upper_dir(state, row.id))
    if operation.of is not None and os.path.lexists(base := kept_base_dir(state, operation.of, row.id)):
        os.makedirs(state + b"/bases", 0o700, exist_ok=True)
        os.rename(base, base_dir(state, row.id))
    try:
        os.rmdir(os.path.dirname(source))
    except OSError as error:
        # Another root's is still there, or none any more
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


def _remove_residues(state: bytes, operation: OperationId) -> None:
    """Remove what would have been held. Its files are links to those that go back, whose ctime this changes.

    So it is done before the marks are taken that explain a new ctime, and not at the end.
    """
    path = operation_dir(state, operation) + b"/residue"
    if not remove_tree(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def _take_steps_back(dirs: OpenDirs, journal: Journal, gone: Collection[int]) -> tuple[list[Skipped], list[str]]:
    """Take the steps back; return what was skipped, and where what they displaced or somebody edited is kept."""
    skipped: list[Skipped] = []
    notes: list[str] = []
    if journal.git:
        from unspill.apply.git_move import take_git_back  # lazy: git

        for git, files in reversed([*_numbered_files(journal)]):
            is_kept = any(_is_kept(dirs, journal, index, step) for index, step in files)
            problem = _ROOT_GONE if git.root in gone else CHANGED if is_kept else take_git_back(dirs, git)
            if problem is not None:
                for index, step in files:
                    notes += _keep_displaced(dirs, journal, index, step)
                skipped.append(Skipped(root=git.root, path=git.top, why="conflict", reason=problem))
    steps = journal.steps
    stays: set[int] = set()
    for index in reversed(range(len(steps))):
        step = steps[index]
        is_kept = _is_kept(dirs, journal, index, step)
        reason = _ROOT_GONE if step.root in gone else CHANGED if is_kept else take_back(dirs, step)
        if reason is not None:
            stays.add(index)
            notes += _keep_displaced(dirs, journal, index, step)
            skipped.append(Skipped(root=step.root, path=step.path, why="conflict", reason=reason))
    sync_done(dirs, [step for step in steps if step.root not in gone], everything=bool(journal.git))
    wait_for_opens()
    # What stays displaced has its note, but on another mount its place is about to be removed
    looked_at = [
        index for index, step in enumerate(steps) if step.root not in gone and (index not in stays or step.staged)
    ]
    return skipped, [*notes, *keep_edits(dirs, journal.operation.id, steps, stays, looked_at)]


def _numbered_files(journal: Journal) -> Iterator[tuple[GitStep, list[tuple[int, Step]]]]:
    """Yield what is done to each repository, and its steps for files with numbers that no other step has."""
    count = len(journal.steps)
    for git in journal.git:
        files = () if git.move is None else git.move.files
        yield git, [*enumerate(files, count)]
        count += len(files)


def _is_kept(dirs: OpenDirs, journal: Journal, index: int, step: Step) -> bool:
    """Tell whether a rollback that was interrupted has moved away what a step displaced."""
    return (
        step.before is not None
        and not step.staged
        and os.path.lexists(kept_entry(dirs.state, journal.operation.id, index))
        and _find_displaced(dirs, step) is None
    )


def _keep_displaced(dirs: OpenDirs, journal: Journal, index: int, step: Step) -> list[str]:
    """Say where an entry is that can't go back. It leaves the layer, which would otherwise show it as the command's."""
    operation = journal.operation.id
    if step.action == "set_metadata" or step.before is None:
        return []
    path = b"%b/operations/%b" % (dirs.state, step.backup)
    found = _find_displaced(dirs, step)
    if found is None:
        path = kept_entry(dirs.state, operation, index)
        if step.staged or not os.path.lexists(path):
            return []
    elif step.after is not None and found.st_ino == step.after.inode:
        return []
    elif not step.staged and b"/tree/" in step.place:
        fd, name = dirs.place(step)
        path = make_kept(dirs.state, operation, index)
        os.rename(name, path, src_dir_fd=fd)
    return [note_of(step, _BEFORE, path)]


def _find_displaced(dirs: OpenDirs, step: Step) -> os.stat_result | None:
    try:
        fd, name = dirs.place(step)
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError as error:
        explain_error(error)
        return None


def _give_layers_back(state: bytes, operation: OperationId) -> None:
    """Make the layers that an operation took layers again; their ids are their names there."""
    trees = operation_dir(state, operation) + b"/tree"
    try:
        names = os.listdir(trees)
    except FileNotFoundError:
        return
    for name in names:
        upper = upper_dir(state, LayerId(name.decode()))
        move_upper(trees + b"/" + name, upper)
        _close_inside(upper, state + b"/empty")


def _close_inside(upper: bytes, empty: bytes) -> None:
    """Give the directories of a layer their modes back that were opened to look into them.

    A scan does so, whoever left them open; over an empty directory it compares nothing.
    """
    scan((upper,), (), empty)


def _remove_from_root(root_fd: int, staging: bytes) -> bool:
    path = b"/proc/self/fd/%d" % root_fd
    mode = stat.S_IMODE(os.fstat(root_fd).st_mode)
    if mode & 0o300 == 0o300 or not os.path.lexists(path + b"/" + staging):
        return remove_tree(path + b"/" + staging)
    # The operation itself may have closed the root to its owner
    os.chmod(path, mode | 0o300)
    try:
        return remove_tree(path + b"/" + staging)
    finally:
        os.chmod(path, mode)


def _last_change(dirs: OpenDirs, root: int, steps: Sequence[Step]) -> int:
    """Return the youngest ctime that the last steps have left; a clock does not go back, so the last ones suffice."""
    youngest = 0
    for step in [step for step in steps if step.root == root][-4:]:
        for path in (step.path, step.path.rpartition(b"/")[0]):
            try:
                found = os.fstat(dirs.roots[root].root_fd) if path in (b"", b".") else dirs.roots[root].find(path)
            except OSError:
                continue
            youngest = max(youngest, found.st_ctime_ns if found is not None else 0)
    return youngest
