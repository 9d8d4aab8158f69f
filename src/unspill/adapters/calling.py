# SPDX-License-Identifier: Apache-2.0
"""Calls the tool: a model's arguments are checked one by one, and can only ever ask for less than the policy gives.

More than that (`network`) goes to the sandbox's approver, who is never the model.
"""

from __future__ import annotations

from unspill.adapters.answering import answer_error, answer_run, own_failure, with_interrupted
from unspill.adapters.arguments import check_arguments
from unspill.adapters.seen import seen_in
from unspill.adapters.tool import run_schema
from unspill.errors import UnspillError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from unspill.adapters.answering import Answer, Where
    from unspill.model.run import Event
    from unspill.sandbox.sandbox import Sandbox
    from unspill.sandbox.settings import Who

# Without a bound of the policy: no clock of the kernel can be set further than some of what a number can say
_LONGEST_S = 366 * 86400.0


def call_run_command(
    sandbox: Sandbox,
    arguments: Mapping[str, Any],
    *,
    on_event: Callable[[Event], None] | None = None,
    cancel_fd: int | None = None,
    approver: Who = None,
    where: Where | None = None,
) -> Answer:
    """Run what a model asks for and return what it is told. Nothing is raised for what a model did wrong.

    A command without an approver that could be asked is told so. `where` gives the place at which the model can read
    all that a stream had. The other arguments are those of `run`.
    """
    policy = seen_in(sandbox).policy
    try:
        options = read_arguments(sandbox, arguments)
        result = sandbox.run(**options, on_event=on_event, cancel_fd=cancel_fd, approver=approver)
    except UnspillError as error:
        return answer_error(error, policy=policy)
    except OSError as error:
        return answer_error(own_failure(error))
    return with_interrupted(sandbox, answer_run(result, policy=policy, where=where))


def read_arguments(sandbox: Sandbox, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Sandbox.run` that a model's arguments mean.

    Raises:
        UsageError: one of them is unknown, missing or of another kind.
    """
    given = check_arguments(run_schema(sandbox), arguments)
    command = given.get("command", "")
    if not command.strip():
        raise UsageError("Command cannot be empty")
    stdin = given.get("stdin")
    return {
        "command": command,
        "cwd": given.get("working_dir") or None,
        "network": given.get("network", False),
        "timeout": shorter(sandbox, given.get("timeout_s")),
        "stdin": None if stdin is None else stdin.encode("utf-8", "surrogateescape"),
    }


def shorter(sandbox: Sandbox, wanted: float | None) -> float | None:
    """Return a time that is never more than the policy's, None where that is meant.

    Raises:
        UsageError: no time can be like that.
    """
    bound = seen_in(sandbox).policy.limits.wall_s
    if wanted is None:
        return None
    if not wanted > 0:
        raise UsageError(f"timeout_s must be more than 0: {wanted!a:.40}")
    return float(min(wanted, _LONGEST_S if bound is None else bound))
