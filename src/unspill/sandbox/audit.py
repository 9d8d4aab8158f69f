# SPDX-License-Identifier: Apache-2.0
"""Put runs and operations into the audit when they have happened, with the paths they changed. Loaded by every run.

They are not synchronised: a power cut can take the last lines. If one can't be written, the result says so: undoing
what happened would be worse."""

from __future__ import annotations

from unspill.errors import StoreError
from unspill.model.run import exit_code_of
from unspill.permissions.audit import (
    Audit,
    as_text,
    command_text,
    path_fields,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import Operation
    from unspill.model.run import Run
    from unspill.permissions.audit import Event
    from unspill.sandbox.planning import Request
    from unspill.sandbox.project import Project
    from unspill.sandbox.result import RunResult
    from unspill.store.db import Store


_COMMAND_BYTES = 4096
_MOST = 100


def record_run(project: Project, request: Request, result: RunResult) -> RunResult:
    """Record a run and what was applied of it; return its result, with a warning if that failed."""
    if not result.run:
        return result
    ending = f"{type(result.outcome).__name__} {exit_code_of(result.outcome)}"
    event = _run(project, request, result.run, result.number, ending) | {
        "sandboxed": result.sandboxed,
        "connections": len(result.connections),
        "denials": len(result.denials),
        "changed": len(result.changes),
        **path_fields(result.changes.paths(), project.path),
    }
    applied = [] if result.operation is None or not result.operation.number else [_event(result.operation)]
    problem = _note(project.store, event, *applied)
    return result if problem is None else result.replace(warnings=(*result.warnings, problem))


def record_failure(
    project: Project, request: Request, run: Run, error: BaseException, *, is_sandboxed: bool = True
) -> None:
    """Record a run that has no result: we failed, or were interrupted, when it may have begun."""
    event = _run(project, request, run.id, run.number, f"failed: {type(error).__name__}")
    _note(project.store, event | {"sandboxed": is_sandboxed})


def _run(project: Project, request: Request, run: str, number: int, ending: str) -> Event:
    network = project.means.policy.network
    return {
        "kind": "run",
        "run": run,
        "number": number,
        "sandbox": project.row.id,
        "project": as_text(project.path),
        "command": command_text(request.argv, most_bytes=_COMMAND_BYTES, most_words=_MOST),
        "cwd": as_text(request.cwd),
        "ending": ending,
        "network": network.mode if request.network else "",
        "hosts": list(network.hosts[:_MOST]),
    }


def record_operation(store: Store, operation: Operation) -> Operation:
    """Record an operation; return it, with a note if that failed."""
    problem = _note(store, _event(operation)) if operation.number else None
    return operation if problem is None else operation.replace(notes=(*operation.notes, problem))


def _note(store: Store, *events: Event) -> str | None:
    try:
        Audit(store.state + b"/audit").append(*events, durable=False)
    except StoreError as error:
        return error.message
    return None


def _event(operation: Operation) -> Event:
    paths = operation.paths
    if operation.ending == "rolled back":
        # What could not be taken back is what it changed
        paths = tuple(operation.roots[left.root] + b"/" + left.path for left in operation.left)
    return {
        "kind": "operation",
        "operation": operation.id,
        "number": operation.number,
        "what": operation.kind,
        "project": as_text(operation.project),
        "sandbox": operation.sandbox,
        "asked_by": operation.asked_by[:200],
        "ending": operation.ending,
        "of": operation.of,
        "runs": list(operation.runs[:_MOST]),
        "changed": operation.changed,
        "left": len(operation.left),
        **path_fields(paths, operation.project),
    }
