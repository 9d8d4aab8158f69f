# SPDX-License-Identifier: Apache-2.0
"""The table of grants: answers that are remembered, until they expire or are revoked.

Finds candidates by a digest over every field that counts; `Grant.covers` compares the fields themselves.
"""

from __future__ import annotations

import os

from unspill.errors import StoreDamaged, UsageError
from unspill.model.permission import Grant, GrantId
from unspill.model.rules import SCOPES
from unspill.store.cells import as_blob, as_id, as_int, as_text, to_text
from unspill.store.request_form import from_form, key_of, to_form

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.permission import Request
    from unspill.model.rules import Scope
    from unspill.store.cells import Cell, Row
    from unspill.store.connection import Database

_COLUMNS = "id, scope, granted_ns, expires_ns, granted_by, last_used_ns, uses, request"


class GrantTable:
    """Grants by what they allow."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, request: Request, scope: Scope, *, granted_ns: int, expires_ns: int, granted_by: str) -> Grant:
        """Remember an answer; one that is equal but for its time gives way.

        Raises:
            UsageError: such an answer is never remembered.
        """
        if scope == "once" or scope not in request.scopes:
            raise UsageError(f"An answer of scope {scope!r} to a request of kind {request.kind!r} is not remembered.")
        grant = Grant(
            id=GrantId(os.urandom(8).hex()),
            request=request.at_scope(scope),
            scope=scope,
            granted_ns=granted_ns,
            expires_ns=expires_ns,
            granted_by=to_text(granted_by),
        )
        form = to_form(grant.request)
        with self._db:
            self._db.change("DELETE FROM grants WHERE scope = ? AND request = ?", (scope, form))
            self._db.change(
                "INSERT INTO grants (id, key, scope, project, granted_ns, expires_ns, granted_by, request)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (grant.id, key_of(request), scope, request.project, granted_ns, expires_ns, grant.granted_by, form),
            )
        return grant

    def matching(self, request: Request, now_ns: int) -> tuple[Grant, ...]:
        """Return the grants that cover a request at that moment."""
        rows = self._db.rows(
            f"SELECT {_COLUMNS} FROM grants WHERE key = ? AND expires_ns > ?", (key_of(request), now_ns)
        )
        return tuple(grant for grant in map(_to_record, rows) if grant.covers(request, now_ns))

    def find(self, grant: GrantId) -> Grant | None:
        """Return a grant by id."""
        rows = self._db.rows(f"SELECT {_COLUMNS} FROM grants WHERE id = ?", (grant,))
        return _to_record(rows[0]) if rows else None

    def all(self, project: bytes | None = None) -> tuple[Grant, ...]:
        """Return the grants of a project, or of all, the newest first; expired ones too, as long as they are there."""
        where, values = ("", ()) if project is None else ("WHERE project = ?", (project,))
        sql = f"SELECT {_COLUMNS} FROM grants {where} ORDER BY granted_ns DESC, id"
        return tuple(map(_to_record, self._db.rows(sql, values)))

    def use(self, grant: GrantId, now_ns: int) -> bool:
        """Record that a grant was used just now; tell whether it is still there and has not expired."""
        sql = "UPDATE grants SET last_used_ns = ?, uses = uses + 1 WHERE id = ? AND expires_ns > ?"
        return self._db.change(sql, (now_ns, grant, now_ns)) == 1

    def revoke(self, grant: GrantId) -> bool:
        """Forget a grant; tell whether there was one."""
        return self._db.change("DELETE FROM grants WHERE id = ?", (grant,)) == 1

    def remove_expired(self, now_ns: int) -> int:
        """Forget what no request can use any more; return how many."""
        return self._db.change("DELETE FROM grants WHERE expires_ns <= ?", (now_ns,))


def _to_record(row: Row) -> Grant:
    identity, scope, granted_ns, expires_ns, granted_by, last_used_ns, uses, request = row
    grant = Grant(
        id=GrantId(as_id(identity)),
        request=from_form(as_blob(request)),
        scope=to_scope(scope),
        granted_ns=as_int(granted_ns),
        expires_ns=as_int(expires_ns),
        granted_by=as_text(granted_by),
        last_used_ns=as_int(last_used_ns),
        uses=as_int(uses),
    )
    if grant.request.one_time_only:
        raise StoreDamaged("The store holds a grant of something that is only ever granted once.")
    return grant


def to_scope(cell: Cell) -> Scope:
    """Return a scope.

    Raises:
        StoreDamaged: it is none.
    """
    for scope in SCOPES:
        if scope == cell:
            return scope
    raise StoreDamaged("The store holds a scope that is not known.")
