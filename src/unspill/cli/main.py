# SPDX-License-Identifier: Apache-2.0
"""The `unspill` program: finds the verb, reads its words and options, turns errors into text and exit codes.

Only this package prints or exits. To add a verb, write a function with `@verb(...)` in the module where it belongs, and
name it in `VERBS`. argparse would cost `unspill run` half of what starting Python costs; the help text comes from the
same tables.
"""

from __future__ import annotations

import os
import sys

from unspill import __version__
from unspill.errors import (
    DeniedError,
    SandboxUnavailable,
    UnspillError,
    UsageError,
)
from unspill.host.dirfd import occupy_standard
from unspill.host.libc import ignore_interrupts, repeat_swallowed_signals
from unspill.lazy import lazy_module
from unspill.policy.paths import closest, show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from unspill.cli import output, pager
    from unspill.model.policy import Policy
    from unspill.permissions.approvers import Approver
    from unspill.sandbox.sandbox import Sandbox
else:
    output = lazy_module("unspill.cli.output")  # lazy: summary
    pager = lazy_module("unspill.cli.pager")  # lazy: pager

# The verbs as the overview lists them: the module that has each one, and what it does
VERBS = {
    "run": ("run", "run a command in the sandbox, then apply, hold or discard its changes"),
    "shell": ("run", "open a shell in the sandbox; its changes are applied when it ends"),
    "learn": ("learn", "run a command once, and print the hosts and paths that it needs as settings"),
    "agent": ("agent", "run a coding agent as a whole in the sandbox, with a home directory of its own"),
    "ps": ("background", "list the commands that run in the background"),
    "attach": ("background", "come back to the terminal of a background run"),
    "logs": ("background", "print what a background run has printed, or follow it"),
    "stop": ("background", "end background runs; their changes are applied, held or discarded"),
    "undo": ("history", "undo an operation, whatever the command was"),
    "redo": ("history", "redo what an undo reversed"),
    "sessions": ("history", "list the sessions of agents, to show or undo one at once"),
    "changes": ("review", "list held changes"),
    "diff": ("review", "show held changes, or those of an operation, line by line"),
    "review": ("review", "look through held changes on a screen; pick, apply, discard, undo"),
    "apply": ("review", "apply held changes to the project"),
    "discard": ("review", "discard held changes; undo restores them"),
    "log": ("log", "list runs, and what became of their changes"),
    "blame": ("log", "say which run wrote each line of a file"),
    "show": ("history", "show one run or one operation"),
    "report": ("report", "report runs, changed files, hosts and questions, also as a page of HTML"),
    "sandboxes": ("projects", "list the project's sandboxes, and what each one holds"),
    "files": ("review", "list the files that operations changed, and their backups"),
    "restore": ("review", "restore a file from a backup"),
    "requests": ("permissions", "list the requests that wait for your answer"),
    "approve": ("permissions", "allow a request"),
    "deny": ("permissions", "deny a request"),
    "grants": ("permissions", "list or revoke what you allowed for longer than once"),
    "audit": ("permissions", "list what was asked, answered, run and applied"),
    "rootfs": ("rootfs", "manage root file systems for the view `rootfs`"),
    "mcp": ("mcp", "serve a sandbox's tools to an MCP client"),
    "hook": ("hook", "run Claude Code's commands in the sandbox, as its hook"),
    "status": ("projects", "show what is held, what happened last, disk use, and what to do next"),
    "playground": ("upkeep", "show the project's scratch directory, or empty it"),
    "prune": ("upkeep", "delete old operations, backups and runs"),
    "forget": ("projects", "delete all that unspill keeps of a project"),
    "adopt": ("projects", "bring history and held changes along after you renamed a project"),
    "recover": ("upkeep", "replace a lost database with its last copy"),
    "doctor": ("upkeep", "check this machine, and say how to fix what is missing"),
    "init": ("init", "write a .unspill.toml with every setting, as comments"),
    "completion": ("completion", "print what bash, zsh or fish loads to complete these words"),
}
# Verbs that no person types: the overview does not list them
_UNLISTED = {"candidates": "completion"}
OUR_FAILURE = 125
# The sandbox that is meant where none is named
DEFAULT = "default"
# Coding agents let a command through where their hook fails in any other way
STOPPED = 2
_SIGINT = 2
# Of a help text: where the words about an option begin, and below which width they have a line of their own
_TEXT_AT = 28
_NARROW = 70
_RUNNING = ("run", "shell", "agent")
_FULL = "Redirect standard output to somewhere writable."


