# SPDX-License-Identifier: Apache-2.0
"""Discard a sandbox's whole stack: every held change of every root is gone at once.

Rows and directories go in one transaction; whoever comes by removes what was dropped.
"""

from __future__ import annotations

from unspill.errors import SandboxUnavailable
from unspill.layers.garbage import drop, remove_uppers
from unspill.layers.owner import is_abandoned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import SandboxId
    from unspill.store.db import Store


def discard_stacks(store: Store, sandbox: SandboxId) -> int:
    """Discard all sealed layers of a sandbox; return how many there were. The sandbox's lock must be held.

    Raises:
        SandboxUnavailable: a run that does not hold its changes still stands on them.
    """
    with store.transaction:
        refuse_if_used(store, sandbox)
        layers = tuple(row.id for row in store.layers.sealed(sandbox))
        store.layers.remove(layers)
        store.runs.drop_held(sandbox)
        drop(store.state, layers)
    remove_uppers(store.state, layers)
    return len(layers)


def is_used(store: Store, sandbox: SandboxId) -> bool:
    """Tell whether a run that does not hold its changes stands on a sandbox's layers right now."""
    runs = {row.run for row in store.layers.open(sandbox)}
    return bool(runs) and any(run.id in runs and not is_abandoned(run) for run in store.runs.unfinished())


def refuse_if_used(store: Store, sandbox: SandboxId) -> None:
    """Stop where a run stands on layers that are to go.

    Raises:
        SandboxUnavailable: there is one.
    """
    if is_used(store, sandbox):
        raise SandboxUnavailable(
            "A run of this sandbox is still going on.", remedy="Wait for it or end it, then discard again."
        )
