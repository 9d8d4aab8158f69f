# SPDX-License-Identifier: Apache-2.0
"""What concerns the state directory as a whole, and works without a project, a sandbox or a readable database.

Pruning forgets operations with all that they displaced, and runs that hold nothing. The window is so many days back
from now, by recorded time. If what lies in it takes more than the budget it becomes shorter, the oldest first, but
never shorter than a day. An operation and its undos and redos share one place on the disk, so they stay or go together,
with the youngest of them.

Bytes are those that the filesystem gave (`st_blocks`). What several parts share, such as the content of a file with
several names, is counted in each of them.
"""

from __future__ import annotations

import os
import time

from unspill.apply.git_move import remove_own_refs
from unspill.apply.journal import journal_file, operation_dir, read_journal
from unspill.apply.recover import recover_operations
from unspill.changes.walk import measure
from unspill.errors import (
    HostError,
    SandboxUnavailable,
    StoreDamaged,
    StoreError,
    StoreTooNew,
    UsageError,
)
from unspill.layers.lifecycle import PRUNED, is_being_pruned, project_key, sweep, sweep_operations
from unspill.layers.locks import SandboxLock, is_abandoned, spill_dir, upper_dir
from unspill.layers.mask import remove_old_masks
from unspill.layers.trees import empty_tree, remove_tree
from unspill.model.operation import OperationId
from unspill.model.policy import DAY_NS
from unspill.model.run import RunId, SandboxId
from unspill.progress import COUNT
from unspill.record import Record
from unspill.sandbox.history import catch_up, judge_files
from unspill.sandbox.project import find_own_locations, find_own_policy, with_held_roots
from unspill.sandbox.review import changes_of
from unspill.store.connection import is_id
from unspill.store.copies import copied_ns, make_copy, put_back, remove_older
from unspill.store.db import Store, check_state_dir, list_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.model.operation import Operation
    from unspill.sandbox.project import Project
    from unspill.store.layers import SandboxRow

# What a run that happens to be the first of the day may wait for; the rest is done by the next ones.
_PATIENCE_S = 0.5
_BLOCK = 512
# Of a playground, by name
_MOST_LISTED = 100


class Recovered(Record):
    """What was done about a database that was lost or damaged, and what had been interrupted.

    `reason` is what was wrong with it, empty where nothing was; `database` where it lies now. `copied_ns` is when the
    copy was made that took its place, None where there was no copy and a new database did. `aside` has no row.
    """

    reason: str = ""
    database: bytes | None = None
    copied_ns: int | None = None
    interrupted: tuple[Operation, ...] = ()
    aside: tuple[bytes, ...] = ()


def prune_now(*, dry_run: bool) -> Pruned:
    """Forget what the person's own settings do not keep any more.

    Raises:
        PolicyError: the configuration can't be understood.
        StoreError: the state directory can't be used.
    """

    locations = find_own_locations()
    policy = find_own_policy(locations)
    with Store.open(locations.state) as store:
        return prune(store, time.time_ns(), days=policy.keep_days, budget=policy.keep_bytes, dry_run=dry_run)


def recover_now() -> Recovered:
    """Put a copy in the place of a database that is lost or damaged, then set aside what has no row.

    Raises:
        SandboxUnavailable: a run or an operation is going on.
        StoreError: the state directory can't be used.
    """
    state = find_own_locations().state
    if not check_state_dir(state):
        return Recovered()
    done = _replace_damaged(state)
    before = list_aside(state)
    with Store.open(state) as store:
        interrupted = recover_operations(store)
        sweep(store)
        sweep_operations(store)
    aside = (path for name, path in list_aside(state).items() if name not in before)
    return done.replace(interrupted=interrupted, aside=tuple(sorted(aside)))


def _replace_damaged(state: bytes) -> Recovered:
    """Put a copy in the place of the database, unless that is whole. No run may be going on."""
    locks = _lock_all(state)
    try:
        reason = _find_damage(state)
        if not reason:
            return Recovered()
        put = put_back(state)
        return Recovered(reason=reason, database=put.database, copied_ns=put.copied_ns)
    finally:
        for lock in locks:
            lock.release()


def _lock_all(state: bytes) -> list[SandboxLock]:
    held: list[SandboxLock] = []
    for name in filter(is_id, os.listdir(os.fsdecode(state + b"/locks"))):
        lock = SandboxLock(state, SandboxId(name))
        if not lock.try_acquire():
            for other in held:
                other.release()
            raise SandboxUnavailable("A sandbox is in use.", remedy="Wait until its run has ended, then try again.")
        held.append(lock)
    return held


