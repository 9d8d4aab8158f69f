# SPDX-License-Identifier: Apache-2.0
"""`unspill changes`: what is held, one line a path."""

from __future__ import annotations

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.options import EVERYWHERE, RUN, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(name="changes", summary="List what is held and not in the project.", options=(RUN, *EVERYWHERE))


def run(arguments: Arguments) -> int:
    """Run the verb."""
    changes = open_sandbox(arguments).changes(run=arguments.value("--run"))
    if arguments.flag("--json"):
        from unspill.changes.json_form import change_set_to_json

        print_json(change_set_to_json(changes))
        return 0
    from unspill.changes.render import summary_lines

    print("\n".join(summary_lines(changes, limit=None)) if changes else "Nothing is held.")
    return 0
