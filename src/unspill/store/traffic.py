# SPDX-License-Identifier: Apache-2.0
"""What went out of a run and what was refused: one row a run that had a way out, gone with the run.

The lists are one text each, since they are only ever read together. What the command made many of is cut.
"""

from __future__ import annotations

from unspill.errors import StoreDamaged
from unspill.model.egress import Connection, Denial, Traffic
from unspill.store.cells import as_int, as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from unspill.model.layer import RunId
    from unspill.model.record import Record
    from unspill.store.connection import Database

KEPT = 1000


class TrafficTable:
    """Connections and denials by run."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, run: RunId, traffic: Traffic) -> None:
        """Record what a run had; the first thousand of each kind."""
        more = sum(max(0, len(kind) - KEPT) for kind in (traffic.connections, traffic.denials))
        self._db.change(
            "INSERT OR REPLACE INTO traffic (run, connections, denials, left_out) VALUES (?, ?, ?, ?)",
            (run, _to_text(traffic.connections), _to_text(traffic.denials), traffic.left_out + more),
        )

    def find(self, run: RunId) -> Traffic | None:
        """Return what a run had, None for one that had no way out.

        Raises:
            StoreDamaged: the row is none of ours.
        """
        rows = self._db.rows("SELECT connections, denials, left_out FROM traffic WHERE run = ?", (run,))
        if not rows:
            return None
        connections, denials, left_out = rows[0]
        try:
            return Traffic(
                connections=tuple(Connection(**fields) for fields in _from_text(as_text(connections))),
                denials=tuple(Denial(**fields) for fields in _from_text(as_text(denials))),
                left_out=as_int(left_out),
            )
        except (TypeError, ValueError) as error:
            raise StoreDamaged(f"The record of what run {run} sent can't be read: {error}") from None


def _to_text(records: Sequence[Record]) -> str:
    import json

    return json.dumps([record.as_dict() for record in records[:KEPT]], separators=(",", ":"))


def _from_text(text: str) -> list[dict[str, Any]]:
    import json

    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("not a list")
    return found
