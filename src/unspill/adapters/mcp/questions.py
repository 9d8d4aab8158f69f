# SPDX-License-Identifier: Apache-2.0
"""Who answers a call's permission questions: the client's user in a form, `unspill approve`, or nobody.

The operator decides; if they don't, their configuration does. If a client can't show forms, its questions go to the
queue of `unspill approve`: the model is told how the user answers there, and calls again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from typing import TYPE_CHECKING, Any

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from unspill.model.permission import Allowed, Denied
from unspill.permissions.approvers import DenyAll, RetryQueue
from unspill.record import Record

if TYPE_CHECKING:
    from typing import Literal

    from mcp.server.context import ServerRequestContext
    from mcp_types import ClientCapabilities

    from unspill.adapters import answers
    from unspill.model.permission import Answer, Choice, Question
    from unspill.permissions.approvers import Approver
    from unspill.sandbox.sandbox import Sandbox

    Whom = Literal["client", "queue", "deny"]

# A client has this long to come back with an answer; later ones are refused
LONGEST_S = 600.0
_FIELD = "answer"
_LASTING = ("sandbox", "project", "always")
_MOST_LINES = 200
_MOST_NOTES = 10
_ENDING = "Exit code: "
_AGAIN = "When it has been answered, call the same again."


class QuestionSettings(Record):
    """How questions get to a person.

    `whom`: by default as the person's configuration says, where a terminal stands for the client. `may_remember`: offer
    answers that outlive the run; a client may let a program answer. `patience_s`: how long a model waits for an answer
    from the queue before it is told to call again.
    """

    whom: Whom | None = None
    may_remember: bool = False
    patience_s: float = 5.0


def approver_for(
    context: ServerRequestContext[Any, Any], sandbox: Sandbox, settings: QuestionSettings
) -> Approver | None:
    """Return who is asked instead of the client, None if it is the client."""
    configured = sandbox.policy.permissions.approver
    whom = settings.whom or ("client" if configured == "terminal" else configured)
    if whom == "deny":
        return DenyAll()
    if whom == "client" and _shows_forms(context.session.client_capabilities):
        return None
    return RetryQueue(sandbox._project.store.requests, wait_s=settings.patience_s)


def is_modern(context: ServerRequestContext[Any, Any]) -> bool:
    """Tell whether the server asks a client by what it returns, not by calling it back."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def _shows_forms(capabilities: ClientCapabilities | None) -> bool:
    elicitation = None if capabilities is None else capabilities.elicitation
    # A client that names neither mode speaks the older protocol, which had forms only
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def with_open_questions(answer: answers.Answer, approver: Approver | None) -> answers.Answer:
    """Return an answer that names the questions that still wait for the user, right after how the command ended."""
    if answer.is_error or not isinstance(approver, RetryQueue) or not approver.left_open:
        return answer
    waiting = list(approver.left_open.items())[:_MOST_NOTES]
    notes = [f"Note: not answered yet: {text} The user can: `unspill approve {one}`. {_AGAIN}" for one, text in waiting]
    lines = answer.text.split("\n")
    # The command's output comes later, so the first line that looks like this is ours
    ending = next((at for at, line in enumerate(lines) if line.startswith(_ENDING)), 0)
    told = [*lines[: ending + 1], *notes, *lines[ending + 1 :]]
    return answer.replace(text="\n".join(told), values={**answer.values, "waiting": list(approver.left_open)})


def make_form(question: Question, *, may_remember: bool) -> ElicitRequest:
    """Return a question as a form: it offers labels and nothing else, and the preset one denies."""
    labels = [choice.label for choice in _offered(question, may_remember=may_remember)]
    shown = [question.text, *question.lines, *question.whole[:_MOST_LINES]]
    if len(question.whole) > _MOST_LINES:
        shown.append(f"careful:   {len(question.whole) - _MOST_LINES} more lines of it are not shown here")
    schema = {
        "type": "object",
        "properties": {_FIELD: {"type": "string", "title": "Answer", "enum": labels, "default": labels[-1]}},
        "required": [_FIELD],
    }
    return ElicitRequest(params=ElicitRequestFormParams(message="\n".join(shown), requested_schema=schema))


