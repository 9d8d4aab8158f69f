# SPDX-License-Identifier: Apache-2.0
"""Whom a call asks: the client's person by a form, whoever answers `unspill approve`, or nobody.

The operator decides; without a word of theirs, their configuration. A client that shows no forms leads to the queue,
where a model does not wait for the answer: it is told how the user gives one, and calls again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from unspill.adapters.mcp.eliciting import can_elicit
from unspill.permissions.approvers import DenyAll, RetryQueue
from unspill.record import Record

if TYPE_CHECKING:
    from typing import Literal

    from mcp.server.context import ServerRequestContext

    from unspill.adapters.answering import Answer
    from unspill.permissions.approvers import Approver
    from unspill.sandbox.sandbox import Sandbox

    Whom = Literal["client", "queue", "deny"]

_MOST = 10
_ENDING = "Exit code: "
_AGAIN = "When it has been answered, call the same again."
WHOM: tuple[Whom, ...] = ("client", "queue", "deny")


class Asking(Record):
    """How questions get to a person.

    `whom`: by default as the configuration of the person says, where a terminal stands for the client. `may_remember`:
    offer answers that outlive the run; a client may let a program answer. `patience_s`: how long a model waits for an
    answer that comes by the queue, before it is told to call again.
    """

    whom: Whom | None = None
    may_remember: bool = False
    patience_s: float = 5.0


def approver_for(context: ServerRequestContext[Any, Any], sandbox: Sandbox, asking: Asking) -> Approver | None:
    """Return who is asked instead of the client, None where it is the client."""
    configured = sandbox.policy.permissions.approver
    whom = asking.whom or ("client" if configured == "terminal" else configured)
    if whom == "deny":
        return DenyAll()
    if whom == "client" and can_elicit(context.session.client_capabilities) and _has_way(context):
        return None
    return RetryQueue(sandbox._opened.store.requests, wait_s=asking.patience_s)


def with_left_open(answer: Answer, approver: Approver | None) -> Answer:
    """Return an answer that says what waits for the user, right after how the command ended, if it went on without."""
    if answer.is_error or not isinstance(approver, RetryQueue) or not approver.left_open:
        return answer
    waiting = list(approver.left_open.items())[:_MOST]
    notes = [f"Note: not answered yet: {text} The user can: `unspill approve {one}`. {_AGAIN}" for one, text in waiting]
    lines = answer.text.split("\n")
    # What the command printed comes later, so the first that looks like it is ours
    ending = next((at for at, line in enumerate(lines) if line.startswith(_ENDING)), 0)
    told = [*lines[: ending + 1], *notes, *lines[ending + 1 :]]
    return answer.replace(text="\n".join(told), values={**answer.values, "waiting": list(approver.left_open)})


def is_modern(context: ServerRequestContext[Any, Any]) -> bool:
    """Tell whether a client is asked by what it is returned, not by calling it back."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def _has_way(context: ServerRequestContext[Any, Any]) -> bool:
    return is_modern(context) or context.session.can_send_request
