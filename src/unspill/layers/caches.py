# SPDX-License-Identifier: Apache-2.0
"""Tool caches of a project: sealed layers that its runs share, and an open one per run on top.

After the run the open layer becomes the new top if no other run was faster; otherwise it is dropped, as is
one that nothing was written to. A cache may be thrown away at any time; it is never applied.
"""

from __future__ import annotations

import os
import stat

from unspill.layers.make import is_empty, make_layer, new_id
from unspill.layers.places import upper_dir, work_dir
from unspill.model.layer import OpenLayer, SealedLayer, Stack, TimeMark
from unspill.model.plan import CacheLayer
from unspill.store.layers import CacheRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.layer import LayerId, RunId, SandboxId
    from unspill.store.db import Store

    Identity = tuple[int, int]

# So many layers of a tier are squashed into one of the next
FAN = 8

# Stands before a sandbox's id where rows of caches have a project; no project's path begins so
ROOTFS_OWNER = b"rootfs of "

# Caches are never compared with the live tree, so no moment of it matters.
_NO_MARK = TimeMark(ctime_ns=0)


def rootfs_owner(sandbox: SandboxId) -> bytes:
    """Return what stands for the project in the rows of layers over a rootfs: those are one sandbox's alone."""
    return ROOTFS_OWNER + os.fsencode(sandbox)


def find_caches(paths: Iterable[bytes]) -> dict[bytes, Identity]:
    """Return device and inode of those paths that are directories now."""
    found: dict[bytes, Identity] = {}
    for path in paths:
        try:
            live = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(live.st_mode):
            found[path] = live.st_dev, live.st_ino
    return found


def record_caches(store: Store, project: bytes, run: RunId, found: dict[bytes, Identity]) -> tuple[CacheLayer, ...]:
    """Read the stacks of a project's caches and record an open layer on top of each, in the caller's transaction."""
    if not found:
        return ()
    sealed: dict[bytes, list[SealedLayer]] = {path: [] for path in found}
    for row in store.caches.sealed(project):
        if row.path in sealed:
            layer = SealedLayer(id=row.id, upper=upper_dir(store.state, row.id), mark=_NO_MARK, run=row.run)
            sealed[row.path].append(layer)
    rows = [
        CacheRow(id=new_id(), project=project, path=path, run=run, base=layers[-1].id if layers else None)
        for path, layers in sealed.items()
    ]
    store.caches.add_open(rows)
    return tuple(_to_cache(store.state, row, found[row.path], sealed[row.path]) for row in rows)


def make_caches(state: bytes, caches: Iterable[CacheLayer]) -> None:
    """Make the directories of caches that are recorded."""
    for cache in caches:
        make_layer(state, open_id(cache), cache.stack.lowers()[0])


def fold_caches(store: Store, project: bytes, caches: Iterable[CacheLayer]) -> list[LayerId]:
    """Put what a run wrote on top of the caches; return the layers that did not become part of a stack.

    Call it before the run's end is recorded: until then a crash leaves nothing that the sweep does not find.
    """
    left: list[LayerId] = []
    for cache in caches:
        layer = _open(cache)
        row = CacheRow(id=layer.id, project=project, path=cache.path, run=layer.run)
        if is_empty(layer.upper) or not store.caches.fold(row):
            left.append(layer.id)
        elif len(cache.stack.sealed) + 1 >= FAN:
            from unspill.layers.squash import squash

            squash(store, project, cache.path, layer.run, FAN)
    return left


def open_id(cache: CacheLayer) -> LayerId:
    """Return the id of the layer that a run writes."""
    return _open(cache).id


def _open(cache: CacheLayer) -> OpenLayer:
    layer = cache.stack.open
    assert layer is not None
    return layer


def _to_cache(state: bytes, row: CacheRow, live: Identity, sealed: list[SealedLayer]) -> CacheLayer:
    upper, work = upper_dir(state, row.id), work_dir(state, row.id)
    layer = OpenLayer(id=row.id, upper=upper, work=work, mark=_NO_MARK, run=row.run)
    stack = Stack(live=row.path, device=live[0], inode=live[1], sealed=tuple(sealed), open=layer)
    return CacheLayer(path=row.path, stack=stack)
