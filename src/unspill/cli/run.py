# SPDX-License-Identifier: Apache-2.0
"""`unspill run`: stdout and stderr are the command's; what changed and what became of it follows on stderr.

A signal that asks this program to end ends the command first, and then the program, when the changes are safe.

Every run loads this module before it starts the spawner, so it imports little. What tells of a run (`output.py`) is
loaded while the command begins.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys

from unspill.cli.main import EVENTS, NO_PROJECT, Option, open_sandbox, verb
from unspill.errors import HostError, UsageError
from unspill.host.dirfd import write_whole
from unspill.host.libc import RaisingSignals
from unspill.lazy import lazy_module
from unspill.model.run import Ended, InheritedInput, NeverStarted, OutputChunk, Started
from unspill.runner.launcher import close_launchers, get_launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.cli import output
    from unspill.cli.main import Arguments
    from unspill.cli.output import Screen, Traces
    from unspill.model.permission import Answer, Question
    from unspill.model.run import Event, StreamName
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox
else:
    output = lazy_module("unspill.cli.output")  # lazy: summary

_WHOM = ("terminal", "queue", "deny")
_LONGEST_S = 1e9
_UNSANDBOXED = 'To be asked whether it may run without a sandbox, set `unsandboxed = "ask"` under [permissions].'
_OUR_FAILURE = 125
_MARK = "unspill: "
_NUMBERS = {"stdout": 1, "stderr": 2}
# What records a run and what tells of it
_LOADED = ("unspill.sandbox.result", "unspill.cli.output")


@verb(
    "Run a command in the sandbox. When it ends, apply its changes, or hold or discard them.",
    Option(name="--shell", short="-c", metavar="TEXT", help="run TEXT with /bin/sh -c instead"),
    Option(
        name="--working-dir",
        metavar="DIR",
        help="where to run it: a path, `.` (here) or `playground` (your scratch directory)",
    ),
    NO_PROJECT,
    Option(name="--timeout", metavar="SECONDS", help="stop it after this time"),
    Option(name="--env", metavar="NAME=VALUE", repeated=True, help="set an environment variable (repeatable)"),
    Option(name="--stdin", short="-i", help="let it read this program's standard input, also a terminal"),
    Option(name="--no-stdin", help="give it no input, not even a pipe or a file"),
    Option(name="--apply", help="apply its changes, whatever its exit code (the default)"),
    Option(name="--hold", help="hold its changes: later runs see them, your project does not"),
    Option(name="--discard", help="discard its changes"),
    Option(name="--network", help="ask for the network, for this run only"),
    Option(name="--allow-host", metavar="HOST", repeated=True, help="ask to connect to this host (repeatable)"),
    Option(name="--readable", metavar="PATH", repeated=True, help="ask to show it this path (repeatable)"),
    Option(name="--reveal", metavar="PATH", repeated=True, help="ask to show it a secret (repeatable)"),
    Option(name="--root", metavar="DIR", repeated=True, help="ask to let it change this directory (repeatable)"),
    Option(name="--unsandboxed", help="ask to run it WITHOUT a sandbox"),
    Option(name="--ask", metavar="WHOM", help="who answers questions: terminal, queue or deny (nobody)"),
    EVENTS,
    Option(name="--explain", help="describe the sandbox, and run nothing"),
    Option(name="--quiet", short="-q", help="print no summary"),
    positional="-- COMMAND [ARGUMENT ...]",
    takes_command=True,
    removed=(("--why", "Leave it out. When a command fails, unspill explains the paths in its output."),),
)
def run(arguments: Arguments) -> int:
    """Run a command; return its exit code."""
    command = _command(arguments)
    # While this process reads its policy and opens the store, the spawner enters its namespaces beside it
    get_launcher(own_namespace=True, may_fork=True)
    options = _options(arguments)
    more = _more(arguments)
    sandbox = _open(arguments, _approver(arguments, more))
    if arguments.flag("--explain"):
        if any(more.values()):
            raise UsageError("--explain only shows the sandbox of your policy", remedy="Leave out what asks for more.")
        print(sandbox.explain(command, working_dir=options["working_dir"], env=options["env"]))
        return 0
    as_json = arguments.flag("--json")
    if sandbox.view == "rootfs" and sandbox.engine is not None:
        _provide_rootfs(sandbox, is_quiet=as_json or arguments.flag("--quiet"))
    if not as_json and not arguments.flag("--quiet"):
        _tell_hidden(sandbox)
    streams = TerminalOutput()
    if sandbox.policy.network.ask:
        options["approver"] = _Approver(arguments.value("--ask"))
    known = len(sandbox.interrupted_runs)
    try:
        with RaisingSignals():
            on_event = streams.keep_back if as_json else streams.pass_on
            result = sandbox.run(command, on_event=on_event, **options, **more)
    except KeyboardInterrupt as error:
        if streams.is_started and not hasattr(error, "__notes__"):
            error.add_note("Cancelled. `unspill log` shows what became of its changes.")
        raise
    finally:
        streams.settle()
    try:
        for found in sandbox.interrupted_runs[known:]:
            print(f"unspill: {sandbox.describe_interrupted(found)}", file=sys.stderr)
        from unspill.layers.lifecycle import wait_until_clean  # lazy: run

        code = _tell(arguments, sandbox, result, streams)
        sys.stdout.flush()
        wait_until_clean()
        return code
    except KeyboardInterrupt as error:
        from unspill.sandbox.scan import cancelled_line  # lazy: history

        error.add_note(cancelled_line(result))
        raise


def _open(arguments: Arguments, approver: _Approver | None) -> Sandbox:
    try:
        return open_sandbox(arguments, may_fork=True, approver=approver)
    except HostError as error:
        if arguments.flag("--unsandboxed"):
            error.add_note(_UNSANDBOXED)
        raise


def _tell_hidden(sandbox: Sandbox) -> None:
    hidden = sandbox.hidden_by_held()
    if hidden:
        for line in output.hidden_lines(sandbox, hidden):
            print(_marked(line), file=sys.stderr)


def _tell(arguments: Arguments, sandbox: Sandbox, result: RunResult, streams: TerminalOutput) -> int:
    """Say how it went, and return the exit code."""
    close_launchers()

    if arguments.flag("--json"):
        output.print_json(output.result_form(result))
        return result.exit_code
    if not arguments.flag("--quiet") or isinstance(result.outcome, NeverStarted):
        for line in output.result_lines(result, sandbox):
            print(_marked(line), file=sys.stderr)
    for problem in (problems := streams.problems()):
        print(_marked(problem), file=sys.stderr)
    return _OUR_FAILURE if problems else result.exit_code


def _provide_rootfs(sandbox: Sandbox, *, is_quiet: bool) -> None:
    """Have what the first run would make made now, where somebody can see how it goes on."""
    from unspill.sandbox.rootfs_use import provide_rootfs  # lazy: rootfs

    with output.ProgressLine(is_quiet=is_quiet) as line:
        found = provide_rootfs(sandbox._project, line.take)
    if line.has_told:
        from unspill.cli.rootfs import warn_of_proof  # lazy: rootfs

        warn_of_proof(found)


def _command(arguments: Arguments) -> str | list[str]:
    text = arguments.value("--shell")
    if text is not None and arguments.words:
        raise UsageError("--shell and a command can't be used together", remedy="Use one of them.")
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
            raise UsageError(f"--env needs NAME=VALUE: {pair}")
        env[name] = value
    return {
        "working_dir": _working_dir(arguments),
        "env": env,
        "timeout": seconds,
        "stdin": _stdin(arguments),
        "after": _after(arguments),
    }


def _stdin(arguments: Arguments) -> int | None:
    """Return what the command reads: this program's input, if somebody piped something to it."""
    given = arguments.only_one("--stdin", "--no-stdin")
    if given is not None:
        return 0 if given == "--stdin" else None
    is_piped = stat.S_IFMT(os.fstat(0).st_mode) in (stat.S_IFIFO, stat.S_IFREG, stat.S_IFSOCK)
    can_be_read = fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
    return InheritedInput(0) if is_piped and can_be_read else None


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


