# SPDX-License-Identifier: Apache-2.0
"""Open a run: its row, and an open layer over each root and cache, in one transaction.

Rows come before directories. So a directory never waits for its row, and a row whose process is dead says what to
remove. Nothing is mounted here.
"""

from __future__ import annotations

import os
import time

from unspill.errors import SandboxUnavailable
from unspill.layers.caches import find_caches, make_caches, open_id, record_caches, rootfs_owner
from unspill.layers.garbage import Garbage, clean, drop
from unspill.layers.make import make_layer, new_id
from unspill.layers.mark import clock_mark, renew, take_mark
from unspill.layers.owner import this_process
from unspill.layers.places import base_link, upper_dir, work_dir
from unspill.layers.stack import load_stacks, stat_root
from unspill.model.layer import OpenLayer, Stack
from unspill.model.plan import CacheLayer
from unspill.model.run import Run
from unspill.record import Record
from unspill.store.layers import LayerRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import After, Limits
    from unspill.store.db import Store
    from unspill.store.layers import SandboxRow


class OpenRun(Record):
    """A run that may begin: each stack, cache and directory of a rootfs has an open layer of its own on top."""

    run: Run
    project: bytes
    stacks: tuple[Stack, ...]
    caches: tuple[CacheLayer, ...] = ()
    rootfs: tuple[CacheLayer, ...] = ()


def open_run(
    store: Store,
    sandbox: SandboxRow,
    *,
    argv: tuple[bytes, ...],
    cwd: bytes,
    roots: tuple[bytes, ...],
    caches: tuple[bytes, ...] = (),
    masks: tuple[tuple[bytes, bytes], ...] = (),
    bases: tuple[tuple[bytes, bytes], ...] = (),
    rootfs: tuple[bytes, ...] = (),
    after_cancel: After = "hold",
    limits: Limits | None = None,
) -> OpenRun:
    """Record a run and make its layers. A run that will hold its changes needs the sandbox's lock first.

    A cache that is no directory (any more) is left out. `masks` has the mask of each root that is to have one, `bases`
    the repository of each that has one, as it stands now. `rootfs` are directories of a rootfs that the run may write
    to. `after_cancel` and `limits` are recorded for whoever finds the run when this process is dead.

    Raises:
        RootRefused: a root is not a directory (any more).
        SandboxUnavailable: a layer can't be made.
    """
    owner, found = this_process(), find_caches(caches)
    # Costs nothing here. The exact mark, which only the directories tell, is written when a layer is sealed
    mark_ns = clock_mark()
    with store.transaction:
        run = store.runs.start(
            sandbox.id,
            argv=argv,
            cwd=cwd,
            started_ns=time.time_ns(),
            owner=owner,
            after_cancel=after_cancel,
            layer_bytes=None if limits is None else limits.layer_bytes,
            layer_entries=None if limits is None else limits.layer_entries,
        )
        stacks = load_stacks(store, sandbox.id, roots, masks, bases)
        rows = [LayerRow(id=new_id(), sandbox=sandbox.id, root=root, run=run.id, mark_ns=mark_ns) for root in roots]
        store.layers.add_open(rows)
        cache_layers = record_caches(store, sandbox.project, run.id, found)
        tops = record_caches(store, rootfs_owner(sandbox.id), run.id, find_caches(rootfs))
    try:
        opened = tuple(_open_stack(store.state, stack, row) for stack, row in zip(stacks, rows, strict=True))
        make_caches(store.state, (*cache_layers, *tops))
        for layer in (stack.open for stack in opened):
            if layer is not None and layer.mark.ctime_ns < mark_ns:
                store.layers.set_mark(layer.id, layer.mark.ctime_ns)
    except OSError as error:
        _take_back(store, run, rows, (*cache_layers, *tops))
        raise SandboxUnavailable(
            f"A layer can't be made in {os.fsdecode(store.state)}: {error.strerror}.",
            remedy="Look for free space and free inodes there, or point UNSPILL_STATE_DIR elsewhere.",
        ) from error
    return OpenRun(run=run, project=sandbox.project, stacks=opened, caches=cache_layers, rootfs=tops)


def _open_stack(state: bytes, stack: Stack, row: LayerRow) -> Stack:
    made = make_layer(state, row.id, stack.lowers()[0])
    live = stat_root(stack.live)
    below = os.lstat(stack.sealed[-1].upper) if stack.sealed else live
    # What a command sees as the time of the root is that of the upper directory
    os.utime(upper_dir(state, row.id), ns=(below.st_atime_ns, below.st_mtime_ns))
    mark = take_mark(stack.live, live, renew(upper_dir(state, row.id), made))
    layer = OpenLayer(id=row.id, upper=upper_dir(state, row.id), work=work_dir(state, row.id), mark=mark, run=row.run)
    if stack.base is not None:
        # For whoever holds what this run wrote, should this process be killed
        os.symlink(stack.base, base_link(state, row.id))
    return stack.replace(open=layer)


def _take_back(store: Store, run: Run, rows: list[LayerRow], caches: tuple[CacheLayer, ...]) -> None:
    layers, cache_ids = tuple(row.id for row in rows), tuple(map(open_id, caches))
    with store.transaction:
        store.layers.remove(layers)
        store.caches.remove(cache_ids)
        store.runs.remove(run.id)
        drop(store.state, layers + cache_ids)
    clean(store.state, Garbage(uppers=layers + cache_ids, works=layers + cache_ids))
