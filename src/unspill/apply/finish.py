# SPDX-License-Identifier: Apache-2.0
"""Write down in the store what an operation's journal says was done. May be repeated any number of times.

One durable transaction: a row that a power cut took back would make the next sweep remove a held layer.
"""

from __future__ import annotations

import errno
import os

from unspill.apply.moving import move_upper
from unspill.apply.places import kept_base_dir, residue_dir
from unspill.layers.manifest import remove_manifests, write_manifests
from unspill.layers.places import base_dir, upper_dir
from unspill.model.layer import LayerId, RunId, SandboxId
from unspill.store.layers import LayerRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.apply.journal import End, Journal
    from unspill.model.operation import Operation, OperationId
    from unspill.store.db import Store


def finish(store: Store, journal: Journal) -> Operation:
    """Record an operation that has its end: its row, the layers that went, the residues that came."""
    end = journal.end
    assert end is not None
    operation = end.operation
    sandbox = SandboxId(operation.sandbox)
    rows = [
        LayerRow(id=LayerId(rest.layer), sandbox=sandbox, root=rest.root, run=RunId(rest.run), mark_ns=rest.mark_ns)
        for rest in end.residues
    ]
    with store.durable:
        # What is recorded is recorded for good: what it left may have been applied or discarded since
        is_new = store.operations.find(operation.id) is None
        recorded = store.operations.add(operation)
        if is_new:
            _swap_layers(store, journal, end, rows)
    for row in rows:
        _move_residue(store, journal, row)
    for tree in journal.trees:
        _keep_base(store.state, journal.operation.id, LayerId(tree.layer))
    return recorded


def _keep_base(state: bytes, operation: OperationId, layer: LayerId) -> None:
    """Take along the repository as it stood before a layer that an operation took."""
    source, dest = base_dir(state, layer), kept_base_dir(state, operation, layer)
    if os.path.lexists(source):
        os.makedirs(os.path.dirname(dest), 0o700, exist_ok=True)
        os.rename(source, dest)


def _swap_layers(store: Store, journal: Journal, end: End, rows: list[LayerRow]) -> None:
    """Put the residues in the place of the layers that they were made from."""
    gone = [LayerId(tree.layer) for tree in journal.trees]
    remove_manifests(store.state, gone)
    store.layers.remove(gone)
    store.layers.retire(LayerId(layer) for layer in end.dropped)
    for row, rest in zip(rows, end.residues, strict=True):
        store.layers.add_sealed(row)
        store.marks.put(row.id, dict(rest.overrides))
    if gone or end.dropped:
        sandbox = SandboxId(end.operation.sandbox)
        store.runs.drop_held(sandbox)
        store.runs.hold(row.run for row in store.layers.sealed(sandbox))


def _move_residue(store: Store, journal: Journal, row: LayerRow) -> None:
    source = residue_dir(store.state, journal.operation.id, row.id)
    # Whoever did that may have died before the rest of it
    if os.path.lexists(source):
        move_upper(source, upper_dir(store.state, row.id))
    write_manifests(store, [row.id], durable=True)
    try:
        os.rmdir(os.path.dirname(source))
    except OSError as error:
        # Another root's is still there, or none any more
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
