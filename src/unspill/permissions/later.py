# SPDX-License-Identifier: Apache-2.0
"""Ask where nobody can wait for the answer: the request stays open, and who asks the same again finds the answer to it.

For a program that must go on, such as a model's tool. An answer is taken by one asker, once: by one that asks for the
very same, in the same sandbox, with the same command; only the run may be another, since the command begins anew.
"""

from __future__ import annotations

import time

from unspill.model.permission import UNKNOWN_PROGRAM, Allowed, Denied
from unspill.permissions.queue import LONGEST_S, SHORTEST_S, put_up
from unspill.permissions.wording import make_question

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.permission import Answer, Question, RequestId
    from unspill.store.requests import AskedRequest, RequestTable

SECOND = 1_000_000_000
_UNSURE = "what it starts or reads may be something else by the time of an answer"
_UNSURE_REMEDY = "Start a program that no command can change, such as one of /usr/bin, and give its input as text."
KEPT_S = 600.0
"""How long after its deadline an answer can still be taken."""


class Later:
    """The approver for programs that come back; `unspill approve ID` and `unspill deny ID` answer.

    `left_open` is what was asked here and waits still, by the id that the person answers to.
    """

    __slots__ = ("_patience_s", "_requests", "left_open")

    def __init__(self, requests: RequestTable, *, patience_s: float) -> None:
        self._requests = requests
        self._patience_s = patience_s
        self.left_open: dict[RequestId, str] = {}

    def ask(self, question: Question) -> Answer:
        """Return the answer that was given to the same, or is given soon; else say how it can be given.

        What waits is a question of its own: the one that is asked here ends with this call.
        """
        if UNKNOWN_PROGRAM in (question.request.script, question.request.stdin):
            return _denied(question, _UNSURE, _UNSURE_REMEDY)
        found = self._find(question)
        if found is None:
            # Of no run: the one that asks is over when the answer comes
            request = question.request.replace(run="")
            open_question = make_question(request, question.scopes, wait_s=question.wait_s)
            put_up(self._requests, open_question)
            found = self._requests.find(open_question.id)
        deadline = time.monotonic() + min(self._patience_s, question.wait_s)
        pause_s = SHORTEST_S
        while found is not None and found.state == "waiting" and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, LONGEST_S)
            found = self._requests.find(found.id)
        if found is None or not _is_same(found, question):
            return _denied(question, "the request is gone or was changed while it waited")
        return self._answer(question, found)

    def _answer(self, question: Question, found: AskedRequest) -> Answer:
        by = f"queue ({found.answered_by})" if found.answered_by else "queue"
        if found.state == "waiting":
            self.left_open[found.id] = question.text
            left_s = max(0, round((found.deadline_ns - time.time_ns()) / SECOND))
            reason = f"nobody has answered yet: `unspill approve {found.id}`"
            remedy = f"Have the user do that within {left_s} s, then ask for the very same again."
            return _denied(question, reason, remedy)
        if found.state == "allowed" and found.scope in question.scopes and self._requests.take(found.id, found.digest):
            return Allowed(digest=question.digest, by=by, scope=found.scope)
        if found.state == "denied":
            return Denied(digest=question.digest, by=by, reason=found.reason or "the user said no", is_unseen=True)
        return _denied(question, "nobody answered in time, or somebody else who asked for the same has used the answer")

    def _find(self, question: Question) -> AskedRequest | None:
        """Return the latest of the same that waits or that somebody answered, as long as that counts."""
        now_ns = time.time_ns()
        since_ns = now_ns - int((2 * question.wait_s + KEPT_S) * SECOND)
        for found in self._requests.latest_of(question.request, since_ns):
            if not _is_same(found, question):
                continue
            is_answered = found.answered_digest == found.digest
            if found.state == "waiting" or (found.state == "denied" and is_answered):
                return found if now_ns < found.deadline_ns else None
            if found.state == "allowed" and is_answered:
                return found if now_ns < found.deadline_ns + int(KEPT_S * SECOND) else None
        return None


def _is_same(found: AskedRequest, question: Question) -> bool:
    same = found.request.replace(run="") == question.request.replace(run="")
    return found.is_genuine and same and type(found.request) is type(question.request)


def _denied(question: Question, reason: str, remedy: str = "") -> Denied:
    # The question that is asked here was shown to nobody; the one that waits counts by itself
    return Denied(digest=question.digest, by="queue", reason=reason, remedy=remedy, is_unseen=True)
