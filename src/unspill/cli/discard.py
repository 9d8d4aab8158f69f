# SPDX-License-Identifier: Apache-2.0
"""`unspill discard`: throw away what is held."""

from __future__ import annotations

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.options import EVERYWHERE, Command
from unspill.cli.selecting import GLOB, HUNK, selection_of
from unspill.cli.telling import count_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="discard",
    summary="Throw away what this sandbox holds, all of it or what you choose. The project is not touched.",
    positional="[PATH ...]",
    most=None,
    options=(GLOB, HUNK, *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    sandbox = open_sandbox(arguments)
    selection = selection_of(arguments, sandbox)
    count = sandbox.discard(selection)
    what = "layer" if selection.is_everything else "change"
    if arguments.flag("--json"):
        print_json({"discarded_layers": 0, "discarded_changes": 0, f"discarded_{what}s": count})
    else:
        print(f"Discarded {count_text(count, f'held {what}')}." if count else "Nothing was held.")
    return 0
