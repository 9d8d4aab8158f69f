# SPDX-License-Identifier: Apache-2.0
"""`unspill show RUN`: one run with its command, outcome and what was kept of its output."""

from __future__ import annotations

from unspill.changes.quote import quote, show_line
from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.log import ending
from unspill.cli.options import EVERYWHERE, Command
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.model.run import Output

COMMAND = Command(
    name="show",
    summary="Show one run: its command, how it ended, what it printed, what it changed.",
    positional="RUN",
    most=1,
    options=EVERYWHERE,
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    if not arguments.words:
        raise UsageError("which run?", remedy="Give its number or id: see `unspill log`.")
    sandbox = open_sandbox(arguments)
    record = sandbox.find_run(arguments.words[0])
    if arguments.flag("--json"):
        from unspill.cli.json_form import run_form

        print_json(run_form(record))
        return 0
    print(f"run {record.number} ({record.id}) in sandbox {sandbox.name!r}: {ending(record)}")
    print("command:", " ".join(quote(word) for word in record.argv))
    print("directory:", quote(record.cwd))
    for name, output in (("stdout", record.stdout), ("stderr", record.stderr)):
        _print_output(name, output)
    if record.held:
        print("changes:")
        print("\n".join(sandbox.summary(run=record.id)))
    return 0


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
