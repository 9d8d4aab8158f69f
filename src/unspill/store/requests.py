# SPDX-License-Identifier: Apache-2.0
"""The table of requests that people were asked about: those that wait for an answer, and the recent ones.

An answer is written only to the very request that it names by its digest, once, and not after its deadline.
"""

from __future__ import annotations

from unspill.errors import StoreDamaged
from unspill.model.permission import RequestId
from unspill.model.record import Record
from unspill.store.cells import as_blob, as_id, as_int, as_text, to_text
from unspill.store.grants import to_scope
from unspill.store.request_form import digest_of_question, from_form, key_of, to_form

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeVar

    from unspill.model.permission import Request
    from unspill.model.rules import Scope
    from unspill.store.cells import Cell, Row
    from unspill.store.connection import Database

    RequestState = Literal["asked", "waiting", "allowed", "denied", "expired"]
    Verdict = TypeVar("Verdict")

STATES: tuple[RequestState, ...] = ("asked", "waiting", "allowed", "denied", "expired")

_COLUMNS = "id, digest, state, asked_ns, deadline_ns, scopes, scope, answered_by, answered_digest, reason, request"


class AskedRequest(Record):
    """One request as the store keeps it.

    asked: somewhere else, such as on a terminal. waiting: anybody who may use the store can answer. The others are
    over. `digest` was written when it was asked; `answered_digest` is what the answer named, nothing once it was used.
    """

    id: RequestId
    request: Request
    digest: str
    asked_ns: int
    deadline_ns: int
    scopes: tuple[Scope, ...]
    state: RequestState = "asked"
    scope: Scope | None = None
    answered_by: str = ""
    answered_digest: str = ""
    reason: str = ""

    @property
    def is_genuine(self) -> bool:
        """Tell whether its digest is really that of what it asks for."""
        return self.digest == digest_of_question(self.id, self.request)


class Recent(Record):
    """As much of a request as counting needs."""

    key: str
    state: RequestState
    asked_ns: int


class RequestTable:
    """Requests by id, in the order in which they were asked."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, asked: AskedRequest) -> None:
        """Record that a person is being asked; the same request again changes its state alone."""
        self._db.change(
            "INSERT INTO requests (id, key, digest, project, state, asked_ns, deadline_ns, scopes, request)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET state = excluded.state WHERE state = 'asked' AND digest = excluded.digest",
            (
                *(asked.id, key_of(asked.request), asked.digest, asked.request.project, asked.state),
                *(asked.asked_ns, asked.deadline_ns, " ".join(asked.scopes), to_form(asked.request)),
            ),
        )

    def add_unless(
        self, asked: AskedRequest, since_ns: int, objects: Callable[[tuple[Recent, ...]], Verdict | None]
    ) -> Verdict | None:
        """Record a request unless there is an objection in view of the project's recent ones; return that.

        Looking and recording are one step: a hundred that come at once are counted one after the other.
        """
        with self._db:
            objection = objects(self.recent(asked.request.project, since_ns))
            if objection is None:
                self.add(asked)
        return objection

    def recent(self, project: bytes, since_ns: int) -> tuple[Recent, ...]:
        """Return what was asked in a project since a moment, the oldest first."""
        rows = self._db.rows(
            "SELECT key, state, asked_ns FROM requests WHERE project = ? AND asked_ns >= ? ORDER BY asked_ns, seq",
            (project, since_ns),
        )
        return tuple(
            Recent(key=as_text(key), state=_to_state(state), asked_ns=as_int(asked_ns)) for key, state, asked_ns in rows
        )

    def find(self, request: RequestId) -> AskedRequest | None:
        """Return a request by id."""
        rows = self._db.rows(f"SELECT {_COLUMNS} FROM requests WHERE id = ?", (request,))
        return _to_record(rows[0]) if rows else None

    def waiting(self, now_ns: int, project: bytes | None = None) -> tuple[AskedRequest, ...]:
        """Return what waits for an answer and can still get one, the oldest first."""
        where, values = ("", (now_ns,)) if project is None else ("AND project = ?", (now_ns, project))
        sql = f"SELECT {_COLUMNS} FROM requests WHERE state = 'waiting' AND deadline_ns > ? {where} ORDER BY seq"
        return tuple(map(_to_record, self._db.rows(sql, values)))

    def latest_of(self, request: Request, since_ns: int) -> tuple[AskedRequest, ...]:
        """Return what was asked since a moment and differs in nothing but run and sandbox, the newest first."""
        sql = f"SELECT {_COLUMNS} FROM requests WHERE project = ? AND asked_ns >= ? AND key = ? ORDER BY seq DESC"
        return tuple(map(_to_record, self._db.rows(sql, (request.project, since_ns, key_of(request)))))

    def take(self, request: RequestId, digest: str) -> bool:
        """Use the answer that allows a request; tell whether it was there and nobody had used it."""
        sql = (
            "UPDATE requests SET answered_digest = '' WHERE id = ? AND state = 'allowed'"
            " AND digest = ? AND answered_digest = ?"
        )
        return self._db.change(sql, (request, digest, digest)) == 1

    def answer(
        self, request: RequestId, digest: str, *, scope: Scope | None, by: str, now_ns: int, reason: str = ""
    ) -> bool:
        """Answer a waiting request, without a scope in the negative; tell whether it was still waiting for that.

        `digest` is that of what the person saw: another request under the same id is not answered.
        """
        sql = (
            "UPDATE requests SET state = ?, scope = ?, answered_by = ?, reason = ?, answered_digest = ?"
            " WHERE id = ? AND digest = ? AND state = 'waiting' AND deadline_ns > ?"
        )
        state = "denied" if scope is None else "allowed"
        values = (state, scope or "", to_text(by), to_text(reason), digest, request, digest, now_ns)
        return self._db.change(sql, values) == 1

    def close(self, request: RequestId, state: RequestState) -> bool:
        """Record how a request ended that has no end yet; tell whether it had none."""
        sql = "UPDATE requests SET state = ? WHERE id = ? AND state IN ('asked', 'waiting')"
        return self._db.change(sql, (state, request)) == 1

    def forget(self, request: RequestId) -> bool:
        """Forget a request that nobody was shown, so that it does not count; tell whether there was one.

        What waits for an answer is in everybody's list, so it stays.
        """
        return self._db.change("DELETE FROM requests WHERE id = ? AND state = 'asked'", (request,)) == 1

    def remove_before(self, moment_ns: int) -> int:
        """Forget requests whose deadline was before a moment; return how many."""
        return self._db.change("DELETE FROM requests WHERE deadline_ns < ?", (moment_ns,))


def _to_record(row: Row) -> AskedRequest:
    identity, digest, state, asked_ns, deadline_ns, scopes, scope, answered_by, answered_digest, reason, request = row
    return AskedRequest(
        id=RequestId(as_id(identity)),
        request=from_form(as_blob(request)),
        digest=as_text(digest),
        asked_ns=as_int(asked_ns),
        deadline_ns=as_int(deadline_ns),
        scopes=tuple(map(to_scope, as_text(scopes).split())),
        state=_to_state(state),
        scope=to_scope(scope) if scope else None,
        answered_by=as_text(answered_by),
        answered_digest=as_text(answered_digest),
        reason=as_text(reason),
    )


def _to_state(cell: Cell) -> RequestState:
    for state in STATES:
        if state == cell:
            return state
    raise StoreDamaged("The store holds a state of a request that is not known.")
