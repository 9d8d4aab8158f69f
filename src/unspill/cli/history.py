# SPDX-License-Identifier: Apache-2.0
"""What happened in a project, and how to undo it: `unspill log`, `sessions`, `show`, `undo` and `redo`.

`op 5` is an operation to read and `op5` one to type; a number alone is a run's where both could be meant.
"""

from __future__ import annotations

from unspill.changes.render import safe_text, summary_lines
from unspill.cli.log import (
    about_operation,
    command_text,
    duration_text,
    ending_text,
    find_named,
    find_original,
    is_bad_ending,
    moment_text,
    operation_of,
)
from unspill.cli.main import EVENTS, NO_PROJECT, SESSION, Option, open_sandbox, operation_word, verb
from unspill.cli.output import (
    NARROW,
    Elapsed,
    Paint,
    advised,
    columns,
    connection_lines,
    count_text,
    cut,
    directory_here,
    fit,
    flagged_lines,
    operation_exit_code,
    operation_form,
    port_lines,
    print_json,
    print_operation,
    refused_lines,
    run_form,
    seen_from_here,
    skipped_lines,
    table_lines,
    traffic_form,
    when_text,
)
from unspill.errors import UsageError
from unspill.model.run import Run
from unspill.policy.paths import quote, show_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.model.operation import Operation
    from unspill.model.run import Output, Traffic
    from unspill.sandbox.sandbox import Sandbox
    from unspill.sandbox.sessions import Session

_FEW = 3
_ALL = 1_000_000
# Of as many operations it is known which run they applied
_MOST_APPLIED = 1000
_PROMPT_SHOWN = 100
_COMMAND_SHOWN = 60


@verb(
    "List the sessions of agents in this project, the newest first.",
    examples=("unspill sessions",),
)
def sessions(arguments: Arguments) -> int:
    """List sessions."""
    found = open_sandbox(arguments).sessions()[::-1]
    if arguments.flag("--json"):
        print_json({"sessions": [_session_form(session) for session in found]})
        return 0
    is_narrow = 0 < columns() < NARROW
    rows = []
    for session in found:
        changed = sum(one.changed for one in session.operations)
        undone = ", undone" if session.operations and not session.can_be_undone else ""
        counts = f"{count_text(len(session.runs), 'run')}, {count_text(changed, 'change')}{undone}"
        when = moment_text(session.last_ns) if is_narrow else when_text(session.last_ns)
        rows.append((when, counts, safe_text(session.name)))
    # A name is never cut: it is what one types
    print("\n".join(map(fit, table_lines(rows, 0))) if rows else "No session yet.")
    return 0


@verb(
    "Show one run (run5, @ for the last) or one operation (op5): what it was, how it ended, what it changed.",
    SESSION.replace(help="show what an agent did in its session, in order (default: the last one)"),
    NO_PROJECT.replace(help="show a run without a project"),
    positional="RUN|OP",
    most=1,
    is_paged=True,
    examples=(
        "unspill show @",
        "unspill show run2",
        "unspill show op1",
    ),
)
def show(arguments: Arguments) -> int:
    """Show one run, one operation, or a session."""
    if arguments.flag("--session"):
        return _show_session(arguments)
    if not arguments.words:
        raise UsageError("no run or operation given", remedy="Name one from `unspill log`: run5 or op5.")
    sandbox = open_sandbox(arguments)
    found = find_named(sandbox, arguments.words[0])
    if arguments.flag("--json"):
        if isinstance(found, Run):
            traffic = sandbox.traffic(found.id)
            form = traffic_form(traffic.connections, traffic.denials, traffic.ports)
            print_json({**run_form(found), **form})
        else:
            print_json(operation_form(found))
    elif isinstance(found, Run):
        _print_run(arguments, sandbox, found)
    else:
        _print_operation(arguments, sandbox, found)
    return 0


@verb(
    "Undo an operation, by default the last one. Files that changed since are skipped.",
    SESSION.replace(help="undo all that an agent's session changed (default: the last one)"),
    Option(name="--to", metavar="OP", help="with --session: only what came after this operation"),
    Option(name="--dry-run", help="say what would be undone, and change nothing"),
    EVENTS,
    positional="[OP|RUN]",
    most=1,
    examples=(
        "unspill undo --dry-run op1",
        "unspill undo",
        "unspill undo --session",
    ),
)
def undo(arguments: Arguments) -> int:
    """Undo an operation, or a session."""
    if arguments.flag("--session"):
        return _undo_session(arguments)
    if arguments.flag("--to"):
        raise UsageError("--to works with --session only", remedy="Add `--session`.")
    sandbox = open_sandbox(arguments)
    if arguments.flag("--dry-run"):
        return _show_undo(arguments, sandbox)
    return _reverse(arguments, sandbox, sandbox.undo)


