# SPDX-License-Identifier: Apache-2.0
"""The command line's grammar as data, and the small parser that reads it.

argparse would cost `unspill run` half of what starting Python costs; the help text comes from the same tables.
"""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Option(Record):
    """`--name`, or `--name VALUE` where it has a `metavar`. `repeated` collects every value."""

    name: str
    help: str
    metavar: str = ""
    short: str = ""
    repeated: bool = False


class Command(Record):
    """One verb. `positional` names its arguments for the help; `most` bounds how many there may be.

    `removed` are options of earlier versions, each with what to do instead.

    With `takes_command`, everything from the first word that is no option (or after `--`) is the command to run.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    positional: str = ""
    most: int | None = 0
    takes_command: bool = False
    removed: tuple[tuple[str, str], ...] = ()


PROJECT = Option(name="--project", metavar="DIR", help="the project (default: the one around the current directory)")
SANDBOX = Option(name="--sandbox", metavar="NAME", help="which sandbox of the project (default: default)")
JSON = Option(name="--json", help="print one JSON object")
HELP = Option(name="--help", short="-h", help="show this text")
RUN = Option(name="--run", metavar="RUN", help="only what this run changed: its number, or its id")
EVERYWHERE = (PROJECT, SANDBOX, JSON, HELP)


class Arguments:
    """What was given: `flag` and `value` by option name, and the positional words."""

    def __init__(self, command: Command) -> None:
        self._command = command
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


def parse(command: Command, words: Sequence[str]) -> Arguments:
    """Read the words after the verb.

    Raises:
        UsageError: an option is unknown, lacks its value, or there are too many words.
    """
    arguments = Arguments(command)
    by_name = {name: option for option in command.options for name in (option.name, option.short) if name}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            arguments.words += rest
            break
        if word.startswith("-") and word != "-":
            _take_option(command, by_name, arguments, word, rest)
        elif command.takes_command:
            arguments.words += [word, *rest]
            break
        else:
            arguments.words.append(word)
    if command.most is not None and not command.takes_command and len(arguments.words) > command.most:
        raise _usage(command, f"too many arguments: {' '.join(arguments.words[command.most :])}")
    return arguments


def _take_option(
    command: Command, by_name: dict[str, Option], arguments: Arguments, word: str, rest: list[str]
) -> None:
    name, equals, value = word.partition("=")
    option = by_name.get(name)
    if option is None:
        instead = dict(command.removed).get(name)
        if instead is not None:
            raise UsageError(f"{name} was removed", remedy=instead)
        raise _usage(command, f"unknown option {name}")
    if not option.metavar:
        if equals:
            raise _usage(command, f"{name} takes no value")
        arguments.add(option.name, "")
        return
    if not equals:
        if not rest:
            raise _usage(command, f"{name} needs a value: {option.metavar}")
        value = rest.pop(0)
    if arguments.flag(option.name) and not option.repeated:
        raise _usage(command, f"{name} was given twice")
    arguments.add(option.name, value)


def _usage(command: Command, problem: str) -> UsageError:
    return UsageError(problem, remedy=f"See `unspill {command.name} --help`.")


def help_text(command: Command) -> str:
    """Return the help of one verb."""
    lines = [f"usage: unspill {command.name} [options] {command.positional}".rstrip(), "", command.summary, ""]
    for option in command.options:
        names = ", ".join(name for name in (option.short, option.name) if name)
        left = f"  {names} {option.metavar}".rstrip()
        lines.append(f"{left:<28}{option.help}")
    return "\n".join(lines)
