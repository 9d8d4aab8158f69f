# SPDX-License-Identifier: Apache-2.0
"""Calls the tool: a model's arguments are checked one by one, and can only ever ask for less than the policy gives.

More than that (`network`) goes to the sandbox's approver, who is never the model.
"""

from __future__ import annotations

from unspill.adapters.answering import answer_error, answer_run
from unspill.errors import UnspillError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from unspill.adapters.answering import Answer
    from unspill.model.event import Event
    from unspill.sandbox.sandbox import Sandbox

_KINDS: dict[str, tuple[type, ...]] = {
    "command": (str,),
    "working_dir": (str,),
    "network": (bool,),
    "timeout_s": (int, float),
    "stdin": (str,),
}


def call_run_command(
    sandbox: Sandbox,
    arguments: Mapping[str, Any],
    *,
    on_event: Callable[[Event], None] | None = None,
    cancel_fd: int | None = None,
) -> Answer:
    """Run what a model asks for and return what it is told. Nothing is raised for what a model did wrong.

    A command without an approver that could be asked is told so. `on_event` and `cancel_fd` are those of `run`.
    """
    try:
        options = read_arguments(sandbox, arguments)
        return answer_run(sandbox.run(**options, on_event=on_event, cancel_fd=cancel_fd))
    except UnspillError as error:
        return answer_error(error)


async def acall_run_command(sandbox: Sandbox, arguments: Mapping[str, Any], **options: Any) -> Answer:
    """Do the same without blocking the event loop; cancelling the task kills the command."""
    try:
        return answer_run(await sandbox.arun(**read_arguments(sandbox, arguments), **options))
    except UnspillError as error:
        return answer_error(error)


def read_arguments(sandbox: Sandbox, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Sandbox.run` that a model's arguments mean.

    Raises:
        UsageError: one of them is unknown, missing or of another kind.
    """
    for name, value in arguments.items():
        if name not in _KINDS:
            raise UsageError(f"there is no argument {name!a}", remedy=f"There are {', '.join(_KINDS)}.")
        is_kind = isinstance(value, _KINDS[name]) and (isinstance(value, bool) is (_KINDS[name] == (bool,)))
        if value is not None and not is_kind:
            raise UsageError(f"the argument {name} is not of the kind that the schema says: {value!a:.60}")
    command = arguments.get("command")
    if not command or not command.strip():
        raise UsageError("Command cannot be empty")
    stdin = arguments.get("stdin")
    return {
        "command": command,
        "cwd": arguments.get("working_dir") or None,
        "network": bool(arguments.get("network")),
        "timeout": _lower(sandbox, arguments.get("timeout_s")),
        "stdin": None if stdin is None else stdin.encode("utf-8", "surrogateescape"),
    }


def _lower(sandbox: Sandbox, wanted: float | None) -> float | None:
    """Return a time that is never more than the policy's."""
    bound = sandbox._opened.policy.limits.wall_s
    if wanted is None:
        return None
    if not wanted > 0:
        raise UsageError(f"timeout_s must be more than 0: {wanted!a:.40}")
    return float(wanted) if bound is None else min(float(wanted), bound)
