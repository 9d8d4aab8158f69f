# SPDX-License-Identifier: Apache-2.0
"""`unspill restore PATH`: bring a displaced version of a file back."""

from __future__ import annotations

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.json_form import operation_form
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.cli.selecting import path_from_project
from unspill.cli.telling import exit_code_of, print_operation
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="restore",
    summary="Bring a file back as it was before an operation, by default its newest backup. Can be undone.",
    positional="PATH",
    most=1,
    options=(
        Option(name="--from", metavar="BACKUP", help="a name that `files` lists, or an operation: op5"),
        *EVERYWHERE,
    ),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    if not arguments.words:
        raise UsageError("which file?", remedy="Give its path: see `unspill files`.")
    sandbox = open_sandbox(arguments)
    path = path_from_project(arguments.words[0], sandbox.project)
    operation = sandbox.restore(path, arguments.value("--from"))
    if arguments.flag("--json"):
        print_json(operation_form(operation))
    else:
        print_operation(sandbox, operation, "Restored", nothing="Nothing was restored.")
    return exit_code_of(operation)
