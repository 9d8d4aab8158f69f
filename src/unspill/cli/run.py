# SPDX-License-Identifier: Apache-2.0
"""`unspill run` and `unspill shell`: stdout and stderr are the command's; what changed and what became of it follows.

At a person's terminal a command has a terminal too, where this machine can give it one.

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
from unspill.errors import HostError, UnspillError, UsageError
from unspill.host.dirfd import write_whole
from unspill.host.libc import DeferredSignals, RaisingSignals
from unspill.layers.locks import SandboxKept
from unspill.lazy import lazy_module
from unspill.model.run import Ended, Exited, InheritedInput, NeverStarted, OutputChunk, Started
from unspill.policy.paths import shell_word
from unspill.progress import COUNT
from unspill.runner.launcher import close_launchers, get_launcher
from unspill.sandbox.secrets import note_told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from unspill.cli import output, terminal
    from unspill.cli.main import Arguments
    from unspill.cli.output import Elapsed, Screen, Traces
    from unspill.model.permission import Answer, Question
    from unspill.model.run import Event, StreamName
    from unspill.sandbox import keeper
    from unspill.sandbox.ports import Port, WantedPorts
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox
else:
    keeper = lazy_module("unspill.sandbox.keeper")  # lazy: background runs
    output = lazy_module("unspill.cli.output")  # lazy: summary
    terminal = lazy_module("unspill.cli.terminal")  # lazy: terminal

_WHOM = ("terminal", "queue", "deny")
_LONGEST_S = 1e9
_PAST_PORTS = 65_536
_UNSANDBOXED = 'To be asked whether it may run without a sandbox, set `unsandboxed = "ask"` under [permissions].'
_OUR_FAILURE = 125
_MARK = "unspill: "
_FOR_SHELLS = frozenset(" &|;<>$*?`(")
_NUMBERS = {"stdout": 1, "stderr": 2}
# What records a run and what tells of it
_LOADED = ("unspill.sandbox.result", "unspill.cli.output")


_FATES = {"apply": "applied", "hold": "held", "discard": "discarded"}
AFTER = (
    Option(name="--apply", help="apply its changes, whatever its exit code (the default)"),
    Option(name="--hold", help="hold its changes: later runs see them, your project does not"),
    Option(name="--discard", help="discard its changes"),
)
_PERMISSIONS = (
    Option(name="--network", help="ask for the network, for this run only"),
    Option(name="--allow-host", metavar="HOST", repeated=True, help="ask to connect to this host (repeatable)"),
    Option(
        name="--allow-registry",
        metavar="TOOL",
        repeated=True,
        values="pip|npm|cargo|go|apt",
        help="ask to connect to the hosts of your own pip, npm, cargo, go or apt (repeatable)",
    ),
    Option(name="--readable", metavar="PATH", repeated=True, help="ask to show it this path (repeatable)"),
    Option(name="--reveal", metavar="PATH", repeated=True, help="ask to show it a secret (repeatable)"),
    Option(name="--root", metavar="DIR", repeated=True, help="ask to let it change this directory (repeatable)"),
)
ASK = Option(
    name="--ask",
    metavar="WHOM",
    values="terminal|queue|deny",
    help="who answers questions: terminal, queue or deny (nobody)",
)
WORKING_DIR = Option(
    name="--working-dir",
    metavar="DIR",
    help="where to run it: a path, `.` (here) or `playground` (your scratch directory)",
)
ENV = Option(name="--env", metavar="NAME=VALUE", repeated=True, help="set an environment variable (repeatable)")
# A background run has no input but a terminal's, and shares what its sandbox has
_NOT_DETACHED = ("--stdin", "--explain", "--events", "--unsandboxed", "--alone")
_MORE = ("--network", "--allow-host", "--allow-registry", "--readable", "--reveal", "--root")
_FOLLOWED_S = 5.0
SESSION = Option(
    name="--session", metavar="NAME", values="session", help="the session it belongs to: see `unspill sessions`"
)
QUIET = Option(name="--quiet", short="-q", help="print no summary")
PORTS = (
    Option(
        name="--publish",
        short="-p",
        metavar="PORT[:HOSTPORT]",
        repeated=True,
        help="have a port of this machine lead to its server (repeatable)",
    ),
    Option(name="--expose", metavar="PORT", repeated=True, help="let it reach this port of this machine (repeatable)"),
)


@verb(
    "Run a command in the sandbox. When it ends, apply its changes, or hold or discard them.",
    Option(name="--shell", short="-c", metavar="TEXT", help="run TEXT with /bin/sh -c instead"),
    WORKING_DIR,
    NO_PROJECT,
    Option(name="--timeout", metavar="SECONDS", help="stop it after this time"),
    ENV,
    Option(name="--tty", short="-t", help="give it a terminal (the default if this program is on yours)"),
    Option(name="--detach", short="-d", help="run it in the background (see `unspill ps`), with -t on a terminal"),
    Option(name="--follow", short="-f", help="with -d: print its output until it ends; it ends with this program"),
    Option(name="--no-tty", help="give it no terminal: its output is filtered, and it reads no keys"),
    Option(name="--stdin", short="-i", help="let it read this program's standard input, without a terminal of its own"),
    Option(name="--no-stdin", help="give it no input, not even a pipe or a file"),
    Option(name="--alone", help="wait until no other run of the sandbox goes on, and let none begin meanwhile"),
    *PORTS,
    *AFTER,
    *_PERMISSIONS,
    Option(name="--unsandboxed", help="ask to run it WITHOUT a sandbox"),
    ASK,
    EVENTS,
    Option(name="--explain", help="describe the sandbox, and run nothing"),
    SESSION,
    QUIET,
    positional="-- COMMAND [ARGUMENT ...]",
    takes_command=True,
    removed=(("--why", "Leave it out. When a command fails, unspill explains the paths in its output."),),
    examples=(
        "unspill run -- python3 main.py",
        "unspill run --hold -c 'sort notes.txt > sorted.txt'",
        "unspill run --timeout 60 -- make test",
    ),
)
def run(arguments: Arguments) -> int:
    """Run a command; return its exit code."""
    command = given_command(arguments)
    if arguments.flag("--tty"):
        _check_terminal(arguments)
    if arguments.flag("--detach") or arguments.flag("--follow"):
        _refuse_detached(arguments)
    return _run(arguments, command)


@verb(
    "Open your shell in a sandbox. When it ends, apply its changes, or hold or discard them.",
    Option(name="--detach", short="-d", help="let it go on when you leave with Ctrl-\\ d: see `unspill attach`"),
    WORKING_DIR,
    NO_PROJECT,
    ENV,
    *PORTS,
    *AFTER,
    *_PERMISSIONS,
    ASK,
    EVENTS,
    SESSION,
    QUIET,
    positional="[NAME]",
    most=1,
    examples=(
        "unspill shell",
        "unspill shell --hold trial",
    ),
)
def shell(arguments: Arguments) -> int:
    """Run the person's shell in the sandbox of a name; return its exit code."""
    for name in arguments.words:
        if arguments.flag("--sandbox"):
            raise UsageError("the sandbox is named twice", remedy="Leave out `--sandbox`.")
        arguments.add("--sandbox", name)
    arguments.add("--tty", "")
    _check_terminal(arguments)
    _refuse_detached(arguments)
    return _run(arguments)


