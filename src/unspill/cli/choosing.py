# SPDX-License-Identifier: Apache-2.0
"""How the options that every verb has choose a sandbox, and how its answer is printed as JSON."""

from __future__ import annotations

import os
import sys

from unspill.sandbox.project import find_project
from unspill.sandbox.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments


def open_sandbox(arguments: Arguments, **options: object) -> Sandbox:
    """Open the sandbox that the options name; say what was found interrupted and mended."""
    given = arguments.value("--project")
    project = os.fsencode(given) if given else find_project(os.getcwdb())
    name = arguments.value("--sandbox") or "default"
    sandbox = Sandbox(project, name=name, **options)  # type: ignore[arg-type]
    if sandbox.recovered:
        from unspill.cli.telling import recovered_lines

        for operation in sandbox.recovered:
            print("unspill: " + "\n".join(recovered_lines(operation)), file=sys.stderr)
    for run in sandbox.interrupted_runs:
        print(f"unspill: {sandbox.describe_interrupted(run)}", file=sys.stderr)
    return sandbox


def named_project(arguments: Arguments) -> bytes | None:
    """Return the project that --project names, None for all."""
    given = arguments.value("--project")
    return None if given is None else os.path.realpath(os.fsencode(given))


def print_json(value: object) -> None:
    """Print one JSON object on a line of its own."""
    import json

    print(json.dumps(value, ensure_ascii=True))
