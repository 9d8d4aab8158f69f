# SPDX-License-Identifier: Apache-2.0
"""Several commands that a model wants run by one call: what each printed, and apart from that what we say of them.

They are run one after the other, up to one that is over its time. What is shown is within the bounds of the policy and
of the model, and what is left out is counted. Our failure is an exception that says which commands were run before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unspill.adapters.answering import REST, interrupted_notes
from unspill.adapters.calling import read_arguments
from unspill.adapters.clipping import clip
from unspill.adapters.seen import seen_in
from unspill.adapters.told import failure_text, notes_of, run_or_raise
from unspill.adapters.window import many
from unspill.errors import UnspillError
from unspill.model.run import TimedOut
from unspill.record import Record
from unspill.sandbox.asynchronous import call_in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

_TRIES = 4
# Less than this of a stream tells nothing
_LEAST = 16


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
    return _tell(commands, results, sandbox, most)


async def _run(sandbox: Sandbox, command: str, timeout_s: float | None) -> RunResult:
    options = read_arguments(sandbox, {"command": command, "timeout_s": timeout_s})
    return await call_in_thread(lambda cancel_fd: run_or_raise(sandbox, **options, cancel_fd=cancel_fd))


def _tell(commands: Sequence[str], results: list[RunResult], sandbox: Sandbox, most: int | None) -> Batch:
    policy = seen_in(sandbox).policy
    notes = [[*interrupted_notes(sandbox), *notes_of(result, policy, tells_changes=True)] for result in results]
    return fit(commands, results, notes, most)


def fit(commands: Sequence[str], results: Sequence[RunResult], notes: list[list[str]], most: int | None) -> Batch:
    """Return what is shown of runs, within so many characters with our words about them; without those if need be."""
    batch = compose(commands, results, notes)
    if most is None or size_of(batch) <= most:
        return batch
    sizes = [len(text) for printed in batch.printed for text in (printed.stdout, printed.stderr)]
    room = most - len(batch.words)
    for _ in range(_TRIES):
        batch = compose(commands, results, notes, level_of(sizes, room))
        if size_of(batch) <= most:
            return batch
        # What is said of what is cut takes room as well
        room -= size_of(batch) - most
    return compose(commands, results, notes, 0)


def compose(
    commands: Sequence[str], results: Sequence[RunResult], notes: list[list[str]], level: int | None = None
) -> Batch:
    """Return what is shown of runs, of each stream at most so many bytes, and our notes on each with what is cut."""
    printed, words, is_cut = [], [], False
    for number, (command, result) in enumerate(zip(commands, results, strict=False), 1):
        (stdout, stderr), cut = shown_of(result, level)
        is_late = isinstance(result.outcome, TimedOut)
        printed.append(
            Printed(command=command, stdout=stdout, stderr=stderr, exit_code=result.exit_code, is_late=is_late)
        )
        if said := [*notes[number - 1], *cut]:
            words += [f"About command {number} of {len(commands)}:", *said]
        is_cut |= bool(cut)
    if len(results) < len(commands):
        words.append(f"Those after command {len(results)} were not run.")
    words += [REST] if is_cut else []
    return Batch(printed=tuple(printed), words="\n".join(words))


def shown_of(result: RunResult, level: int | None = None) -> tuple[list[str], list[str]]:
    """Return what is shown of stdout and of stderr, and what to say of the rest."""
    shown, said = [], []
    most = result.shown_bytes if level is None else min(result.shown_bytes, level)
    for name, stream in (("stdout", result.stdout), ("stderr", result.stderr)):
        found = clip((stream,), result.shown_lines, most)
        if not found.left_out:
            shown.append(found.text.rstrip("\n"))
        elif most < _LEAST:
            shown.append("")
            said.append(f"Note: {name} is not shown: {many(stream.total, 'byte')}.")
        else:
            shown.append(found.text.rstrip("\n"))
            said.append(f"Note: {found.told(name)}.")
    return shown, said


def level_of(sizes: Sequence[int], room: int) -> int:
    """Return how much of each there can be, so that all have room: the short ones whole, the long ones alike."""
    left, level = max(0, room), 0
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left, level = left - size, size
    return level


def size_of(batch: Batch) -> int:
    """Return how many characters a model is shown of all of it."""
    return sum(len(one.stdout) + len(one.stderr) for one in batch.printed) + len(batch.words)
