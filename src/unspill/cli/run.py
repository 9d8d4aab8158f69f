# SPDX-License-Identifier: Apache-2.0
"""`unspill run`: stdout and stderr are the command's; what changed and what became of it follows on stderr.

A signal that asks this program to end ends the command first, and then the program, when the changes are safe.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys

from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.cli.output import Output, marked
from unspill.errors import UsageError
from unspill.model.run import Exited, InheritedInput, NeverStarted
from unspill.runner.launcher import close_launchers, get_launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn

    from unspill.cli.asking import PersonAtHand
    from unspill.cli.options import Arguments
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox
else:
    # The module around it makes enums of all its numbers
    import _signal as signal

_LONGEST_S = 1e9
_NOT_FOUND = (126, 127)
_OUR_FAILURE = 125

COMMAND = Command(
    name="run",
    summary="Run a command sealed; when it has ended, apply what it changed, unless it is to be held or discarded.",
    positional="-- COMMAND [ARGUMENT ...]",
    takes_command=True,
    removed=(("--why", "Leave it out. When a command fails, unspill explains the paths that its output names."),),
    options=(
        Option(name="--shell", short="-c", metavar="TEXT", help="run TEXT with /bin/sh -c instead"),
        Option(
            name="--working-dir",
            metavar="DIR",
            help="where to run it; `.`: here, `playground`: your scratch directory",
        ),
        Option(name="--timeout", metavar="SECONDS", help="kill it after this time"),
        Option(name="--env", metavar="NAME=VALUE", repeated=True, help="set a variable inside (repeatable)"),
        Option(name="--stdin", short="-i", help="let it read this program's standard input, also a terminal"),
        Option(name="--no-stdin", help="give it no input, not even a pipe or a file"),
        Option(name="--apply", help="apply its changes when it has ended, whatever its exit code (the default)"),
        Option(name="--hold", help="keep its changes in the sandbox: the next run sees them, the project does not"),
        Option(name="--discard", help="throw its changes away"),
        Option(name="--network", help="ask for the network, for this command and this time"),
        Option(name="--allow-host", metavar="HOST", repeated=True, help="ask for a host (repeatable)"),
        Option(name="--readable", metavar="PATH", repeated=True, help="ask to show it this path (repeatable)"),
        Option(name="--reveal", metavar="PATH", repeated=True, help="ask to show it a secret (repeatable)"),
        Option(name="--root", metavar="DIR", repeated=True, help="ask to let it change this directory (repeatable)"),
        Option(name="--unsandboxed", help="ask to run it WITHOUT a sandbox"),
        Option(name="--ask", metavar="WHOM", help="whom to ask: terminal, queue or deny (nobody)"),
        Option(name="--explain", help="print the whole sandbox, and run nothing"),
        Option(name="--quiet", short="-q", help="no summary"),
        *EVERYWHERE,
    ),
)


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def run(arguments: Arguments) -> int:
    """Run the verb."""
    command = _command(arguments)
    # While this process reads its policy and opens the store, the spawner enters its namespaces beside it
    get_launcher(own_namespace=True, may_fork=True)
    from unspill.cli.choosing import open_sandbox

    options = _options(arguments)
    more = _more(arguments)
    sandbox = open_sandbox(arguments, may_fork=True, approver=_approver(arguments, more))
    if arguments.flag("--explain"):
        if any(more.values()):
            raise UsageError("--explain shows the sandbox of your policy alone", remedy="Ask for nothing else with it.")
        print(sandbox.explain(command, cwd=options["cwd"], env=options["env"]))
        return 0
    as_json = arguments.flag("--json")
    if as_json:
        # Before the run: after it, what it changed may be applied
        __import__("unspill.cli.json_form")
    if sandbox.view == "rootfs":
        _provide_rootfs(sandbox, is_quiet=as_json or arguments.flag("--quiet"))
    if not as_json and not arguments.flag("--quiet"):
        _tell_hidden(sandbox)
    output = Output()
    if sandbox.policy.network.ask:
        options["approver"] = _person(arguments)
    known = len(sandbox.interrupted_runs)
    try:
        with _Signals():
            on_event = output.keep_back if as_json else output.pass_on
            result = sandbox.run(command, on_event=on_event, **options, **more)
    except KeyboardInterrupt as error:
        if output.is_started and not hasattr(error, "__notes__"):
            error.add_note("Cancelled. `unspill log` says what became of its changes.")
        raise
    finally:
        output.settle()
    try:
        for found in sandbox.interrupted_runs[known:]:
            print(f"unspill: {sandbox.describe_interrupted(found)}", file=sys.stderr)
        return _tell(arguments, sandbox, result, output)
    except KeyboardInterrupt as error:
        from unspill.sandbox.interrupted import cancelled_line

        error.add_note(cancelled_line(result))
        raise


def _tell_hidden(sandbox: Sandbox) -> None:
    hidden = sandbox.hidden_by_held()
    if hidden:
        from unspill.cli.telling import seen_from_here
        from unspill.sandbox.ending import hidden_notes

        for note in hidden_notes(hidden, sandbox.project, seen_from_here):
            print(marked(note), file=sys.stderr)


class _Signals:
    """A block in which SIGTERM and SIGHUP raise, as Ctrl-C does, instead of killing this program at once."""

    def __enter__(self) -> None:
        # Whoever started this program may have had one ignored, as nohup does
        self._numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
        for number in self._numbers:
            signal.signal(number, _raise)

    def __exit__(self, *_rest: object) -> None:
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, _frame: object) -> NoReturn:
    raise Terminated(number)


def _tell(arguments: Arguments, sandbox: Sandbox, result: RunResult, output: Output) -> int:
    """Say how it went, and return the exit code."""
    close_launchers()
    if arguments.flag("--json"):
        from unspill.cli.choosing import print_json
        from unspill.cli.json_form import result_form

        print_json(result_form(result))
        return result.exit_code
    if not arguments.flag("--quiet") or isinstance(result.outcome, NeverStarted):
        _summarise(result, sandbox)
    for problem in (problems := output.problems()):
        print(marked(problem), file=sys.stderr)
    return _OUR_FAILURE if problems else result.exit_code


def _provide_rootfs(sandbox: Sandbox, *, is_quiet: bool) -> None:
    """Have what the first run would make made now, where somebody can see how it goes on."""
    from unspill.cli.progress import ProgressLine
    from unspill.sandbox.rootfs_use import provide_rootfs

    with ProgressLine(is_quiet=is_quiet) as line:
        found = provide_rootfs(sandbox._project, line.take)
    if line.has_told:
        from unspill.cli.rootfs import warn_of_proof

        warn_of_proof(found)


def _command(arguments: Arguments) -> str | list[str]:
    text = arguments.value("--shell")
    if text is not None and arguments.words:
        raise UsageError("--shell and a command were both given", remedy="Give one of them.")
    command = arguments.words if text is None else text
    if not command or command == [""]:
        raise UsageError("Command cannot be empty", remedy="For example: unspill run -- make test")
    return command


def _options(arguments: Arguments) -> dict[str, Any]:
    timeout = arguments.value("--timeout")
    try:
        seconds = None if timeout is None else float(timeout)
    except ValueError:
        seconds = -1.0
    if seconds is not None and not 0 < seconds < _LONGEST_S:
        raise UsageError(f"--timeout is not a number of seconds: {timeout}")
    env = {}
    for pair in arguments.values("--env"):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--env wants NAME=VALUE: {pair}")
        env[name] = value
    return {
        "cwd": _working_dir(arguments),
        "env": env,
        "timeout": seconds,
        "stdin": _stdin(arguments),
        "after": _after(arguments),
    }


def _stdin(arguments: Arguments) -> int | None:
    """Return what the command reads: this program's input, if somebody piped something to it."""
    if arguments.flag("--stdin"):
        if arguments.flag("--no-stdin"):
            raise UsageError("--stdin and --no-stdin were both given", remedy="Give one of them.")
        return 0
    is_piped = stat.S_IFMT(os.fstat(0).st_mode) in (stat.S_IFIFO, stat.S_IFREG, stat.S_IFSOCK)
    can_be_read = fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
    return InheritedInput(0) if is_piped and can_be_read and not arguments.flag("--no-stdin") else None


