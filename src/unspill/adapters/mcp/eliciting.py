# SPDX-License-Identifier: Apache-2.0
"""A question as a form for the client's person, and what the client sends back as an answer.

The form offers labels and nothing else; the one that is preset denies. A client may let a program fill it in, so what
it offers ends with the run unless the operator wants more. Anything but one of the labels, in time, is a denial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from unspill.model.permission import Allowed, Denied

if TYPE_CHECKING:
    from mcp_types import ClientCapabilities

    from unspill.model.permission import Answer, Choice, Question

FIELD = "answer"
_LASTING = ("sandbox", "always")
_MOST_LINES = 200


def can_elicit(capabilities: ClientCapabilities | None) -> bool:
    """Tell whether a client shows forms."""
    elicitation = None if capabilities is None else capabilities.elicitation
    # Where neither mode is named it is the older one, which had forms alone
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def choices_of(question: Question, *, may_remember: bool) -> tuple[Choice, ...]:
    """Return what a client is offered: an answer that outlives the run only if the operator wants that."""
    return tuple(choice for choice in question.choices if may_remember or choice.scope not in _LASTING)


def make_form(question: Question, *, may_remember: bool) -> ElicitRequest:
    """Return the form for a question."""
    labels = [choice.label for choice in choices_of(question, may_remember=may_remember)]
    shown = [question.text, *question.lines, *question.whole[:_MOST_LINES]]
    if len(question.whole) > _MOST_LINES:
        shown.append(f"careful:   {len(question.whole) - _MOST_LINES} more lines of it are not shown here")
    schema = {
        "type": "object",
        "properties": {FIELD: {"type": "string", "title": "Answer", "enum": labels, "default": labels[-1]}},
        "required": [FIELD],
    }
    return ElicitRequest(params=ElicitRequestFormParams(message="\n".join(shown), requested_schema=schema))


def to_answer(question: Question, given: object, *, by: str, may_remember: bool) -> Answer:
    """Return what a client's response means: yes only where it is clearly one of those that were offered."""
    if not isinstance(given, ElicitResult):
        return Denied(digest=question.digest, by=by, reason="the client did not answer the question")
    if given.action == "decline":
        return Denied(digest=question.digest, by=by, reason="the user said no")
    if given.action == "cancel":
        return Denied(digest=question.digest, by=by, reason="the question was dismissed without an answer")
    label = (given.content or {}).get(FIELD)
    for choice in choices_of(question, may_remember=may_remember):
        if choice.label == label:
            if choice.scope is None:
                return Denied(digest=question.digest, by=by, reason="the user said no")
            return Allowed(digest=question.digest, by=by, scope=choice.scope)
    return Denied(digest=question.digest, by=by, reason="the answer was none of those that were offered")