class Option(Record):
    """`--name`, or `--name VALUE` where it has a `metavar`. `repeated` collects every value.

    A `metavar` in brackets may be left out: then the value is empty, unless a word follows that is no option. `values`
    are what shells complete it with: words (`a|b`), or a kind of thing that `completion.py` lists.
    """

    name: str
    help: str
    metavar: str = ""
    short: str = ""
    repeated: bool = False
    values: str = ""


PROJECT = Option(name="--project", metavar="DIR", help="the project (default: the one around the current directory)")
NO_PROJECT = Option(name="--no-project", help="no project: commands start in a playground, nothing is applied")
SANDBOX = Option(
    name="--sandbox", metavar="NAME", values="sandbox", help="the sandbox of the project (default: default)"
)
JSON = Option(name="--json", help="print one JSON object")
HELP = Option(name="--help", short="-h", help="show this help")
RUN = Option(name="--run", metavar="RUN", help="only the changes of this run: its number or id")
SESSION = Option(
    name="--session", metavar="[ID]", values="session", help="what an agent's session changed (default: the last one)"
)
EVENTS = Option(
    name="--events", metavar="WHERE", help="write a JSON line for each changed path to a descriptor (3) or file"
)
COLOR = Option(
    name="--color", metavar="WHEN", values="auto|always|never", help="colours: auto (on a terminal), always or never"
)
NO_PAGER = Option(name="--no-pager", help="print it all at once, without your pager")
EVERYWHERE = (PROJECT, SANDBOX, JSON, HELP)


class Verb(Record):
    """One verb of the command line; `run` does it and returns the exit code. `verb` makes one of a function.

    `positional` names its arguments for the help; `most` bounds how many there may be. `removed` are options of earlier
    versions, each with what to do instead. `examples` are command lines that a test runs. With `is_paged` it has much
    to say, which the person's pager shows.

    With `takes_command`, everything from the first word that is no option (or after `--`) is the command to run.
    """

    name: str
    summary: str
    run: Callable[[Arguments], int]
    options: tuple[Option, ...] = EVERYWHERE
    positional: str = ""
    most: int | None = 0
    takes_command: bool = False
    removed: tuple[tuple[str, str], ...] = ()
    examples: tuple[str, ...] = ()
    is_paged: bool = False


def verb(
    summary: str,
    *options: Option,
    positional: str = "",
    most: int | None = 0,
    takes_command: bool = False,
    removed: tuple[tuple[str, str], ...] = (),
    examples: tuple[str, ...] = (),
    is_paged: bool = False,
) -> Callable[[Callable[[Arguments], int]], Verb]:
    """Make a function the verb of its name, with these options and the ones that every verb has."""

    def make(run: Callable[[Arguments], int]) -> Verb:
        return Verb(
            name=run.__name__,
            summary=summary,
            run=run,
            options=(*options, *((COLOR, NO_PAGER) if is_paged else ()), *EVERYWHERE),
            positional=positional,
            most=most,
            takes_command=takes_command,
            removed=removed,
            examples=examples,
            is_paged=is_paged,
        )

    return make


