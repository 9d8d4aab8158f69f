# SPDX-License-Identifier: Apache-2.0
"""What coding agents pay for the sandbox: commands of real agents' sessions, bare, in plain runs and in live sandboxes.

`agent_sessions.json` has what the agents named in it had unspill run, by its MCP server or its hook, for a scripted
model. Each command is run by every way in turn, each way in a project of its own. Judged is the time that a live
sandbox adds to the bare commands, against what plain runs add: of the library, and of the MCP server.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import Case, Options, fast, parse_options, report, scratch, timed
from tools import McpCaller

from unspill import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

BAR = 0.4
SESSIONS = Path(__file__).with_name("agent_sessions.json")
SERVER = """
import sys
from unspill import Sandbox
from unspill.adapters.mcp.server import make_server, serve_stdio
with Sandbox(sys.argv[1]) as sandbox:
    if sys.argv[2] == "plain":
        sandbox.end_reuse()
    serve_stdio(make_server(sandbox))
"""


def main() -> None:
    options = parse_options(__doc__ or "")
    sessions = [[text_of(argv) for argv in one["commands"]] for one in json.loads(SESSIONS.read_text())]
    chosen = options.pick([sessions[0][:14]], sessions[:2], sessions)
    samples: dict[str, list[float]] = {}
    with scratch() as directory:
        for number, commands in enumerate(chosen):
            for name, times in play(directory / str(number), commands, options).items():
                samples.setdefault(name, []).extend(times)
    bare = sum(samples["bare"])
    added = {name: max(0.0, sum(times) - bare) for name, times in samples.items()}
    notes = [f"{len(samples['bare'])} commands, bare {bare:.0f} ms"]
    cases = [
        Case(f"added to commands of agents, {way}", added[f"{way}, live"], "ms", added[f"{way}, plain"], BAR)
        for way in ("library", "MCP")
        if f"{way}, live" in added
    ]
    report("sessions", cases, options, notes if len(cases) > 1 else [*notes, "not installed, so not measured: mcp"])


def text_of(argv: list[str]) -> str:
    """Return a command as a text for sh, which is what MCP takes."""
    return argv[2] if argv[0] == "/bin/sh" else shlex.join(argv)


def play(directory: Path, commands: list[str], options: Options) -> dict[str, list[float]]:
    """Return how many milliseconds each command took by each way, the fast ones of some repetitions."""
    repeats = [play_once(directory / str(number), commands) for number in range(options.pick(1, 1, 3))]
    return {
        name: [fast(times) for times in zip(*(found[name] for found in repeats), strict=True)] for name in repeats[0]
    }


def play_once(directory: Path, commands: list[str]) -> dict[str, list[float]]:
    ways: dict[str, Callable[[str], object]] = {}
    with ExitStack() as stack:
        bare = make_project(directory / "bare")
        ways["bare"] = lambda text: run_bare(bare, text)
        plain = stack.enter_context(Sandbox(make_project(directory / "plain")))
        ways["library, plain"] = plain.run
        ways["library, live"] = stack.enter_context(
            stack.enter_context(Sandbox(make_project(directory / "live"))).live()
        ).run
        if find_spec("mcp") is not None:
            for how in ("plain", "live"):
                client = SessionCaller(make_project(directory / f"mcp-{how}"), how)
                ways[f"MCP, {how}"] = stack.enter_context(client).run
        for run in ways.values():
            # What starts with the first command is paid once for a session of hours
            run("true")
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number, text in enumerate(commands):
            for name in list(ways)[:: -1 if number % 2 else 1]:
                found[name].append(timed(lambda name=name, text=text: ways[name](text)))  # type: ignore[misc]
    return found


def make_project(project: Path) -> Path:
    """Return a new repository, as the agents had it."""
    project.mkdir(parents=True)
    (project / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (project / "notes.md").write_text("# Notes\n\nalpha\nbeta\ngamma\n")
    git = ["git", "-C", os.fspath(project)]
    for words in (
        ["init", "-qb", "main"],
        ["config", "user.name", "Ann"],
        ["config", "user.email", "ann@example.org"],
        ["add", "."],
        ["commit", "-qm", "first"],
    ):
        subprocess.run([*git, *words], check=True)
    (project / "doomed.txt").write_text("untracked and precious\n")
    return project


def run_bare(project: Path, text: str) -> None:
    subprocess.run(
        ["/bin/sh", "-c", text],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        close_fds=False,
    )


class SessionCaller(McpCaller):
    """A server whose calls share a live sandbox, or each have one of their own (`plain`)."""

    def __init__(self, project: Path, how: str) -> None:
        super().__init__(project, "2026-07-28")
        self._words = [sys.executable, "-c", SERVER, os.fspath(project), how]

    def run(self, text: str) -> Any:
        """Have a command run, however it ends."""
        return self.ask("tools/call", {"name": "run", "arguments": {"command": text}})


if __name__ == "__main__":
    main()
