# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a ShellTool (OpenAI agents SDK).

What commands print and what we say of them are kept apart: a call has an output for each command that was run, and
behind those one that is ours, where there is something to say. Our failure is a call that failed, never an output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents import ShellCallOutcome, ShellCommandOutput, ShellResult

from unspill.adapters.calling import read_arguments
from unspill.adapters.openai_words import REST, failure_of, is_our_failure, shown_of, words_of
from unspill.errors import SandboxUnavailable, UnspillError
from unspill.model.run import TimedOut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agents import ShellActionRequest, ShellCommandRequest

    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox


def shell_executor(sandbox: Sandbox) -> Callable[[ShellCommandRequest], Awaitable[ShellResult]]:
    """Return what a ShellTool runs its commands with: one after the other, up to one that is over its time."""

    async def run_all(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        results: list[RunResult] = []
        for command in action.commands:
            results.append(await _run(sandbox, command, action.timeout_ms, results))
            if isinstance(results[-1].outcome, TimedOut):
                break
        outputs, words = _outputs(sandbox, action, results)
        ours = [ShellCommandOutput(words, outcome=ShellCallOutcome("exit", 0))] if words else []
        return ShellResult([*outputs, *ours], max_output_length=action.max_output_length)

    return run_all


async def _run(sandbox: Sandbox, command: str, timeout_ms: int | None, before: list[RunResult]) -> RunResult:
    """Run one command, or raise an UnspillError: the SDK shows its text to the model, as a call that failed."""
    failed: RunResult | UnspillError
    try:
        wanted = {"command": command, "timeout_s": None if timeout_ms is None else timeout_ms / 1000}
        failed = await sandbox.arun(**read_arguments(sandbox, wanted))
        if not is_our_failure(failed):
            return failed
    except UnspillError as error:
        failed = error
    except OSError as error:
        # Without its path, which is one of the host
        failed = SandboxUnavailable(f"the sandbox failed: {error.strerror}")
    codes = ", ".join(str(result.exit_code) for result in before)
    told = f" Commands before it were run, with exit codes {codes}." if before else ""
    raise UnspillError(failure_of(sandbox, failed) + told)


def _outputs(
    sandbox: Sandbox, action: ShellActionRequest, results: list[RunResult]
) -> tuple[list[ShellCommandOutput], str]:
    """Return what was printed, within the bounds of the policy and of the model, and what we say of it."""
    outputs, words = [], []
    for number, (command, result) in enumerate(zip(action.commands, results, strict=False), 1):
        is_late = isinstance(result.outcome, TimedOut)
        outcome = ShellCallOutcome("timeout") if is_late else ShellCallOutcome("exit", result.exit_code)
        (stdout, stderr), notice = shown_of(result)
        outputs.append(ShellCommandOutput(stdout, stderr, outcome, command))
        said = [*words_of(sandbox, result), *notice]
        if said != [f"Exit code: {result.exit_code}"]:
            words += [f"About command {number} of {len(action.commands)}:", *said]
    if len(results) < len(action.commands):
        words.append(f"Those after command {len(results)} were not run.")
    _cut(outputs, words, action.max_output_length)
    return outputs, "\n".join(words)


def _cut(outputs: list[ShellCommandOutput], words: list[str], most: int | None) -> None:
    """Leave so much of the outputs that our words fit too: the SDK would cut them first."""
    printed = sum(len(output.stdout) + len(output.stderr) for output in outputs)
    if most is None or printed + len("\n".join(words)) <= most:
        return
    words.append(f"Note: all of this is cut to {most} characters; {printed} were to be shown. {REST}")
    room = max(0, most - len("\n".join(words)))
    for output in outputs:
        output.stdout = output.stdout[:room]
        output.stderr = output.stderr[: room - len(output.stdout)]
        room -= len(output.stdout) + len(output.stderr)