class Arguments:
    """What was given: `flag` and `value` by option name, and the positional words."""

    def __init__(self) -> None:
        self._given: dict[str, list[str]] = {}
        self.words: list[str] = []

    def add(self, name: str, value: str) -> None:
        self._given.setdefault(name, []).append(value)

    def replace(self, name: str, value: str) -> None:
        """Set the one value of an option, whatever was given."""
        self._given[name] = [value]

    def flag(self, name: str) -> bool:
        """Tell whether an option was given."""
        return name in self._given

    def value(self, name: str) -> str | None:
        """Return the last value of an option, None if it was not given."""
        values = self._given.get(name)
        return values[-1] if values else None

    def values(self, name: str) -> list[str]:
        """Return every value of a repeated option."""
        return self._given.get(name, [])

    def count(self, name: str, default: int) -> int:
        """Return the value of an option that says how many.

        Raises:
            UsageError: it is not a whole number.
        """
        given = self.value(name) or str(default)
        if not given.isdecimal():
            raise UsageError(f"{name} is not a number: {given!r}", remedy="Give a whole number.")
        return int(given)

    def only_one(self, *names: str) -> str | None:
        """Return which of some options was given, None for none.

        Raises:
            UsageError: more than one was.
        """
        given = [name for name in names if self.flag(name)]
        if len(given) > 1:
            raise UsageError(f"{given[0]} and {given[1]} can't be used together", remedy="Use one of them.")
        return given[0] if given else None


def parse(verb: Verb, words: Sequence[str]) -> Arguments:
    """Read the words after the verb.

    Raises:
        UsageError: an option is unknown, lacks its value, or there are too many words.
    """
    arguments = Arguments()
    by_name = {name: option for option in verb.options for name in (option.name, option.short) if name}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            arguments.words += rest
            break
        if word.startswith("-") and word != "-":
            _take_option(verb, by_name, arguments, word, rest)
        elif verb.takes_command:
            arguments.words += [word, *rest]
            break
        else:
            arguments.words.append(word)
    if verb.most is not None and not verb.takes_command and len(arguments.words) > verb.most:
        raise _usage(verb, f"too many arguments: {' '.join(arguments.words[verb.most :])}")
    return arguments


def help_text(verb: Verb, columns: int = 0) -> str:
    """Return the help of one verb, for a terminal that is so wide; 0: as wide as it gets."""
    lines = [f"usage: unspill {verb.name} [options] {verb.positional}".rstrip(), ""]
    lines += [*_wrapped(verb.summary, columns, ""), ""]
    for option in verb.options:
        names = ", ".join(name for name in (option.short, option.name) if name)
        left = f"  {names} {option.metavar}".rstrip()
        if columns and columns < _NARROW:
            lines += [left, *_wrapped(option.help, columns, " " * 6)]
        else:
            first, *rest = _wrapped(option.help, columns, " " * _TEXT_AT)
            if len(left) > _TEXT_AT - 2:
                lines += [left, first, *rest]
            else:
                lines += [f"{left:<{_TEXT_AT - 2}}  {first.lstrip()}", *rest]
    lines += ["", "examples:", *(f"  {line}" for line in verb.examples)] if verb.examples else []
    return "\n".join(lines)


def _wrapped(text: str, columns: int, indent: str) -> list[str]:
    """Return a text as indented lines that a terminal does not have to break."""
    lines = [indent]
    for word in text.split():
        row = f"{lines[-1]} {word}" if lines[-1].strip() else indent + word
        if columns and len(row) > columns and lines[-1].strip():
            lines.append(indent + word)
        else:
            lines[-1] = row
    return lines


