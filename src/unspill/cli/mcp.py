# SPDX-License-Identifier: Apache-2.0
"""`unspill mcp`: the MCP server, on standard input and output.

Which projects there are, who is asked and what may be remembered is the operator's to say, here; no client can.
"""

from __future__ import annotations

import json
import os
import sys

from unspill.changes.scan import CollectorPaused
from unspill.cli.main import NO_PROJECT, Option, verb
from unspill.errors import UsageError
from unspill.host.places import own_words
from unspill.policy.defaults import check_root
from unspill.sandbox.project import find_own_locations, find_project, resolve_project
from unspill.sandbox.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.cli.main import Arguments

_WHOM = ("client", "queue", "deny")
_PATIENCE_S, _LONGEST_S = 5.0, 600.0


@verb(
    "Serve a sandbox's tools over MCP on standard input and output. Your MCP client starts this.",
    NO_PROJECT,
    Option(name="--also", metavar="DIR", repeated=True, help="another project to serve (repeatable)"),
    Option(
        name="--ask",
        metavar="WHOM",
        values="client|queue|deny",
        help="who answers questions: client, queue or deny (nobody)",
    ),
    Option(name="--remember", help="also offer clients answers that last longer than one run"),
    Option(name="--patience", metavar="SECONDS", help="how long a model waits for `unspill approve` (default: 5)"),
    Option(name="--may-apply", help="also give models the tool `apply`"),
    Option(name="--settings", help="print the configuration for your MCP client, and serve nothing"),
    examples=(
        "unspill mcp --settings --no-project",
        "unspill mcp --settings",
    ),
)
def mcp(arguments: Arguments) -> int:
    """Serve until the client goes away, or print the settings that make a client start this."""
    wanted = _wanted(arguments)
    if arguments.flag("--settings"):
        print(json.dumps(_settings(arguments), indent=2))
        return 0
    try:
        # Thousands of types are made, and all of them stay
        with CollectorPaused():
            from unspill.adapters.mcp.questions import QuestionSettings  # lazy: mcp
            from unspill.adapters.mcp.server import make_server, serve_stdio  # lazy: mcp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "unspill":
            raise
        remedy = f"Run in a checkout of unspill: {sys.executable} -m pip install '.[mcp]'"
        raise UsageError("the extra `mcp` is not installed", remedy=remedy) from None
    name = arguments.value("--sandbox") or "default"
    session = f"mcp-{os.urandom(4).hex()}"
    sandboxes = [Sandbox(project, name=name, session=session) for project in _projects(arguments)]
    try:
        server = make_server(
            sandboxes,
            default=_default(sandboxes),
            questions=QuestionSettings(**wanted),
            may_apply=arguments.flag("--may-apply"),
        )
        if sys.stdin.isatty():
            raise UsageError(
                "an MCP client has to start this",
                remedy="`unspill mcp --settings` prints the configuration for your client.",
            )
        serve_stdio(server)
    finally:
        for sandbox in sandboxes:
            sandbox.close()
    return 0


def _wanted(arguments: Arguments) -> dict[str, Any]:
    """Return how questions get to a person, as the options say."""
    whom = arguments.value("--ask")
    if whom not in (None, *_WHOM):
        raise UsageError(f"--ask is not one of {', '.join(_WHOM)}: {whom!r}")
    patience = arguments.value("--patience")
    try:
        seconds = _PATIENCE_S if patience is None else float(patience)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_S:
        raise UsageError(f"--patience is not a number of seconds up to {_LONGEST_S:g}: {patience}")
    return {"whom": whom, "may_remember": arguments.flag("--remember"), "patience_s": seconds}


def _projects(arguments: Arguments) -> list[bytes | None]:
    for other in ("--project", "--also"):
        arguments.only_one(other, "--no-project")
    if arguments.flag("--no-project"):
        return [None]
    given = arguments.value("--project")
    first = find_project(os.getcwdb()) if given is None else os.fsencode(given)
    return [first, *map(os.fsencode, arguments.values("--also"))]


def _settings(arguments: Arguments) -> dict[str, Any]:
    """Return what most clients have in their settings for a server that they start; paths hold wherever they do.

    Raises:
        UsageError: it would not work.
    """
    words, option = ["mcp"], "--project"
    for project in _projects(arguments):
        if project is None:
            words += ["--no-project"]
            continue
        path = os.path.abspath(project)
        check_root(resolve_project(path), home=find_own_locations().home, own=())
        words += [option, os.fsdecode(path)]
        option = "--also"
    for name in ("--sandbox", "--ask", "--patience"):
        value = arguments.value(name)
        words += [] if value is None else [name, value]
    words += [name for name in ("--remember", "--may-apply") if arguments.flag(name)]
    program, *before = own_words()
    return {"mcpServers": {"unspill": {"command": program, "args": [*before, *words]}}}


def _default(sandboxes: list[Sandbox]) -> Sandbox | None:
    """Return the one of several that this program was started in."""
    here = os.getcwdb()
    return next((one for one in sandboxes if here == one.project or here.startswith(one.project + b"/")), None)
