# SPDX-License-Identifier: Apache-2.0
"""The table of facts: a cache of text by key, for what was found out about the host.

Losing it costs time, never correctness. What the keys and values mean is the caller's business.
"""

from __future__ import annotations

from unspill.store.cells import as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.store.connection import Database


class FactTable:
    """Texts by key."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def find(self, key: str) -> str | None:
        """Return the value that was put last, or None."""
        rows = self._db.rows("SELECT value FROM facts WHERE key = ?", (key,))
        return as_text(rows[0][0]) if rows else None

    def put(self, key: str, value: str) -> None:
        """Keep a value, in place of an older one."""
        self._db.change("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", (key, value))

    def forget(self) -> None:
        """Remove every value."""
        self._db.change("DELETE FROM facts")
