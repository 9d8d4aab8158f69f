# SPDX-License-Identifier: Apache-2.0
"""`unspill diff`: what is held, line by line."""

from __future__ import annotations

import sys

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.options import EVERYWHERE, RUN, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="diff",
    summary="Show what is held as a unified diff; with PATH only what lies at or below it.",
    positional="[PATH ...]",
    most=None,
    options=(RUN, *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    sandbox = open_sandbox(arguments)
    text = sandbox.diff(arguments.words, run=arguments.value("--run"), colour=sys.stdout.isatty())
    if arguments.flag("--json"):
        print_json({"sandbox": sandbox.name, "diff": text})
    else:
        sys.stdout.write(text)
    return 0