def _find_damage(state: bytes) -> str:
    """Return what is wrong with the database, an empty text where nothing is."""
    try:
        with Store.open(state) as store:
            store.check()
    except (StoreDamaged, StoreTooNew) as error:
        return error.message
    return ""


class Pruned(Record):
    """What was forgotten, or would be: operations, runs, names of backups, and bytes on the disk."""

    operations: tuple[OperationId, ...] = ()
    runs: tuple[RunId, ...] = ()
    names: tuple[bytes, ...] = ()
    bytes: int = 0


class Family(Record):
    """Operations that share what they displaced, and what that takes."""

    operations: tuple[Operation, ...]
    bytes: int = 0

    @property
    def at_ns(self) -> int:
        """When the youngest of them was."""
        return max(operation.at_ns for operation in self.operations)


def prune(store: Store, now_ns: int, *, days: int, budget: int, dry_run: bool = False) -> Pruned:
    """Forget what is outside the window."""
    return _prune(store, now_ns, days, budget, dry_run=dry_run, deadline=None)[0]


def prune_in_time(store: Store, now_ns: int, *, days: int, budget: int) -> bool:
    """Do the same in little time; tell whether nothing is left for the next time."""
    deadline = time.monotonic() + _PATIENCE_S
    return _prune(store, now_ns, days, budget, dry_run=False, deadline=deadline)[1]


def copy_daily(store: Store, now_ns: int, keep_days: int) -> None:
    """Copy the database, unless that was done today, and remove copies that are too old.

    Raises:
        StoreDamaged: the database is not whole; any other failure is no reason not to go on.
    """
    made = copied_ns(store.state)
    # Pruning may take several starts of a day, one copy is enough
    if made is not None and 0 <= now_ns - made < DAY_NS:
        return
    try:
        make_copy(store.transaction, store.state)
        remove_older(store.state, now_ns - keep_days * DAY_NS)
    except StoreDamaged:
        raise
    except (OSError, StoreError):
        return


def choose(families: Sequence[Family], now_ns: int, *, days: int, budget: int) -> tuple[Family, ...]:
    """Return the families that have to go, the oldest first."""
    total = sum(family.bytes for family in families)
    going = []
    for family in sorted(families, key=lambda family: family.at_ns):
        age_ns = now_ns - family.at_ns
        if age_ns <= days * DAY_NS and (total <= budget or age_ns <= DAY_NS):
            break
        going.append(family)
        total -= family.bytes
    return tuple(going)


def find_families(operations: Iterable[Operation]) -> list[tuple[Operation, ...]]:
    """Group operations by where what they displaced lies."""
    leaders: dict[str, str] = {}

    def leader_of(name: str) -> str:
        while leaders.setdefault(name, name) != name:
            name = leaders[name]
        return name

    listed = list(operations)
    for operation in listed:
        for other in (operation.origin, operation.of):
            if other is not None:
                leaders[leader_of(operation.id)] = leader_of(other)
    families: dict[str, list[Operation]] = {}
    for operation in listed:
        families.setdefault(leader_of(operation.id), []).append(operation)
    return [tuple(family) for family in families.values()]


def measured(store: Store, operations: Iterable[OperationId], deadline: float | None = None) -> dict[str, int] | None:
    """Return what each operation's directory takes on the disk, None where the time was over before."""
    known = store.operations.kept_bytes()
    found: dict[OperationId, int] = {}
    for operation in operations:
        if operation not in known:
            if deadline is not None and time.monotonic() > deadline:
                break
            found[operation] = _size(operation_dir(store.state, operation))
    store.operations.set_kept_bytes(found)
    for operation, size in found.items():
        known[operation] = size
    return known if all(operation in known for operation in operations) else None


def _size(path: bytes) -> int:
    try:
        return measure(path)[0]
    except OSError:
        return 0


