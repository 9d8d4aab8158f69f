# SPDX-License-Identifier: Apache-2.0
"""What a person was shown whole on a terminal, as digests: a token that they type names a row here."""

from __future__ import annotations

import time

from unspill.store.cells import as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.selection import Consent
    from unspill.store.connection import Database

SHORTEST = 6
KEPT_NS = 30 * 86_400 * 1_000_000_000


class ShownTable:
    """Digests of what was shown, by sandbox, root and path."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, sandbox: str, shown: Iterable[Consent]) -> None:
        """Record what was shown just now; forget what was shown long ago."""
        now_ns = time.time_ns()
        rows = [(sandbox, one.root, one.path, one.digest, now_ns) for one in shown]
        with self._db:
            self._db.change("DELETE FROM shown WHERE sandbox = ? AND at_ns < ?", (sandbox, now_ns - KEPT_NS))
            self._db.change_each(
                "INSERT OR REPLACE INTO shown (sandbox, root, path, digest, at_ns) VALUES (?, ?, ?, ?, ?)", rows
            )

    def drop(self, sandbox: str, shown: Consent) -> None:
        """Forget that something was shown."""
        self._db.change(
            "DELETE FROM shown WHERE sandbox = ? AND root = ? AND path = ? AND digest = ?",
            (sandbox, shown.root, shown.path, shown.digest),
        )

    def has(self, sandbox: str, consent: Consent, token: str) -> bool:
        """Tell whether a token names one thing that was shown at a path, and that is what the consent is for."""
        return self._named(sandbox, consent.root, consent.path, token) == [consent.digest]

    def token_of(self, sandbox: str, root: bytes, path: bytes, digest: str) -> str:
        """Return the beginning of a digest that names nothing else that was shown at its path."""
        length = SHORTEST
        while any(found != digest for found in self._named(sandbox, root, path, digest[:length])):
            length += 1
        return digest[:length]

    def _named(self, sandbox: str, root: bytes, path: bytes, token: str) -> list[str]:
        rows = self._db.rows(
            "SELECT digest FROM shown WHERE sandbox = ? AND root = ? AND path = ? AND substr(digest, 1, ?) = ?",
            (sandbox, root, path, len(token), token),
        )
        return [as_text(digest) for (digest,) in rows]
