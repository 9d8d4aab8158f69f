# SPDX-License-Identifier: Apache-2.0
"""`unspill log`: the runs of a sandbox and the operations on its project, the youngest first."""

from __future__ import annotations

from unspill.changes.quote import quote
from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.naming import find_original, run_text
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.cli.telling import when_text
from unspill.errors import UsageError
from unspill.sandbox.file_runs import runs_but_reads, verb_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.model.operation import Operation
    from unspill.model.run import Run
    from unspill.sandbox.sandbox import Sandbox

_FEW = 3

COMMAND = Command(
    name="log",
    summary="List the runs of this sandbox and the operations on its project, the youngest first.",
    options=(
        Option(name="--limit", metavar="N", help="how many (default 20)"),
        Option(name="--all", help="also each read and list of a file tool, which are only counted otherwise"),
        *EVERYWHERE,
    ),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    limit = arguments.value("--limit") or "20"
    if not limit.isdecimal():
        raise UsageError(f"--limit is not a number: {limit!r}", remedy="Give a whole number.")
    sandbox = open_sandbox(arguments)
    runs, reads = (
        (sandbox.runs(limit=int(limit)), 0) if arguments.flag("--all") else runs_but_reads(sandbox, int(limit))
    )
    operations = sandbox.operations(limit=int(limit))
    if arguments.flag("--json"):
        from unspill.cli.json_form import operation_form, run_form

        forms = [operation_form(operation) for operation in operations]
        print_json({"runs": [run_form(record) for record in runs], "operations": forms, "file_reads": reads})
        return 0
    lines = [(record.started_ns, _run_line(record)) for record in runs]
    lines += [(operation.at_ns, _operation_line(sandbox, operation)) for operation in operations]
    for _at, line in sorted(lines, key=lambda pair: -pair[0])[: int(limit)]:
        print(line)
    if reads:
        print(f"and {reads} {'read' if reads == 1 else 'reads'} of files (`--all` lists them)")
    return 0


def _run_line(record: Run) -> str:
    changed = f"{record.changed} changed{', held' * record.held}" if record.changed else "no change"
    changed = changed if record.sandboxed else "not sandboxed"
    command = verb_of(record) or " ".join(quote(word) for word in record.argv)
    return f"{record.number:>6}  {when_text(record.started_ns)}  {ending(record):<12}  {changed:<18}  {command[:120]}"


def _operation_line(sandbox: Sandbox, operation: Operation) -> str:
    changed = f"{operation.changed} changed" + (f", {len(operation.left)} left" if operation.left else "")
    kind = operation.kind if operation.ending == "done" else "taken back"
    name = f"op {operation.number}"
    about = about_text(sandbox, operation)
    return f"{name:>6}  {when_text(operation.at_ns)}  {kind:<12}  {changed:<18}  {about}"


def about_text(sandbox: Sandbox, operation: Operation) -> str:
    """Return what an operation was about: another one that it takes back or does again, or runs that it applied."""
    if operation.of is not None:
        original = find_original(sandbox, operation)
        return f"of op {operation.of if original is None else original}"
    names = [run_text(sandbox, name) for name in operation.runs[:_FEW]]
    more = [f"{len(operation.runs) - _FEW} more"] if len(operation.runs) > _FEW else []
    return "of " + ", ".join([*names, *more]) if names else ""


def ending(record: Run) -> str:
    """Return how a run ended, in a word or two."""
    from unspill.model.run import exit_code_of

    if record.outcome is None:
        return "interrupted" if record.ended_ns else "running"
    name = type(record.outcome).__name__
    return f"exit {exit_code_of(record.outcome)}" if name in ("Exited", "Signalled") else name
