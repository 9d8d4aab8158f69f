# SPDX-License-Identifier: Apache-2.0
"""Write down in the store what an operation's journal says was done. May be repeated any number of times.

One durable transaction: a row that a power cut took back would make the next sweep remove a held layer.
"""

from __future__ import annotations

import errno
import os

from unspill.apply.journal import Residue
from unspill.apply.moving import move_upper
from unspill.apply.places import kept_base_dir, residue_dir, tree_dir
from unspill.layers.locks import base_dir, upper_dir
from unspill.model.layer import LayerId, RunId, SandboxId
from unspill.store.layers import LayerRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from unspill.apply.journal import End, Journal
    from unspill.model.operation import GitEnding, Operation, OperationId
    from unspill.store.db import Store


def finish(store: Store, journal: Journal) -> Operation:
    """Record an operation that has its end: its row, the layers that went, the residues that came."""
    end = journal.end
    assert end is not None
    operation = end.operation
    sandbox = SandboxId(operation.sandbox)
    rows = [
        LayerRow(
            id=LayerId(rest.layer),
            sandbox=sandbox,
            root=rest.root,
            run=RunId(rest.run),
            mark_ns=rest.mark_ns,
            seq=rest.seq,
        )
        for rest in _coming(end)
    ]
    with store.durable:
        # What is recorded is recorded for good: what it left may have been applied or discarded since
        is_new = store.operations.find(operation.id) is None
        recorded = store.operations.add(operation)
        if is_new:
            _swap_layers(store, journal, end, rows)
    for row in rows:
        _move_layer(store, journal, row)
    for tree in journal.trees:
        _keep_base(store.state, journal.operation.id, LayerId(tree.layer))
    return recorded.replace(paths=operation.paths or _paths_of(journal, end))


def changed_paths(
    journal: Journal, done: Iterable[int], git: Iterable[GitEnding], slight: Set[tuple[int, bytes]] = frozenset()
) -> tuple[bytes, ...]:
    """Return the paths that steps changed, and the repositories that moved; without those that are `slight`."""
    roots, steps = journal.operation.roots, (journal.steps[index] for index in done)
    moved = [(step.root, step.top) for step, ending in zip(journal.git, git, strict=True) if ending != "left"]
    changed = dict.fromkeys((step.root, step.path) for step in steps if (step.root, step.path) not in slight)
    return tuple(b"%b/%b" % (roots[root], path) for root, path in (*sorted(changed), *moved))


def _paths_of(journal: Journal, end: End) -> tuple[bytes, ...]:
    return changed_paths(journal, end.done, end.git) or tuple(b"%b/%b" % pair for pair in journal.paths)


def _coming(end: End) -> tuple[Residue, ...]:
    """Return the layers that are held from now on."""
    return (*end.residues, *(Residue(**tree.as_dict()) for tree in end.restored))


def _keep_base(state: bytes, operation: OperationId, layer: LayerId) -> None:
    """Take along the repository as it stood before a layer that an operation took."""
    source, dest = base_dir(state, layer), kept_base_dir(state, operation, layer)
    if os.path.lexists(source):
        os.makedirs(os.path.dirname(dest), 0o700, exist_ok=True)
        os.rename(source, dest)


def _swap_layers(store: Store, journal: Journal, end: End, rows: list[LayerRow]) -> None:
    """Put the residues in the place of the layers that they were made from."""
    gone = [LayerId(tree.layer) for tree in journal.trees]
    store.layers.remove(gone)
    store.layers.retire(LayerId(layer) for layer in end.dropped)
    for row, rest in zip(rows, _coming(end), strict=True):
        if row.seq:
            store.layers.add_sealed_at(row)
        else:
            store.layers.add_sealed(row)
        store.marks.put(row.id, dict(rest.overrides))
    if gone or end.dropped or rows:
        sandbox = SandboxId(end.operation.sandbox)
        store.runs.drop_held(sandbox)
        store.runs.hold(row.run for row in store.layers.sealed(sandbox))


def _move_layer(store: Store, journal: Journal, row: LayerRow) -> None:
    """Bring a layer to its place: a residue of this operation, or one that the operation took which this one reverses.

    Whoever did that may have died before the rest of it.
    """
    state, operation = store.state, journal.operation
    source = residue_dir(state, operation.id, row.id)
    taken = () if operation.of is None else (tree_dir(state, operation.of, row.id),)
    for place in (source, *taken):
        if os.path.lexists(place):
            move_upper(place, upper_dir(state, row.id))
    if operation.of is not None and os.path.lexists(base := kept_base_dir(state, operation.of, row.id)):
        os.makedirs(state + b"/bases", 0o700, exist_ok=True)
        os.rename(base, base_dir(state, row.id))
    try:
        os.rmdir(os.path.dirname(source))
    except OSError as error:
        # Another root's is still there, or none any more
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
