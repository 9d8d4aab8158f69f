# SPDX-License-Identifier: Apache-2.0
"""Close a run: its layers become sealed ones or go, what it wrote to caches is folded back, its end is recorded.

Call it when every process of the run is dead and nothing has its layers mounted. A crash before the last
transaction leaves an open run of a dead process, which the sweep removes whole; one after it leaves garbage.
"""

from __future__ import annotations

from unspill.errors import SandboxUnavailable
from unspill.layers.caches import fold_caches, open_id, rootfs_owner
from unspill.layers.garbage import Garbage, clean, drop
from unspill.layers.make import is_untouched
from unspill.model.layer import SandboxId, SealedLayer, Stack
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.layers.create import OpenRun
    from unspill.model.layer import LayerId, OpenLayer
    from unspill.model.run import Run
    from unspill.store.db import Store


class ClosedRun(Record):
    """The stacks that the next run starts from, and directories that were left for later."""

    stacks: tuple[Stack, ...]
    garbage: Garbage = Garbage()


def seal_run(store: Store, opened: OpenRun, ended: Run, *, fold: bool = True, defer: bool = False) -> ClosedRun:
    """Hold what a run wrote to its roots; a layer that nothing was written to is dropped.

    `ended` is the run with its end filled in; whether it is held is found out here. Without `fold` the caches
    stay as they were. With `defer` the directories that are of no use any more are not removed, which takes
    0.2 ms for each root and cache: give the `garbage` to `clean` when there is time.

    Raises:
        SandboxUnavailable: a layer vanished while the run went on.
    """
    keep = {
        layer.id
        for stack, layer in zip(opened.stacks, _open_layers(opened), strict=True)
        if not is_untouched(layer.upper, stack.lowers()[0])
    }
    return _close(store, opened, ended, keep, fold=fold, defer=defer)


def drop_run(
    store: Store, opened: OpenRun, ended: Run, *, fold: bool = True, rootfs: bool = True, defer: bool = False
) -> ClosedRun:
    """Drop what a run wrote to its roots, and record its end; the options are those of `seal_run`.

    Without `rootfs` what it wrote to a writable rootfs goes too.
    """
    return _close(store, opened, ended, set(), fold=fold, rootfs=rootfs, defer=defer)


def _close(
    store: Store,
    opened: OpenRun,
    ended: Run,
    keep: set[LayerId],
    *,
    fold: bool,
    defer: bool,
    rootfs: bool = True,
) -> ClosedRun:
    layers = _open_layers(opened)
    dropped = [layer.id for layer in layers if layer.id not in keep]
    caches = [open_id(cache) for cache in (*opened.caches, *opened.rootfs)]
    left = _fold(store, opened, rootfs=rootfs) if fold else caches
    with store.transaction:
        for layer in layers:
            if layer.id in keep and not store.layers.seal(layer.id, layer.mark.ctime_ns):
                raise SandboxUnavailable(f"Layer {layer.id} is gone: another process took its owner for dead.")
        store.layers.remove(dropped)
        store.caches.remove(left)
        unused = store.caches.take_unused() if caches else ()
        store.runs.end(ended.replace(held=bool(keep)))
        drop(store.state, (*dropped, *left, *unused))
    stacks = tuple(_close_stack(stack, keep) for stack in opened.stacks)
    garbage = Garbage(uppers=(*dropped, *left, *unused), works=(*(layer.id for layer in layers), *caches))
    if defer:
        return ClosedRun(stacks=stacks, garbage=garbage)
    clean(store.state, garbage)
    return ClosedRun(stacks=stacks)


def _fold(store: Store, opened: OpenRun, *, rootfs: bool) -> list[LayerId]:
    left = fold_caches(store, opened.project, opened.caches)
    if rootfs and opened.rootfs:
        return left + fold_caches(store, rootfs_owner(SandboxId(opened.run.sandbox)), opened.rootfs)
    return left + [open_id(top) for top in opened.rootfs]


def _open_layers(opened: OpenRun) -> list[OpenLayer]:
    return [stack.open for stack in opened.stacks if stack.open is not None]


def _close_stack(stack: Stack, keep: set[LayerId]) -> Stack:
    layer = stack.open
    if layer is None or layer.id not in keep:
        return stack.replace(open=None)
    sealed = SealedLayer(id=layer.id, upper=layer.upper, mark=layer.mark, run=layer.run)
    return stack.replace(open=None, sealed=(*stack.sealed, sealed))