def _open_shell(arguments: Arguments, sandbox: Sandbox, options: dict[str, Any]) -> list[str]:
    """Say what becomes of the changes, and return the command."""
    if not arguments.flag("--quiet"):
        after = _after(arguments) or (sandbox.policy.after if sandbox._project.roots else "discard")
        fate = _FATES[after]
        leave = " Leave it with Ctrl-\\ d." if arguments.flag("--detach") else ""
        text = f"A shell in sandbox {sandbox.name!r}. When it ends, its changes are {fate}.{leave}"
        print(f"unspill: {text}", file=sys.stderr)
    program, environ = sandbox.shell
    options["env"] = {**environ, **options["env"]}
    return [os.fsdecode(program)]


def _run(arguments: Arguments, command: str | list[str] | None = None) -> int:
    """Run a command, or a shell; return its exit code."""
    # While this process reads its policy and opens the store, the spawner enters its namespaces beside it
    get_launcher(own_namespace=True, may_fork=True)
    options = run_options(arguments)
    more = _more(arguments)
    approver = _approver(arguments, more)
    options["ports"] = wanted_ports(arguments)
    sandbox = _open(arguments, approver)
    command = _open_shell(arguments, sandbox, options) if command is None else command
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
    if arguments.flag("--detach") and not arguments.flag("--tty"):
        return _start_background(arguments, sandbox, command, options)
    streams = TerminalOutput(tells_progress=not arguments.flag("--quiet"))
    options["attach"] = attached = person_terminal(arguments, sandbox, streams)
    if attached is not None and options["timeout"] is None:
        # Somebody sits there, and an editor may stay open
        options["limits"] = sandbox.policy.limits.replace(wall_s=None)
    if sandbox.policy.network.ask:
        options["approver"] = approver = RunApprover(arguments.value("--ask"))
    if approver is not None:
        approver.attached = attached
    known = len(sandbox.interrupted_runs)
    try:
        with RaisingSignals():
            on_event = streams.keep_back if as_json or attached is not None else streams.pass_on
            runner = _runner(arguments, sandbox, options)
            if runner is sandbox and _kept is not None:
                options["reuse"] = _kept.is_again
            try:
                result: Any = runner.run(command, on_event=on_event, **options, **more)
            except SandboxKept:
                # Background runs began after that was looked at, or are about to end
                if runner is not sandbox or streams.is_started:
                    raise
                options.pop("reuse", None)
                runner = _runner(arguments, sandbox, options)
                result = runner.run(command, on_event=on_event, **options, **more)
    except KeyboardInterrupt as error:
        streams.note_cancelled(error)
        raise
    finally:
        # What is read to tell of it is no part of the run
        COUNT.on_begin = None
        streams.settle()
    if runner is not sandbox and isinstance(result, keeper.Detached):
        return tell_detached(result, sandbox)
    return tell_run(arguments, sandbox, result, streams, known)


