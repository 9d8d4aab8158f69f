# SPDX-License-Identifier: Apache-2.0
"""What a person does about permissions apart from any run: answer what waits, take grants back, read the audit.

Works on the state directory alone, without a project or a sandbox.
"""

from __future__ import annotations

import os

from unspill.errors import UsageError
from unspill.model.permission import GrantId, RequestId
from unspill.permissions.approvers import answer_question, find_question, open_questions
from unspill.permissions.audit import Audit, revoke_event
from unspill.sandbox.locations import find_own_locations
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.model.permission import Grant, Question
    from unspill.model.policy import Scope
    from unspill.permissions.audit import Event

_SHORTEST_ID = 4


class Office:
    """The person's own store of permissions, open while in a `with`."""

    def __init__(self) -> None:
        """Open it.

        Raises:
            StoreError: the state directory can't be used.
        """
        self._store = Store.open(find_own_locations().state)
        self._audit = Audit(self._store.state + b"/audit")

    def __enter__(self) -> Office:
        return self

    def __exit__(self, *_rest: object) -> None:
        self._store.close()

    def waiting(self, project: bytes | None = None) -> tuple[Question, ...]:
        """Return what waits for an answer, the oldest first."""
        return open_questions(self._store.requests, project)

    def find(self, name: str) -> Question:
        """Return what waits under an id, or the beginning of one.

        Raises:
            UsageError: nothing does, or several do.
        """
        known = [question.id for question in self.waiting()]
        return find_question(self._store.requests, RequestId(_the_one(name, known, "request", "unspill requests")))

    def answer(self, question: Question, scope: Scope | None, reason: str = "") -> None:
        """Answer a question; without a scope it is denied.

        Raises:
            UsageError: that scope is not offered, or it is over.
        """
        answer_question(self._store.requests, question, scope=scope, by=_who(), reason=reason)

    def grants(self, project: bytes | None = None) -> tuple[Grant, ...]:
        """Return what is remembered, the newest first."""
        return self._store.grants.all(project)

    def revoke(self, name: str) -> Grant:
        """Take back the grant of an id, or the beginning of one.

        Raises:
            UsageError: there is none, or several.
        """
        known = {grant.id: grant for grant in self.grants()}
        grant = known[GrantId(_the_one(name, known, "grant", "unspill grants"))]
        self._store.grants.revoke(grant.id)
        self._audit.append(revoke_event(grant))
        return grant

    def revoke_all(self, project: bytes | None = None) -> tuple[Grant, ...]:
        """Take back all grants, or those of a project."""
        revoked = tuple(grant for grant in self.grants(project) if self._store.grants.revoke(grant.id))
        if revoked:
            self._audit.append(*map(revoke_event, revoked))
        return revoked

    def events(self) -> Iterator[Event]:
        """Yield what the audit has, the newest first.

        Raises:
            StoreError: it can't be read.
        """
        return self._audit.events(newest_first=True)


def _the_one(name: str, known: Iterable[str], what: str, verb: str) -> str:
    found = [one for one in known if one == name or (len(name) >= _SHORTEST_ID and one.startswith(name))]
    if len(found) == 1:
        return found[0]
    problem = "there are several" if found else "there is no such"
    raise UsageError(f"{problem} {what}: {name!r}", remedy=f"Give its id; see `{verb}`.")


def _who() -> str:
    return f"uid {os.getuid()}"