def _prune(
    store: Store, now_ns: int, days: int, budget: int, *, dry_run: bool, deadline: float | None
) -> tuple[Pruned, bool]:
    # Whoever is at work may need any of them
    if os.listdir(store.state + b"/pending"):
        return Pruned(), False
    operations = (*store.operations.all(), *_forgotten(store))
    sizes = measured(store, [operation.id for operation in operations], deadline)
    if sizes is None:
        return Pruned(), False
    families = [
        Family(operations=group, bytes=sum(sizes[operation.id] for operation in group))
        for group in find_families(operations)
    ]
    going = choose(families, now_ns, days=days, budget=budget)
    needed = {run for family in families if family not in going for one in family.operations for run in one.runs}
    runs = tuple(run for run in store.runs.ended_before(max(0, now_ns - days * DAY_NS)) if run not in needed)
    spilled = sum(_size(spill_dir(store.state, run)) for run in runs)
    for project in {operation.project for family in going for operation in family.operations}:
        catch_up(store, project)
    pruned = Pruned(runs=runs, bytes=spilled)
    is_complete = True
    COUNT.begin("Deleting", len(going), "operation")
    for family in going:
        COUNT.done += 1
        gone = _with_family(pruned, store, family)
        is_late = deadline is not None and time.monotonic() > deadline
        if not dry_run and (is_late or not remove_family(store, family)):
            is_complete = False
            break
        pruned = gone
    if not dry_run:
        remove_runs(store, runs)
        store.sessions.remove_before(max(0, now_ns - days * DAY_NS))
        store.texts.remove_before(max(0, now_ns - days * DAY_NS))
        store.bases.remove_before(max(0, now_ns - days * DAY_NS))
        sweep_operations(store)
        remove_old_masks(store.state, now_ns - DAY_NS)
    return pruned, is_complete


def _with_family(pruned: Pruned, store: Store, family: Family) -> Pruned:
    operations = tuple(operation.id for operation in family.operations)
    names = tuple(row.name for name in operations for row in store.files.backups_of_operation(name))
    return pruned.replace(
        operations=(*pruned.operations, *operations),
        names=(*pruned.names, *names),
        bytes=pruned.bytes + family.bytes,
    )


def _forgotten(store: Store) -> list[Operation]:
    """Return operations whose rows are gone because a prune began to forget them, and was interrupted."""
    names = filter(is_id, os.listdir(os.fsdecode(store.state + b"/operations")))
    found = []
    for name in set(names) - store.operations.ids():
        if not is_being_pruned(store.state, name):
            continue
        try:
            journal = read_journal(journal_file(store.state, OperationId(name)), with_steps=False)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if journal is not None and journal.end is not None and journal.end.operation.id == name:
            found.append(journal.end.operation)
    return found


def remove_family(store: Store, family: Family) -> bool:
    """Forget operations, then remove what they displaced; tell whether nobody needed them after all."""
    names = tuple(operation.id for operation in family.operations)
    known = [operation for operation in family.operations if store.operations.find(operation.id) is not None]
    # Without it, one that has no row any more would be taken for one whose row was lost
    marks = [operation_dir(store.state, name) + b"/" + PRUNED for name in names]
    for mark in marks:
        _touch(mark)
    with store.durable:
        store.operations.remove(names)
    # Whoever began before the rows were gone is seen here; whoever begins later finds no rows
    if os.listdir(store.state + b"/pending"):
        with store.durable:
            for operation in known:
                store.operations.add(operation)
                store.operations.claim(operation.id)
        for mark in marks:
            _unlink(mark)
        return False
    _forget_names(store, names)
    if not all(remove_own_refs(store.state, operation) for operation in family.operations):
        # Without rows they are found again by their journals
        return False
    for name in names:
        # A directory without a journal is garbage, whatever happens to us now
        _unlink(journal_file(store.state, name))
        remove_tree(operation_dir(store.state, name))
    return True


def _forget_names(store: Store, operations: Iterable[OperationId]) -> None:
    affected = {row.file for name in operations for row in store.files.backups_of_operation(name)}
    with store.transaction:
        store.files.remove_backups(operations)
        files = [file for identity in affected if (file := store.files.find_id(identity)) is not None]
    judge_files(store, files)


def _touch(path: bytes) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        # A copy of the database that was put back may know an operation that is gone
        return


def _unlink(path: bytes) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def remove_runs(store: Store, runs: tuple[RunId, ...]) -> None:
    """Forget runs, with output that was too long for their rows."""
    # Output without a row would be taken for that of a run whose row was lost
    for run in runs:
        remove_tree(spill_dir(store.state, run))
    store.runs.remove_all(runs)


class Held(Record):
    """What one sandbox holds: layers over roots that were neither applied nor discarded."""

    sandbox: SandboxRow
    layers: int
    bytes: int