def _approver(arguments: Arguments, more: dict[str, Any]) -> _Approver | None:
    is_needed = arguments.value("--ask") is not None or any(more.values()) or os.getuid() == 0
    return _Approver(arguments.value("--ask")) if is_needed else None


def _after(arguments: Arguments) -> str | None:
    given = arguments.only_one("--apply", "--hold", "--discard")
    return None if given is None else given.removeprefix("--")


def _working_dir(arguments: Arguments) -> str | None:
    """Return where the command starts: by default the current directory; the top of --project, or the playground."""
    given = arguments.value("--working-dir")
    is_elsewhere = arguments.flag("--project") or arguments.flag("--no-project")
    if given == "." or not (given or is_elsewhere):
        return os.getcwd()
    return given


class _Approver:
    """Whom `--ask` names, or else the person's own configuration: they are asked once there is a question."""

    __slots__ = ("_whom",)

    def __init__(self, whom: str | None) -> None:
        """Take the value of `--ask`.

        Raises:
            UsageError: it is none.
        """
        if whom is not None and whom not in _WHOM:
            raise UsageError(f"--ask is not one of {', '.join(_WHOM)}: {whom!r}")
        self._whom = whom

    def ask(self, question: Question) -> Answer:
        """Put the question to them."""
        from unspill.cli.permissions import ask_person  # lazy: approvals

        return ask_person(self._whom, question)