class _KeptRun:
    """The sandbox of the last run of this process, for the next one that finds everything as it was.

    Only the standby has it. Whatever a run is made with is found out anew each time: project, policy, what the machine
    can do. If any of it is another, so is the sandbox.
    """

    def __init__(self) -> None:
        self._kept: tuple[object, Sandbox] | None = None
        # Whether this run has the one before: only then a live sandbox pays, which costs more than a plain run at first
        self.is_again = False

    def choose(self, arguments: Arguments, sandbox: Sandbox) -> Sandbox:
        """Return the sandbox to be used: the one that was kept if it is just like this one, and else this one."""
        given = [arguments.value(name) for name in ("--session", "--ask", "--sandbox", "--events")]
        key = (sandbox._project.replace(store=None), given, os.environb.get(b"PATH"))
        self.is_again = self._kept is not None and self._kept[0] == key
        if self._kept is not None and self.is_again:
            sandbox.close()
            return self._kept[1]
        self.drop()
        self._kept = key, sandbox
        return sandbox

    def drop(self) -> None:
        """End what is kept."""
        kept, self._kept = self._kept, None
        try:
            if kept is not None:
                kept[1].close()
        except (OSError, UnspillError):
            # The state is gone, or fails: that is no reason not to run the next. Who comes later finds what is left
            return


_kept: _KeptRun | None = None


def keep_sandbox() -> None:
    """Have the runs of this process share a sandbox, each as isolated as a plain run: `Sandbox.run` with `reuse`."""
    global _kept  # noqa: PLW0603
    _kept = _KeptRun()


def drop_kept() -> None:
    """End the sandbox that was kept."""
    if _kept is not None:
        _kept.drop()


