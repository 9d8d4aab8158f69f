# SPDX-License-Identifier: Apache-2.0
"""Ask without a terminal: the request waits in the store until someone answers it from another process.

Bound on both sides: who answers names the digest of what they were shown, and who waits accepts an answer only if it
names the digest of what was asked. Whatever happens to the row in between, it ends in a denial.
"""

from __future__ import annotations

import time

from unspill.changes.quote import quote
from unspill.errors import UsageError
from unspill.model.permission import Allowed, Denied
from unspill.permissions.approver import Withdrawing
from unspill.permissions.wording import make_question
from unspill.store.requests import AskedRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.permission import Answer, Question, RequestId
    from unspill.model.rules import Scope
    from unspill.store.requests import RequestTable

SHORTEST_S, LONGEST_S = 0.02, 0.5


class Queue(Withdrawing):
    """The approver for headless use; `unspill approve ID` and `unspill deny ID` answer."""

    __slots__ = ("_requests",)

    def __init__(self, requests: RequestTable) -> None:
        self._requests = requests

    def ask(self, question: Question) -> Answer:
        """Put the question up and wait for its answer or its deadline."""
        put_up(self._requests, question)
        deadline = time.monotonic() + question.wait_s
        pause_s = SHORTEST_S
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                answer = self._look(question)
                if answer is not None:
                    return answer
                time.sleep(min(pause_s, left_s))
                pause_s = min(pause_s * 1.5, LONGEST_S)
        except BaseException:
            self._requests.close(question.id, "expired")
            raise
        # From here on nobody can answer; an answer that was faster counts
        self._requests.close(question.id, "expired")
        return self._look(question) or _denied(question, "nobody answered in time")

    def withdraw(self, question: Question) -> None:
        """Let nobody answer it any more."""
        self._requests.close(question.id, "expired")

    def _look(self, question: Question) -> Answer | None:
        """Return the answer if there is one; None while there is none."""
        found = self._requests.find(question.id)
        if found is None:
            return _denied(question, "the request is gone")
        if found.digest != question.digest or found.request != question.request or not found.is_genuine:
            return _denied(question, "the request was changed while it waited")
        if found.state == "waiting" or found.state == "asked":
            return None
        by = f"queue ({found.answered_by})" if found.answered_by else "queue"
        is_allowed = found.state == "allowed" and found.scope in question.scopes
        # Taken, so that nobody else can use it who asks for the same
        if is_allowed and found.scope is not None and self._requests.take(found.id, question.digest):
            return Allowed(digest=question.digest, by=by, scope=found.scope)
        if found.state == "expired":
            return _denied(question, "nobody answered in time")
        reason = "somebody else who asked for the same has used the answer" if is_allowed else found.reason
        return Denied(digest=question.digest, by=by, reason=reason)


def put_up(requests: RequestTable, question: Question) -> None:
    """Let a question wait where anybody who may use the store can answer it."""
    now_ns = time.time_ns()
    requests.add(
        AskedRequest(
            id=question.id,
            request=question.request,
            digest=question.digest,
            asked_ns=now_ns,
            deadline_ns=now_ns + int(question.wait_s * 1_000_000_000),
            scopes=question.scopes,
            state="waiting",
        )
    )


def open_questions(requests: RequestTable, project: bytes | None = None) -> tuple[Question, ...]:
    """Return what waits for an answer, worded anew from the request itself; what is not genuine is left out."""
    now_ns = time.time_ns()
    waiting = requests.waiting(now_ns, project)
    return tuple(_question_of(asked, now_ns) for asked in waiting if asked.is_genuine)


def find_question(requests: RequestTable, request: RequestId) -> Question:
    """Return one question that waits for an answer.

    Raises:
        UsageError: there is no such question any more.
    """
    now_ns = time.time_ns()
    found = requests.find(request)
    if found is None or found.state != "waiting" or found.deadline_ns <= now_ns or not found.is_genuine:
        raise _not_waiting(request)
    return _question_of(found, now_ns)


def answer_question(
    requests: RequestTable, question: Question, *, scope: Scope | None, by: str, reason: str = ""
) -> None:
    """Answer a question that `find_question` or `open_questions` returned; without a scope it is denied.

    Raises:
        UsageError: that scope was not offered, or what waits under this id is not what was shown.
    """
    if scope is not None and scope not in question.scopes:
        raise UsageError(
            f"Request {question.id} can't be allowed with scope {scope!r}.",
            remedy=f"Offered: {', '.join(question.scopes)}.",
        )
    answered = requests.answer(question.id, question.digest, scope=scope, by=by, reason=reason, now_ns=time.time_ns())
    if not answered:
        raise _not_waiting(question.id)


def _question_of(asked: AskedRequest, now_ns: int) -> Question:
    return make_question(
        asked.request, asked.scopes, wait_s=(asked.deadline_ns - now_ns) / 1_000_000_000, identity=asked.id
    )


def _not_waiting(request: RequestId) -> UsageError:
    name = quote(request.encode("utf-8", "replace"))
    return UsageError(
        f"Request {name} does not wait for an answer: it was answered, it is over, or never was.",
        remedy="Run `unspill requests` to see what waits.",
    )


def _denied(question: Question, reason: str) -> Denied:
    remedy = "Answer sooner with `unspill approve`, or let it wait longer."
    return Denied(digest=question.digest, by="queue", reason=reason, remedy=remedy)
