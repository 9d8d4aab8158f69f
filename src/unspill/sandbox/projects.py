# SPDX-License-Identifier: Apache-2.0
"""Whole projects: what unspill keeps of all of them and of one, to forget one, and to adopt one whose path changed.

Works without a sandbox, also for a project whose directory is gone. Nothing here touches a file of a project.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from unspill.errors import (
    PolicyError,
    RootfsError,
    SandboxUnavailable,
    UsageError,
)
from unspill.layers.lifecycle import Garbage, clean, drop, homes_dir, project_key, rootfs_owner
from unspill.layers.locks import (
    SandboxLock,
    StackUse,
    keeper_files,
    lock_file,
    refuse_kept,
    spill_dir,
    upper_dir,
)
from unspill.layers.trees import remove_tree
from unspill.model.run import LayerId, RunId
from unspill.policy.paths import show
from unspill.record import Record
from unspill.rootfs.registry import Registry, measure_downloads
from unspill.sandbox.project import find_former, find_own_locations, find_own_policy, rootfs_directory
from unspill.sandbox.scan import end_interrupted
from unspill.sandbox.secrets import CLAIMED
from unspill.sandbox.upkeep import (
    Family,
    disk_size,
    held_by,
    look_at_playground,
    measured,
    playground_of,
    remove_family,
    remove_runs,
    running_in,
)
from unspill.store.connection import is_id
from unspill.store.db import Store, list_aside
from unspill.store.projects import ProjectCounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.model.operation import Operation
    from unspill.sandbox.upkeep import Held, Playground
    from unspill.store.layers import SandboxRow

_DATABASE = (b"/store.db", b"/store.db-wal", b"/store.db-shm", b"/copies")
_ALL = 1_000_000


class Displaced(Record):
    """What one operation displaced."""

    operation: Operation
    bytes: int


class ProjectUsage(Record):
    """What one project has besides: layers over tool caches, and a playground outside the state directory."""

    path: bytes
    caches: int
    playground: bytes
    playground_bytes: int


class RootfsSizes(Record):
    """What lies in the rootfs directory, outside the state directory: each rootfs by name, and what was fetched."""

    directory: bytes
    rootfs: tuple[tuple[str, int], ...] = ()
    downloads_bytes: int = 0


class Status(Record):
    """Everything, part by part. `homes` are those of agents, with their sizes; `pending` are ids.

    `aside` is what has no row, and databases that were damaged.
    """

    state: bytes
    database_bytes: int
    held: tuple[Held, ...]
    displaced: tuple[Displaced, ...]
    projects: tuple[ProjectUsage, ...]
    spilled_bytes: int
    aside: tuple[bytes, ...]
    aside_bytes: int
    pending: tuple[str, ...]
    rootfs_sizes: RootfsSizes
    homes: tuple[tuple[bytes, int], ...] = ()

    @property
    def total_bytes(self) -> int:
        """Return what the state directory takes, without playgrounds, agents' homes and the rootfs directory."""
        return (
            self.database_bytes
            + self.spilled_bytes
            + self.aside_bytes
            + sum(part.bytes for part in self.held)
            + sum(part.bytes for part in self.displaced)
            + sum(part.caches for part in self.projects)
        )


def status(store: Store, data: bytes, rootfs: bytes) -> Status:
    """Look through the state directory; `data` has playgrounds and homes, `rootfs` is where every rootfs is."""
    sandboxes = store.sandboxes.all()
    operations = store.operations.all()
    sizes = measured(store, [operation.id for operation in operations]) or {}
    aside = (*sorted(list_aside(store.state).values()), *_databases_aside(store.state))
    return Status(
        state=store.state,
        database_bytes=sum(disk_size(store.state + part) for part in _DATABASE),
        held=tuple(held for sandbox in sandboxes if (held := held_by(store, sandbox)).layers),
        displaced=tuple(Displaced(operation=one, bytes=sizes.get(one.id, 0)) for one in operations),
        projects=tuple(_project(store, data, path) for path in sorted({row.project for row in sandboxes})),
        spilled_bytes=sum(disk_size(spill_dir(store.state, RunId(name))) for name in _ids(store.state + b"/runs")),
        aside=aside,
        aside_bytes=sum(map(disk_size, aside)),
        pending=tuple(_ids(store.state + b"/pending")),
        rootfs_sizes=_rootfs_sizes(rootfs),
        homes=_homes(data),
    )


