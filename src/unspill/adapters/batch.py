# SPDX-License-Identifier: Apache-2.0
"""Several commands that a model wants run by one call: what each printed, and apart from that what we say of them.

They are run one after the other, up to one that is over its time. What is shown is within the bounds of the policy and
of the model, and what is left out is counted. Our failure is an exception that says which commands were run before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unspill.adapters.answering import REST
from unspill.adapters.calling import read_arguments
from unspill.adapters.clipping import MARK, clip
from unspill.adapters.seen import seen_in
from unspill.adapters.told import failure_text, notes_of, run_or_raise
from unspill.adapters.window import many
from unspill.errors import UnspillError
from unspill.model.record import Record
from unspill.model.run import TimedOut
from unspill.sandbox.asynchronous import call_in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.policy import Policy
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox


class Printed(Record):
    """What is shown of one command's output, and how it ended."""

    command: str
    stdout: str
    stderr: str
    exit_code: int
    is_late: bool


class Batch(Record):
    """What was run of the commands of a call; `words` is what we say of that, if there is anything to say."""

    printed: tuple[Printed, ...]
    words: str


async def run_batch(sandbox: Sandbox, commands: Sequence[str], timeout_s: float | None, most: int | None) -> Batch:
    """Run commands, each within a time, and show at most so many characters of them all; cancelling kills what runs.

    Raises:
        UnspillError: one of them could not be run.
    """
    results: list[RunResult] = []
    for command in commands:
        try:
            results.append(await _run(sandbox, command, timeout_s))
        except UnspillError as error:
            codes = ", ".join(str(result.exit_code) for result in results)
            told = f" Commands before it were run, with exit codes {codes}." if results else ""
            raise UnspillError(f"ERROR: {failure_text(error)}{told}") from error
        if isinstance(results[-1].outcome, TimedOut):
            break
    return _tell(commands, results, seen_in(sandbox).policy, most)


async def _run(sandbox: Sandbox, command: str, timeout_s: float | None) -> RunResult:
    options = read_arguments(sandbox, {"command": command, "timeout_s": timeout_s})
    return await call_in_thread(lambda cancel_fd: run_or_raise(sandbox, **options, cancel_fd=cancel_fd))


def _tell(commands: Sequence[str], results: list[RunResult], policy: Policy, most: int | None) -> Batch:
    printed, words = [], []
    for number, (command, result) in enumerate(zip(commands, results, strict=False), 1):
        (stdout, stderr), cut = shown_of(result)
        is_late = isinstance(result.outcome, TimedOut)
        printed.append(
            Printed(command=command, stdout=stdout, stderr=stderr, exit_code=result.exit_code, is_late=is_late)
        )
        if said := [*notes_of(result, policy, tells_changes=True), *cut]:
            words += [f"About command {number} of {len(commands)}:", *said]
    if len(results) < len(commands):
        words.append(f"Those after command {len(results)} were not run.")
    printed, words = cut_to(printed, words, most)
    return Batch(printed=tuple(printed), words="\n".join(words))


def shown_of(result: RunResult) -> tuple[list[str], list[str]]:
    """Return what the policy shows of stdout and of stderr, and what to say of the rest."""
    shown = [clip((stream,), result.shown_lines, result.shown_bytes) for stream in (result.stdout, result.stderr)]
    left_out = sum(one.left_out for one in shown)
    said = f'Note: the output is cut at "{MARK}": {many(left_out, "byte")} left out. {REST}'
    return [one.text.rstrip("\n") for one in shown], [said] if left_out else []


def cut_to(printed: list[Printed], words: list[str], most: int | None) -> tuple[list[Printed], list[str]]:
    """Return so much of the outputs that our words fit too, within so many characters."""
    total = sum(len(one.stdout) + len(one.stderr) for one in printed)
    if most is None or total + len("\n".join(words)) <= most:
        return printed, words
    words = [*words, f"Note: all of this is cut to {most} characters; {total} were to be shown. {REST}"]
    room = max(0, most - len("\n".join(words)))
    shown = []
    for one in printed:
        stdout = one.stdout[:room]
        stderr = one.stderr[: room - len(stdout)]
        shown.append(one.replace(stdout=stdout, stderr=stderr))
        room -= len(stdout) + len(stderr)
    return shown, words
