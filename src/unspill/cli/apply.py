# SPDX-License-Identifier: Apache-2.0
"""`unspill apply`: bring what is held into the project."""

from __future__ import annotations

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.consent import with_consent
from unspill.cli.json_form import operation_form
from unspill.cli.options import EVERYWHERE, RUN, Command, Option
from unspill.cli.selecting import GLOB, HUNK, selection_of, with_named
from unspill.cli.telling import exit_code_of, print_operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="apply",
    summary="Bring what is held into the project, all of it or what you choose; what is not applied stays held.",
    positional="[PATH ...]",
    most=None,
    options=(
        GLOB,
        HUNK,
        Option(
            name="--include", metavar="PATH[@TOKEN]", repeated=True, help="consent to a path that is held (repeatable)"
        ),
        Option(name="--overwrite", metavar="PATH", repeated=True, help="let ours win in a conflict (repeatable)"),
        RUN,
        *EVERYWHERE,
    ),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    sandbox = open_sandbox(arguments)
    selection = with_named(selection_of(arguments, sandbox), arguments, sandbox)
    selection = with_consent(selection, arguments, sandbox)
    operation = sandbox.apply(selection, run=arguments.value("--run"))
    if arguments.flag("--json"):
        print_json(operation_form(operation))
    else:
        print_operation(
            sandbox, operation, "Applied", nothing="Nothing was applied." if operation.left else "Nothing is held."
        )
    return exit_code_of(operation)