def _runner(arguments: Arguments, sandbox: Sandbox, options: dict[str, Any]) -> Sandbox | keeper.KeptSandbox:
    """Return what runs the command: where something runs in the background, the same live sandbox."""
    if arguments.flag("--detach"):
        kept = _start_keeper(sandbox)
        options["kept"] = True
        wanted, options["ports"] = options["ports"], None
        for number, inside in ({} if wanted is None else kept.open_ports(wanted)).items():
            print(f"{_MARK}http://127.0.0.1:{number} is port {inside} of the sandbox.", file=sys.stderr, flush=True)
        return kept
    # Those that throw their changes away never wait for others, and see the project as it is
    if not sandbox.has_keeper or arguments.flag("--discard") or arguments.flag("--unsandboxed"):
        return sandbox
    return find_kept(sandbox) or sandbox


def tell_run(arguments: Arguments, sandbox: Sandbox, result: RunResult, streams: TerminalOutput, known: int) -> int:
    """Say what was found and how the run went, and return the exit code."""
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


def _check_terminal(arguments: Arguments) -> None:
    """Refuse a terminal that can't be had, before anything is done.

    Raises:
        UsageError: this program is on none, or something else is wanted that excludes it.
    """
    for other in ("--no-tty", "--stdin", "--no-stdin", "--json", "--unsandboxed"):
        if arguments.flag(other):
            raise UsageError(f"a terminal and {other} can't be used together", remedy=f"Leave out {other}.")
    terminal.get_terminal()


def person_terminal(arguments: Arguments, sandbox: Sandbox, streams: TerminalOutput) -> terminal.PersonTerminal | None:
    """Return the person's terminal if the command is to have one: if they say so, or by itself where it can."""
    is_wanted = arguments.flag("--tty")
    if not is_wanted:
        others = ("--no-tty", "--stdin", "--no-stdin", "--json", "--unsandboxed")
        if any(map(arguments.flag, others)) or not all(map(os.isatty, range(3))):
            return None
        # Questions to the person would come in between
        means = sandbox._project.means
        if means.policy.network.ask or not means.has_live:
            return None
    size = terminal.find_terminal()
    if size is None:
        return None
    return terminal.PersonTerminal(size, streams.note, streams.settle, is_impatient=not is_wanted)


def _open(arguments: Arguments, approver: RunApprover | None) -> Sandbox:
    try:
        session = arguments.value("--session") or ""
        opened = open_sandbox(arguments, may_fork=True, approver=approver, session=session)
        return opened if _kept is None else _kept.choose(arguments, opened)
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
    if _kept is None:
        close_launchers()

    if arguments.flag("--json"):
        output.print_json(output.result_form(result))
        return result.exit_code
    if not arguments.flag("--quiet") or isinstance(result.outcome, NeverStarted):
        for line in output.result_lines(_explained(arguments, result), sandbox):
            print(_marked(line), file=sys.stderr)
        if os.isatty(2):
            note_told(sandbox._project, result.warnings)
    for problem in (problems := streams.problems()):
        print(_marked(problem), file=sys.stderr)
    return _OUR_FAILURE if problems else result.exit_code


def _explained(arguments: Arguments, result: RunResult) -> RunResult:
    """Return a result that says what to type where a whole line for a shell was given as the name of a program."""
    words = arguments.words
    if len(words) != 1 or not isinstance(result.outcome, NeverStarted) or not _FOR_SHELLS.intersection(words[0]):
        return result
    # On a line of its own it is not broken, so it can be pasted
    remedy = f"No program has this name. For a shell:\n      unspill run -c {shell_word(os.fsencode(words[0]))}"
    return result.replace(outcome=result.outcome.replace(remedy=remedy), warnings=())


def _provide_rootfs(sandbox: Sandbox, *, is_quiet: bool) -> None:
    """Have what the first run would make made now, where somebody can see how it goes on."""
    from unspill.sandbox.rootfs_use import provide_rootfs  # lazy: rootfs

    with output.ProgressLine(is_quiet=is_quiet) as line:
        found = provide_rootfs(sandbox._project, line.take)
    if line.has_told:
        from unspill.cli.rootfs import warn_of_proof  # lazy: rootfs

        warn_of_proof(found)