def _more(arguments: Arguments) -> dict[str, Any]:
    """Return what is wanted beyond the policy. Paths are as seen from here."""
    return {
        "network": arguments.flag("--network"),
        "hosts": arguments.values("--allow-host"),
        "readable": [os.path.abspath(path) for path in arguments.values("--readable")],
        "reveal": [os.path.abspath(path) for path in arguments.values("--reveal")],
        "roots": [os.path.abspath(path) for path in arguments.values("--root")],
        "unsandboxed": arguments.flag("--unsandboxed"),
    }


def _approver(arguments: Arguments, more: dict[str, Any]) -> PersonAtHand | None:
    is_needed = arguments.value("--ask") is not None or any(more.values()) or os.getuid() == 0
    return _person(arguments) if is_needed else None


def _person(arguments: Arguments) -> PersonAtHand:
    from unspill.cli.asking import PersonAtHand

    return PersonAtHand(arguments.value("--ask"))


def _after(arguments: Arguments) -> str | None:
    given = [name for name in ("apply", "hold", "discard") if arguments.flag(f"--{name}")]
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} were both given", remedy="Give one of them.")
    return given[0] if given else None


def _working_dir(arguments: Arguments) -> str | None:
    """Return where the command starts: by default the current directory, with --project the project's top."""
    given = arguments.value("--working-dir")
    if given == "." or not (given or arguments.flag("--project")):
        return os.getcwd()
    return given


def _summarise(result: RunResult, sandbox: Sandbox) -> None:
    """Say on stderr how it ended, where that is not plain, and what it changed."""
    from unspill.model.rootfs import NOTE
    from unspill.sandbox.ending import ROOT_NOTE, STRICT_NOTE
    from unspill.sandbox.secrets import is_about_secret

    always = (ROOT_NOTE, STRICT_NOTE)
    lines = [warning for warning in result.warnings if warning in always]
    if not result.sandboxed:
        lines += list(result.warnings)
    if not isinstance(result.outcome, Exited):
        from unspill.sandbox.result import describe_end

        lines.append(describe_end(result.outcome).splitlines()[0])
    if isinstance(result.outcome, NeverStarted) and result.outcome.remedy:
        lines.append(f"  {result.outcome.remedy}")
    if result.exit_code in _NOT_FOUND:
        # What the sandbox does not show of this host may be what is missing
        lines += [warning for warning in result.warnings if warning not in always]
    else:
        lines += [warning for warning in result.warnings if is_about_secret(warning) or warning.startswith(NOTE)]
    lines += ["\n  ".join(filter(None, (hint.text, hint.remedy))) for hint in result.hints]
    if result.denials:
        from unspill.cli.traffic import refused_lines

        lines += refused_lines(result.denials)
    if result.changes:
        from unspill.cli.outcome import outcome_lines

        lines += outcome_lines(result, sandbox.name, sandbox.project)
    for line in lines:
        for part in line.split("\n"):
            print(marked(part), file=sys.stderr)
