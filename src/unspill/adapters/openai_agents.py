# SPDX-License-Identifier: Apache-2.0
"""Tools for agents of the OpenAI agents SDK: what runs the commands of its ShellTool, and ours as function tools.

    Agent(..., tools=[ShellTool(executor=shell_executor(sandbox))])
    Agent(..., tools=[run_command_function(sandbox)])
    Agent(..., tools=[*function_tools(sandbox)])

What commands print and what we say of them are kept apart. Our failure is a call that failed, never an output.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agents import FunctionTool, ShellCallOutcome, ShellCommandOutput, ShellResult

from unspill.adapters.aio import acall_tool, run_batch
from unspill.adapters.answers import answer_error
from unspill.adapters.tools import run_command_tool, tools_of
from unspill.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agents import ShellCommandRequest

    from unspill.adapters.answers import Printed
    from unspill.adapters.tools import Tool
    from unspill.sandbox.sandbox import Sandbox


def shell_executor(sandbox: Sandbox) -> Callable[[ShellCommandRequest], Awaitable[ShellResult]]:
    """Return what a ShellTool runs its commands with.

    A call has an output for each command that was run, and behind those one that is ours, where there is something to
    say. An exception is shown to the model too, as the text of a call that failed.
    """

    async def run_all(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        timeout_s = None if action.timeout_ms is None else action.timeout_ms / 1000
        batch = await run_batch(sandbox, action.commands, timeout_s, action.max_output_length)
        ours = [ShellCommandOutput(batch.words, outcome=ShellCallOutcome("exit", 0))] if batch.words else []
        return ShellResult([*map(_output, batch.printed), *ours], max_output_length=action.max_output_length)

    return run_all


def _output(printed: Printed) -> ShellCommandOutput:
    outcome = ShellCallOutcome("timeout") if printed.is_late else ShellCallOutcome("exit", printed.exit_code)
    return ShellCommandOutput(printed.stdout, printed.stderr, outcome, printed.command)


def run_command_function(sandbox: Sandbox, **options: Any) -> FunctionTool:
    """Return the tool `run_command`; the options are those of FunctionTool, such as `needs_approval`."""
    return _function(sandbox, run_command_tool(sandbox), "run", options)


def function_tools(sandbox: Sandbox, **options: Any) -> list[FunctionTool]:
    """Return all tools of an agent: `run`, those that look at changes and take them back, those for files."""
    return [_function(sandbox, tool, tool.name, options) for tool in tools_of(sandbox)]


def _function(sandbox: Sandbox, tool: Tool, name: str, options: dict[str, Any]) -> FunctionTool:
    async def invoke(_context: object, text: str) -> str:
        try:
            arguments = json.loads(text or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return answer_error(UsageError("the arguments are not a JSON object")).text
        return (await acall_tool(sandbox, name, arguments)).text

    # Not strict: in that mode every argument is required
    return FunctionTool(tool.name, tool.description, tool.schema, invoke, strict_json_schema=False, **options)
