# SPDX-License-Identifier: Apache-2.0
"""Squash cache layers: eight adjacent ones of a tier become one of the next tier, as overlayfs would show them.

Files are hard links, so the layers that are replaced stay whole for runs that still have them mounted; they go
when the last of those has ended. A cache that can't be squashed is cut back instead: it is only a cache. What was
written to a rootfs stays as it is then.
"""

from __future__ import annotations

from unspill.layers.caches import ROOTFS_OWNER
from unspill.layers.garbage import drop, remove_uppers
from unspill.layers.make import make_upper, new_id
from unspill.layers.merge import merge_uppers
from unspill.layers.places import upper_dir
from unspill.store.layers import CacheRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import RunId
    from unspill.store.db import Store


def squash(store: Store, project: bytes, path: bytes, run: RunId, fan: int) -> None:
    """Squash a cache's newest tiers that are full, with `fan` layers. `run` is the caller's, and not ended yet."""
    while True:
        layers = tuple(row for row in store.caches.sealed(project) if row.path == path)
        old = _full_tier(layers, fan)
        if not old:
            return
        row = CacheRow(id=new_id(), project=project, path=path, run=run, tier=old[0].tier + 1)
        store.caches.add_open((row,))
        uppers = tuple(upper_dir(store.state, layer.id) for layer in old)
        below = (path, *(upper_dir(store.state, layer.id) for layer in layers if layer.position < old[0].position))
        merged = upper_dir(store.state, row.id)
        try:
            make_upper(merged, uppers[-1])
            merge_uppers(uppers, below, merged)
            done = store.caches.replace(old, row)
        except OSError:
            if project.startswith(ROOTFS_OWNER):
                # Nothing could bring back what was installed; there is room for some more layers
                _forget(store, row)
                return
            _cut_back(store, project, path, old)
            done = False
        if not done:
            _forget(store, row)


def _forget(store: Store, row: CacheRow) -> None:
    with store.transaction:
        store.caches.remove((row.id,))
        drop(store.state, (row.id,))
    remove_uppers(store.state, (row.id,))


def _cut_back(store: Store, project: bytes, path: bytes, old: tuple[CacheRow, ...]) -> None:
    """Give a cache up that can't be squashed, unless somebody else was faster and took its layers away meanwhile.

    Too long a path, too many links, a directory without rights: whatever a command left there. What lies above was
    written for what lies below, so all of it goes.
    """
    with store.transaction:
        layers = tuple(row for row in store.caches.sealed(project) if row.path == path)
        if {layer.id for layer in old} <= {layer.id for layer in layers}:
            store.caches.retire(layers)


def _full_tier(layers: tuple[CacheRow, ...], fan: int) -> tuple[CacheRow, ...]:
    """Return the layers of the newest tier that has enough of them; higher tiers lie below lower ones."""
    for tier in sorted({layer.tier for layer in layers}):
        full = tuple(layer for layer in layers if layer.tier == tier)
        if len(full) >= fan:
            return full
    return ()
