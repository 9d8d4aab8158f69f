# SPDX-License-Identifier: Apache-2.0
"""Stays with a call until it is over, and carries its questions to the client and the answers back.

A client of the handshake era is called back while its request goes on. One of 2026-07-28 is returned the questions, and
comes back with the answers in another request of the same call; the command waits meanwhile. A request that is
cancelled ends its call, and is not over before every process of that is dead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp_types import REQUEST_TIMEOUT, ElicitResult, InputRequiredResult
from pydantic import ValidationError

from unspill.adapters.answering import answer_error
from unspill.adapters.mcp.asking import is_modern
from unspill.adapters.mcp.calls import MOST_ROUNDS
from unspill.adapters.mcp.eliciting import make_form, to_answer
from unspill.changes.render import safe_text
from unspill.errors import SandboxUnavailable

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import InputResponses

    from unspill.adapters.answering import Answer
    from unspill.adapters.mcp.bridge import Pending
    from unspill.adapters.mcp.calls import Call, Calls

    Context = ServerRequestContext[Calls, Any]

logger = logging.getLogger(__name__)

# Questions that come together are one round: a client lets itself be asked only so often
_TOGETHER_S = 0.05
_TOO_OFTEN = f"this call has asked {MOST_ROUNDS} times, which is as often as clients let it"
_TOO_OFTEN_REMEDY = "The user can put what it needs into their configuration."


async def converse(context: Context, call: Call, *, may_remember: bool) -> Answer | InputRequiredResult:
    """Return the call's answer, or the questions that a client of the newer era has to come back with answers to."""
    try:
        if progress_token_from_params(context.params) is None:
            # Most calls ask nothing, and then there is nothing to be done beside them
            await call.until_news()
        questions: tuple[Pending, ...] = ()
        if not call.is_over():
            async with anyio.create_task_group() as beside:
                beside.start_soon(call.progress.report, context.session)
                questions = await _until_asked(context, call, beside, may_remember=may_remember)
                beside.cancel_scope.cancel()
        if questions:
            return _pause(context, call, questions, may_remember=may_remember)
        return await _answer_of(call)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await call.end()
        raise


def take_responses(context: Context, call: Call, responses: InputResponses | None, *, may_remember: bool) -> None:
    """Give a call the answers that its client came back with; a question without one is denied."""
    for pending in call.put:
        question = pending.question
        given = (responses or {}).get(question.id)
        pending.give(to_answer(question, given, by=_name_of(context), may_remember=may_remember))
    call.put = ()


async def _until_asked(
    context: Context, call: Call, beside: anyio.abc.TaskGroup, *, may_remember: bool
) -> tuple[Pending, ...]:
    """Return what the client has to be returned, nothing when the call is over; call a client back meanwhile."""
    while not call.is_over():
        await call.until_news()
        if call.is_over():
            break
        if is_modern(context):
            await anyio.sleep(_TOGETHER_S)
            if call.is_over():
                break
        questions = call.bridge.take_new()
        if is_modern(context) and questions:
            if call.rounds < MOST_ROUNDS:
                return questions
            for pending in questions:
                pending.is_put = False
                pending.deny(_TOO_OFTEN, _TOO_OFTEN_REMEDY)
        elif not is_modern(context):
            for pending in questions:
                beside.start_soon(_call_back, context, pending, may_remember)
    return ()


def _pause(context: Context, call: Call, questions: tuple[Pending, ...], *, may_remember: bool) -> InputRequiredResult:
    forms = {one.question.id: make_form(one.question, may_remember=may_remember) for one in questions}
    return InputRequiredResult(
        input_requests=forms,  # type: ignore[arg-type]
        request_state=context.lifespan_context.pause(call, questions),
    )


async def _call_back(context: Context, pending: Pending, may_remember: bool) -> None:
    question = pending.question
    try:
        given: object = await context.session.send_request(
            make_form(question, may_remember=may_remember),
            ElicitResult,
            request_read_timeout_seconds=max(pending.left_s, 0.01),
            metadata=ServerMessageMetadata(related_request_id=context.request_id),
        )
    except (MCPError, ValidationError) as error:
        if isinstance(error, MCPError) and error.error.code == REQUEST_TIMEOUT:
            return  # and so does who asks, at this very moment
        given = None
    pending.give(to_answer(question, given, by=_name_of(context), may_remember=may_remember))


async def _answer_of(call: Call) -> Answer:
    try:
        return await call.task
    except Exception as error:
        logger.exception("a tool failed")
        return answer_error(SandboxUnavailable(f"the server failed: {type(error).__name__}"))


def _name_of(context: Context) -> str:
    """Return the client as the record of answers names it; a name is what a client says of itself."""
    params = context.session.client_params
    name = "" if params is None else safe_text(params.client_info.name)[:60]
    return f"mcp client {name}".rstrip()
