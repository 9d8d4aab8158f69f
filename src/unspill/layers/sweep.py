# SPDX-License-Identifier: Apache-2.0
"""Remove what dead processes left: layers of runs without an owner, and directories without a row.

Call it at each start. Rows are written before directories, and directories are listed before rows are read: so
a directory that has no row then never gets one. Several processes may sweep at once.
"""

from __future__ import annotations

import os
import time

from unspill.layers.garbage import Garbage, clean
from unspill.layers.owner import is_abandoned
from unspill.layers.places import spill_dir
from unspill.layers.remove import remove_tree
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import RunId
    from unspill.store.db import Store


class Swept(Record):
    """What a sweep found: runs whose owner was dead, and directories that belonged to nothing."""

    runs: tuple[RunId, ...] = ()
    directories: int = 0


def sweep(store: Store) -> Swept:
    """Remove all garbage of the state directory; cheap where there is none."""
    abandoned = tuple(run.id for run in store.runs.unfinished() if is_abandoned(run))
    if abandoned:
        from unspill.host.strays import kill_strays

        kill_strays(abandoned)
    for run in abandoned:
        _remove_run(store, run)
    unused = store.caches.take_unused()
    clean(store.state, Garbage(uppers=unused))
    directories = _sweep_works(store) + _sweep_uppers(store) + _sweep_spills(store)
    return Swept(runs=abandoned, directories=directories)


def _remove_run(store: Store, run: RunId) -> None:
    """Remove the open layers of a run, then say in its row that it was interrupted."""
    layers, caches = store.layers.open_of_run(run), store.caches.open_of_run(run)
    both = (*layers, *caches)
    clean(store.state, Garbage(uppers=both, works=both))
    remove_tree(spill_dir(store.state, run))
    with store.transaction:
        store.layers.remove(layers)
        store.caches.remove(caches)
        store.runs.interrupt((run,), time.time_ns())


def _sweep_works(store: Store) -> int:
    path, names = _list(store.state, b"work")
    return (
        _remove_all(path, names - (store.layers.ids(only_open=True) | store.caches.ids(only_open=True))) if names else 0
    )


def _sweep_uppers(store: Store) -> int:
    path, names = _list(store.state, b"layers")
    return _remove_all(path, names - (store.layers.ids() | store.caches.ids())) if names else 0


def _sweep_spills(store: Store) -> int:
    path, names = _list(store.state, b"runs")
    return _remove_all(path, names - store.runs.known(names)) if names else 0


def _list(state: bytes, part: bytes) -> tuple[bytes, set[str]]:
    path = state + b"/" + part
    return path, set(os.listdir(os.fsdecode(path)))


def _remove_all(parent: bytes, names: set[str]) -> int:
    return sum(remove_tree(os.path.join(parent, os.fsencode(name))) for name in names)