def given_command(arguments: Arguments) -> str | list[str]:
    text = arguments.value("--shell")
    if text is not None and arguments.words:
        raise UsageError("--shell and a command can't be used together", remedy="Use one of them.")
    command = arguments.words if text is None else text
    if not command or command == [""]:
        raise UsageError("Command cannot be empty", remedy="For example: unspill run -- make test")
    return command


def run_options(arguments: Arguments) -> dict[str, Any]:
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
        "alone": arguments.flag("--alone"),
        "on_wait": _say_waiting,
    }


def _say_waiting(reason: str) -> None:
    print(f"unspill: waiting for {reason}", file=sys.stderr, flush=True)


def wanted_ports(arguments: Arguments) -> WantedPorts | None:
    """Return the ports that are wanted: to type them is to allow them."""
    published, exposed = arguments.values("--publish"), arguments.values("--expose")
    if not (published or exposed):
        return None
    if arguments.flag("--unsandboxed"):
        raise UsageError("without a sandbox a command has this machine's own ports", remedy="Leave out the ports.")
    from unspill.sandbox.ports import WantedPorts  # lazy: ports

    pairs = []
    for text in published:
        inside, colon, host = text.partition(":")
        pairs.append((_port(inside, text), _port(host, text) if colon else 0))
    on_open = None if arguments.flag("--quiet") else _tell_port
    return WantedPorts(publish=tuple(pairs), expose=tuple(_port(text, text) for text in exposed), on_open=on_open)


def _port(number: str, text: str) -> int:
    if not (number.isascii() and number.isdecimal() and 0 < int(number) < _PAST_PORTS):
        raise UsageError(f"not a port: {text}", remedy="For example: -p 8000, -p 8000:8080, --expose 11434")
    return int(number)


def _tell_port(port: Port) -> None:
    where = f"http://127.0.0.1:{port.number}"
    what = f"{where} is port {port.inside} of the command."
    if not port.is_published:
        what = f"The command reaches {where} of this machine at the same address."
    print(f"{_MARK}{what}", file=sys.stderr, flush=True)


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
        "registries": [name for text in arguments.values("--allow-registry") for name in text.split(",")],
        "readable": [os.path.abspath(path) for path in arguments.values("--readable")],
        "reveal": [os.path.abspath(path) for path in arguments.values("--reveal")],
        "roots": [os.path.abspath(path) for path in arguments.values("--root")],
        "unsandboxed": arguments.flag("--unsandboxed"),
    }


def _approver(arguments: Arguments, more: dict[str, Any]) -> RunApprover | None:
    is_needed = arguments.value("--ask") is not None or any(more.values()) or os.getuid() == 0
    return RunApprover(arguments.value("--ask")) if is_needed else None


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


def _start_background(arguments: Arguments, sandbox: Sandbox, command: str | list[str], options: dict[str, Any]) -> int:
    """Start a command in the background, and say how to see its output and how to end it."""
    with _start_keeper(sandbox) as kept:
        wanted = {name: options[name] for name in ("working_dir", "env", "timeout", "after")}
        ports = {} if options["ports"] is None else kept.open_ports(options["ports"])
        run, result = kept.start(command, **wanted)
        if result is None and arguments.flag("--follow"):
            return _follow_run(arguments, sandbox, kept.link, run["number"])
    if result is not None and not arguments.flag("--json"):
        for line in output.result_lines(result, sandbox):
            print(f"unspill: {line}", file=sys.stderr)
        return result.exit_code
    if arguments.flag("--json"):
        output.print_json({"sandbox": sandbox.name, "run": run})
    elif arguments.flag("--quiet"):
        print(run["number"])
    else:
        text = "Started run {n} in the background. Output: unspill logs {n}{of}. Stop: unspill stop {n}{of}"
        print(output.advised(text, sandbox, n=run["number"]))
        for number, inside in ports.items():
            print(f"http://127.0.0.1:{number} is port {inside} of the sandbox.")
    return 0


def _start_keeper(sandbox: Sandbox) -> keeper.KeptSandbox:
    """Return the sandbox as its keeper has it; where there is none, one is started."""
    link = keeper.reach_keeper(sandbox, lambda: _wait_for_other(sandbox))
    if not sandbox.has_keeper:
        _tell_waiting(sandbox)
    return keeper.KeptSandbox(sandbox, link)


