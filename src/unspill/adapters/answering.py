# SPDX-License-Identifier: Apache-2.0
"""What a model is told of a run, as text and as values.

Our own words come first and end at `Output:`; all that follows is the command's. So whatever a command prints, it can't
pass for how it ended or for what it changed. Our failure is an error of the tool, never output.
"""

from __future__ import annotations

from unspill.adapters.advising import advice_of_denial, advice_of_file, advice_of_hint, for_user, without_paths
from unspill.adapters.clipping import clip, shown_as
from unspill.adapters.seen import untold_runs
from unspill.changes.quote import quote
from unspill.errors import DeniedError, FileError, HostError, RootRefused, SandboxUnavailable, UsageError
from unspill.model.policy import Policy
from unspill.model.run import Cancelled, LimitReached, NeverStarted, TimedOut
from unspill.record import Record
from unspill.sandbox.result import became, describe_end, place_told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from unspill.errors import UnspillError
    from unspill.model.change import ChangeSet
    from unspill.model.run import Output
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

    # Where all of a stream can be read, by the run's number and `stdout` or `stderr`
    Where = Callable[[int, str], str]

OUTPUT = "Output:"
REST = "Write it to a file, and read the part that you need, to see the rest."
# What a caller gave, and what is said when a sandbox is opened: by whoever builds the agent, not by a model
_KNOWN = (UsageError, FileError, DeniedError, HostError)
_MOST = 10
_MOST_VALUES = 1000
_DENIED = "Nothing was run. Do without it, or tell the user what you need and why."
_HEADINGS = {
    "held": "Changes of run {run} (held: later commands see them, the project does not{why}):",
    "thrown away": "Changes of run {run} (thrown away{why}):",
    "applied": "Changes of run {run} (applied to the project{operation}):",
    "needless": "Changes of run {run} (nothing of it had to be applied: the project is as it was):",
    "left": "Not applied (held: later commands see it, the project does not have it until the user applies it). "
    "Why, as the user is told:",
}


class Answer(Record):
    """What a tool returns: `is_error` where the tool failed, not the command.

    `values` is the same for programs, within the same bounds: of each stream of a command as much as of both in `text`.
    """

    text: str
    values: dict[str, Any]
    is_error: bool = False


def answer_run(result: RunResult, *, policy: Policy | None = None, where: Where | None = None) -> Answer:
    """Return what a model is told of a run.

    Args:
        result: The run.
        policy: That of the sandbox, for what can be asked for.
        where: Gives the place at which the model can read all that a stream had, if there is one.
    """
    if isinstance(result.outcome, NeverStarted) and result.outcome.exit_code == 125:
        told = [
            f"{_told_of('the sandbox could not be started', result.outcome.reason)}.",
            for_user(without_paths(result.outcome.remedy)),
        ]
        return _error("sandbox-unavailable", " ".join(filter(None, told)))
    shown, notice = _shown(result, where)
    lines = [*_ending(result), *our_notes(result, policy), *changes_told(result), *notice]
    lines += [OUTPUT, shown] if shown else ["The command printed nothing."]
    return Answer(text="\n".join(lines) + "\n", values=_values(result))


def answer_error(error: UnspillError, *, policy: Policy | None = None) -> Answer:
    """Return what a model is told where nothing was done: why, and what would help."""
    message, remedy = _of_model(error)
    message = message if message.endswith((".", "?")) else f"{message}."
    if isinstance(error, FileError):
        advice = advice_of_file(error, is_masked=(policy or Policy()).secrets.mask)
        answer = _error(error.code, " ".join(filter(None, (message, advice))))
        return answer.replace(values={**answer.values, "kind": error.kind, "remedy": advice})
    if isinstance(error, DeniedError):
        why = f"Why: {error.reason}." if error.reason else ""
        told = [message, why, for_user(error.remedy.removeprefix(why).lstrip()), _DENIED]
    else:
        told = [message, for_user(remedy)]
    return _error(error.code, " ".join(filter(None, told)))


def _of_model(error: UnspillError) -> tuple[str, str]:
    """Return what went wrong and what helps; without the paths that a message for the person may have."""
    if isinstance(error, _KNOWN) and not isinstance(error, RootRefused):
        return error.message, error.remedy
    message = error.message
    if (why := without_paths(message)) != message:
        message = f"the sandbox failed: {why}" if why else f"the sandbox failed ({error.code})"
    return message, without_paths(error.remedy) or error.default_remedy


def _told_of(what: str, message: str) -> str:
    """Return what failed and why, without a path of the host."""
    why = without_paths(message)
    return f"{what}: {why}" if why else what


def own_failure(error: OSError) -> SandboxUnavailable:
    """Return what is told of an error with the sandbox's own files: not its path, which is one of the host."""
    return SandboxUnavailable(f"the sandbox failed: {error.strerror or type(error).__name__}")


def _error(code: str, text: str) -> Answer:
    text = text if text.startswith("ERROR:") else f"ERROR: {text}"
    return Answer(text=text + "\n", values={"error": code, "message": text}, is_error=True)


