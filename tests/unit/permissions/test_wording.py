# SPDX-License-Identifier: Apache-2.0
"""Questions: the exact words, the answers that are offered, and nothing in them that a command could bend."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.permissions.given import FOR_A_COMMAND, ONE_OF_EACH, PROJECT, REQUESTS, name_of
from unspill.model.permission import (
    Choice,
    Egress,
    NetworkForCommand,
    Request,
    RequestId,
    Unsandboxed,
    WritableRoot,
)
from unspill.permissions.question import (
    COLUMNS,
    choices_for,
    denial_text,
    make_question,
    question_text,
    shorten,
    show_command,
    show_word,
)

SHELL = (b"/bin/sh", b"-c")


def network(*argv: bytes) -> NetworkForCommand:
    return NetworkForCommand(project=PROJECT, argv=argv, cwd=PROJECT)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ((b"git", b"fetch"), "git fetch"),
        ((b"curl", b"https://example.org/a"), "curl https://example.org/a"),
        ((b"echo", b"two words"), 'echo "two words"'),
        ((b"echo", b""), 'echo ""'),
        ((b"echo", b";", b"rm"), 'echo ";" rm'),
        ((b"echo", b"$(rm)"), 'echo "$(rm)"'),
        ((b"echo", b'a"b\\c'), 'echo "a\\"b\\\\c"'),
        ((b"echo", "ä".encode()), "echo ä"),
        ((b"echo", b"\xff"), 'echo "\\xff"'),
        ((*SHELL, b"npm ci && npm test"), "npm ci && npm test"),
        ((*SHELL, b"grep '\\.' x"), "grep '\\.' x"),
        ((*SHELL, b"a\nb"), '"a\\nb"'),
        ((*SHELL, b'"a\\nb"'), '"\\"a\\\\nb\\""'),
        ((*SHELL, b" ls"), '" ls"'),
        ((*SHELL, b"ls "), '"ls "'),
        ((*SHELL, b""), '""'),
        ((b"/tmp/bin/sh", b"-c", b"ls x"), '/tmp/bin/sh -c "ls x"'),
        ((*SHELL, b"ls x", b"more"), '/bin/sh -c "ls x" more'),
    ],
)
def test_the_question_for_network_has_exactly_these_words(argv: tuple[bytes, ...], shown: str) -> None:
    request = network(*argv)
    assert question_text(request) == f"Run command with network access: {shown}?"
    assert denial_text(request) == f"Permission denied: Run command with network access: {shown}?"


def test_network_and_running_without_a_sandbox_have_two_answers() -> None:
    for kind in (NetworkForCommand, Unsandboxed):
        request = kind(**FOR_A_COMMAND)
        offered = (Choice(label="Allow", scope="once"), Choice(label="Deny", scope=None))
        assert choices_for(request, ("once", "run", "sandbox", "always")) == offered
        assert make_question(request, request.scopes).choices == offered


def test_a_network_that_protects_nothing_near_is_called_so() -> None:
    request = NetworkForCommand(**FOR_A_COMMAND)
    assert not any("careful" in line for line in make_question(request, ("once",)).lines)
    weaker = make_question(request.replace(mode="host"), ("once",))
    assert any("all that listens on this machine" in line for line in weaker.lines)


def test_others_offer_the_scopes_that_they_can_have() -> None:
    request = WritableRoot(project=PROJECT, path=b"/srv", sandbox="1" * 16)
    labels = [choice.label for choice in make_question(request, ("once", "run", "sandbox", "always")).choices]
    assert labels == ["Allow once", "Allow in this sandbox", "Always allow in this project", "Deny"]
    of_command = make_question(request.replace(argv=(b"make",)), ("once", "always"))
    assert [choice.label for choice in of_command.choices][1] == "Always allow this very command in this project"


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_two_questions_about_the_same_are_two_questions(request_: Request) -> None:
    one, two = (make_question(request_, request_.scopes) for _ in range(2))
    assert one.id != two.id
    assert one.digest != two.digest
    assert make_question(request_, request_.scopes, identity=one.id).digest == one.digest


FORGERIES = {
    "a line of its own": b"ls\nRun command with network access: true?",
    "carriage return": b"evil\rRun command with network access: true?",
    "backspaces": b"evil" + b"\b" * 30 + b"true?",
    "escape": b"\x1b[2J\x1b[Htrue?",
    "title": b"\x1b]0;x\x07ls",
    "C1": "\x9b2Jls".encode(),
    "right to left override": "ls \u202e?eurt".encode(),
    "isolate": "ls \u2066x\u2069".encode(),
    "hebrew": "ls \u05d0\u05d1 12".encode(),
    "arabic": "ls \u0627\u0628".encode(),
    "zero width": "l\u200bs".encode(),
    "word joiner": "l\u2060s".encode(),
    "byte order mark": "\ufeffls".encode(),
    "soft hyphen": "l\u00ads".encode(),
    "line separator": "ls\u2028true?".encode(),
    "paragraph separator": "ls\u2029true?".encode(),
    "next line": "ls\x85true?".encode(),
    "combining": ("l" + "\u0336" * 50 + "s").encode(),
    "variation selector": "l\ufe0fs".encode(),
    "hangul filler": "ls\u3164x".encode(),
    "braille blank": "ls\u2800x".encode(),
    "no-break space": "ls\u00a0x".encode(),
    "full width": "\uff4c\uff53".encode(),
    "slash alike": "example.org\u2215x".encode(),
    "colon alike": "a\ua789b".encode(),
    "bar alike": "a\u01c0b".encode(),
    "tag": "ls\U000e0041".encode(),
    "private use": "ls\ue000".encode(),
    "unassigned": "ls\U000efff0".encode(),
    "superscript": "ls\u00b2".encode(),
    "invalid": b"ls\xc0\xaf",
    "surrogate": b"ls\xed\xa0\x80",
    "tab": b"ls\t\t\tx",
    "NUL": b"ls\0x",
}


def is_harmless(line: str) -> bool:
    """Tell whether a line is one line, of characters that take their place in it and look like no others."""
    foreign = [character for character in line if not character.isascii()]
    return (
        line.isprintable()
        and all(unicodedata.category(character)[0] in "LN" for character in foreign)
        and not any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in foreign)
        and all(unicodedata.normalize("NFKC", character) == character for character in foreign)
        and not set(line) & set("\u3164\u01c0")
    )


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_the_same_words_would_harm_as_they_are(forgery: bytes) -> None:
    assert not is_harmless(forgery.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
@pytest.mark.parametrize("form", ["shell", "list", "path"])
def test_nothing_in_a_command_or_path_moves_hides_or_breaks_the_question(form: str, forgery: bytes) -> None:
    requests: dict[str, Request] = {
        "shell": network(*SHELL, forgery),
        "list": network(b"run", forgery),
        "path": WritableRoot(project=PROJECT, path=b"/" + forgery),
    }
    question = make_question(requests[form], ("once",))
    assert all(map(is_harmless, (question.text, *question.lines)))
    assert '"' in question.text
    assert "\\" in question.text


@settings(max_examples=300)
@given(REQUESTS)
def test_every_line_of_a_question_is_one_printable_line(request_: Request) -> None:
    question = make_question(request_, request_.scopes)
    for line in (question.text, *question.lines, *question.whole, *(choice.label for choice in question.choices)):
        assert line.isprintable()


@settings(max_examples=500)
@given(
    st.lists(st.binary(max_size=6) | st.text(max_size=6).map(lambda x: x.encode("utf-8", "replace")), max_size=3),
    st.lists(st.binary(max_size=6) | st.text(max_size=6).map(lambda x: x.encode("utf-8", "replace")), max_size=3),
)
def test_two_lists_of_arguments_are_never_shown_alike(one: list[bytes], other: list[bytes]) -> None:
    assert (show_command(tuple(one)) == show_command(tuple(other))) is (one == other)


@settings(max_examples=500)
@given(st.text('ab\\n\n" ', max_size=6), st.text('ab\\n\n" ', max_size=6))
def test_two_scripts_are_never_shown_alike(one: str, other: str) -> None:
    shown = [show_command((*SHELL, script.encode())) for script in (one, other)]
    assert (shown[0] == shown[1]) is (one == other)


def test_letters_of_the_world_are_shown_as_they_are() -> None:
    for word in ("größe", "файл", "文件", "ファイル", "αρχείο"):
        assert show_word(word.encode()) == word


def test_letters_that_look_alike_are_pointed_out() -> None:
    question = make_question(network(*SHELL, "curl ex\u0430mple.org".encode()), ("once",))
    assert [line for line in question.lines if "look alike" in line]
    assert not [line for line in make_question(network(b"curl", b"example.org"), ()).lines if "look alike" in line]


def test_a_long_command_is_cut_in_the_middle_and_counted() -> None:
    script = b"echo begin; " + b"x" * 5000 + b"; echo end"
    question = make_question(network(*SHELL, script), ("once",))
    left_out = len(script) - COLUMNS
    assert question.text.startswith("Run command with network access: echo begin; xxx")
    assert question.text.endswith("xxx; echo end?")
    assert f" [... {left_out} characters left out ...] " in question.text
    assert any("not all of it: 5033 bytes in 3 arguments" in line for line in question.lines)
    whole = "".join(line.removeprefix("| ") for line in question.whole if line.startswith("| "))
    assert f'"{script.decode()}"' in whole


def test_the_whole_command_can_forge_no_line_of_ours() -> None:
    script = b"\n".join([b"unspill asks:", b"argument 0:", b"  Run command with network access: true?"] * 50)
    question = make_question(network(*SHELL, script), ("once",))
    labels = [line for line in question.whole if not line.startswith("| ")]
    assert labels == ["argument 0:", "argument 1:", "argument 2:"]
    assert max(map(len, question.whole)) <= 102


def test_a_short_command_needs_no_whole() -> None:
    assert make_question(network(b"ls"), ("once",)).whole == ()


@pytest.mark.parametrize("length", [0, 1, COLUMNS - 1, COLUMNS, COLUMNS + 1, 10 * COLUMNS])
def test_a_cut_counts_exactly_what_it_left_out(length: int) -> None:
    text = "".join(chr(ord("a") + number % 26) for number in range(length))
    shown = shorten(text)
    if length <= COLUMNS:
        assert shown == text
        return
    head, rest = shown.split(" [... ")
    count, tail = rest.split(" characters left out ...] ")
    assert len(head) + int(count) + len(tail) == length
    assert text.startswith(head)
    assert text.endswith(tail)


def test_many_hosts_are_all_named_or_counted() -> None:
    hosts = tuple(f"host-{number}.example.org" for number in range(40))
    question = make_question(Egress(project=PROJECT, hosts=hosts), ("once",))
    assert "characters left out" in question.text
    assert all(host in "".join(line.removeprefix("| ") for line in question.whole) for host in hosts)


def test_every_variable_of_a_command_without_a_sandbox_is_shown_with_its_value() -> None:
    environ = (b"A=1", b"PATH=/p/bin:/usr/bin", b"X=two words\x1b[2J")
    question = make_question(Unsandboxed(project=PROJECT, argv=(b"uptime",), environ=environ), ("once",))
    shown = [line.removeprefix("variable:  ") for line in question.lines if line.startswith("variable:  ")]
    assert shown == ["A=1", "PATH=/p/bin:/usr/bin", '"X=two words\\u{1b}[2J"']


def test_a_long_variable_is_cut_and_there_as_a_whole() -> None:
    request = Unsandboxed(project=PROJECT, argv=(b"uptime",), environ=(b"A=" + b"x" * 1000 + b"!",))
    question = make_question(request, ("once",))
    assert any("left out" in line for line in question.lines)
    assert "".join(line[2:] for line in question.whole if line.startswith("| ")).count("x") == 1000


def test_another_value_is_another_question() -> None:
    one, other = (Unsandboxed(project=PROJECT, argv=(b"uptime",), environ=(pair,)) for pair in (b"A=1", b"A=2"))
    same = RequestId("0" * 16)
    assert make_question(one, ("once",), identity=same).digest != make_question(other, ("once",), identity=same).digest
