# SPDX-License-Identifier: Apache-2.0
"""Runs, operations and what else is told as JSON values. Bytes that are no UTF-8 stand beside their text in base64."""

from __future__ import annotations

from base64 import b64encode

from unspill.changes.render import named, to_plain
from unspill.cli.traffic import traffic_form
from unspill.model.run import exit_code_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from unspill.model.operation import Operation
    from unspill.model.run import Outcome, Output, Run
    from unspill.sandbox.records import Backup
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.retention import Pruned
    from unspill.sandbox.status import Status
    from unspill.sandbox.upkeep import Recovered
    from unspill.store.operations import FileRow


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
        "sandboxed": run.sandboxed,
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
        "operation": None if result.operation is None else operation_form(result.operation),
        "flagged": [{**named("path", path), "reason": reason} for path, reason in result.flagged],
        "problem": result.problem,
        "duration_s": result.duration_s,
        "hints": [hint.as_dict() for hint in result.hints],
        "warnings": list(result.warnings),
        "sandboxed": result.sandboxed,
        **traffic_form(result.connections, result.denials),
    }


def operation_form(operation: Operation) -> dict[str, Any]:
    """Return the record of an operation."""
    return {
        "operation": operation.id,
        "number": operation.number,
        "kind": operation.kind,
        "at_ns": operation.at_ns,
        "asked_by": operation.asked_by,
        "ending": operation.ending,
        "of": operation.of,
        "runs": list(operation.runs),
        "changed": operation.changed,
        "left": [
            {
                **named("root", operation.roots[left.root]),
                **named("path", left.path),
                "why": left.why,
                "reason": left.reason,
            }
            for left in operation.left
        ],
        "notes": list(operation.notes),
    }


def file_form(file: FileRow, backups: Iterable[Backup]) -> dict[str, Any]:
    """Return the record of a file with its backups."""
    return {
        "id": file.id,
        **named("root", file.root),
        **named("path", file.path),
        "last_modified": file.last_modified,
        "is_deleted": file.is_deleted,
        "last_approved_copy_path": _text(file.last_approved_copy_path),
        "backups": [
            {
                **named("name", backup.row.name),
                "operation": backup.row.operation,
                "recorded_ns": backup.row.recorded_ns,
                "size": backup.row.entry.size,
                "where": backup.where,
                "file": _text(backup.path),
            }
            for backup in backups
        ],
    }


def status_form(status: Status) -> dict[str, Any]:
    """Return what the state directory holds."""
    return {
        "state": _text(status.state),
        "total_bytes": status.total_bytes,
        "database_bytes": status.database_bytes,
        "held": [
            {
                "sandbox": held.sandbox.name,
                "project": _text(held.sandbox.project),
                "layers": held.layers,
                "bytes": held.bytes,
            }
            for held in status.held
        ],
        "operations": [
            {
                "operation": displaced.operation.id,
                "number": displaced.operation.number,
                "project": _text(displaced.operation.project),
                "bytes": displaced.bytes,
            }
            for displaced in status.displaced
        ],
        "projects": [
            {
                "project": _text(part.path),
                "cache_bytes": part.caches,
                "playground": _text(part.playground),
                "playground_bytes": part.playground_bytes,
            }
            for part in status.projects
        ],
        "spilled_bytes": status.spilled_bytes,
        "aside": [_text(path) for path in status.aside],
        "aside_bytes": status.aside_bytes,
        "pending": list(status.pending),
        "rootfs": {
            "directory": _text(status.rootfs_sizes.directory),
            "ready": [{"rootfs": name, "bytes": size} for name, size in status.rootfs_sizes.rootfs],
            "downloads_bytes": status.rootfs_sizes.downloads_bytes,
        },
    }


def pruned_form(pruned: Pruned) -> dict[str, Any]:
    """Return what was forgotten, or would be."""
    return {
        "operations": list(pruned.operations),
        "runs": list(pruned.runs),
        "backups": [_text(name) for name in pruned.names],
        "bytes": pruned.bytes,
    }


def recovered_form(done: Recovered) -> dict[str, Any]:
    """Return what was done about a lost or damaged database."""
    return {
        "reason": done.reason,
        "database": None if done.database is None else _text(done.database),
        "copied_ns": done.copied_ns,
        "interrupted": [operation_form(operation) for operation in done.interrupted],
        "aside": [_text(path) for path in done.aside],
    }


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
