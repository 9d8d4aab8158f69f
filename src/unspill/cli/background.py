# SPDX-License-Identifier: Apache-2.0
"""`unspill ps`, `logs` and `stop`: commands that go on in the background, in a sandbox that a keeper has."""

from __future__ import annotations

import os
import signal
import sys

from unspill.cli.main import NO_PROJECT, Option, named_project, open_sandbox, verb
from unspill.cli.output import count_text, decoded, print_json, result_form, result_lines, when_text
from unspill.cli.run import TerminalOutput, print_background, tell_detached
from unspill.cli.terminal import PersonTerminal, get_terminal
from unspill.errors import UsageError
from unspill.host.libc import RaisingSignals
from unspill.layers.locks import find_standby
from unspill.model.run import Exited, OutputChunk
from unspill.policy.paths import quote
from unspill.sandbox.keeper import Detached, KeptSandbox, find_keeper, find_keepers, from_form
from unspill.sandbox.project import find_own_locations, find_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.sandbox.keeper import KeeperLink
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

_INTERRUPTED = 130
_LONGEST_COMMAND = 120


@verb(
    "List background runs: of all your projects, or of the one that --project names.",
    examples=(
        "unspill ps",
        "unspill ps --json",
    ),
)
def ps(arguments: Arguments) -> int:
    """List what runs in the background."""
    wanted, name = named_project(arguments), arguments.value("--sandbox")
    found = []
    for link in find_keepers(find_own_locations().state):
        with link:
            kept = link.runs()
        if kept is None:
            continue
        project = None if kept["project"] is None else os.fsencode(kept["project"])
        if (wanted is None or project == wanted) and name in (None, kept["sandbox"]):
            found.append((project, kept))
    standby = find_standby(find_own_locations().state)
    if arguments.flag("--json"):
        print_json({"sandboxes": [kept for _project, kept in found], "standby": standby or None})
        return 0
    here = find_project(os.path.realpath(os.getcwdb()))
    for project, kept in found:
        place = "" if project == here else " without a project" if project is None else f" in {quote(project)}"
        for run in kept["runs"]:
            print(_run_line(run, f"{quote(kept['sandbox'].encode())}{place}"))
    if not any(kept["runs"] for _project, kept in found):
        print("Nothing runs in the background.")
    if standby:
        print(f"Process {standby} stands by for the hooks of your coding agents. To end it: unspill stop")
    return 0


def _run_line(run: dict[str, Any], where: str) -> str:
    alive = "running" if not run["terminal"] else "attached" if run["attached"] else "detached"
    state = alive if run["alive"] else "failed" if run["problem"] else f"exit {run['exit_code']}"
    command = " ".join(quote(os.fsencode(word)) for word in run["command"])
    return f"{run['number']:>6}  {when_text(run['started_ns'])}  {state:<10}  {where:<12}  {command[:_LONGEST_COMMAND]}"


@verb(
    "Come back to the terminal of a background run: RUN, or the last one of the sandbox. Ctrl-\\ d leaves it again.",
    NO_PROJECT.replace(help="a run without a project"),
    positional="[NAME|RUN]",
    most=1,
    examples=(
        "unspill attach",
        "unspill attach run7",
    ),
)
def attach(arguments: Arguments) -> int:
    """Have the terminal of a background run until it ends or is left; return its exit code."""
    if arguments.flag("--json"):
        raise UsageError("a terminal and --json can't be used together", remedy="Leave out --json.")
    size = get_terminal()
    number, sandbox, link = _find(arguments)
    if link is None:
        raise _nothing(sandbox)
    streams = TerminalOutput()
    with KeptSandbox(sandbox, link) as kept:
        runs = [run["number"] for run in link.ask("list")["runs"] if run["terminal"] and run["alive"]]
        if number is None and not runs:
            remedy = "Start one: unspill shell -d, or unspill run -d -t -- COMMAND"
            raise UsageError(f"no background run of sandbox {sandbox.name!r} has a terminal", remedy=remedy)
        person = PersonTerminal(size, streams.note, streams.settle)
        try:
            with RaisingSignals():
                result = kept.attach(runs[-1] if number is None else number, person, streams.keep_back)
        finally:
            streams.settle()
    if isinstance(result, Detached):
        return tell_detached(result, sandbox)
    for line in result_lines(result, sandbox):
        print(f"unspill: {line}", file=sys.stderr)
    return result.exit_code


