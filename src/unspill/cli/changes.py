# SPDX-License-Identifier: Apache-2.0
"""`unspill changes`: what is held, one line a path."""

from __future__ import annotations

import sys

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.options import EVERYWHERE, RUN, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(name="changes", summary="List what is held and not in the project.", options=(RUN, *EVERYWHERE))


def run(arguments: Arguments) -> int:
    """Run the verb."""
    sandbox = open_sandbox(arguments)
    if arguments.flag("--json"):
        from unspill.changes.render import to_plain

        print_json(to_plain(sandbox.changes(run=arguments.value("--run"))))
        return 0
    lines = sandbox.summary(run=arguments.value("--run"), colour=sys.stdout.isatty())
    print("\n".join(lines) or "Nothing is held.")
    return 0