def held_by(store: Store, sandbox: SandboxRow) -> Held:
    """Return what a sandbox holds, by its layers."""
    rows = store.layers.sealed(sandbox.id)
    return Held(sandbox=sandbox, layers=len(rows), bytes=sum(disk_size(upper_dir(store.state, row.id)) for row in rows))


class SandboxUsage(Record):
    """One sandbox of a project: what it holds, how often it was used, and whether something runs in it now.

    `held` counts paths; None where they can't be compared with the project. `last_ns` is when its last run began.
    """

    name: str
    created_ns: int
    held: int | None
    held_bytes: int
    runs: int
    last_ns: int | None
    running: int


def list_sandboxes(project: Project) -> tuple[SandboxUsage, ...]:
    """Return the sandboxes of a project by name, each with what it holds."""
    return tuple(_usage(project.replace(row=row)) for row in project.store.sandboxes.of_project(project.path))


def _usage(project: Project) -> SandboxUsage:
    store, row = project.store, project.row
    runs, last_ns = store.projects.tally(row.id)
    held = held_by(store, row)
    try:
        paths = len(set(changes_of(with_held_roots(project), None).paths())) if held.layers else 0
    except (HostError, OSError, UsageError):
        paths = None
    return SandboxUsage(
        name=row.name,
        created_ns=row.created_ns,
        held=paths,
        held_bytes=held.bytes,
        runs=runs,
        last_ns=last_ns,
        running=len(running_in(store, (row,))),
    )


def running_in(store: Store, rows: Iterable[SandboxRow]) -> list[RunId]:
    """Return the runs of sandboxes that are going on."""
    own = {row.id for row in rows}
    return [run.id for run in store.runs.unfinished() if run.sandbox in own and not is_abandoned(run)]


class Playground(Record):
    """A project's scratch directory and what is in it: bytes on the disk, and how many entries at any depth.

    `names` are its own entries, sorted, each with its bytes; a directory's ends with a slash. `left_out` counts those
    that are not listed.
    """

    path: bytes
    names: tuple[tuple[bytes, int], ...] = ()
    left_out: int = 0
    entries: int = 0
    bytes: int = 0


def look_at_playground(data: bytes, project: bytes) -> Playground:
    """Return what is in a project's playground; nothing is made, and no link is followed.

    Raises:
        StoreError: it is no directory, or can't be read.
    """
    path = playground_of(data, project)
    try:
        # First: unlike a listing it refuses a link
        size, count = measure(path)
        with os.scandir(path) as entries:
            listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except FileNotFoundError:
        return Playground(path=path)
    except OSError as error:
        raise StoreError(f"The playground {os.fsdecode(path)} can't be read: {error.strerror}.") from error
    names = tuple(
        (name + b"/" * is_directory, disk_size(os.path.join(path, name)))
        for name, is_directory in listed[:_MOST_LISTED]
    )
    return Playground(path=path, bytes=size, entries=count, names=names, left_out=max(0, len(listed) - _MOST_LISTED))


def empty_playground(store: Store, data: bytes, project: bytes) -> Playground:
    """Delete everything in a project's playground, for good; return what was there.

    By descriptor, so that no link leads out of it. The directory itself stays.

    Raises:
        SandboxUnavailable: a run of the project is going on, which may be using it.
        StoreError: it is no directory, or something in it can't be deleted.
    """
    found = look_at_playground(data, project)
    sandboxes = {row.id for row in store.sandboxes.of_project(project)}
    if any(run.sandbox in sandboxes and not is_abandoned(run) for run in store.runs.unfinished()):
        raise SandboxUnavailable("A run is using the playground.", remedy="Wait for it or stop it, then try again.")
    try:
        if not found.entries or empty_tree(found.path):
            return found
        reason = "something in it can't be deleted"
    except OSError as error:
        reason = error.strerror or str(error)
    raise StoreError(f"The playground {os.fsdecode(found.path)} could not be emptied: {reason}.")


def playground_of(data: bytes, project: bytes) -> bytes:
    """Return where a project's scratch directory is, or would be."""
    return os.path.join(data, b"playground", project_key(project))


def disk_size(path: bytes) -> int:
    """Return what a file, or a directory with all in it, takes on the disk; 0 if it can't be read."""
    try:
        return os.lstat(path).st_blocks * _BLOCK + measure(path)[0]
    except NotADirectoryError:
        return os.lstat(path).st_blocks * _BLOCK
    except OSError:
        return 0