def tell_detached(detached: keeper.Detached, sandbox: Sandbox) -> int:
    """Say that a run goes on, and how to come back to it."""
    why = "Somebody took the terminal of run {n}" if detached.is_taken else "Detached. Run {n} goes on"
    text = f"unspill: {why}. Attach: unspill attach {{n}}{{of}}. Stop: unspill stop {{n}}{{of}}"
    print(output.advised(text, sandbox, n=detached.number), file=sys.stderr)
    return 0


def _follow_run(arguments: Arguments, sandbox: Sandbox, link: keeper.KeeperLink, number: int) -> int:
    """Print what a run prints until it ends, and say what became of its changes. It ends with this program."""
    link.ask("tie", run=number)
    stream = TerminalOutput()
    try:
        with RaisingSignals():
            print_background(link, number, stream.pass_on, follow=True)
            [result] = link.results("wait", run=number)
    except KeyboardInterrupt as error:
        error.add_note(f"Cancelled. Run {number} ends: see `unspill log`.")
        # Not by the same connection, where an answer is still to come, or was read in part
        other = keeper.find_keeper(sandbox._project.store.state, sandbox.id, or_ending=True)
        if other is not None:
            with other:
                [result] = other.results("stop", run=number)
            _tell_end(arguments, sandbox, result.replace(outcome=Exited(code=0)))
            error.__notes__ = [f"Cancelled. Stopped run {number}."]
        raise
    finally:
        stream.settle()
    _tell_end(arguments, sandbox, result)
    return result.exit_code


def _tell_end(arguments: Arguments, sandbox: Sandbox, result: RunResult) -> None:
    for line in () if arguments.flag("--quiet") else output.result_lines(result, sandbox):
        print(line if line.startswith(" ") else f"unspill: {line}", file=sys.stderr)


def _refuse_detached(arguments: Arguments) -> None:
    """Refuse what a background run can't have.

    Raises:
        UsageError: with what to leave out.
    """
    if arguments.flag("--follow") and (not arguments.flag("--detach") or arguments.flag("--tty")):
        raise UsageError("--follow needs --detach without --tty", remedy="Leave it out: others are followed anyway.")
    for name in (*_NOT_DETACHED, *_MORE) if arguments.flag("--detach") else ():
        if arguments.flag(name):
            remedy = "Put it into your configuration, or leave out --detach." if name in _MORE else f"Leave out {name}."
            raise UsageError(f"--detach and {name} can't be used together", remedy=remedy)


def find_kept(sandbox: Sandbox) -> keeper.KeptSandbox | None:
    """Return the sandbox as its keeper has it alive, None if it has none."""
    link = keeper.find_keeper(sandbox._project.store.state, sandbox.id)
    return None if link is None else keeper.KeptSandbox(sandbox, link)


def _wait_for_other(sandbox: Sandbox) -> None:
    text = f"Waiting: another `unspill` starts or ends the background runs of sandbox {sandbox.name!r}."
    print(f"unspill: {text}", file=sys.stderr, flush=True)


def _tell_waiting(sandbox: Sandbox) -> None:
    if not keeper.is_busy(sandbox):
        return
    text = f"Waiting for a run of sandbox {sandbox.name!r} to end. To run beside it: --sandbox NAME."
    print(f"unspill: {text}", file=sys.stderr, flush=True)


def print_background(link: keeper.KeeperLink, number: int, write: Callable[[Event], None], *, follow: bool) -> int:
    """Print what a background run has printed so far; with `follow` until it ends."""
    offset, end, is_more = 0, None, True
    while is_more:
        found = link.ask("output", run=number, offset=offset, timeout=_FOLLOWED_S if follow else 0.0)
        if found["lost"]:
            print(f"unspill: {output.count_text(found['lost'], 'byte')} of earlier output are lost", file=sys.stderr)
        text, offset = keeper.from_form(found["text"]), found["next"]
        write(OutputChunk(stream="stdout", chunk=text))
        # Without end, where it prints faster than this
        end = found["end"] if end is None else end
        is_more = bool(text) or found["run"]["alive"] if follow else bool(text) and offset < end
    return 0


