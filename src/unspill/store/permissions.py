# SPDX-License-Identifier: Apache-2.0
"""The tables of requests that people were asked about, of the grants that are remembered, and of what was shown.

A request has one form in bytes, JSON with sorted keys in ASCII, and digests of that form bind answers and grants to it:
an answer is written only to the very request that it names by its digest, once, and not after its deadline. A grant is
found by a digest over every field that counts; `Grant.covers` compares the fields themselves.
"""

from __future__ import annotations

import json
import time
from hashlib import blake2b

from unspill.errors import StoreDamaged, UsageError
from unspill.model.permission import REQUESTS, Grant, GrantId, RequestId
from unspill.model.policy import SCOPES
from unspill.model.run import KEPT_COMMAND_BYTES
from unspill.record import Record
from unspill.store.connection import Table, as_blob, as_id, as_int, as_one_of, as_text, new_id, to_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal, TypeVar

    from unspill.model.change import Consent
    from unspill.model.permission import Egress, Request
    from unspill.model.policy import Scope
    from unspill.store.connection import Cell, Row

    RequestState = Literal["asked", "waiting", "allowed", "denied", "expired"]
    Verdict = TypeVar("Verdict")


STATES: tuple[RequestState, ...] = ("asked", "waiting", "allowed", "denied", "expired")
# Of a token, in characters
SHORTEST = 6
# How long it counts that something was shown
KEPT_NS = 30 * 86_400 * 1_000_000_000
_ASKED = "id, digest, state, asked_ns, deadline_ns, scopes, scope, answered_by, answered_digest, reason, request"
_GRANTED = "id, scope, granted_ns, expires_ns, granted_by, last_used_ns, uses, request"
# In no other form: a quotation mark inside a text has a backslash before it
_IS_BOUNDED = b'"command":"'
_KINDS = {kind.kind: kind for kind in REQUESTS}


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


class RequestTable(Table):
    """Requests by id, in the order in which they were asked."""

    __slots__ = ()

    def add(self, asked: AskedRequest) -> None:
        """Record that a person is being asked; the same request again changes its state alone."""
        self._shorten_ended(asked.asked_ns)
        self._db.change(
            "INSERT INTO requests (id, key, digest, project, state, asked_ns, deadline_ns, scopes, request)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET state = excluded.state WHERE state = 'asked' AND digest = excluded.digest",
            (
                *(asked.id, key_of(asked.request), asked.digest, asked.request.project, asked.state),
                *(asked.asked_ns, asked.deadline_ns, " ".join(asked.scopes), to_form(asked.request)),
            ),
        )

    def _shorten_ended(self, now_ns: int) -> None:
        """Keep no more than is needed of requests that nobody need read whole any more."""
        rows = self._db.rows(
            "SELECT id, request FROM requests WHERE length(request) > ? AND NOT instr(request, ?)"
            " AND (state NOT IN ('asked', 'waiting') OR deadline_ns < ?)",
            (KEPT_COMMAND_BYTES, _IS_BOUNDED, now_ns),
        )
        for identity, form in rows:
            bounded = to_form(from_form(as_blob(form)).bounded())
            if bounded != form:
                self._db.change("UPDATE requests SET request = ? WHERE id = ?", (bounded, identity))

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
        rows = self._db.rows(f"SELECT {_ASKED} FROM requests WHERE id = ?", (request,))
        return _to_request(rows[0]) if rows else None

    def waiting(self, now_ns: int, project: bytes | None = None) -> tuple[AskedRequest, ...]:
        """Return what waits for an answer and can still get one, the oldest first."""
        where, values = ("", (now_ns,)) if project is None else ("AND project = ?", (now_ns, project))
        sql = f"SELECT {_ASKED} FROM requests WHERE state = 'waiting' AND deadline_ns > ? {where} ORDER BY seq"
        return tuple(map(_to_request, self._db.rows(sql, values)))

    def latest_of(self, request: Request, since_ns: int) -> tuple[AskedRequest, ...]:
        """Return what was asked since a moment and differs in nothing but run and sandbox, the newest first."""
        sql = f"SELECT {_ASKED} FROM requests WHERE project = ? AND asked_ns >= ? AND key = ? ORDER BY seq DESC"
        return tuple(map(_to_request, self._db.rows(sql, (request.project, since_ns, key_of(request)))))

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


