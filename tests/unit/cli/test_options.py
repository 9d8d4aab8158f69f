# SPDX-License-Identifier: Apache-2.0
"""The small parser of the command line, against its own tables."""

import pytest

from unspill.cli import run
from unspill.cli.options import EVERYWHERE, Command, Option, help_text, parse
from unspill.errors import UsageError

RUN = Command(
    name="run",
    summary="Run it.",
    positional="-- COMMAND",
    takes_command=True,
    options=(
        Option(name="--env", metavar="NAME=VALUE", repeated=True, help="set a variable"),
        Option(name="--quiet", short="-q", help="say nothing"),
        Option(name="--shell", short="-c", metavar="TEXT", help="a text"),
        *EVERYWHERE,
    ),
)
SHOW = Command(name="show", summary="Show it.", positional="RUN", most=1, options=EVERYWHERE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], []),
        (["ls", "-l"], ["ls", "-l"]),
        (["--", "ls", "--help"], ["ls", "--help"]),
        (["-q", "ls", "-q", "--env", "x"], ["ls", "-q", "--env", "x"]),
        (["-q", "--", "--", "x"], ["--", "x"]),
        (["-"], ["-"]),
        (["--env", "A=1", "--env=B=2", "cmd"], ["cmd"]),
    ],
)
def test_everything_from_the_first_word_on_is_the_command(words: list[str], expected: list[str]) -> None:
    assert parse(RUN, words).words == expected


def test_options_are_given_with_a_space_or_an_equals_sign() -> None:
    arguments = parse(RUN, ["--env", "A=1", "--env=B=2", "-c", "text", "-q"])
    assert arguments.values("--env") == ["A=1", "B=2"]
    assert arguments.value("--shell") == "text"
    assert arguments.flag("--quiet")
    assert not arguments.flag("--json")
    assert arguments.value("--project") is None
    assert arguments.values("--project") == []


def test_options_may_follow_words_where_there_is_no_command() -> None:
    arguments = parse(SHOW, ["3", "--json"])
    assert arguments.words == ["3"]
    assert arguments.flag("--json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nope"], "unknown option --nope"),
        (["--nope=1"], "unknown option --nope"),
        (["-x"], "unknown option -x"),
        (["--project"], "--project needs a value: DIR"),
        (["--json=yes"], "--json takes no value"),
        (["--project", "a", "--project", "b"], "--project was given twice"),
        (["1", "2", "3"], "too many arguments: 2 3"),
    ],
)
def test_what_is_wrong_is_named_with_where_to_look(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(SHOW, words)
    assert refused.value.message == message
    assert refused.value.remedy == "See `unspill show --help`."


@pytest.mark.parametrize("words", [["--why"], ["--why", "--", "true"], ["-q", "--why=x"]])
def test_an_option_of_an_earlier_version_is_refused_with_what_to_do_instead(words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        parse(run.COMMAND, words)
    assert refused.value.message == "--why was removed"
    assert "unspill explains the paths that its output names" in refused.value.remedy
    assert "--why" not in help_text(run.COMMAND)


def test_the_help_comes_from_the_same_table() -> None:
    assert help_text(SHOW).splitlines() == [
        "usage: unspill show [options] RUN",
        "",
        "Show it.",
        "",
        "  --project DIR             the project (default: the one around the current directory)",
        "  --sandbox NAME            which sandbox of the project (default: default)",
        "  --json                    print one JSON object",
        "  -h, --help                show this text",
    ]
