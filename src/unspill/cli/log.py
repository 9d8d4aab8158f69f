# SPDX-License-Identifier: Apache-2.0
"""`unspill log`: the runs of a sandbox, the youngest first."""

from __future__ import annotations

import time

from unspill.changes.quote import quote
from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.model.run import Run

COMMAND = Command(
    name="log",
    summary="List the runs of this sandbox, the youngest first.",
    options=(Option(name="--limit", metavar="N", help="how many (default 20)"), *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    limit = arguments.value("--limit") or "20"
    if not limit.isdecimal():
        raise UsageError(f"--limit is not a number: {limit}")
    runs = open_sandbox(arguments).runs(limit=int(limit))
    if arguments.flag("--json"):
        from unspill.cli.json_form import run_form

        print_json({"runs": [run_form(record) for record in runs]})
        return 0
    for record in runs:
        print(_line(record))
    return 0


def _line(record: Run) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started_ns / 1e9))
    changed = f"{record.changed} changed{', held' * record.held}" if record.changed else "no change"
    command = " ".join(quote(word) for word in record.argv)
    return f"{record.number:>4}  {when}  {ending(record):<12}  {changed:<15}  {command[:120]}"


def ending(record: Run) -> str:
    """Return how a run ended, in a word or two."""
    from unspill.model.run import exit_code_of

    if record.outcome is None:
        return "interrupted" if record.ended_ns else "running"
    name = type(record.outcome).__name__
    return f"exit {exit_code_of(record.outcome)}" if name in ("Exited", "Signalled") else name
