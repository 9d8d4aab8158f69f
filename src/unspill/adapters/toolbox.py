# SPDX-License-Identifier: Apache-2.0
"""All the tools that an agent is given, in one list, and the one way to call them: for every adapter.

    for tool in tools_of(sandbox):
        register(tool.name, tool.description, tool.schema)
    answer = call_tool(sandbox, "read", {"path": "README.md"})

Nothing here grants anything, and applying is only among the tools where the person wants it to be.
"""

from __future__ import annotations

from unspill.adapters.answering import Answer, answer_error, own_failure, with_interrupted
from unspill.adapters.applying import apply_tool, call_apply
from unspill.adapters.arguments import check_arguments
from unspill.adapters.calling import call_run_command
from unspill.adapters.filing import (
    call_edit,
    call_list,
    call_read,
    call_write,
    edit_tool,
    list_tool,
    read_tool,
    write_tool,
)
from unspill.adapters.reviewing import call_changes, call_diff, call_undo, changes_tool, diff_tool, undo_tool
from unspill.adapters.tool import run_command_tool
from unspill.errors import UnspillError, UsageError
from unspill.sandbox.turn import refuse_given_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from unspill.adapters.answering import Where
    from unspill.adapters.reviewing import Mine
    from unspill.adapters.tool import Tool
    from unspill.model.run import Event
    from unspill.sandbox.sandbox import Sandbox
    from unspill.sandbox.settings import Who

# In the order in which they are listed
_MAKERS: dict[str, Callable[[Sandbox], Tool]] = {
    "run": lambda sandbox: run_command_tool(sandbox, "run"),
    "changes": changes_tool,
    "diff": diff_tool,
    "undo": undo_tool,
    "read": read_tool,
    "write": write_tool,
    "list": list_tool,
    "edit": edit_tool,
}
_APPLY, _UNDO = "apply", "undo"
_REVIEWING: dict[str, Callable[..., Answer]] = {"changes": call_changes, "diff": call_diff}
_FILING: dict[str, Callable[..., Answer]] = {
    "read": call_read,
    "write": call_write,
    "list": call_list,
    "edit": call_edit,
}


def tools_of(sandbox: Sandbox, *, may_apply: bool = False) -> tuple[Tool, ...]:
    """Return the tools as they are for this sandbox; `apply` among them only where the person wants that."""
    return tuple(make(sandbox) for make in _makers(may_apply=may_apply).values())


def call_tool(
    sandbox: Sandbox,
    name: str,
    arguments: Mapping[str, Any],
    *,
    on_event: Callable[[Event], None] | None = None,
    cancel_fd: int | None = None,
    approver: Who = None,
    may_apply: bool = False,
    where: Where | None = None,
    is_mine: Mine | None = None,
) -> Answer:
    """Do what a model asks for and return what it is told. Nothing is raised for what a model did wrong.

    Args:
        sandbox: Whose tool it is. May be used by several threads at once.
        name: Which tool.
        arguments: What the model gives; nothing of it is believed.
        on_event: Called with what a command prints while it runs.
        cancel_fd: A descriptor that becomes readable to cancel: a run is killed, what has not begun does not happen.
        approver: Who answers for this call, instead of the sandbox's.
        may_apply: As for `tools_of`.
        where: Where the model can read all that a stream of a run had, by the run's number and the stream's name.
        is_mine: Which operations `undo` may take back, of those that runs in this sandbox have applied.
    """
    policy = sandbox.policy
    makers = _makers(may_apply=may_apply)
    try:
        if name not in makers:
            raise UsageError(f"there is no tool {name!a:.60}", remedy=f"There are {', '.join(makers)}.")
        if name == "run":
            return call_run_command(
                sandbox, arguments, on_event=on_event, cancel_fd=cancel_fd, approver=approver, where=where
            )
        given = check_arguments(makers[name](sandbox).schema, arguments)
        if name == _APPLY:
            answer = call_apply(sandbox, given, approver=approver, cancel_fd=cancel_fd)
        elif name == _UNDO:
            answer = call_undo(sandbox, given, cancel_fd=cancel_fd, is_mine=is_mine)
        elif name in _REVIEWING:
            refuse_given_up(cancel_fd)
            answer = _REVIEWING[name](sandbox, given)
        else:
            answer = _FILING[name](sandbox, given, cancel_fd=cancel_fd)
        return with_interrupted(sandbox, answer)
    except UnspillError as error:
        return answer_error(error, policy=policy)
    except OSError as error:
        return answer_error(own_failure(error))


async def acall_tool(sandbox: Sandbox, name: str, arguments: Mapping[str, Any], **options: Any) -> Answer:
    """Do the same without blocking the event loop; cancelling the task ends what it does."""
    from unspill.sandbox.asynchronous import call_in_thread

    return await call_in_thread(lambda cancel_fd: call_tool(sandbox, name, arguments, cancel_fd=cancel_fd, **options))


def _makers(*, may_apply: bool) -> dict[str, Callable[[Sandbox], Tool]]:
    return {**_MAKERS, _APPLY: apply_tool} if may_apply else _MAKERS