@verb(
    "Redo what an undo reversed, by default the last undo.",
    SESSION.replace(help="redo all that was undone of a session (default: the last one)"),
    EVENTS,
    positional="[OP|RUN]",
    most=1,
    examples=(
        "unspill redo",
        "unspill redo op1",
    ),
)
def redo(arguments: Arguments) -> int:
    """Redo what an undo reversed."""
    if arguments.flag("--session"):
        return _redo_session(arguments)
    sandbox = open_sandbox(arguments)
    return _reverse(arguments, sandbox, sandbox.redo)


def _undo_session(arguments: Arguments) -> int:
    """Undo all that a session changed, and say what came of it."""
    to = arguments.value("--to")
    point = None if to is None else operation_word(to)
    if point is not None and not point.isdecimal():
        raise UsageError(f"not an operation: {to!r}", remedy="Name one from `unspill show --session`: op5.")
    sandbox = open_sandbox(arguments)
    name = sandbox.find_session(arguments.value("--session") or None).name
    is_dry = arguments.flag("--dry-run")
    with Elapsed("Reversing"):
        done = sandbox.undo_session(name, to=None if point is None else int(point), dry_run=is_dry)
    after = "" if point is None else f" after op {point}"
    return _tell_session(
        arguments, sandbox, f"{'Would undo' if is_dry else 'Undid'} session {safe_text(name)}{after}", done
    )


def _redo_session(arguments: Arguments) -> int:
    """Redo all that was undone of a session, and say what came of it."""
    sandbox = open_sandbox(arguments)
    name = sandbox.find_session(arguments.value("--session") or None).name
    with Elapsed("Reversing"):
        done = sandbox.redo_session(name)
    return _tell_session(arguments, sandbox, f"Redid session {safe_text(name)}", done)


def _tell_session(arguments: Arguments, sandbox: Sandbox, what: str, done: Sequence[Operation]) -> int:
    """Say what became of each operation of a session; what is only planned has no number."""
    is_dry = arguments.flag("--dry-run")
    if arguments.flag("--json"):
        print_json({"operations": [operation_form(operation) for operation in done]})
        return max(map(operation_exit_code, done))
    changed = sum(operation.changed for operation in done)
    count = sum(bool(operation.changed if is_dry else operation.number) for operation in done)
    print(f"{what} ({count_text(count, 'operation')}, {count_text(changed, 'change')}).")
    for operation in done:
        of = find_original(sandbox, operation)
        if is_dry:
            print(f"op {of}{_behind(sandbox, operation)}")
            _print_paths(operation)
        if operation.left:
            print("Would skip:" if is_dry else f"op {of}, skipped:")
            print("\n".join(skipped_lines(operation, sandbox)))
    return max(map(operation_exit_code, done))


def _show_session(arguments: Arguments) -> int:
    sandbox = open_sandbox(arguments)
    session = sandbox.find_session(arguments.value("--session") or None)
    if arguments.flag("--json"):
        print_json(_session_form(session))
        return 0
    begun, last = when_text(session.begun_ns), when_text(session.last_ns)
    print(fit(f"session {safe_text(session.name)}, from {begun} to {last}"))
    applied: dict[str, list[Operation]] = {}
    for one in session.operations:
        for run in one.runs:
            applied.setdefault(run, []).append(one)
    lines: list[tuple[int, str]] = []
    for prompt in session.prompts:
        text = safe_text(" ".join(prompt.text.split()))[:_PROMPT_SHOWN]
        back = f"(back to here: unspill undo --session {session.name} --to op{session.point(prompt)})"
        lines.append((prompt.at_ns, f"  prompt: {text}  {back}"))
    lines += [(record.started_ns, _step_line(record, applied.get(record.id, []), session)) for record in session.runs]
    known = {record.id for record in session.runs}
    others = [one for one in session.operations if not known.intersection(one.runs)]
    lines += [(one.at_ns, _edit_line(sandbox, one, session)) for one in others]
    for _at, line in sorted(lines):
        print(fit(line))
    print(fit(advised("Undo all of it: unspill undo --session {name}{of}", sandbox, name=session.name)))
    return 0