@verb(
    "Print what a background run has printed: RUN, or the last one of the sandbox.",
    Option(name="--follow", short="-f", help="go on printing until it ends; Ctrl-C ends only this"),
    NO_PROJECT.replace(help="a run without a project"),
    positional="[NAME|RUN]",
    most=1,
    examples=(
        "unspill logs",
        "unspill logs --follow run7",
    ),
)
def logs(arguments: Arguments) -> int:
    """Print the output of a background run."""
    number, sandbox, link = _find(arguments)
    if link is None:
        return _print_stored(arguments, sandbox, number)
    with link:
        runs = [run["number"] for run in link.ask("list")["runs"]]
        if number is None and not runs:
            raise _nothing(sandbox)
        if number is not None and number not in runs:
            return _print_stored(arguments, sandbox, number)
        chosen = runs[-1] if number is None else number
        if arguments.flag("--json"):
            return _print_json(link, chosen)
        stream = TerminalOutput()
        try:
            return print_background(link, chosen, stream.pass_on, follow=arguments.flag("--follow"))
        except KeyboardInterrupt:
            return _INTERRUPTED
        finally:
            stream.settle()


def _print_json(link: KeeperLink, number: int) -> int:
    text, offset, lost, end = b"", 0, 0, None
    while True:
        found = link.ask("output", run=number, offset=offset, timeout=0.0)
        piece, offset, lost = from_form(found["text"]), found["next"], lost + found["lost"]
        text += piece
        end = found["end"] if end is None else end
        if not piece or offset >= end:
            print_json({"run": found["run"], "output": decoded(text), "lost": lost})
            return 0


def _print_stored(arguments: Arguments, sandbox: Sandbox, number: int | None) -> int:
    """Print what is kept of a run that no keeper has any more."""
    if number is None:
        raise _nothing(sandbox)
    run = sandbox.find_run(number)
    if arguments.flag("--json"):
        left_out = run.stdout.left_out + run.stderr.left_out
        text = run.stdout.kept() + run.stderr.kept()
        print_json({"run": {"number": run.number, "alive": False}, "output": decoded(text), "lost": left_out})
        return 0
    stream = TerminalOutput()
    for kept in (run.stdout, run.stderr):
        stream.pass_on(OutputChunk(stream="stdout", chunk=kept.head))
        if kept.left_out:
            print(f"unspill: {count_text(kept.left_out, 'byte')} in between are not kept", file=sys.stderr, flush=True)
        stream.pass_on(OutputChunk(stream="stdout", chunk=kept.tail))
    stream.settle()
    return 0


@verb(
    "End a background run (RUN), or all of a sandbox and the hooks' standby, and say what became of what they changed.",
    NO_PROJECT.replace(help="runs without a project"),
    positional="[NAME|RUN]",
    most=1,
    examples=(
        "unspill stop run7",
        "unspill stop trial",
    ),
)
def stop(arguments: Arguments) -> int:
    """End background runs."""
    number, sandbox, link = _find(arguments)
    standby = find_standby(sandbox._project.store.state)
    if number is None and standby:
        # It ends what it does first; the next hook starts another one
        os.kill(standby, signal.SIGTERM)
    if link is None:
        if number is not None:
            raise _nothing(sandbox)
        if arguments.flag("--json"):
            print_json({"results": []})
        else:
            print(f"Nothing runs in the background in sandbox {sandbox.name!r}.")
        return 0
    with link:
        results = link.results("stop", **({} if number is None else {"run": number}))
    if arguments.flag("--json"):
        print_json({"results": [result_form(result) for result in results]})
        return 0
    if not results:
        print(f"Stopped sandbox {sandbox.name!r}: nothing ran in the background.")
    for result in results:
        print(f"Stopped run {result.number}.")
        _print_result(result, sandbox)
    return 0


def _print_result(result: RunResult, sandbox: Sandbox) -> None:
    # How it ended is no news: it was stopped, and with it what it had started
    hints = tuple(hint for hint in result.hints if hint.code != "stopped-processes")
    for line in result_lines(result.replace(outcome=Exited(code=0), hints=hints), sandbox):
        print(line)


def _find(arguments: Arguments) -> tuple[int | None, Sandbox, KeeperLink | None]:
    """Return the run and the sandbox that a person names by number, name or options, and its keeper if it has one."""
    number = None
    for word in arguments.words:
        if word.removeprefix("run").isdecimal():
            number = int(word.removeprefix("run"))
        elif arguments.flag("--sandbox"):
            raise UsageError("the sandbox is named twice", remedy="Leave out `--sandbox`.")
        else:
            arguments.add("--sandbox", word)
    sandbox = open_sandbox(arguments)
    return number, sandbox, find_keeper(sandbox._project.store.state, sandbox.id, or_ending=True)


def _nothing(sandbox: Sandbox) -> UsageError:
    return UsageError(
        f"nothing runs in the background in sandbox {sandbox.name!r}",
        remedy="`unspill ps` lists what does; `unspill log` lists runs that have ended.",
    )
