# SPDX-License-Identifier: Apache-2.0
"""`unspill discard`: drop what is held."""

from __future__ import annotations

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.options import EVERYWHERE, Command
from unspill.cli.selecting import GLOB, HUNK, selection_of
from unspill.cli.telling import change_lines, count_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="discard",
    summary="Drop what this sandbox holds, all of it or what you choose. Undo brings it back.",
    positional="[PATH ...]",
    most=None,
    options=(GLOB, HUNK, *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    sandbox = open_sandbox(arguments)
    selection = selection_of(arguments, sandbox)
    operation = sandbox.discard(selection)
    if arguments.flag("--json"):
        print_json({"discarded_changes": operation.changed, "operation": operation.number or None})
    elif operation.number:
        changes = count_text(operation.changed, "held change")
        print(f"Discarded {changes} (op {operation.number}). Undo: unspill undo")
        for line in change_lines(sandbox, operation):
            print(line)
    else:
        print("Nothing is on hold.")
    return 0
