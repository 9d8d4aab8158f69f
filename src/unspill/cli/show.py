# SPDX-License-Identifier: Apache-2.0
"""`unspill show RUN|OP`: one run with its command, outcome and output, or one operation with what it changed."""

from __future__ import annotations

from unspill.changes.quote import quote, show_line
from unspill.changes.render import safe_text, summary_lines
from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.log import about_text, ending
from unspill.cli.naming import is_operation, operation_word
from unspill.cli.options import EVERYWHERE, Command
from unspill.cli.telling import count_text, left_lines, when_text
from unspill.errors import UsageError
from unspill.model.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.cli.options import Arguments
    from unspill.model.operation import Operation
    from unspill.model.run import Output
    from unspill.model.traffic import Traffic
    from unspill.sandbox.sandbox import Sandbox

COMMAND = Command(
    name="show",
    summary="Show one run (5) or one operation (op5): what it was, how it ended, what it changed.",
    positional="RUN|OP",
    most=1,
    options=EVERYWHERE,
)

# Of as many operations it is known which run they applied
_MOST = 1000


def run(arguments: Arguments) -> int:
    """Run the verb."""
    if not arguments.words:
        raise UsageError("which run or operation?", remedy="Give its number: 5 or op5, see `unspill log`.")
    sandbox = open_sandbox(arguments)
    found = _find(sandbox, arguments.words[0])
    if arguments.flag("--json"):
        from unspill.cli.json_form import operation_form

        print_json(_run_form(sandbox, found) if isinstance(found, Run) else operation_form(found))
    elif isinstance(found, Run):
        _print_run(sandbox, found)
    else:
        _print_operation(sandbox, found)
    return 0


def _run_form(sandbox: Sandbox, record: Run) -> dict[str, Any]:
    from unspill.cli.json_form import run_form
    from unspill.cli.traffic import traffic_form

    traffic = sandbox.traffic(record.id)
    return {**run_form(record), **traffic_form(traffic.connections, traffic.denials)}


def _find(sandbox: Sandbox, word: str) -> Run | Operation:
    if is_operation(word):
        return sandbox.find_operation(operation_word(word))[0]
    try:
        return sandbox.find_run(word)
    except UsageError as error:
        no_run = error
    try:
        operation = sandbox.find_operation(word)[0]
    except UsageError:
        if word.isdecimal():
            raise no_run from None
        raise UsageError(f"no such run or operation: {word!r}", remedy="See `unspill log`.") from None
    if word.isdecimal():
        raise UsageError(no_run.message, remedy=f"There is an operation of this number: `unspill show op{word}`.")
    return operation


def _print_run(sandbox: Sandbox, record: Run) -> None:
    print(f"run {record.number} ({record.id}) in sandbox {sandbox.name!r}: {ending(record)}")
    print("command:", " ".join(quote(word) for word in record.argv))
    print("directory:", quote(record.cwd))
    if not record.sandboxed:
        print("not sandboxed: what it changed is not known")
    for name, output in (("stdout", record.stdout), ("stderr", record.stderr)):
        _print_output(name, output)
    _print_traffic(sandbox.traffic(record.id))
    if record.held:
        print("changes:")
        print("\n".join(sandbox.summary(run=record.id)))
    elif record.changed:
        print(f"changed {count_text(record.changed, 'path')}: {_fate(sandbox, record)}")


def _fate(sandbox: Sandbox, record: Run) -> str:
    """Return what became of changes that are not held any more."""
    done = [found.number for found in sandbox.operations(limit=_MOST) if record.id in found.runs and found.of is None]
    if not done:
        # Those of earlier weeks are forgotten
        return "applied by no operation that is still on record"
    return "applied by " + ", ".join(f"op {number} (unspill show op{number})" for number in reversed(done))


def _print_traffic(traffic: Traffic) -> None:
    if not (traffic.connections or traffic.denials):
        return
    from unspill.cli.traffic import connection_lines, refused_lines

    if traffic.connections:
        print("connections:")
        print("\n".join(connection_lines(traffic.connections)))
    if traffic.denials:
        print("\n".join(refused_lines(traffic.denials)))
    if traffic.left_out:
        print(f"... {traffic.left_out} connections and denials left out ...")


def _print_operation(sandbox: Sandbox, operation: Operation) -> None:
    about = about_text(sandbox, operation)
    print(f"op {operation.number} ({operation.id}): {operation.kind} {about}".rstrip() + f", {operation.ending}")
    print(f"when: {when_text(operation.at_ns)}, asked for by: {safe_text(operation.asked_by)}")
    if operation.ending == "done":
        try:
            lines = summary_lines(sandbox.operation_changes(operation.number), limit=1_000_000, project=sandbox.project)
        except UsageError as error:
            lines = [f"  {error.message}"]
        print("changes:")
        print("\n".join(lines))
    for note in operation.notes:
        print(f"note: {safe_text(note)}")
    if operation.left:
        print("left as it was:")
        print("\n".join(left_lines(operation)))


def _print_output(name: str, output: Output) -> None:
    if not output.total:
        return
    print(f"{name}: {output.total} bytes" + (f", whole in {quote(output.file)}" if output.file else ""))
    _print_lines(output.head)
    if output.left_out:
        print(f"... {output.left_out} bytes left out ...")
    if output.tail:
        _print_lines(output.tail)


def _print_lines(text: bytes) -> None:
    for line in text.splitlines():
        print("  " + show_line(line))
