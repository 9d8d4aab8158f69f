# SPDX-License-Identifier: Apache-2.0
"""The table of layers over tool caches: which project, which cache, which run, and their order.

A cache layer is open (a run writes it), sealed (part of the stack) or retired (replaced by a squashed one,
but perhaps still mounted by a run that began before).
"""

from __future__ import annotations

from unspill.model.layer import LayerId, RunId
from unspill.model.record import Record
from unspill.store.cells import as_blob, as_id, as_int

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.store.cells import Row
    from unspill.store.connection import Database

_COLUMNS = "id, project, path, run, position, tier"


class CacheRow(Record):
    """One cache layer. `tier` counts how often it was squashed; `base` is the top that its run started from."""

    id: LayerId
    project: bytes
    path: bytes
    run: RunId
    position: int = 0
    tier: int = 0
    base: LayerId | None = None


class CacheTable:
    """Cache layers by project, the lowest first."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def add_open(self, caches: Iterable[CacheRow]) -> None:
        """Record layers before their directories are made."""
        self._db.change_each(
            "INSERT INTO caches (id, project, path, run, state, position, tier, base)"
            " VALUES (?, ?, ?, ?, 'open', 0, ?, ?)",
            [(row.id, row.project, row.path, row.run, row.tier, row.base) for row in caches],
        )

    def sealed(self, project: bytes) -> tuple[CacheRow, ...]:
        """Return the stacks of all of a project's caches, the lowest layer first."""
        sql = f"SELECT {_COLUMNS} FROM caches WHERE project = ? AND state = 'sealed' ORDER BY position"
        return tuple(map(_to_record, self._db.rows(sql, (project,))))

    def paths_below(self, owner: bytes) -> tuple[bytes, ...]:
        """Return what there are layers over, of every owner whose name begins so."""
        sql = "SELECT DISTINCT path FROM caches WHERE state = 'sealed' AND substr(project, 1, ?) = ?"
        return tuple(as_blob(row[0]) for row in self._db.rows(sql, (len(owner), owner)))

    def fold(self, cache: CacheRow) -> bool:
        """Put an open layer on top if the top is still the one that its run started from; tell whether it is."""
        with self._db:
            tops = self._db.rows(
                "SELECT id, position FROM caches WHERE project = ? AND path = ? AND state = 'sealed'"
                " ORDER BY position DESC LIMIT 1",
                (cache.project, cache.path),
            )
            top, position = (as_id(tops[0][0]), as_int(tops[0][1])) if tops else (None, 0)
            sql = "UPDATE caches SET state = 'sealed', position = ? WHERE id = ? AND state = 'open' AND base IS ?"
            return self._db.change(sql, (position + 1, cache.id, top)) == 1

    def replace(self, old: tuple[CacheRow, ...], new: CacheRow) -> bool:
        """Seal `new` in the place of adjacent layers, which are retired; tell whether all were still there."""
        with self._db:
            still = {row.id for row in self.sealed(new.project) if row.path == new.path}
            if not still.issuperset(row.id for row in old):
                return False
            self.retire(old)
            sql = "UPDATE caches SET state = 'sealed', position = ? WHERE id = ? AND state = 'open'"
            return self._db.change(sql, (old[-1].position, new.id)) == 1

    def retire(self, layers: tuple[CacheRow, ...]) -> None:
        """Take sealed layers out of their stack, and remember which runs began before."""
        with self._db:
            latest = self._db.rows("SELECT max(seq) FROM caches")[0][0]
            self._db.change_each(
                "UPDATE caches SET state = 'retired', retired_at = ? WHERE id = ? AND state = 'sealed'",
                [(latest, row.id) for row in layers],
            )

    def open_of_run(self, run: RunId) -> tuple[LayerId, ...]:
        """Return the open cache layers of one run."""
        rows = self._db.rows("SELECT id FROM caches WHERE run = ? AND state = 'open'", (run,))
        return tuple(LayerId(as_id(row[0])) for row in rows)

    def take_unused(self) -> tuple[LayerId, ...]:
        """Forget and return retired layers that no run can have mounted: all open ones began after the retirement."""
        rows = self._db.rows(
            "SELECT id FROM caches AS old WHERE state = 'retired' AND NOT EXISTS (SELECT 1 FROM caches AS user"
            " WHERE user.project = old.project AND user.path = old.path AND user.state = 'open'"
            " AND user.seq <= old.retired_at)"
        )
        unused = tuple(LayerId(as_id(row[0])) for row in rows)
        if unused:
            self.remove(unused)
        return unused

    def ids(self, *, only_open: bool = False) -> set[str]:
        """Return every layer's id, or those of open ones."""
        sql = "SELECT id FROM caches WHERE state = 'open'" if only_open else "SELECT id FROM caches"
        return {as_id(row[0]) for row in self._db.rows(sql)}

    def remove(self, caches: Iterable[LayerId]) -> None:
        """Forget layers; their directories are garbage from then on."""
        self._db.change_each("DELETE FROM caches WHERE id = ?", [(cache,) for cache in caches])


def _to_record(row: Row) -> CacheRow:
    identity, project, path, run, position, tier = row
    return CacheRow(
        id=LayerId(as_id(identity)),
        project=as_blob(project),
        path=as_blob(path),
        run=RunId(as_id(run)),
        position=as_int(position),
        tier=as_int(tier),
    )
