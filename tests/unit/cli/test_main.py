# SPDX-License-Identifier: Apache-2.0
"""The small parser of the command line, against its own tables."""

import pytest

from unspill.cli.main import VERBS, Arguments, Option, find_verb, help_text, is_operation, operation_word, parse, verb
from unspill.errors import UsageError


@verb(
    "Run it.",
    Option(name="--env", metavar="NAME=VALUE", repeated=True, help="set a variable"),
    Option(name="--quiet", short="-q", help="say nothing"),
    Option(name="--shell", short="-c", metavar="TEXT", help="a text"),
    positional="-- COMMAND",
    takes_command=True,
)
def run(arguments: Arguments) -> int:
    return len(arguments.words)


@verb("Show it.", Option(name="--limit", metavar="N", help="how many"), positional="RUN", most=1)
def show(arguments: Arguments) -> int:
    return len(arguments.words)


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("name", VERBS)
def test_a_help_text_fits_the_terminal_and_says_the_same(name: str, columns: int) -> None:
    found = find_verb(name)
    text = help_text(found, columns)
    body, _, examples = text.partition("\nexamples:\n")
    first, *rest = body.split("\n")
    assert max(map(len, rest)) <= columns
    assert sorted(text.split()) == sorted(help_text(found).split())
    assert examples == help_text(found).partition("\nexamples:\n")[2], "a line to be pasted is not broken"
    assert first == help_text(found).split("\n")[0]


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_in_the_module_that_the_table_names(name: str) -> None:
    assert find_verb(name).name == name
    assert find_verb(name).run.__module__ == f"unspill.cli.{VERBS[name][0]}"


def test_a_function_becomes_the_verb_of_its_name() -> None:
    assert (show.name, show.run(parse(show, ["3"]))) == ("show", 1)


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
    assert parse(run, words).words == expected


def test_options_are_given_with_a_space_or_an_equals_sign() -> None:
    arguments = parse(run, ["--env", "A=1", "--env=B=2", "-c", "text", "-q"])
    assert arguments.values("--env") == ["A=1", "B=2"]
    assert arguments.value("--shell") == "text"
    assert arguments.flag("--quiet")
    assert not arguments.flag("--json")
    assert arguments.value("--project") is None
    assert arguments.values("--project") == []


def test_options_may_follow_words_where_there_is_no_command() -> None:
    arguments = parse(show, ["3", "--json"])
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
        parse(show, words)
    assert refused.value.message == message
    assert refused.value.remedy == "See `unspill show --help`."


@pytest.mark.parametrize("words", [["--why"], ["--why", "--", "true"], ["-q", "--why=x"]])
def test_an_option_of_an_earlier_version_is_refused_with_what_to_do_instead(words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        parse(find_verb("run"), words)
    assert refused.value.message == "--why was removed"
    assert "unspill explains the paths in its output" in refused.value.remedy
    assert "--why" not in help_text(find_verb("run"))


def test_the_help_comes_from_the_same_table() -> None:
    assert help_text(show).splitlines() == [
        "usage: unspill show [options] RUN",
        "",
        "Show it.",
        "",
        "  --limit N                 how many",
        "  --project DIR             the project (default: the one around the current directory)",
        "  --sandbox NAME            the sandbox of the project (default: default)",
        "  --json                    print one JSON object",
        "  -h, --help                show this help",
    ]


@pytest.mark.parametrize(("words", "expected"), [([], 20), (["--limit", "3"], 3), (["--limit="], 20)])
def test_a_number_has_a_default(words: list[str], expected: int) -> None:
    assert parse(show, words).count("--limit", 20) == expected


@pytest.mark.parametrize("given", ["x", "-1", "1.5"])
def test_what_is_no_number_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="--limit is not a number"):
        parse(show, [f"--limit={given}"]).count("--limit", 20)


def test_of_options_that_exclude_each_other_only_one_may_be_given() -> None:
    assert parse(run, ["-q"]).only_one("--quiet", "--json") == "--quiet"
    assert parse(run, []).only_one("--quiet", "--json") is None
    with pytest.raises(UsageError, match="--quiet and --json can't be used together"):
        parse(run, ["--json", "-q"]).only_one("--quiet", "--json")


@pytest.mark.parametrize(
    ("word", "is_one", "inner"),
    [
        ("op5", True, "5"),
        ("5", False, "5"),
        ("op", False, "op"),
        ("op5x", False, "op5x"),
        ("OP5", False, "OP5"),
        ("0123456789abcdef", False, "0123456789abcdef"),
    ],
)
def test_an_operation_is_told_from_a_run_by_its_word(word: str, is_one: bool, inner: str) -> None:
    assert is_operation(word) is is_one
    assert operation_word(word) == inner
