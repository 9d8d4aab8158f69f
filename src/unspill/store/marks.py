# SPDX-License-Identifier: Apache-2.0
"""The table of time marks of single paths: what holds for them in place of their layer's own mark.

They go with the layer's row, which `LayerTable.remove` sees to.
"""

from __future__ import annotations

from unspill.store.cells import as_blob, as_int

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from unspill.model.layer import LayerId
    from unspill.store.connection import Database


class MarkTable:
    """Marks by layer and path."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, layer: LayerId, marks: Mapping[bytes, int]) -> None:
        """Keep the marks of paths, in place of older ones of the same paths."""
        self._db.change_each(
            "INSERT OR REPLACE INTO marks (layer, path, mark_ns) VALUES (?, ?, ?)",
            [(layer, path, mark_ns) for path, mark_ns in marks.items()],
        )

    def of(self, layer: LayerId) -> dict[bytes, int]:
        """Return the marks of a layer's paths that have one of their own."""
        rows = self._db.rows("SELECT path, mark_ns FROM marks WHERE layer = ?", (layer,))
        return {as_blob(path): as_int(mark_ns) for path, mark_ns in rows}