def _step_line(record: Run, operations: Sequence[Operation], session: Session) -> str:
    command = " ".join(quote(word) for word in record.argv)
    changed = "held" if record.held else "no change"
    if operations:
        parts = (f"op {one.number}, {count_text(one.changed, 'change')}{_undone(one, session)}" for one in operations)
        changed = "; ".join(parts)
    return f"  run {record.number}: {command[:120]} ({ending_text(record)}, {changed})"


def _edit_line(sandbox: Sandbox, operation: Operation, session: Session) -> str:
    steps = sandbox.find_operation(operation.number)[1]
    paths = ", ".join(quote(step.path) for step in steps[:_FEW])
    more = f" and {len(steps) - _FEW} more" if len(steps) > _FEW else ""
    about = f"op {operation.number}, {count_text(operation.changed, 'change')}{_undone(operation, session)}"
    return f"  {operation.kind}: {paths}{more} ({about})"


def _undone(operation: Operation, session: Session) -> str:
    return ", undone" if operation.number in session.undone else ""


def _session_form(session: Session) -> dict[str, Any]:
    return {
        "session": session.name,
        "begun_ns": session.begun_ns,
        "last_ns": session.last_ns,
        "runs": [run_form(record) for record in session.runs],
        "operations": [operation_form(operation) for operation in session.operations],
        "prompts": [{"at_ns": one.at_ns, "text": one.text, "after": session.point(one)} for one in session.prompts],
        "undone": list(session.undone),
    }


def _show_undo(arguments: Arguments, sandbox: Sandbox) -> int:
    """Say what an undo would do."""
    word = arguments.words[0] if arguments.words else None
    planned = sandbox.undo(None if word is None else operation_of(sandbox, word).id, dry_run=True)
    if arguments.flag("--json"):
        print_json(operation_form(planned))
        return operation_exit_code(planned)
    of = find_original(sandbox, planned)
    print(fit(f"Would undo op {of} ({count_text(planned.changed, 'change')}){_behind(sandbox, planned)}"))
    _print_paths(planned)
    if planned.left:
        print("Would skip:")
        print("\n".join(map(fit, skipped_lines(planned, sandbox))))
    return operation_exit_code(planned)


def _print_paths(operation: Operation) -> None:
    for path in operation.paths:
        print(fit(f"  {quote(seen_from_here(path))}"))


def _reverse(arguments: Arguments, sandbox: Sandbox, do: Callable[[str | None], Operation]) -> int:
    """Reverse the operation that is named, or the default one, and say what came of it."""
    named = _named_operation(arguments, sandbox, do)
    with Elapsed("Reversing"):
        operation = do(named)
    if arguments.flag("--json"):
        print_json(operation_form(operation))
        return operation_exit_code(operation)
    of = find_original(sandbox, operation)
    word, verb_ = ("Undid", "undo") if operation.kind == "undo" else ("Redid", "redo")
    done = f"{word} op {of} ({count_text(operation.changed, 'change')})"
    print_operation(sandbox, operation, done, nothing=f"Did not {verb_} op {of}.", of=of)
    if named is None and operation.kind == "undo":
        _tell_newer(sandbox, operation)
    return operation_exit_code(operation)


def _tell_newer(sandbox: Sandbox, operation: Operation) -> None:
    """Say whose changes were undone where the last run is another one, whose changes are held."""
    last = next(iter(sandbox.runs(limit=1)), None)
    if last is None or not last.held or last.id in operation.runs:
        return
    if behind := _behind(sandbox, operation):
        print(fit(f"  That undid the changes{behind}"))
    print(
        advised(f"  Run {last.number} is newer, and its changes are held. Discard them: unspill discard{{of}}", sandbox)
    )


def _named_operation(arguments: Arguments, sandbox: Sandbox, do: object) -> str | None:
    if not arguments.words:
        return None
    found = find_named(sandbox, arguments.words[0])
    if not isinstance(found, Run):
        return found.id
    if do == sandbox.redo:
        applied = [one for one in sandbox.operations(limit=_MOST_APPLIED) if found.id in one.runs and one.of is None]
        if applied:
            return applied[0].id
    return operation_of(sandbox, arguments.words[0]).id


def _behind(sandbox: Sandbox, operation: Operation) -> str:
    """Return the command whose changes an operation reverses, if it is one."""
    if len(operation.runs) != 1:
        return ""
    try:
        record = sandbox.find_run(operation.runs[0])
    except UsageError:
        return ""
    return f" of run {record.number}: {cut(command_text(record), _COMMAND_SHOWN)}"


