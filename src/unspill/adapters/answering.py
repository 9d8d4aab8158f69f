# SPDX-License-Identifier: Apache-2.0
"""What a model is told of a run, as text and as values.

Our own words come first and end at `Output:`; all that follows is the command's. So whatever a command prints, it can't
pass for how it ended or for what it changed. Our failure is an error of the tool, never output.
"""

from __future__ import annotations

from unspill.changes.quote import quote
from unspill.errors import DeniedError
from unspill.model.record import Record
from unspill.model.run import NeverStarted
from unspill.sandbox.result import denied_lines, describe_end, network_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from unspill.errors import UnspillError
    from unspill.model.run import Output
    from unspill.sandbox.result import RunResult

_MOST = 10
OUTPUT = "Output:"
_DENIED = "Nothing was run. Do without it, or tell the user what you need and why."


class Answer(Record):
    """What a tool returns: `is_error` where the tool failed, not the command; `values` is the same for programs."""

    text: str
    values: dict[str, Any]
    is_error: bool = False


def answer_run(result: RunResult) -> Answer:
    """Return what a model is told of a run."""
    if isinstance(result.outcome, NeverStarted) and result.outcome.exit_code == 125:
        remedy = f" {result.outcome.remedy}" if result.outcome.remedy else ""
        return _error("sandbox-unavailable", f"the sandbox could not be started: {result.outcome.reason}.{remedy}")
    shown, notice = _shown(result)
    lines = [*_ending(result), *_notes(result), *_changes(result), *notice]
    lines += [OUTPUT, shown] if shown else ["The command printed nothing."]
    return Answer(text="\n".join(lines) + "\n", values=_values(result))


def answer_error(error: UnspillError) -> Answer:
    """Return what a model is told where nothing was run: why, and what would help."""
    message = error.message if error.message.endswith((".", "?")) else f"{error.message}."
    told = [message, error.remedy, *((_DENIED,) if isinstance(error, DeniedError) else ())]
    return _error(error.code, " ".join(filter(None, told)))


def _error(code: str, text: str) -> Answer:
    text = text if text.startswith("ERROR:") else f"ERROR: {text}"
    return Answer(text=text + "\n", values={"error": code, "message": text}, is_error=True)


def _ending(result: RunResult) -> Iterator[str]:
    if isinstance(result.outcome, NeverStarted):
        yield f"The command could not be started: {result.outcome.reason}. {result.outcome.remedy}".rstrip()
        yield f"Exit code: {result.outcome.exit_code}"
    else:
        yield describe_end(result.outcome)
    if not result.sandboxed:
        yield from (f"Note: {warning}" for warning in result.warnings)


def _notes(result: RunResult) -> Iterator[str]:
    yield from (f"Note: {hint.text} {hint.remedy}" for hint in result.hints[:_MOST])
    yield from denied_lines(result.denied_paths)
    yield from network_lines(result.denials)


def _changes(result: RunResult) -> Iterator[str]:
    if not result.changes:
        return
    from unspill.changes.render import applied_part, left_lines, summary_lines

    operation = result.operation
    if operation is None:
        state = "held: later commands see them, the project does not" if result.held else "thrown away"
        why = f" because the apply failed: {result.problem}" if result.problem else ""
        yield f"Changes ({state}{why}):"
        yield from summary_lines(result.changes, fold_git=True) or ["only times of files"]
        return
    applied = applied_part(result.changes, operation) if operation.left else result.changes
    if applied:
        yield "Changes (applied to the project):"
        yield from summary_lines(applied, fold_git=True) or ["only times of files"]
    if operation.left:
        yield "Not applied (held: later commands see it, the project does not have it until the user applies it):"
        yield from left_lines(operation)


def _shown(result: RunResult) -> tuple[str, list[str]]:
    """Return what is shown of the output, and what to say of what is not."""
    streams = [_text_of(stream).rstrip("\n") for stream in (result.stdout, result.stderr)]
    printed = "\n".join(stream for stream in streams if stream)
    lines = printed.split("\n")
    shown = "\n".join(lines[: result.shown_lines])
    cut = shown.encode("utf-8", "surrogatepass")[: result.shown_bytes].decode("utf-8", "ignore")
    dropped = sum(stream.left_out for stream in (result.stdout, result.stderr))
    if len(lines) <= result.shown_lines and len(cut) == len(shown) and not dropped:
        return cut, []
    notice = f"Note: the output is cut: lines 1 to {cut.count(chr(10)) + 1} of {len(lines)} follow"
    notice += f", and {dropped} bytes were not kept" if dropped else ""
    return cut, [f"{notice}. Write it to a file, and read the part that you need, to see the rest."]


def _text_of(stream: Output) -> str:
    return stream.kept().decode("utf-8", "backslashreplace")


def _values(result: RunResult) -> dict[str, Any]:
    operation = result.operation
    return {
        "run": result.number,
        "exit_code": result.exit_code,
        "ended": type(result.outcome).__name__.lower(),
        "stdout": {"text": _text_of(result.stdout), "left_out": result.stdout.left_out},
        "stderr": {"text": _text_of(result.stderr), "left_out": result.stderr.left_out},
        "changes": [{"kind": change.kind, "path": quote(change.path)} for change in result.changes],
        "held": result.held,
        "operation": None if operation is None or not operation.number else operation.number,
        "not_applied": [] if operation is None else [quote(left.path) for left in operation.left],
        "duration_s": round(result.duration_s, 3),
    }
