# SPDX-License-Identifier: Apache-2.0
"""Remove what dead processes left: layers of runs that were to keep nothing, and directories without a row.

Call it at each start. Rows are written before directories, and directories are listed before rows are read: so
a directory that has no row then never gets one. Several processes may sweep at once.

What other runs had written when their processes died stays: `sandbox.interrupted` seals it when the project is opened.
A layer with a manifest or an operation with a journal is never removed for want of a row: that row may have been
lost by a damaged database. Such a layer is set aside, where `unspill recover` finds it.
"""

from __future__ import annotations

import os
import time

from unspill.layers.garbage import Garbage, clean
from unspill.layers.locks import SandboxLock, remove_unused
from unspill.layers.manifest import write_manifests
from unspill.layers.owner import is_abandoned, may_live
from unspill.layers.places import spill_dir
from unspill.layers.remove import remove_tree
from unspill.model.record import Record
from unspill.store.state import set_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import LayerId, RunId
    from unspill.store.db import Store
    from unspill.store.layers import LayerRow


class Swept(Record):
    """What a sweep removed: runs whose owner was dead, and directories that belonged to nothing."""

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
    unused = (*store.caches.take_unused(), *store.layers.take_unused())
    clean(store.state, Garbage(uppers=unused))
    directories = _sweep_works(store) + _sweep_uppers(store) + _sweep_bases(store) + _sweep_spills(store)
    _sweep_manifests(store)
    return Swept(runs=removed, directories=directories)


def end_processes(store: Store, run: RunId) -> bool:
    """Kill what is alive of a run; tell whether nothing is, and record it, so that nobody looks again."""
    from unspill.host.strays import end_run

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
    path, names = _list(store.state, b"layers")
    unknown = names - (store.layers.ids() | store.caches.ids()) if names else names
    if not unknown:
        return 0
    held = unknown & _list(store.state, b"manifests")[1]
    set_aside(store.state, held)
    return _remove_all(path, unknown - held)


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
    return _remove_all(path, unknown - lost_layers(store.state).keys())


def _sweep_spills(store: Store) -> int:
    path, names = _list(store.state, b"runs")
    return _remove_all(path, names - store.runs.known(names)) if names else 0


def sweep_operations(store: Store) -> int:
    """Remove directories of operations that never had a journal, or have none any more because they were pruned.

    Takes as long as there are operations, so it is not done at each start.
    """
    path, names = _list(store.state, b"operations")
    unknown = names - store.operations.ids() if names else names
    # Listed after the directories: an operation is there before its directory, and until it has a journal.
    unknown -= _list(store.state, b"pending")[1] if unknown else unknown
    return _remove_all(path, {name for name in unknown if not os.path.lexists(_journal(path, name))})


def _sweep_manifests(store: Store) -> None:
    """Write manifests that are missing, and remove those of layers that are nowhere."""
    path, names = _list(store.state, b"manifests")
    sealed = store.layers.sealed_ids()
    if missing := sealed - names:
        _write_missing(store, missing)
    unknown = names - store.layers.ids() if names - sealed else set()
    if names - sealed:
        _remove_all(path, names & store.layers.retired())
    # The layers of an operation that is under way lie in its own directory
    if unknown and not _list(store.state, b"pending")[1]:
        _remove_all(path, unknown - lost_layers(store.state).keys())


def _write_missing(store: Store, layers: set[LayerId]) -> None:
    try:
        # Whoever removes a layer removes row and manifest in one transaction: that can't come between here
        with store.transaction:
            write_manifests(store, layers)
    except OSError:
        # A full disk is no reason not to start; the next sweep tries again
        return


def lost_layers(state: bytes) -> dict[str, bytes]:
    """Return the layers that were set aside, by id, and where each lies."""
    asides = sorted(name for name in os.listdir(state) if name.startswith(b"lost-"))
    return {os.fsdecode(name): os.path.join(state, aside, name) for aside in asides for name in _names(state, aside)}


def _names(state: bytes, aside: bytes) -> list[bytes]:
    try:
        return os.listdir(os.path.join(state, aside))
    except OSError:
        return []


def _journal(path: bytes, name: str) -> bytes:
    return os.path.join(path, os.fsencode(name), b"journal")


def _list(state: bytes, part: bytes) -> tuple[bytes, set[str]]:
    path = state + b"/" + part
    return path, set(os.listdir(os.fsdecode(path)))


def _remove_all(parent: bytes, names: set[str]) -> int:
    return sum(remove_tree(os.path.join(parent, os.fsencode(name))) for name in names)
