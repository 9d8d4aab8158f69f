# SPDX-License-Identifier: Apache-2.0
"""What the commands of one sandbox have written to its rootfs (`rootfs_writable`): sealed layers over the tree.

The tree itself never changes. The layers belong to one sandbox, are never applied to anything, and stay over the tree
that they were written for, also when a newer one is in use by then: they can be discarded, or kept as a new rootfs.
"""

from __future__ import annotations

import os

from unspill.changes.measure import is_empty
from unspill.errors import UsageError
from unspill.layers.caches import ROOTFS_OWNER, rootfs_owner
from unspill.layers.locks import lock_sandbox
from unspill.layers.places import upper_dir
from unspill.model.layer import SealedLayer, Stack
from unspill.model.plan import CacheLayer
from unspill.model.rootfs import NOTE
from unspill.plan.rootfs import OWN_PLACES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import OpenLayer, SandboxId
    from unspill.model.rootfs import RootfsBase
    from unspill.sandbox.opening import Opened
    from unspill.store.db import Store


# The engine `native` takes some sixty where paths are long, and the kernel no more than 500
_MOST_LAYERS = 40


def writable_directories(opened: Opened, base: RootfsBase | None) -> tuple[bytes, ...]:
    """Return the directories of the tree that a run may write to, each under a layer; none unless the policy says so.

    Raises:
        UsageError: the tree is somebody else's, which no overlay copies up, or there are too many layers over it.
    """
    if base is None or not opened.policy.rootfs_writable:
        return ()
    if os.lstat(base.tree).st_uid != os.geteuid():
        raise UsageError(
            f"The rootfs {base.name} can't be writable: it belongs to somebody else.",
            remedy="Make one of your own with `unspill rootfs pull`.",
        )
    deepest = max(map(len, layers_of(opened).values()), default=0)
    if deepest > _MOST_LAYERS:
        raise UsageError(
            "This sandbox has more layers over its rootfs than can be mounted: something in them can't be merged.",
            remedy="`unspill rootfs keep LABEL`, then `unspill rootfs discard`.",
        )
    return tuple(base.tree + top for top in base.directories if top not in OWN_PLACES)


def notes_of(layers: tuple[CacheLayer, ...]) -> tuple[str, ...]:
    """Return what to say of a run that has written to its rootfs, nothing of one that has not."""
    if all(layer.stack.open is None or is_empty(layer.stack.open.upper) for layer in layers):
        return ()
    return (f"{NOTE}what it wrote there stays in this sandbox (`unspill rootfs keep LABEL`, `unspill rootfs discard`)",)


def layered_tree(store: Store, sandbox: SandboxId) -> bytes | None:
    """Return the tree that a sandbox has layers over, None where it has none."""
    rows = store.caches.sealed(rootfs_owner(sandbox))
    return os.path.dirname(rows[-1].path) if rows else None


def layered_trees(store: Store) -> frozenset[bytes]:
    """Return every tree that some sandbox has layers over: without it they would be worth nothing."""
    return frozenset(os.path.dirname(path) for path in store.caches.paths_below(ROOTFS_OWNER))


def discard_layers(opened: Opened) -> int:
    """Throw away what the sandbox wrote to its rootfs; return how many layers that were."""
    with lock_sandbox(opened.store.state, opened.row.id):
        rows = opened.store.caches.sealed(rootfs_owner(opened.row.id))
        if rows:
            opened.store.caches.retire(rows)
    return len(rows)


def stacks_over(opened: Opened, tops: tuple[bytes, ...], layer: OpenLayer) -> tuple[CacheLayer, ...]:
    """Return the layers that the next run would have over its rootfs, with an open one that is only named."""
    stacks = {path: Stack(live=path, device=0, inode=0, open=layer) for path in tops}
    for row in opened.store.caches.sealed(rootfs_owner(opened.row.id)):
        if row.path in stacks:
            upper = upper_dir(opened.store.state, row.id)
            sealed = SealedLayer(id=row.id, upper=upper, mark=layer.mark, run=row.run)
            stacks[row.path] = stacks[row.path].replace(sealed=(*stacks[row.path].sealed, sealed))
    return tuple(CacheLayer(path=path, stack=stack) for path, stack in stacks.items())


def layers_of(opened: Opened) -> dict[bytes, tuple[bytes, ...]]:
    """Return the sealed uppers, the oldest first, of each directory of the tree that was written to."""
    found: dict[bytes, tuple[bytes, ...]] = {}
    for row in opened.store.caches.sealed(rootfs_owner(opened.row.id)):
        found[row.path] = (*found.get(row.path, ()), upper_dir(opened.store.state, row.id))
    return found
