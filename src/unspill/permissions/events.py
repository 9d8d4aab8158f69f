# SPDX-License-Identifier: Apache-2.0
"""What the audit says of requests, answers and grants: plain values, bounded in size, no content of files."""

from __future__ import annotations

from unspill.model.permission import Allowed, HeldPath, Unsandboxed
from unspill.permissions.audit import as_text, command_text
from unspill.store.request_form import key_of, plain_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from unspill.model.permission import Answer, Grant, Question, Request
    from unspill.permissions.audit import Event

    Verdict = Literal["allowed", "denied"]

KEPT_BYTES = 16 * 1024


def request_event(question: Question) -> Event:
    """A person is asked."""
    return {
        "kind": "request",
        "id": question.id,
        "digest": question.digest,
        "offered": list(question.scopes),
        "request": _bounded(question.request),
    }


def answer_event(question: Question, answer: Answer) -> Event:
    """The question was answered, or is over without an answer."""
    said = {"answer": "allowed", "scope": answer.scope} if isinstance(answer, Allowed) else {"answer": "denied"}
    reason = {} if isinstance(answer, Allowed) else {"reason": answer.reason[:500]}
    return {"kind": "answer", "id": question.id, "digest": question.digest, "by": answer.by[:200]} | said | reason


def decision_event(request: Request, answer: Verdict, rule: str) -> Event:
    """A request was decided without a question."""
    return {"kind": "decision", "answer": answer, "rule": rule, "request": _bounded(request)}


def revoke_event(grant: Grant) -> Event:
    """A grant was taken back."""
    return {"kind": "revoke", "grant": grant.id, "scope": grant.scope, "request": _bounded(grant.request)}


def _bounded(request: Request) -> dict[str, Any]:
    plain = plain_request(request) | {"argv": command_text(request.argv, most_bytes=KEPT_BYTES)}
    if isinstance(request, Unsandboxed):
        # Values may be secrets, and the audit is for ever
        plain["environ"] = [as_text(pair.partition(b"=")[0]) for pair in request.environ]
    if isinstance(request, HeldPath):
        # Its digest stands for it
        plain.pop("head", None)
    # The whole can be told from the digest by whoever has it
    return plain | {"key": key_of(request)}
