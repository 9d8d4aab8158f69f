# SPDX-License-Identifier: Apache-2.0
"""`unspill diff`: what is held, line by line."""

from __future__ import annotations

import os
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
    paths = [_from_project(word, sandbox.project) for word in arguments.words]
    as_json = arguments.flag("--json")
    colour = sys.stdout.isatty() and not as_json and "NO_COLOR" not in os.environ
    text = sandbox.diff(paths, run=arguments.value("--run"), colour=colour)
    if as_json:
        print_json({"sandbox": sandbox.name, "diff": text})
    else:
        sys.stdout.write(text)
    return 0


def _from_project(word: str, project: bytes) -> str:
    """Return a path as seen from the project: a person names it as seen from where they stand."""
    path = os.path.normpath(os.path.join(os.path.realpath(os.getcwdb()), os.fsencode(word)))
    return os.fsdecode(os.path.relpath(path, project)) if (path + b"/").startswith(project + b"/") else word