class GrantTable(Table):
    """Grants by what they allow: answers that are remembered, until they expire or are revoked."""

    __slots__ = ()

    def add(self, request: Request, scope: Scope, *, granted_ns: int, expires_ns: int, granted_by: str) -> Grant:
        """Remember an answer; one that is equal but for its time gives way.

        Raises:
            UsageError: such an answer is never remembered.
        """
        if scope in ("once", "project") or scope not in request.scopes:
            raise UsageError(f"An answer of scope {scope!r} to a request of kind {request.kind!r} can't be remembered.")
        grant = Grant(
            id=GrantId(new_id()),
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
            f"SELECT {_GRANTED} FROM grants WHERE key = ? AND expires_ns > ?", (key_of(request), now_ns)
        )
        return tuple(grant for grant in map(_to_grant, rows) if grant.covers(request, now_ns))

    def of_hosts(self, request: Egress, now_ns: int) -> tuple[Grant, ...]:
        """Return the grants by which every host of a request is allowed for its project; nothing if one is not."""
        found = [self.matching(part, now_ns) for part in request.for_project()]
        return tuple(grants[0] for grants in found) if all(found) else ()

    def find(self, grant: GrantId) -> Grant | None:
        """Return a grant by id."""
        rows = self._db.rows(f"SELECT {_GRANTED} FROM grants WHERE id = ?", (grant,))
        return _to_grant(rows[0]) if rows else None

    def all(self, project: bytes | None = None) -> tuple[Grant, ...]:
        """Return the grants of a project, or of all, the newest first; expired ones too, as long as they are there."""
        where, values = ("", ()) if project is None else ("WHERE project = ?", (project,))
        sql = f"SELECT {_GRANTED} FROM grants {where} ORDER BY granted_ns DESC, id"
        return tuple(map(_to_grant, self._db.rows(sql, values)))

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


class ShownTable(Table):
    """What a person was shown whole on a terminal, as digests by sandbox, root and path.

    A token that they type names one of them.
    """

    __slots__ = ()

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


def digest_of_question(identity: RequestId, request: Request) -> str:
    """Return what an answer is bound to: this request, asked this one time."""
    return _hash(b"question\0%b\0%b" % (identity.encode("ascii"), to_form(request.bounded())))


def key_of(request: Request) -> str:
    """Return what requests have in common that differ in nothing but their run and sandbox."""
    return _hash(b"key\0" + to_form(request.at_scope("always")))


def plain_request(request: Request) -> dict[str, Any]:
    """Return a request as JSON can hold it."""
    return {"kind": request.kind} | request.plain()


def to_form(request: Request) -> bytes:
    """Return the one form of a request; paths and arguments that are not UTF-8 keep every byte."""
    return json.dumps(plain_request(request), sort_keys=True, separators=(",", ":")).encode("ascii")


def from_form(form: bytes) -> Request:
    """Read a request back.

    Raises:
        StoreDamaged: it is not exactly what `to_form` writes, so there is no second way to say the same.
    """
    try:
        values = json.loads(form)
        request: Request = _KINDS[values.pop("kind")].from_plain(values)
        if to_form(request) == form:
            return request
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise StoreDamaged("The store has a request that unspill does not understand.")


def _to_request(row: Row) -> AskedRequest:
    identity, digest, state, asked_ns, deadline_ns, scopes, scope, answered_by, answered_digest, reason, request = row
    return AskedRequest(
        id=RequestId(as_id(identity)),
        request=from_form(as_blob(request)),
        digest=as_text(digest),
        asked_ns=as_int(asked_ns),
        deadline_ns=as_int(deadline_ns),
        scopes=tuple(map(_to_scope, as_text(scopes).split())),
        state=_to_state(state),
        scope=_to_scope(scope) if scope else None,
        answered_by=as_text(answered_by),
        answered_digest=as_text(answered_digest),
        reason=as_text(reason),
    )


def _to_grant(row: Row) -> Grant:
    identity, scope, granted_ns, expires_ns, granted_by, last_used_ns, uses, request = row
    grant = Grant(
        id=GrantId(as_id(identity)),
        request=from_form(as_blob(request)),
        scope=_to_scope(scope),
        granted_ns=as_int(granted_ns),
        expires_ns=as_int(expires_ns),
        granted_by=as_text(granted_by),
        last_used_ns=as_int(last_used_ns),
        uses=as_int(uses),
    )
    if grant.request.one_time_only:
        raise StoreDamaged("The store has a lasting grant of something that can only be granted once.")
    return grant


def _to_scope(cell: Cell) -> Scope:
    return as_one_of(SCOPES, cell, "The store has an unknown scope.")


def _to_state(cell: Cell) -> RequestState:
    return as_one_of(STATES, cell, "The store has an unknown request state.")


def _hash(form: bytes) -> str:
    return blake2b(form, digest_size=32).hexdigest()