def open_sandbox(
    arguments: Arguments,
    *,
    may_fork: bool = False,
    may_make: bool = False,
    approver: Approver | None = None,
    session: str = "",
    widen: Callable[[Policy], Policy] | None = None,
) -> Sandbox:
    """Open the sandbox that --project and --sandbox name; say on stderr what was found interrupted and repaired.

    `widen` makes its policy of the one that the person has decided on. Who runs something (`may_fork`, `may_make`)
    makes a sandbox by naming it; who only reads may have mistyped its name.

    Raises:
        UsageError: there is no sandbox of that name, and none is to be made.
    """
    # Not at the top: `run` starts the spawner first, and `hook` opens no sandbox
    from unspill.sandbox import project, sandbox  # lazy: run

    arguments.only_one("--project", "--no-project")
    given, events = arguments.value("--project"), arguments.value("--events")
    if arguments.flag("--no-project"):
        chosen = None
    else:
        chosen = os.fsencode(given) if given else project.find_project(os.getcwdb())
    policy = None
    if widen is not None:
        top = None if chosen is None else project.resolve_project(chosen)
        policy = widen(project.load_policy(project.find_own_locations(), top, None))
    name = arguments.value("--sandbox") or DEFAULT
    if name != DEFAULT and not may_fork and not may_make:
        project.check_known(name, chosen)
    opened = sandbox.Sandbox(
        chosen,
        policy=policy,
        name=name,
        may_fork=may_fork,
        approver=approver,
        on_change=None if events is None else output.EventLines(events).write,
        session=session,
    )
    for operation in opened.recovered:
        print("unspill: " + "\n".join(output.recovered_lines(operation)), file=sys.stderr)
    if opened.former_path is not None:
        print(
            f"unspill: This directory seems to have been {show(opened.former_path)}."
            " To bring its history and held changes here: unspill adopt",
            file=sys.stderr,
        )
    for run in opened.interrupted_runs:
        print(f"unspill: {opened.describe_interrupted(run)}", file=sys.stderr)
    return opened


def named_project(arguments: Arguments) -> bytes | None:
    """Return the project that --project names, None for all."""
    given = arguments.value("--project")
    return None if given is None else os.path.realpath(os.fsencode(given))


def is_operation(word: str) -> bool:
    """Tell whether a word can only mean an operation: `op5`. A number alone is a run's where both could be meant."""
    return word.startswith("op") and word[2:].isdecimal()


def operation_word(word: str) -> str:
    """Return the number or id in a word where an operation is expected: `op5`, `5`, or an id."""
    return word[2:] if is_operation(word) else word


def _take_option(verb: Verb, by_name: dict[str, Option], arguments: Arguments, word: str, rest: list[str]) -> None:
    name, equals, value = word.partition("=")
    option = by_name.get(name)
    if option is None:
        instead = dict(verb.removed).get(name)
        if instead is not None:
            raise UsageError(f"{name} was removed", remedy=instead)
        near = closest(name, [known for known in by_name if len(known) > 2])
        raise _usage(verb, f"unknown option {name}", meant=f"Did you mean {near}? " if near else "")
    if not option.metavar:
        if equals:
            raise _usage(verb, f"{name} takes no value")
        arguments.add(option.name, "")
        return
    if not equals and option.metavar.startswith("["):
        value = rest.pop(0) if rest and not rest[0].startswith("-") else ""
    elif not equals:
        if not rest:
            raise _usage(verb, f"{name} needs a value: {option.metavar}")
        value = rest.pop(0)
    if arguments.flag(option.name) and not option.repeated:
        raise _usage(verb, f"{name} was given twice")
    arguments.add(option.name, value)


def _usage(verb: Verb, problem: str, *, meant: str = "") -> UsageError:
    return UsageError(problem, remedy=f"{meant}See `unspill {verb.name} --help`.")


def main() -> NoReturn:
    """Entry point of the `unspill` program. Does not return.

    Leaves without taking the interpreter apart, which would take as long as starting it.
    """
    is_hook = sys.argv[1:2] == ["hook"]
    try:
        code = _run_program()
    except BaseException:
        if not is_hook:
            raise
        code = STOPPED
    os._exit(STOPPED if is_hook and code else code)