def read_form(question: Question, given: object, *, by: str, may_remember: bool) -> Answer:
    """Return what a client's response means: yes only where it is clearly one of the offered labels."""
    reason = "the answer was none of those that were offered"
    if not isinstance(given, ElicitResult):
        reason = "the client did not answer the question"
    elif given.action == "decline":
        reason = "the user said no"
    elif given.action == "cancel":
        reason = "the question was dismissed without an answer"
    else:
        label = (given.content or {}).get(_FIELD)
        for choice in _offered(question, may_remember=may_remember):
            if choice.label == label and choice.scope is not None:
                return Allowed(digest=question.digest, by=by, scope=choice.scope)
            if choice.label == label:
                reason = "the user said no"
    return Denied(digest=question.digest, by=by, reason=reason)


def _offered(question: Question, *, may_remember: bool) -> tuple[Choice, ...]:
    """Return what a client is offered. A client may let a program answer: so by default nothing that lasts."""
    return tuple(choice for choice in question.choices if may_remember or choice.scope not in _LASTING)


class PendingQuestion:
    """A question that waits in a thread. `is_put` once the client was asked."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.is_put = False
        self.deadline = time.monotonic() + min(question.wait_s, LONGEST_S)
        self._answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()

    @property
    def left_s(self) -> float:
        """How long it still waits."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def is_open(self) -> bool:
        """Whether anybody still waits for an answer."""
        return not self._answer.done() and self.left_s > 0

    def give(self, answer: Answer) -> None:
        """Answer it, in the loop; only the first answer counts."""
        if not self._answer.done():
            self._answer.set_result(answer)

    def deny(self, reason: str, remedy: str = "") -> None:
        """Answer no, for a reason of ours."""
        self.give(self._denied(reason, remedy))

    def wait(self) -> Answer:
        """Return the answer, in the thread; at the deadline, a denial."""
        try:
            return self._answer.result(self.left_s)
        except concurrent.futures.TimeoutError:
            return self._denied("nobody answered in time", "Call again when the user is there to answer.")

    def _denied(self, reason: str, remedy: str) -> Denied:
        return Denied(
            digest=self.question.digest, by="mcp server", reason=reason, remedy=remedy, is_unseen=not self.is_put
        )


class ClientApprover:
    """The approver of one call: carries questions from its threads to the event loop, and answers back.

    `ask` is for threads, all else for the loop. Several threads may ask at once. Whatever happens to the client or to
    the loop, each question ends with an answer: a denial if need be.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, PendingQuestion] = {}
        self._closed_because = ""
        self.news = asyncio.Event()

    def ask(self, question: Question) -> Answer:
        """Wait in this thread until the question is answered or over."""
        pending = PendingQuestion(question)
        try:
            self._loop.call_soon_threadsafe(self._add, pending)
        except RuntimeError:  # the loop has ended
            pending.deny("the server is ending")
        answer = pending.wait()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._waiting.pop, question.id, None)
        return answer

    def take_new(self) -> tuple[PendingQuestion, ...]:
        """Return the questions that the client was not asked yet, and count them as asked."""
        self.news.clear()
        new = tuple(pending for pending in self._waiting.values() if not pending.is_put and pending.is_open)
        for pending in new:
            pending.is_put = True
        return new

    def close(self, reason: str) -> None:
        """Deny what waits, and what is asked from now on."""
        self._closed_because = reason
        for pending in self._waiting.values():
            pending.deny(reason)
        self.news.set()

    def _add(self, pending: PendingQuestion) -> None:
        if self._closed_because:
            pending.deny(self._closed_because)
            return
        self._waiting[pending.question.id] = pending
        self.news.set()