def _ending(result: RunResult) -> Iterator[str]:
    if isinstance(result.outcome, NeverStarted):
        remedy = for_user(result.outcome.remedy)
        yield f"The command could not be started: {result.outcome.reason}. {remedy}".rstrip()
        yield f"Exit code: {result.outcome.exit_code}"
    else:
        yield describe_end(result.outcome)
    if not result.sandboxed:
        yield from (f"Note: {warning}" for warning in result.warnings)


def our_notes(result: RunResult, policy: Policy | None = None) -> Iterator[str]:
    """Yield what the sandbox kept from a command, and what to do about it."""
    policy = policy or Policy()
    yield from (f"Note: {hint.text} {advice_of_hint(hint, policy)}".rstrip() for hint in result.hints[:_MOST])
    for denial in result.denials[:_MOST]:
        # The other rules have it in their remedy
        why = f": {denial.reason}" if denial.reason and denial.rule in ("host", "port", "budget") else ""
        yield f"Network: {place_told(denial)} was refused{why}. {advice_of_denial(denial, policy)}"
    if len(result.denials) > _MOST:
        yield f"Network: {len(result.denials) - _MOST} more were refused."


def interrupted_notes(sandbox: Sandbox) -> Iterator[str]:
    """Yield what became of runs that were cut off before their end, once each."""
    for run in untold_runs(sandbox):
        held = "What it had changed is held: later commands see it, the project does not."
        became_of = held if run.held else "What it had changed was too much to be kept, and is gone."
        yield f"Note: run {run.number} was cut off before its end. {became_of}"


def with_interrupted(sandbox: Sandbox, answer: Answer) -> Answer:
    """Return an answer that also tells of runs that were cut off, where no model was told of them yet."""
    notes = "".join(f"{note}\n" for note in interrupted_notes(sandbox))
    # An error begins with the word for it, and all that follows `Output:` is the command's
    return answer.replace(text=answer.text + notes if answer.is_error else notes + answer.text)


def changes_told(result: RunResult) -> Iterator[str]:
    """Yield what a run changed and what became of it."""
    operation = result.operation
    why = f"; {_told_of('the apply failed', result.problem)}" if result.problem else ""
    if not why and result.held and isinstance(result.outcome, TimedOut | LimitReached | Cancelled):
        why = "; what was cut short is not applied by itself"
    number = f" as operation {operation.number}" if operation is not None and operation.number else ""
    for state, lines in became(result):
        yield _HEADINGS[state].format(run=result.number, why=why, operation=number)
        yield from lines


def _shown(result: RunResult, where: Where | None) -> tuple[str, list[str]]:
    """Return what is shown of the output, and what to say of what is not."""
    streams = {"stdout": result.stdout, "stderr": result.stderr}
    shown = clip(tuple(streams.values()), result.shown_lines, result.shown_bytes)
    if not shown.left_out:
        return shown.text.rstrip("\n"), []
    # One follows the other, so what is cut of the first is at its end, and of the second at its beginning
    is_there = {
        "stdout": shown.head.startswith(result.stdout.kept()),
        "stderr": shown.tail.endswith(result.stderr.kept()),
    }
    partly = [name for name, stream in streams.items() if stream.left_out or not is_there[name]]
    return shown.text.rstrip("\n"), [f"Note: {shown.told()}. {_rest(result, partly, where)}"]


def _rest(result: RunResult, partly: list[str], where: Where | None) -> str:
    if where is None or not result.number:
        return REST
    return f"For the rest read {' and '.join(where(result.number, name) for name in partly)}."


def _values(result: RunResult) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "ended": type(result.outcome).__name__.lower(),
        "stdout": _value_of(result.stdout, result.shown_lines, result.shown_bytes),
        "stderr": _value_of(result.stderr, result.shown_lines, result.shown_bytes),
        **values_of_changes(result),
        "duration_s": round(result.duration_s, 3),
    }


def _value_of(stream: Output, lines: int, most: int) -> dict[str, Any]:
    shown = clip((stream,), lines, most)
    return {"text": shown_as(shown.head), "left_out": shown.left_out, "end": shown_as(shown.tail)}


def values_of_changes(result: RunResult) -> dict[str, Any]:
    """Return what a run changed and what became of it, for programs."""
    operation = result.operation
    return {
        "run": result.number,
        **changes_form(result.changes),
        "held": result.held,
        "operation": None if operation is None or not operation.number else operation.number,
        "not_applied": [] if operation is None else [quote(left.path) for left in operation.left[:_MOST_VALUES]],
    }


def changes_form(changes: ChangeSet) -> dict[str, Any]:
    """Return a change set for programs, as far as the bound."""
    found = list(changes)
    return {
        "changes": [{"kind": change.kind, "path": quote(change.path)} for change in found[:_MOST_VALUES]],
        "changes_left_out": max(0, len(found) - _MOST_VALUES),
    }