def _run_program() -> int:
    repeat_swallowed_signals()
    _fill_closed_streams()
    code = run_words(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 141
    # The spawner is on its way out; left to a container's pid 1 that reaps nobody, it would stay a zombie
    launcher = sys.modules.get("unspill.runner.launcher")
    if launcher is not None:
        launcher.stop_launchers()
    return code


def _fill_closed_streams() -> None:
    """Let a standard stream that whoever started this program had closed lead nowhere, before anything is opened."""
    occupy_standard()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115


def run_words(words: list[str]) -> int:
    """Run one command line and return its exit code."""
    verb = words[0] if words else "--help"
    try:
        code = _run_verb(verb, words[1:])
        # Here and not at the end of the program: whoever reads may have gone away
        sys.stdout.flush()
        return code
    except UnspillError as error:
        return _complain(error, verb)
    except KeyboardInterrupt as error:
        ignore_interrupts()
        _say_notes(error, "cancelled; nothing was changed")
        return 128 + getattr(error, "number", _SIGINT)
    except BrokenPipeError as error:
        _forget_output()
        _say_notes(error)
        return 141
    except Exception as error:
        problem = _output_problem() if isinstance(error, OSError) else ""
        if problem:
            _forget_output()
            return _complain(SandboxUnavailable(f"standard output: {problem}", remedy=_FULL), verb)
        # A defect must not end with a code that the command could have had
        sys.excepthook(type(error), error, error.__traceback__)
        return _complain(SandboxUnavailable(f"{type(error).__name__}: {error}"), verb)


def _run_verb(verb: str, words: list[str]) -> int:
    if verb == "help" and words and words[0] in VERBS:
        verb, words = words[0], ["--help"]
    if verb in ("--help", "-h", "help"):
        return _print_overview()
    if verb in ("--version", "-V"):
        return _print_version()
    if verb not in VERBS and verb not in _UNLISTED:
        near = closest(verb, VERBS)
        meant = f"Did you mean `unspill {near}`? " if near else ""
        raise UsageError(f"unknown command {verb!r}", remedy=f"{meant}See `unspill --help`.")
    found = find_verb(verb)
    arguments = parse(found, words)
    if arguments.flag("--help"):
        print(help_text(found, output.columns()))
        return 0
    if found.is_paged and sys.stdout.isatty() and not (arguments.flag("--no-pager") or arguments.flag("--json")):
        return pager.run_paged(found.name, lambda: found.run(arguments))
    return found.run(arguments)


def find_verb(name: str) -> Verb:
    """Import the one module that has a verb, and return it."""
    module = f"unspill.cli.{_UNLISTED.get(name) or VERBS[name][0]}"
    __import__(module)
    found: Verb = getattr(sys.modules[module], name)
    return found


def _output_problem() -> str:
    """Return why what is printed can't be written, nothing if it can: what is left to be written fails once more."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _forget_output() -> None:
    """Let Python flush what nobody reads into nothing when it ends, instead of complaining."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)


def _complain(error: UnspillError, verb: str) -> int:
    # A text for models begins with the word that they are told to look for
    is_denied = isinstance(error, DeniedError)
    _say(output.fit(f"{'ERROR' if is_denied else 'unspill'}: {_safe(error.message.removeprefix('ERROR: '))}", 2))
    if error.remedy:
        # The output of a command may be on the same terminal
        mark = "unspill: " if verb in _RUNNING and sys.stderr.isatty() else ""
        rows = output.fit(f"  {_safe(error.remedy)}", 2, len(mark)).split("\n")
        _say("\n".join(mark + row for row in rows))
    # The remedy is a note as well
    _say_notes(error, but=error.remedy)
    # These pass the command's own codes through, so ours must be one that it is known for
    return OUR_FAILURE if verb in _RUNNING else error.exit_code


def _say_notes(error: BaseException, otherwise: str = "", *, but: str = "") -> None:
    """Say what became of the run that an exception ended, if there was one."""
    for note in getattr(error, "__notes__", [otherwise]):
        if note != but:
            _say(f"unspill: {_safe(note)}")


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except OSError:
        return  # nobody can be told; the exit code still says it


def _safe(text: str) -> str:
    """Return a message without what would do something to a terminal: arguments may be a stranger's words."""
    return show(text.encode("utf-8", "surrogateescape"))


def _print_overview() -> int:
    columns = output.columns()
    print("unspill: run anything, spill nothing\n\nusage: unspill COMMAND [options]\n")
    for name, (_module, summary) in VERBS.items():
        first, *rest = _wrapped(summary, columns, " " * 14)
        print("\n".join([f"  {name:<12}{first.lstrip()}", *rest]))
    print("\n".join(["", *_wrapped("Run `unspill COMMAND --help` for details.", columns, "")]))
    return 0


def _print_version() -> int:
    print(f"unspill {__version__}")
    return 0
