# SPDX-License-Identifier: Apache-2.0
"""Runs and results as JSON values. Bytes that are no UTF-8 stand beside their text in base64."""

from __future__ import annotations

from base64 import b64encode

from unspill.changes.json_form import to_plain
from unspill.model.run import exit_code_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.run import Outcome, Output, Run
    from unspill.sandbox.result import RunResult


def outcome_form(outcome: Outcome | None) -> dict[str, Any] | None:
    """Return an outcome with its kind and the exit code that stands for it."""
    if outcome is None:
        return None
    return {"kind": type(outcome).__name__, "exit_code": exit_code_of(outcome), **outcome.as_dict()}


def output_form(output: Output) -> dict[str, Any]:
    """Return one stream: its text, and in base64 what is lost in the text."""
    form: dict[str, Any] = {"text": output.kept().decode("utf-8", "replace"), "left_out": output.left_out}
    if output.kept().decode("utf-8", "replace").encode() != output.kept():
        form["bytes_b64"] = b64encode(output.kept()).decode()
    if output.file is not None:
        form["file"] = _text(output.file)
    return form


def run_form(run: Run) -> dict[str, Any]:
    """Return the record of a run."""
    return {
        "run": run.id,
        "number": run.number,
        "argv": [_text(word) for word in run.argv],
        "cwd": _text(run.cwd),
        "started_ns": run.started_ns,
        "ended_ns": run.ended_ns,
        "outcome": outcome_form(run.outcome),
        "stdout": output_form(run.stdout),
        "stderr": output_form(run.stderr),
        "changed": run.changed,
        "held": run.held,
    }


def result_form(result: RunResult) -> dict[str, Any]:
    """Return the result of a run."""
    return {
        "run": result.run,
        "number": result.number,
        "outcome": outcome_form(result.outcome),
        "stdout": output_form(result.stdout),
        "stderr": output_form(result.stderr),
        "changes": to_plain(result.changes),
        "held": result.held,
        "duration_s": result.duration_s,
        "hints": [hint.as_dict() for hint in result.hints],
        "warnings": list(result.warnings),
    }


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