class TerminalOutput:
    """Passes a command's output on to this program's own streams, and keeps why it could not.

    A stream that can't be written, on a full disk for example, must not cost what the command changed: the run goes on,
    and the person is told. A reader that went away ends the run, as it ends any program in a pipe.
    """

    def __init__(self) -> None:
        self._lost: dict[str, str] = {}
        self._screens: dict[StreamName, Screen | None] = {}
        self._terminals = [number for number in _NUMBERS.values() if os.isatty(number)]
        self._shown: dict[StreamName, bool] = {}
        self._traces: Traces | None = None
        self.is_started = False

    def keep_back(self, event: Event) -> None:
        """Take one event of a run whose output is not shown as it comes."""
        if isinstance(event, Started):
            self.is_started = True
            # While the command begins, when there is nothing else to do; and before anything of it is applied
            for name in _LOADED:
                __import__(name)

    def pass_on(self, event: Event) -> None:
        """Take one event of a run."""
        if isinstance(event, OutputChunk):
            screen = self._screen(event.stream)
            self._write(event.stream, event.chunk if screen is None else screen.render(event.chunk))
        elif isinstance(event, Ended):
            for stream, screen in self._screens.items():
                self._write(stream, b"" if screen is None else screen.rest())
        else:
            self.keep_back(event)

    def settle(self) -> None:
        """Take back what the command left in a terminal: our own lines come next."""
        if self._traces is None:
            return
        for number in self._terminals:
            try:
                write_whole(number, self._traces.reset(is_read=number == _NUMBERS["stderr"]))
            except OSError:
                continue  # it is gone; nobody can be told there
        self._traces = None

    def problems(self) -> list[str]:
        """Return a line for each stream of which something is lost."""
        return [f"{stream} could not be written: {why}; the rest of it is lost" for stream, why in self._lost.items()]

    def _screen(self, stream: StreamName) -> output.Screen | None:
        """Return what stands between a stream and a terminal; elsewhere every byte is passed on as it is."""
        if stream not in self._screens:
            self._screens[stream] = None
            if _NUMBERS[stream] in self._terminals:
                self._screens[stream] = output.Screen()
        return self._screens[stream]

    def _write(self, stream: StreamName, content: bytes) -> None:
        if stream in self._lost:
            return
        try:
            write_whole(_NUMBERS[stream], content)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._lost[stream] = error.strerror or str(error)
        if self._terminals and content and self._may_be_shown(stream):
            if self._traces is None:
                self._traces = output.Traces()
            self._traces.note(content)

    def _may_be_shown(self, stream: StreamName) -> bool:
        """Tell whether a stream leads to a terminal, by itself or by way of another program such as `tee`."""
        if stream not in self._shown:
            mode = os.fstat(_NUMBERS[stream]).st_mode
            is_read = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
            self._shown[stream] = is_read or _NUMBERS[stream] in self._terminals
        return self._shown[stream]


def _marked(line: str) -> str:
    """Return one of our own lines so that it can be told from the command's, where both are on one terminal."""
    if line.startswith(" ") and not os.isatty(_NUMBERS["stderr"]):
        return line
    # Each row of a long one has the mark
    rows = output.fit(line, _NUMBERS["stderr"], len(_MARK)) if line.startswith(" ") else line
    return "\n".join(_MARK + row for row in rows.split("\n"))
