# SPDX-License-Identifier: Apache-2.0
"""Remove what dead processes left: layers of runs that were to keep nothing, and directories that were dropped.

Called when a project is opened. Rows are written before directories, and directories are listed before rows are read:
so a directory that has no row then never gets one. Several processes may sweep at once.

What other runs had written when their processes died stays: `sandbox.interrupted` seals it when the project is opened.
Nothing with a content is removed because it has no row: the row may be one that a lost database had and its copy has
not. Such a layer, operation or output is set aside.
"""

from __future__ import annotations

import os
import time

from unspill.layers.lifecycle import Garbage, clean, drop
from unspill.layers.locks import DROPPED_SUFFIX, SandboxLock, is_abandoned, may_live, remove_unused, spill_dir
from unspill.layers.trees import remove_tree
from unspill.model.layer import LayerId
from unspill.record import Record
from unspill.store.connection import is_id
from unspill.store.db import list_aside, set_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import RunId
    from unspill.store.db import Store
    from unspill.store.layers import LayerRow

# In the directory of an operation that a prune has begun to forget
PRUNED = b"pruned"

_DROPPED = os.fsdecode(DROPPED_SUFFIX)


class Swept(Record):
    """What a sweep removed: runs whose owner was dead, and directories that nobody needs."""

    runs: tuple[RunId, ...] = ()
    directories: int = 0


def sweep(store: Store) -> Swept:
    """Remove all garbage of the state directory; cheap where there is none."""
    abandoned = [run for run in store.runs.unfinished() if is_abandoned(run)]
    for run in abandoned:
        if not may_live(run) or end_processes(store, run.id):
            drop_caches(store, run.id)
    removed = tuple(run.id for run in abandoned if not (run.keeps and store.layers.open_of_run(run.id)))
    for identity in removed:
        remove_run(store, identity)
    for row in store.layers.folding():
        _remove_half_folded(store, row)
    with store.transaction:
        unused = (*store.caches.take_unused(), *store.layers.take_unused())
        drop(store.state, unused)
    clean(store.state, Garbage(uppers=unused))
    directories = _sweep_works(store) + _sweep_uppers(store) + _sweep_bases(store)
    _set_outputs_aside(store)
    return Swept(runs=removed, directories=directories)


def end_processes(store: Store, run: RunId) -> bool:
    """Kill what is alive of a run; tell whether nothing is, and record it, so that nobody looks again."""
    from unspill.host.job import end_run  # lazy: upkeep

    layers = (*(row.id for row in store.layers.open_of_run(run)), *store.caches.open_of_run(run))
    is_over = end_run(run, layers)
    if is_over:
        store.runs.disown(run)
    return is_over


def drop_caches(store: Store, run: RunId) -> None:
    """Remove what a run whose processes are dead wrote to caches: a cache may always be thrown away."""
    caches = store.caches.open_of_run(run)
    clean(store.state, Garbage(uppers=caches, works=caches))
    store.caches.remove(caches)


def remove_run(store: Store, run: RunId) -> None:
    """Remove the open layers of a run whose processes are dead, then say in its row that it was interrupted."""
    drop_caches(store, run)
    layers = tuple(row.id for row in store.layers.open_of_run(run))
    clean(store.state, Garbage(uppers=layers, works=layers))
    remove_tree(spill_dir(store.state, run))
    with store.transaction:
        store.layers.remove(layers)
        store.runs.interrupt(run, time.time_ns())


def sweep_operations(store: Store) -> int:
    """Remove directories of operations that never had a journal, or have none any more because they were pruned.

    One with a journal and without a row is set aside, unless a prune has begun to forget it. Takes as long as there
    are operations, so it is not done at each start.
    """
    path, names = _list(store.state, b"operations")
    # In this order: an operation is pending before its directory is there, and until its row is.
    names -= _list(store.state, b"pending")[1]
    unknown = names - store.operations.ids() if names else names
    whole = {name for name in unknown if os.path.lexists(_inside(path, name, b"journal"))}
    set_aside(store.state, b"operations", {name for name in whole if not is_being_pruned(store.state, name)})
    return _remove_all(path, unknown - whole)


def is_being_pruned(state: bytes, operation: str) -> bool:
    """Tell whether a prune has begun to forget an operation."""
    return os.path.lexists(_inside(state + b"/operations", operation, PRUNED))


def _remove_half_folded(store: Store, row: LayerRow) -> None:
    """Remove a layer that others were being folded into, unless that is going on."""
    lock = SandboxLock(store.state, row.sandbox)
    if lock.try_acquire():
        with lock:
            # It may have been finished before the lock was free
            if row.id in {open_row.id for open_row in store.layers.open(row.sandbox)}:
                clean(store.state, Garbage(uppers=(row.id,), works=(row.id,)))
                store.layers.remove((row.id,))


def _sweep_works(store: Store) -> int:
    path, names = _list(store.state, b"work")
    unknown = names - (store.layers.ids(only_open=True) | store.caches.ids(only_open=True)) if names else names
    return sum(remove_unused(os.path.join(path, os.fsencode(name))) for name in unknown)


def _sweep_uppers(store: Store) -> int:
    """Remove what was dropped, and empty directories without a row; set aside those with a content."""
    path, names = _list(store.state, b"layers")
    dropped = {name for name in names if name.endswith(_DROPPED)}
    unknown = names - dropped - (store.layers.ids() | store.caches.ids()) if names else names
    if dropped:
        # Whoever dropped a layer may have died before its row was gone
        ids = [LayerId(name) for full in dropped if is_id(name := full.removesuffix(_DROPPED))]
        with store.transaction:
            store.layers.remove(ids)
            store.caches.remove(ids)
    lost = {name for name in unknown if not _remove_empty(os.path.join(path, os.fsencode(name)))}
    set_aside(store.state, b"layers", lost)
    return _remove_all(path, dropped) + len(unknown - lost)


def _remove_empty(path: bytes) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _sweep_bases(store: Store) -> int:
    """Remove bases of layers that are nowhere; one that was set aside keeps its own."""
    try:
        path, names = _list(store.state, b"bases")
    except FileNotFoundError:
        return 0
    # The layers of an operation that is under way lie in its own directory. It has rows for them before it ends, so
    # this is looked at before the rows are.
    if not names or _list(store.state, b"pending")[1]:
        return 0
    known = store.layers.ids()
    # Whoever fills one that is new does so for a layer that is known
    unknown = {name for name in names if name.removesuffix(".new") not in known}
    return _remove_all(path, unknown - list_aside(store.state).keys())


def _set_outputs_aside(store: Store) -> None:
    """Set aside output of runs that have no row."""
    names = _list(store.state, b"runs")[1]
    if names:
        set_aside(store.state, b"runs", names - store.runs.known(names))


def _inside(path: bytes, name: str, entry: bytes) -> bytes:
    return os.path.join(path, os.fsencode(name), entry)


def _list(state: bytes, part: bytes) -> tuple[bytes, set[str]]:
    path = state + b"/" + part
    return path, set(os.listdir(os.fsdecode(path)))


def _remove_all(parent: bytes, names: set[str]) -> int:
    return sum(remove_tree(os.path.join(parent, os.fsencode(name))) for name in names)
