# SPDX-License-Identifier: Apache-2.0
"""What `undo` and `redo` have in common: which operation is meant, and what is said about it."""

from __future__ import annotations

from unspill.cli.choosing import print_json
from unspill.cli.json_form import operation_form
from unspill.cli.naming import find_original, operation_word
from unspill.cli.telling import exit_code_of, print_operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.cli.options import Arguments
    from unspill.model.operation import Operation
    from unspill.sandbox.sandbox import Sandbox


def reverse(arguments: Arguments, sandbox: Sandbox, do: Callable[[str | None], Operation]) -> int:
    """Reverse the operation that is named, or the default one, and say what came of it."""
    operation = do(operation_word(arguments.words[0]) if arguments.words else None)
    if arguments.flag("--json"):
        print_json(operation_form(operation))
        return exit_code_of(operation)
    of = find_original(sandbox, operation)
    word, done = ("Undid", "undone") if operation.kind == "undo" else ("Redid", "redone")
    print_operation(sandbox, operation, word, nothing=f"Nothing of op {of} was {done}.", of=of)
    return exit_code_of(operation)