class RunApprover:
    """Whom `--ask` names, or else the person's own configuration: they are asked once there is a question."""

    __slots__ = ("_whom", "attached")

    def __init__(self, whom: str | None) -> None:
        """Take the value of `--ask`.

        Raises:
            UsageError: it is none.
        """
        if whom is not None and whom not in _WHOM:
            raise UsageError(f"--ask is not one of {', '.join(_WHOM)}: {whom!r}")
        self._whom = whom
        self.attached: terminal.PersonTerminal | None = None

    def ask(self, question: Question) -> Answer:
        """Put the question to them; in the queue while their keys go to the command."""
        from unspill.cli.permissions import ask_person  # lazy: approvals

        is_busy = self.attached is not None and self.attached.is_begun
        return ask_person("queue" if is_busy and self._whom != "deny" else self._whom, question)


class TerminalOutput:
    """Passes a command's output on to this program's own streams, and keeps why it could not.

    A stream that can't be written, on a full disk for example, must not cost what the command changed: the run goes on,
    and the person is told. A reader that went away ends the run, as it ends any program in a pipe.
    """

    def __init__(self, *, tells_progress: bool = False) -> None:
        """With `tells_progress`, say how far the scan of a command's changes is, and what follows it."""
        self._tells_progress = tells_progress
        self._elapsed: Elapsed | None = None
        self._lost: dict[str, str] = {}
        self._screens: dict[StreamName, Screen | None] = {}
        self._terminals = [number for number in _NUMBERS.values() if os.isatty(number)]
        self._shown: dict[StreamName, bool] = {}
        self._traces: Traces | None = None
        self.is_started = False

    def note_cancelled(self, error: KeyboardInterrupt) -> None:
        """Add to an interrupt of a run where to look, unless it says already what became of its changes."""
        if self.is_started and not hasattr(error, "__notes__"):
            error.add_note("Cancelled. `unspill log` shows what became of its changes.")

    def keep_back(self, event: Event) -> None:
        """Take one event of a run whose output is not shown as it comes."""
        if isinstance(event, Started):
            self.is_started = True
            # While the command begins, when there is nothing else to do; and before anything of it is applied
            # An interrupt that arrives within an import may be swallowed: Python prints it, and goes on
            with DeferredSignals():
                for name in _LOADED:
                    __import__(name)
            if self._tells_progress and _NUMBERS["stderr"] in self._terminals:
                COUNT.on_begin = self._begin_progress

    def _begin_progress(self) -> None:
        """Say from now on how far the scan is: it begins when every process of the command is dead."""
        for stream, screen in self._screens.items():
            self._write(stream, b"" if screen is None else screen.rest())
        # A line of ours may follow, so what the command left in the terminal goes first
        self.settle()
        self._elapsed = output.Elapsed("Reading changes").__enter__()

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

    def note(self, content: bytes, *, is_in_order: bool = True) -> None:
        """Look at what goes to the terminal as it is; what a program in between shows may come at any time."""
        if self._traces is None:
            self._traces = output.Traces()
        self._traces.note(content, is_in_order=is_in_order)

    def settle(self) -> bool:
        """Take back what the command left in a terminal: ours come next. Tell if it was more than colours."""
        if self._elapsed is not None:
            self._elapsed.__exit__()
            self._elapsed = None
        if self._traces is None:
            return False
        is_wild = self._traces.is_wild
        # Where both are one terminal, once is enough; the last is where our lines go
        for number in {os.fstat(number).st_rdev: number for number in self._terminals}.values():
            try:
                write_whole(number, self._traces.reset(is_read=number == _NUMBERS["stderr"]))
            except OSError:
                continue  # it is gone; nobody can be told there
        self._traces = None
        return is_wild

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
            self.note(content, is_in_order=False)

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
    rows = output.fit(line, _NUMBERS["stderr"], len(_MARK))
    return "\n".join(_MARK + row for row in rows.split("\n"))
