# SPDX-License-Identifier: Apache-2.0
"""The table of layers over roots: which sandbox, which root, which run, open or sealed.

Holds no paths into the state directory: a layer's place follows from its id.
"""

from __future__ import annotations

from unspill.model.layer import LayerId, RunId, SandboxId
from unspill.model.record import Record
from unspill.store.cells import as_blob, as_id, as_int

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.store.cells import Row
    from unspill.store.connection import Connection

_COLUMNS = "id, sandbox, root, run, mark_ns"


class LayerRow(Record):
    """One layer as the store keeps it; `mark_ns` is known once it is sealed."""

    id: LayerId
    sandbox: SandboxId
    root: bytes
    run: RunId
    mark_ns: int = 0


class LayerTable:
    """Layers by sandbox, oldest first."""

    __slots__ = ("_db",)

    def __init__(self, db: Connection) -> None:
        self._db = db

    def add_open(self, layers: Iterable[LayerRow]) -> None:
        """Record layers before their directories are made."""
        self._db.change_each(
            "INSERT INTO layers (id, sandbox, root, run, state) VALUES (?, ?, ?, ?, 'open')",
            [(layer.id, layer.sandbox, layer.root, layer.run) for layer in layers],
        )

    def seal(self, layer: LayerId, mark_ns: int) -> bool:
        """Make an open layer a sealed one; tell whether it was still there."""
        sql = "UPDATE layers SET state = 'sealed', mark_ns = ? WHERE id = ? AND state = 'open'"
        return self._db.change(sql, (mark_ns, layer)) == 1

    def sealed(self, sandbox: SandboxId) -> tuple[LayerRow, ...]:
        """Return a sandbox's sealed layers of all roots, oldest first."""
        sql = f"SELECT {_COLUMNS} FROM layers WHERE sandbox = ? AND state = 'sealed' ORDER BY seq"
        return tuple(map(_to_record, self._db.rows(sql, (sandbox,))))

    def open(self, sandbox: SandboxId) -> tuple[LayerRow, ...]:
        """Return the layers that runs of a sandbox are writing, or left when they died."""
        sql = f"SELECT {_COLUMNS} FROM layers WHERE sandbox = ? AND state = 'open' ORDER BY seq"
        return tuple(map(_to_record, self._db.rows(sql, (sandbox,))))

    def open_of_run(self, run: RunId) -> tuple[LayerId, ...]:
        """Return the open layers of one run."""
        rows = self._db.rows("SELECT id FROM layers WHERE run = ? AND state = 'open'", (run,))
        return tuple(LayerId(as_id(row[0])) for row in rows)

    def ids(self, *, only_open: bool = False) -> set[str]:
        """Return every layer's id, or those of open ones."""
        sql = "SELECT id FROM layers WHERE state = 'open'" if only_open else "SELECT id FROM layers"
        return {as_id(row[0]) for row in self._db.rows(sql)}

    def remove(self, layers: Iterable[LayerId]) -> None:
        """Forget layers; their directories are garbage from then on."""
        self._db.change_each("DELETE FROM layers WHERE id = ?", [(layer,) for layer in layers])


def _to_record(row: Row) -> LayerRow:
    identity, sandbox, root, run, mark_ns = row
    return LayerRow(
        id=LayerId(as_id(identity)),
        sandbox=SandboxId(as_id(sandbox)),
        root=as_blob(root),
        run=RunId(as_id(run)),
        mark_ns=as_int(mark_ns),
    )
