# SPDX-License-Identifier: Apache-2.0
"""What the state directory holds and what that costs on the disk, part by part. Changes nothing there.

Bytes are those that the filesystem gave (`st_blocks`). What several parts share, such as the content of a file with
several names, is counted in each of them.
"""

from __future__ import annotations

import os

from unspill.changes.walk import measure
from unspill.errors import RootfsError
from unspill.layers.lifecycle import project_key
from unspill.layers.locks import spill_dir, upper_dir
from unspill.model.layer import LayerId, RunId
from unspill.record import Record
from unspill.sandbox.retention import measured
from unspill.store.connection import is_id
from unspill.store.state import list_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.operation import Operation
    from unspill.store.db import Store
    from unspill.store.layers import SandboxRow

_BLOCK = 512
_DATABASE = (b"/store.db", b"/store.db-wal", b"/store.db-shm", b"/copies")


class Held(Record):
    """What one sandbox holds: layers over roots that were neither applied nor discarded."""

    sandbox: SandboxRow
    layers: int
    bytes: int


class Displaced(Record):
    """What one operation displaced."""

    operation: Operation
    bytes: int


class Project(Record):
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
    """Everything, part by part. `aside` is what has no row, and databases that were damaged; `pending` are ids."""

    state: bytes
    database_bytes: int
    held: tuple[Held, ...]
    displaced: tuple[Displaced, ...]
    projects: tuple[Project, ...]
    spilled_bytes: int
    aside: tuple[bytes, ...]
    aside_bytes: int
    pending: tuple[str, ...]
    rootfs_sizes: RootfsSizes

    @property
    def total_bytes(self) -> int:
        """Return what the state directory takes, without playgrounds and the rootfs directory."""
        return (
            self.database_bytes
            + self.spilled_bytes
            + self.aside_bytes
            + sum(part.bytes for part in self.held)
            + sum(part.bytes for part in self.displaced)
            + sum(part.caches for part in self.projects)
        )


def status(store: Store, data: bytes, rootfs: bytes) -> Status:
    """Look through the state directory; `data` is where playgrounds are, `rootfs` where every rootfs is."""
    sandboxes = store.sandboxes.all()
    operations = store.operations.all()
    sizes = measured(store, [operation.id for operation in operations]) or {}
    aside = (*sorted(list_aside(store.state).values()), *_databases_aside(store.state))
    return Status(
        state=store.state,
        database_bytes=sum(_size(store.state + part) for part in _DATABASE),
        held=tuple(held for sandbox in sandboxes if (held := _held(store, sandbox)).layers),
        displaced=tuple(Displaced(operation=one, bytes=sizes.get(one.id, 0)) for one in operations),
        projects=tuple(_project(store, data, path) for path in sorted({row.project for row in sandboxes})),
        spilled_bytes=sum(_size(spill_dir(store.state, RunId(name))) for name in _ids(store.state + b"/runs")),
        aside=aside,
        aside_bytes=sum(map(_size, aside)),
        pending=tuple(_ids(store.state + b"/pending")),
        rootfs_sizes=_rootfs_sizes(rootfs),
    )


def _rootfs_sizes(directory: bytes) -> RootfsSizes:
    """Return the sizes that the manifests tell: a rootfs has too many files to look at each."""
    from unspill.rootfs.registry import Registry, measure_downloads

    try:
        ready = Registry(directory).list()
    except RootfsError:
        # One that is not to be trusted is nothing that we keep
        return RootfsSizes(directory=directory)
    sizes = tuple((found.name, found.manifest.size_bytes) for found in ready if found.manifest is not None)
    return RootfsSizes(directory=directory, rootfs=sizes, downloads_bytes=measure_downloads(directory))


def _held(store: Store, sandbox: SandboxRow) -> Held:
    rows = store.layers.sealed(sandbox.id)
    return Held(sandbox=sandbox, layers=len(rows), bytes=sum(_size(upper_dir(store.state, row.id)) for row in rows))


def _project(store: Store, data: bytes, path: bytes) -> Project:
    playground = os.path.join(data, b"playground", project_key(path))
    return Project(
        path=path,
        caches=sum(_size(upper_dir(store.state, LayerId(row.id))) for row in store.caches.sealed(path)),
        playground=playground,
        playground_bytes=_size(playground),
    )


def _databases_aside(state: bytes) -> Iterable[bytes]:
    names = sorted(name for name in os.listdir(state) if name.startswith(b"store.db.damaged-"))
    return (os.path.join(state, name) for name in names)


def _ids(path: bytes) -> list[str]:
    return sorted(filter(is_id, os.listdir(os.fsdecode(path))))


def _size(path: bytes) -> int:
    try:
        return os.lstat(path).st_blocks * _BLOCK + measure(path)[0]
    except NotADirectoryError:
        return os.lstat(path).st_blocks * _BLOCK
    except OSError:
        return 0
