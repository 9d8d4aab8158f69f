# SPDX-License-Identifier: Apache-2.0
"""The MCP server: tools and resources of sandboxes, for clients of both eras of the protocol.

Names, words and schemas are those of `adapters.toolbox`; here they only get on the wire. Approving and granting are no
tools, and applying is one only where the operator wants that: what a model may not do by itself it can't do here.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolResult,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ReadResourceResult,
    TextContent,
)

from unspill import __version__
from unspill.adapters.answering import answer_error, own_failure
from unspill.adapters.mcp.asking import Asking, approver_for, with_left_open
from unspill.adapters.mcp.bridge import LONGEST_S
from unspill.adapters.mcp.calls import READING, Calls
from unspill.adapters.mcp.conversing import converse, take_responses
from unspill.adapters.mcp.outputs import Heard, Outputs, Own
from unspill.adapters.mcp.projects import Projects
from unspill.adapters.mcp.resources import (
    is_address,
    link_to,
    list_resources,
    list_templates,
    prefix_of,
    read_resource,
)
from unspill.adapters.seen import seen_in
from unspill.adapters.toolbox import call_tool
from unspill.errors import UnspillError, UsageError
from unspill.sandbox.asynchronous import call_in_thread
from unspill.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, PaginatedRequestParams, ReadResourceRequestParams, ResourceLink

    from unspill.adapters.answering import Answer
    from unspill.adapters.mcp.calls import Call
    from unspill.model.run import Event

    Context = ServerRequestContext[Calls, Any]

NAME = "unspill"
_LINKS_SINCE = "2025-06-18"
_READING = ("changes", "diff")
INSTRUCTIONS = (
    "Commands run in a sandbox over the project; `changes`, `diff` and `undo` are about what they changed. "
    "Where more is needed than the sandbox has, the user is asked, never the model."
)
IN_CONTAINER = (
    "Commands run without a sandbox, as processes of a container: what they change is changed at once, for good."
)

_OVER = UsageError(
    "this call is over: its question was answered already, or nobody answered it in time",
    remedy="Nothing of it runs any more. Call the tool again if it is still needed.",
)

_NO_FILE = UsageError(
    "this is a resource, not a file: it is the client that reads it",
    remedy="If you have no tool for resources, run the command again, write what it prints to a file, and read that.",
)


def make_server(
    sandboxes: Sandbox | Sequence[Sandbox],
    *,
    default: Sandbox | None = None,
    asking: Asking | None = None,
    may_apply: bool = False,
) -> Server[Calls]:
    """Return a server for these sandboxes, to be served by stdio or by HTTP.

    Args:
        sandboxes: One, or several, which the argument `project` of each tool chooses from.
        default: The one of several that is meant where none is named.
        asking: How questions get to the person; by default as the client can, without lasting answers.
        may_apply: Whether `apply` is a tool too.

    Raises:
        UsageError: there is no sandbox, or one is there twice.
    """
    several = (sandboxes,) if isinstance(sandboxes, Sandbox) else tuple(sandboxes)
    served = Served(Projects(several, default=default, may_apply=may_apply), asking or Asking())
    server = Server(
        NAME,
        version=__version__,
        instructions=INSTRUCTIONS if all(seen_in(one).is_sealed for one in several) else IN_CONTAINER,
        lifespan=_calls,
        on_list_tools=served.list_tools,
        on_call_tool=served.call_tool,
        on_list_resources=served.list_resources,
        on_list_resource_templates=served.list_templates,
        on_read_resource=served.read_resource,
    )
    security = RequestStateSecurity.ephemeral(ttl=LONGEST_S)
    server.middleware.append(RequestStateBoundary(security, default_audience=NAME))
    return server


@asynccontextmanager
async def _calls(_server: Server[Calls]) -> AsyncIterator[Calls]:
    async with Calls() as calls:
        yield calls


class Served:
    """What a server answers with."""

    def __init__(self, projects: Projects, asking: Asking) -> None:
        self._projects = projects
        self._asking = asking
        self._outputs = Outputs()
        self._own = Own()

    async def list_tools(self, _context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        """Return the tools as they are for these projects."""
        return ListToolsResult(tools=self._projects.tools())

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Call a tool, or go on with a call whose questions the client has answered."""
        remember = self._asking.may_remember
        if params.request_state is None:
            try:
                call = self._begin(context, params)
            except UnspillError as error:
                return to_result(answer_error(error))
        else:
            resumed = context.lifespan_context.resume(params.request_state)
            if resumed is None:
                return to_result(answer_error(_OVER))
            call = resumed
            take_responses(context, call, params.input_responses, may_remember=remember)
        outcome = await converse(context, call, may_remember=remember)
        if isinstance(outcome, InputRequiredResult):
            return outcome
        return to_result(outcome, call.links if context.protocol_version >= _LINKS_SINCE else ())

    def _begin(self, context: Context, params: CallToolRequestParams) -> Call:
        sandbox, arguments = self._projects.choose(params.arguments or {})
        if params.name == "read" and is_address(arguments.get("path")):
            raise _NO_FILE
        approver = approver_for(context, sandbox, self._asking)
        prefix = prefix_of(self._projects, sandbox)

        def work(call: Call, cancel_fd: int) -> Answer:
            # A stream that is longer than what a result has of it, both ends together, has a file
            heard = Heard(2 * sandbox.policy.limits.kept_bytes)

            def on_event(event: Event) -> None:
                heard.take(event)
                call.progress.take(event)

            def where(run: int, stream: str) -> str:
                self._outputs.put(sandbox, run, stream, heard.whole(stream))
                call.links.append(link_to(prefix, run, stream))
                return f"the resource {call.links[-1].uri}"

            answer = call_tool(
                sandbox,
                params.name,
                arguments,
                on_event=on_event,
                cancel_fd=cancel_fd,
                approver=approver or call.bridge,
                may_apply=self._projects.may_apply,
                where=where,
                is_mine=lambda operation: self._own.has_operation(sandbox, operation.number),
            )
            self._own.add(sandbox, params.name, answer)
            return with_left_open(answer, approver)

        place = READING if params.name in _READING else sandbox.id
        return context.lifespan_context.begin(work, place)

    async def list_resources(self, _context: Context, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        """Return what can be read at once."""
        return ListResourcesResult(resources=list_resources(self._projects))

    async def list_templates(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """Return what can be read once its number is known."""
        return ListResourceTemplatesResult(resource_templates=list_templates(self._projects))

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """Return a part of what a run printed, or what is held."""
        try:
            async with context.lifespan_context.slots(READING):
                # What only reads is not worth interrupting
                with anyio.CancelScope(shield=True):
                    found = await call_in_thread(
                        lambda _fd: read_resource(self._projects, self._outputs, self._own, params.uri)
                    )
        except UsageError as error:
            raise _refusal(INVALID_PARAMS, error) from None
        except UnspillError as error:
            raise _refusal(INTERNAL_ERROR, error) from None
        except OSError as error:
            raise _refusal(INTERNAL_ERROR, own_failure(error)) from None
        return ReadResourceResult(contents=found)


def _refusal(code: int, error: UnspillError) -> MCPError:
    return MCPError(code=code, message=answer_error(error).text.removeprefix("ERROR: ").rstrip())


def to_result(answer: Answer, links: Sequence[ResourceLink] = ()) -> CallToolResult:
    """Return an answer as the protocol has it."""
    return CallToolResult(
        content=[TextContent(text=_wire(answer.text)), *links],
        structured_content=_wire(answer.values),
        is_error=answer.is_error,
    )


def _wire(value: Any) -> Any:
    """Return a value that JSON can hold: half a character would end the server when it is written."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_wire(key): _wire(item) for key, item in value.items()}
    return [_wire(item) for item in value] if isinstance(value, list | tuple) else value
