# SPDX-License-Identifier: Apache-2.0
"""The command line's grammar: what a verb is, how its words and options are read, and which sandbox they mean.

argparse would cost `unspill run` half of what starting Python costs; the help text comes from the same tables.
"""

from __future__ import annotations

import os
import sys

from unspill.errors import UsageError
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.permissions.approvers import Approver
    from unspill.sandbox.sandbox import Sandbox


class Option(Record):
    """`--name`, or `--name VALUE` where it has a `metavar`. `repeated` collects every value."""

    name: str
    help: str
    metavar: str = ""
    short: str = ""
    repeated: bool = False


PROJECT = Option(name="--project", metavar="DIR", help="the project (default: the one around the current directory)")
SANDBOX = Option(name="--sandbox", metavar="NAME", help="which sandbox of the project (default: default)")
JSON = Option(name="--json", help="print one JSON object")
HELP = Option(name="--help", short="-h", help="show this text")
RUN = Option(name="--run", metavar="RUN", help="only what this run changed: its number, or its id")
EVERYWHERE = (PROJECT, SANDBOX, JSON, HELP)


class Verb(Record):
    """One verb of the command line; `run` does it and returns the exit code. `verb` makes one of a function.

    `positional` names its arguments for the help; `most` bounds how many there may be. `removed` are options of earlier
    versions, each with what to do instead.

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


def verb(
    summary: str,
    *options: Option,
    positional: str = "",
    most: int | None = 0,
    takes_command: bool = False,
    removed: tuple[tuple[str, str], ...] = (),
) -> Callable[[Callable[[Arguments], int]], Verb]:
    """Make a function the verb of its name, with these options and the ones that every verb has."""

    def make(run: Callable[[Arguments], int]) -> Verb:
        return Verb(
            name=run.__name__,
            summary=summary,
            run=run,
            options=(*options, *EVERYWHERE),
            positional=positional,
            most=most,
            takes_command=takes_command,
            removed=removed,
        )

    return make


class Arguments:
    """What was given: `flag` and `value` by option name, and the positional words."""

    def __init__(self) -> None:
        self._given: dict[str, list[str]] = {}
        self.words: list[str] = []

    def add(self, name: str, value: str) -> None:
        self._given.setdefault(name, []).append(value)

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
            raise UsageError(f"{given[0]} and {given[1]} were both given", remedy="Give one of them.")
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


def help_text(verb: Verb) -> str:
    """Return the help of one verb."""
    lines = [f"usage: unspill {verb.name} [options] {verb.positional}".rstrip(), "", verb.summary, ""]
    for option in verb.options:
        names = ", ".join(name for name in (option.short, option.name) if name)
        left = f"  {names} {option.metavar}".rstrip()
        lines.append(f"{left:<28}{option.help}")
    return "\n".join(lines)


def open_sandbox(arguments: Arguments, *, may_fork: bool = False, approver: Approver | None = None) -> Sandbox:
    """Open the sandbox that --project and --sandbox name; say on stderr what was found interrupted and mended."""
    # Not at the top: `run` starts the spawner first, and `hook` opens no sandbox
    from unspill.sandbox import project, sandbox  # lazy: run

    given = arguments.value("--project")
    opened = sandbox.Sandbox(
        os.fsencode(given) if given else project.find_project(os.getcwdb()),
        name=arguments.value("--sandbox") or "default",
        may_fork=may_fork,
        approver=approver,
    )
    if opened.recovered:
        from unspill.cli.output import recovered_lines  # lazy: upkeep

        for operation in opened.recovered:
            print("unspill: " + "\n".join(recovered_lines(operation)), file=sys.stderr)
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
        raise _usage(verb, f"unknown option {name}")
    if not option.metavar:
        if equals:
            raise _usage(verb, f"{name} takes no value")
        arguments.add(option.name, "")
        return
    if not equals:
        if not rest:
            raise _usage(verb, f"{name} needs a value: {option.metavar}")
        value = rest.pop(0)
    if arguments.flag(option.name) and not option.repeated:
        raise _usage(verb, f"{name} was given twice")
    arguments.add(option.name, value)


def _usage(verb: Verb, problem: str) -> UsageError:
    return UsageError(problem, remedy=f"See `unspill {verb.name} --help`.")
