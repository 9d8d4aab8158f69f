# SPDX-License-Identifier: Apache-2.0
"""What a model is told of a run, as text and as values.

Our own words come first and end at `Output:`; all that follows is the command's. So whatever a command prints, it can't
pass for how it ended or for what it changed. Our failure is an error of the tool, never output.
"""

from __future__ import annotations

from unspill.adapters.advising import advice_of_denial, advice_of_file, advice_of_hint, for_user
from unspill.changes.quote import quote
from unspill.errors import DeniedError, FileError
from unspill.model.policy import Policy
from unspill.model.record import Record
from unspill.model.run import NeverStarted
from unspill.sandbox.result import became, cut_text, denied_lines, describe_end, stream_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from unspill.errors import UnspillError
    from unspill.model.change import ChangeSet
    from unspill.model.run import Output
    from unspill.sandbox.result import RunResult

    # Where all of a stream can be read, by the run's number and `stdout` or `stderr`
    Where = Callable[[int, str], str]

OUTPUT = "Output:"
_MOST = 10
_MOST_VALUES = 1000
_DENIED = "Nothing was run. Do without it, or tell the user what you need and why."
_HEADINGS = {
    "held": "Changes of run {run} (held: later commands see them, the project does not{why}):",
    "thrown away": "Changes of run {run} (thrown away{why}):",
    "applied": "Changes of run {run} (applied to the project{operation}):",
    "left": "Not applied (held: later commands see it, the project does not have it until the user applies it). "
    "Why, as the user is told:",
}


class Answer(Record):
    """What a tool returns: `is_error` where the tool failed, not the command; `values` is the same for programs."""

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
        told = [f"the sandbox could not be started: {result.outcome.reason}.", for_user(result.outcome.remedy)]
        return _error("sandbox-unavailable", " ".join(filter(None, told)))
    shown, notice = _shown(result, where)
    lines = [*_ending(result), *our_notes(result, policy), *changes_told(result), *notice]
    lines += [OUTPUT, shown] if shown else ["The command printed nothing."]
    return Answer(text="\n".join(lines) + "\n", values=_values(result))


def answer_error(error: UnspillError, *, policy: Policy | None = None) -> Answer:
    """Return what a model is told where nothing was done: why, and what would help."""
    message = error.message if error.message.endswith((".", "?")) else f"{error.message}."
    if isinstance(error, FileError):
        advice = advice_of_file(error, is_masked=(policy or Policy()).secrets.mask)
        answer = _error(error.code, " ".join(filter(None, (message, advice))))
        return answer.replace(values={**answer.values, "kind": error.kind, "remedy": advice})
    if isinstance(error, DeniedError):
        why = f"Why: {error.reason}." if error.reason else ""
        told = [message, why, for_user(error.remedy.removeprefix(why).lstrip()), _DENIED]
    else:
        told = [message, for_user(error.remedy)]
    return _error(error.code, " ".join(filter(None, told)))


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
    yield from denied_lines(result.denied_paths)
    for denial in result.denials[:_MOST]:
        yield f"Network: {denial.place} was refused. {advice_of_denial(denial, policy)}"
    if len(result.denials) > _MOST:
        yield f"Network: {len(result.denials) - _MOST} more were refused."


def changes_told(result: RunResult) -> Iterator[str]:
    """Yield what a run changed and what became of it."""
    operation = result.operation
    why = f"; the apply failed: {result.problem}" if result.problem else ""
    number = f" as operation {operation.number}" if operation is not None and operation.number else ""
    for state, lines in became(result):
        yield _HEADINGS[state].format(run=result.number, why=why, operation=number)
        yield from lines


def _shown(result: RunResult, where: Where | None) -> tuple[str, list[str]]:
    """Return what is shown of the output, and what to say of what is not."""
    streams = {"stdout": result.stdout, "stderr": result.stderr}
    texts = {name: stream_text(stream).rstrip("\n") for name, stream in streams.items()}
    cut = cut_text("\n".join(filter(None, texts.values())), result.shown_lines, result.shown_bytes)
    left_out = sum(stream.left_out for stream in streams.values())
    if not cut.is_cut and not left_out:
        return cut.text, []
    of_all = "" if left_out else f" of {cut.total}"
    told = [f"lines 1 to {cut.lines}{of_all} follow"] if cut.is_cut else []
    told += [f"{left_out} bytes in the middle of it are left out"] if left_out else []
    # What is cut is the end of both: of stdout it is all there where stderr has begun
    is_there = {"stdout": not cut.is_cut or cut.text.startswith(texts["stdout"] + "\n"), "stderr": not cut.is_cut}
    partly = [name for name in texts if streams[name].left_out or (texts[name] and not is_there[name])]
    return cut.text, [f"Note: the output is cut: {', and '.join(told)}. {_rest(result, partly, where)}"]


def _rest(result: RunResult, partly: list[str], where: Where | None) -> str:
    if where is None or not result.number:
        return "Write it to a file, and read the part that you need, to see the rest."
    return f"For the rest read {' and '.join(where(result.number, name) for name in partly)}."


def _values(result: RunResult) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "ended": type(result.outcome).__name__.lower(),
        "stdout": _value_of(result.stdout, result.shown_bytes),
        "stderr": _value_of(result.stderr, result.shown_bytes),
        **values_of_changes(result),
        "duration_s": round(result.duration_s, 3),
    }


def _value_of(stream: Output, most: int) -> dict[str, Any]:
    raw = stream.head[:most]
    return {"text": raw.decode("utf-8", "backslashreplace"), "left_out": stream.total - len(raw)}


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