def _homes(data: bytes) -> tuple[tuple[bytes, int], ...]:
    directory = homes_dir(data)
    try:
        paths = [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
    except FileNotFoundError:
        return ()
    return tuple((path, disk_size(path)) for path in paths)


def _rootfs_sizes(directory: bytes) -> RootfsSizes:
    """Return the sizes that the manifests tell: a rootfs has too many files to look at each."""
    try:
        ready = Registry(directory).list()
    except RootfsError:
        # One that is not to be trusted is nothing that we keep
        return RootfsSizes(directory=directory)
    sizes = tuple((found.name, found.manifest.size_bytes) for found in ready if found.manifest is not None)
    return RootfsSizes(directory=directory, rootfs=sizes, downloads_bytes=measure_downloads(directory))


def _project(store: Store, data: bytes, path: bytes) -> ProjectUsage:
    playground = playground_of(data, path)
    return ProjectUsage(
        path=path,
        caches=sum(disk_size(upper_dir(store.state, LayerId(row.id))) for row in store.caches.sealed(path)),
        playground=playground,
        playground_bytes=disk_size(playground),
    )


def get_status() -> Status:
    """Say what the state directory holds and costs.

    Raises:
        StoreError: it can't be used.
    """
    locations = find_own_locations()
    try:
        rootfs = rootfs_directory(find_own_policy(locations), locations)
    except (PolicyError, RootfsError):
        # What is kept is told all the same
        rootfs = locations.rootfs
    with Store.open(locations.state) as store:
        return status(store, locations.data, rootfs)


class Kept(Record):
    """What is kept of one project. Bytes are those on the disk; `held` has the sandboxes that hold something."""

    project: bytes
    counts: ProjectCounts
    sandboxes: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    backup_bytes: int = 0
    cache_bytes: int = 0
    output_bytes: int = 0
    playground: Playground

    @property
    def total_bytes(self) -> int:
        """Return what all of it takes on the disk."""
        held = sum(part.bytes for part in self.held)
        return held + self.backup_bytes + self.cache_bytes + self.output_bytes + self.playground.bytes


def look_at(store: Store, data: bytes, project: bytes) -> Kept:
    """Return what is kept of a project.

    Raises:
        UsageError: nothing is.
    """
    rows = store.sandboxes.of_project(project)
    counts = store.projects.count(project)
    if not rows and not counts.operations:
        raise UsageError(f"unspill keeps nothing of {show(project)}", remedy=_remedy(store))
    operations = store.operations.latest(project, _ALL)
    sizes = measured(store, [one.id for one in operations]) or {}
    caches = [row for owner in (project, *_owners(rows)) for row in store.caches.sealed(owner)]
    return Kept(
        project=project,
        counts=counts,
        sandboxes=tuple(row.name for row in rows),
        held=tuple(held for row in rows if (held := held_by(store, row)).layers),
        backup_bytes=sum(sizes.get(one.id, 0) for one in operations),
        cache_bytes=sum(disk_size(upper_dir(store.state, row.id)) for row in caches),
        output_bytes=sum(disk_size(spill_dir(store.state, run)) for run in store.projects.runs(project)),
        playground=look_at_playground(data, project),
    )


def _owners(rows: Iterable[SandboxRow]) -> list[bytes]:
    return [rootfs_owner(row.id) for row in rows]


def _remedy(store: Store) -> str:
    gone = [show(path) for path in find_gone(store)]
    return f"Projects whose directory is gone: {', '.join(gone)}." if gone else "See `unspill status --all`."


def known(store: Store) -> tuple[bytes, ...]:
    """Return every project of which anything is kept."""
    return store.projects.all()


def find_gone(store: Store) -> tuple[bytes, ...]:
    """Return the projects whose directory does not exist any more."""
    return tuple(path for path in known(store) if not os.path.isdir(path))


def forget(store: Store, data: bytes, project: bytes) -> Kept:
    """Delete all that is kept of a project; return what that was. Killed midway, the same call does the rest.

    Raises:
        SandboxUnavailable: something of it runs, or an operation of any project is under way.
        UsageError: nothing is kept of it.
    """
    kept = look_at(store, data, project)
    rows = store.sandboxes.of_project(project)
    with ExitStack() as alone:
        _take_alone(store, rows, alone)
        operations = store.operations.latest(project, _ALL)
        if operations:
            remove_family(store, Family(operations=operations))
        if store.operations.latest(project, 1):
            raise _busy()
        with store.transaction:
            layers = store.projects.remove_layers(project, _owners(rows))
            drop(store.state, layers)
        clean(store.state, Garbage(uppers=layers, works=layers))
        remove_runs(store, store.projects.runs(project))
        remove_tree(playground_of(data, project))
        for row in rows:
            remove_tree(_tmp_of(data, project, row.name))
        # Last, since the sandboxes are how the rest is found
        with store.durable:
            store.projects.forget(project)
        for row in rows:
            for path in (lock_file(store.state, row.id), lock_file(store.state, row.id) + b".use"):
                _unlink(path)
            _unlink(keeper_files(store.state, row.id)[0])
    return kept


class Adopted(Record):
    """A project that is at another path now. `is_same` if its directory is the very one that it was.

    `shift` is what was added to the numbers of operations that were done at the new path before.
    """

    old: bytes
    new: bytes
    is_same: bool
    counts: ProjectCounts
    held: tuple[str, ...] = ()
    shift: int = 0
    playground_left: bytes = b""


def adopt(store: Store, data: bytes, old: bytes | None, new: bytes) -> Adopted:
    """Give what is kept of a project to the path that its directory has now; by default it is found by its inode.

    Raises:
        SandboxUnavailable: something runs in one of them.
        UsageError: there is no such project, it is still at its path, or both paths hold changes.
    """
    found = os.stat(new)
    old = _choose_former(store, new, found) if old is None else old
    former = [row for row in store.sandboxes.of_project(old) if row.inode == found.st_ino]
    if old == new:
        raise UsageError(f"{show(new)} is where the project is already")
    if not former and os.path.isdir(old):
        raise UsageError(
            f"{show(old)} still exists, and it is another directory",
            remedy="Remove or rename it first, if you mean it.",
        )
    look_at(store, data, old)
    rows = (*store.sandboxes.of_project(old), *store.sandboxes.of_project(new))
    with ExitStack() as alone:
        _take_alone(store, rows, alone)
        _refuse_both_held(store, old, new)
        counts = store.projects.count(old)
        shift = store.projects.last_number(old) if store.projects.count(new).operations else 0
        held = tuple(row.name for row in store.sandboxes.of_project(old) if store.layers.sealed(row.id))
        names = [row.name for row in store.sandboxes.of_project(old)]
        with store.durable:
            store.projects.move(old, new, found.st_dev, found.st_ino, CLAIMED)
    left = _move_directories(data, old, new, names)
    return Adopted(old=old, new=new, is_same=bool(former), counts=counts, held=held, shift=shift, playground_left=left)


def _choose_former(store: Store, new: bytes, found: os.stat_result) -> bytes:
    former = find_former(store, new, found)
    if len(former) == 1:
        return former[0]
    if former:
        raise UsageError(
            f"{show(new)} had several paths: {', '.join(map(show, former))}", remedy="Name one: unspill adopt OLDPATH"
        )
    gone = ", ".join(show(path) for path in find_gone(store))
    raise UsageError(
        f"unspill does not know {show(new)} by another path",
        remedy="Name the old path: unspill adopt OLDPATH" + (f". Gone are: {gone}" if gone else ""),
    )


def _refuse_both_held(store: Store, old: bytes, new: bytes) -> None:
    holding = [
        {
            row.name
            for row in store.sandboxes.of_project(path)
            if store.layers.sealed(row.id) or store.layers.open(row.id)
        }
        for path in (old, new)
    ]
    both = sorted(holding[0] & holding[1])
    if both:
        raise UsageError(
            f"sandbox {both[0]!r} holds changes of both paths", remedy="Apply or discard those of the new path first."
        )


def _move_directories(data: bytes, old: bytes, new: bytes, sandboxes: Sequence[str]) -> bytes:
    """Rename the scratch directories; return the playground that stayed because there is another one."""
    for name in sandboxes:
        _move_directory(_tmp_of(data, old, name), _tmp_of(data, new, name))
    source = playground_of(data, old)
    return b"" if _move_directory(source, playground_of(data, new)) else source


def _move_directory(source: bytes, dest: bytes) -> bool:
    try:
        # Over an empty directory too
        os.rename(source, dest)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _tmp_of(data: bytes, project: bytes, sandbox: str) -> bytes:
    key = project_key(project) + b"-" + project_key(os.fsencode(sandbox))
    return os.path.join(data, b"tmp", key)


def _take_alone(store: Store, rows: Iterable[SandboxRow], stack: ExitStack) -> None:
    """Have sandboxes for oneself as long as the stack lasts.

    Raises:
        SandboxUnavailable: something runs in one, or an operation is under way.
    """
    end_interrupted(store)
    for row in rows:
        try:
            refuse_kept(store.state, row.id)
        except SandboxUnavailable as error:
            raise SandboxUnavailable(error.message, remedy=f"End them: unspill stop {row.name}") from None
        lock = SandboxLock(store.state, row.id)
        if not lock.try_acquire():
            raise _busy(row.name)
        stack.callback(lock.release)
        use = stack.enter_context(StackUse(store.state, row.id))
        if not use.is_alone or running_in(store, (row,)):
            raise _busy(row.name)
    if os.listdir(store.state + b"/pending"):
        raise _busy()


def _busy(sandbox: str = "") -> SandboxUnavailable:
    what = f"A run of sandbox {sandbox!r} is still active." if sandbox else "An operation is under way."
    return SandboxUnavailable(what, remedy="Wait for it or stop it (`unspill ps`), then try again.")


def _unlink(path: bytes) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _databases_aside(state: bytes) -> Iterable[bytes]:
    names = sorted(name for name in os.listdir(state) if name.startswith(b"store.db.damaged-"))
    return (os.path.join(state, name) for name in names)


def _ids(path: bytes) -> list[str]:
    return sorted(filter(is_id, os.listdir(os.fsdecode(path))))
