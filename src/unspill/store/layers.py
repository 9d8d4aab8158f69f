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
    from unspill.store.connection import Database

_COLUMNS = "id, sandbox, root, run, mark_ns, seq"


class LayerRow(Record):
    """One layer as the store keeps it; `seq` is its place among all others.

    `mark_ns` of an open layer may be a little older than the mark that it is sealed with. It is 0, and everything in
    the live directory counts as changed meanwhile, where an older unspill opened the layer.
    """

    id: LayerId
    sandbox: SandboxId
    root: bytes
    run: RunId
    mark_ns: int = 0
    seq: int = 0


class LayerTable:
    """Layers by sandbox, oldest first."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def add_open(self, layers: Iterable[LayerRow]) -> None:
        """Record layers before their directories are made."""
        self._db.change_each(
            "INSERT INTO layers (id, sandbox, root, run, state, mark_ns) VALUES (?, ?, ?, ?, 'open', ?)",
            [(layer.id, layer.sandbox, layer.root, layer.run, layer.mark_ns) for layer in layers],
        )

    def set_mark(self, layer: LayerId, mark_ns: int) -> None:
        """Record the time mark of an open layer."""
        self._db.change("UPDATE layers SET mark_ns = ? WHERE id = ? AND state = 'open'", (mark_ns, layer))

    def add_sealed(self, layer: LayerRow) -> None:
        """Record a layer that is sealed from the beginning, on top of its stack."""
        self._db.change(
            "INSERT INTO layers (id, sandbox, root, run, state, mark_ns) VALUES (?, ?, ?, ?, 'sealed', ?)",
            (layer.id, layer.sandbox, layer.root, layer.run, layer.mark_ns),
        )

    def add_sealed_at(self, layer: LayerRow) -> None:
        """Record a sealed layer again that was taken out of its stack: above those that are older than it.

        Those above it move up; so does it, where its place was given away.
        """
        with self._db:
            taken = self._db.rows("SELECT 1 FROM layers WHERE seq = ?", (layer.seq,))
            if not taken:
                self._db.change(
                    "INSERT INTO layers (seq, id, sandbox, root, run, state, mark_ns)"
                    " VALUES (?, ?, ?, ?, ?, 'sealed', ?)",
                    (layer.seq, layer.id, layer.sandbox, layer.root, layer.run, layer.mark_ns),
                )
                return
            above = [row for row in self.sealed(layer.sandbox) if row.root == layer.root and row.seq > layer.seq]
            self.add_sealed(layer)
            for row in above:
                self._db.change("UPDATE layers SET seq = (SELECT max(seq) + 1 FROM layers) WHERE id = ?", (row.id,))

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

    def find(self, layer: LayerId) -> LayerRow | None:
        """Return a layer by id."""
        rows = self._db.rows(f"SELECT {_COLUMNS} FROM layers WHERE id = ?", (layer,))
        return _to_record(rows[0]) if rows else None

    def folding(self) -> tuple[LayerRow, ...]:
        """Return open layers that no run writes: others are being folded into them, or were when somebody died."""
        sql = (
            f"SELECT {_COLUMNS} FROM layers WHERE state = 'open'"
            " AND run NOT IN (SELECT id FROM runs WHERE ended_ns IS NULL)"
        )
        return tuple(map(_to_record, self._db.rows(sql)))

    def open_of_run(self, run: RunId) -> tuple[LayerRow, ...]:
        """Return the open layers of one run."""
        sql = f"SELECT {_COLUMNS} FROM layers WHERE run = ? AND state = 'open' ORDER BY seq"
        return tuple(map(_to_record, self._db.rows(sql, (run,))))

    def retire(self, layers: Iterable[LayerId]) -> None:
        """Take layers out of their stacks; a run that began before may still have them mounted."""
        rows = [(layer,) for layer in layers]
        with self._db:
            self._db.change_each(
                "INSERT OR IGNORE INTO retired (id, sandbox, retired_at)"
                " SELECT id, sandbox, (SELECT max(seq) FROM layers) FROM layers WHERE id = ?",
                rows,
            )
            self.remove(layer for (layer,) in rows)

    def retired(self) -> set[LayerId]:
        """Return the layers that are in no stack any more but must not go yet."""
        return {LayerId(as_id(row[0])) for row in self._db.rows("SELECT id FROM retired")}

    def take_unused(self) -> tuple[LayerId, ...]:
        """Forget and return retired layers that no run can have mounted: all open ones began after the retirement."""
        rows = self._db.rows(
            "SELECT id FROM retired AS old WHERE NOT EXISTS (SELECT 1 FROM layers AS user"
            " WHERE user.sandbox = old.sandbox AND user.state = 'open' AND user.seq <= old.retired_at)"
        )
        unused = tuple(LayerId(as_id(row[0])) for row in rows)
        if unused:
            self._db.change_each("DELETE FROM retired WHERE id = ?", [(layer,) for layer in unused])
        return unused

    def ids(self, *, only_open: bool = False) -> set[str]:
        """Return every layer's id, or those of open ones."""
        sql = "SELECT id FROM layers UNION ALL SELECT id FROM retired"
        if only_open:
            sql = "SELECT id FROM layers WHERE state = 'open'"
        return {as_id(row[0]) for row in self._db.rows(sql)}

    def remove(self, layers: Iterable[LayerId]) -> None:
        """Forget layers; their directories are garbage from then on."""
        rows = [(layer,) for layer in layers]
        with self._db:
            self._db.change_each("DELETE FROM layers WHERE id = ?", rows)
            self._db.change_each("DELETE FROM marks WHERE layer = ?", rows)


def _to_record(row: Row) -> LayerRow:
    identity, sandbox, root, run, mark_ns, seq = row
    return LayerRow(
        id=LayerId(as_id(identity)),
        sandbox=SandboxId(as_id(sandbox)),
        root=as_blob(root),
        run=RunId(as_id(run)),
        mark_ns=as_int(mark_ns),
        seq=as_int(seq),
    )