def _print_run(arguments: Arguments, sandbox: Sandbox, record: Run) -> None:
    paint = Paint(arguments.value("--color"))
    ending = ending_text(record)
    ending = paint("bad", ending) if is_bad_ending(ending) else ending
    print(fit(f"{paint('name', f'run {record.number}')} ({record.id}) in sandbox {sandbox.name!r}: {ending}"))
    more = f" [{record.argv_left_out} more bytes]" if record.argv_left_out else ""
    print(paint("dim", "command:"), " ".join(quote(word) for word in record.argv) + more)
    print(paint("dim", "directory:"), quote(record.cwd))
    took = "" if record.ended_ns is None else f", took {duration_text((record.ended_ns - record.started_ns) / 1e9)}"
    print(f"{paint('dim', 'started:')} {when_text(record.started_ns)}{took}")
    if not record.sandboxed:
        print(paint("bad", "not sandboxed: unspill doesn't know what it changed"))
    for name, output in (("stdout", record.stdout), ("stderr", record.stderr)):
        _print_output(paint("dim", f"{name}:"), output)
    _print_traffic(sandbox.traffic(record.id))
    if record.held:
        print(paint("held", "changes:"))
        print("\n".join(map(fit, sandbox.summary(run=record.id, colour=paint.is_on, here=directory_here()))))
    elif record.changed:
        applied = [one for one in sandbox.operations(limit=_MOST_APPLIED) if record.id in one.runs and one.of is None]
        done = [one.number for one in applied]
        print(fit(f"changed {count_text(record.changed, 'path')}: {_fate(sandbox, done)}"))
        for number in done:
            found = sandbox.find_operation(number)[0]
            for line in flagged_lines(found.flagged, found):
                print(paint("held", fit(line)))


def _fate(sandbox: Sandbox, done: list[int]) -> str:
    """Return what became of changes that are not held any more, by the operations that are on record."""
    if not done:
        # Those of earlier weeks are forgotten
        return "no operation on record applied them"
    show_it = advised("unspill show{at}", sandbox)
    return "applied by " + ", ".join(f"op {number} ({show_it} op{number})" for number in reversed(done))


def _print_traffic(traffic: Traffic) -> None:
    if traffic.ports:
        print("ports:")
        print("\n".join(port_lines(traffic.ports)))
    if traffic.connections:
        print("connections:")
        print("\n".join(connection_lines(traffic.connections)))
    if traffic.denials:
        print("\n".join(refused_lines(traffic.denials)))
    if traffic.left_out:
        print(f"... {traffic.left_out} connections and denials left out ...")


def _print_operation(arguments: Arguments, sandbox: Sandbox, operation: Operation) -> None:
    paint = Paint(arguments.value("--color"))
    about = about_operation(sandbox, operation)
    name = paint("name", f"op {operation.number}")
    print(fit(f"{name} ({operation.id}): {operation.kind} {about}".rstrip() + f", {operation.ending}"))
    print(fit(f"{paint('dim', 'when:')} {when_text(operation.at_ns)}, requested by: {safe_text(operation.asked_by)}"))
    if operation.ending == "done":
        try:
            lines = summary_lines(
                sandbox.operation_changes(operation.number),
                limit=1_000_000,
                colour=paint.is_on,
                project=sandbox.project,
                here=directory_here(),
            )
        except UsageError as error:
            lines = [f"  {error.message}"]
        flagged = [paint("held", line) for line in flagged_lines(operation.flagged, operation)]
        if lines or flagged:
            print(paint("dim", "changes:"))
            print("\n".join(map(fit, [*lines[:1], *flagged, *lines[1:]])))
    for note in operation.notes:
        print(fit(f"note: {safe_text(note)}"))
    if operation.left:
        print(paint("held", "skipped:"))
        print("\n".join(map(fit, skipped_lines(operation, sandbox))))


def _print_output(label: str, output: Output) -> None:
    if not output.total:
        return
    print(f"{label} {output.total} bytes" + (f", full output in {quote(output.file)}" if output.file else ""))
    _print_lines(output.head)
    if output.left_out:
        print(f"... {output.left_out} bytes left out ...")
    if output.tail:
        _print_lines(output.tail)


def _print_lines(text: bytes) -> None:
    for line in text.splitlines():
        print("  " + show_line(line))
