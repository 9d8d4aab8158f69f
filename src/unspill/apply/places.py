# SPDX-License-Identifier: Apache-2.0
"""Where the parts of an operation lie. Makes nothing and decides nothing.

operations/ID/journal     what will be done, and what was
operations/ID/tree/LAYER  a layer that was applied; what it displaced lies where its own entries were
operations/ID/old, stage  what went away, and copies made for this operation
operations/ID/residue/LAYER  what stays held, until it becomes a layer
operations/ID/bases/LAYER  the repository as it stood before a layer that was applied
operations/ID/kept/STEP   what a person edited while it changed hands
operations/ID/loan        the mode of an entry that has another one for a moment
pending/ID                there for as long as the operation is under way, and locked by whoever performs it; names the
                          roots that something may be staged in
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import OperationId


def operation_dir(state: bytes, operation: OperationId) -> bytes:
    """Return the directory of an operation."""
    return b"%b/operations/%b" % (state, operation.encode())


def journal_file(state: bytes, operation: OperationId) -> bytes:
    """Return the journal of an operation."""
    return operation_dir(state, operation) + b"/journal"


def tree_dir(state: bytes, operation: OperationId, layer: str) -> bytes:
    """Return where a layer is that an operation took."""
    return b"%b/tree/%b" % (operation_dir(state, operation), layer.encode())


def residue_dir(state: bytes, operation: OperationId, layer: str) -> bytes:
    """Return where a residue is until it becomes a layer."""
    return b"%b/residue/%b" % (operation_dir(state, operation), layer.encode())


def kept_base_dir(state: bytes, operation: OperationId, layer: str) -> bytes:
    """Return where the repository is kept as it stood before a layer that an operation took."""
    return b"%b/bases/%b" % (operation_dir(state, operation), layer.encode())


def kept_entry(state: bytes, operation: OperationId, step: int) -> bytes:
    """Return where an edited entry is kept that lay at the place of a step."""
    return b"%b/kept/%d" % (operation_dir(state, operation), step)


def staging_name(operation: OperationId) -> bytes:
    """Return the name of the hidden directory of an operation in roots on other mounts."""
    return b".unspill-" + operation.encode()


def marker_file(state: bytes, operation: OperationId) -> bytes:
    """Return the marker of an operation that is under way."""
    return b"%b/pending/%b" % (state, operation.encode())
