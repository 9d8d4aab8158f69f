# SPDX-License-Identifier: Apache-2.0
"""The layers of a sandbox as an operation takes them: with all that is needed to hold them again."""

from __future__ import annotations

from unspill.apply.journal import Taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import SandboxId
    from unspill.store.db import Store


def taken_layers(store: Store, sandbox: SandboxId) -> tuple[Taken, ...]:
    """Return the sealed layers of a sandbox, oldest first."""
    return tuple(
        Taken(
            layer=row.id,
            root=row.root,
            run=row.run,
            mark_ns=row.mark_ns,
            seq=row.seq,
            overrides=tuple(store.marks.of(row.id).items()),
        )
        for row in store.layers.sealed(sandbox)
    )
