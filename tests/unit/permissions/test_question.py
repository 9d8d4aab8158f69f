# SPDX-License-Identifier: Apache-2.0
"""Questions: their words, the answers that are offered, what nobody is asked about, and that each kind is complete."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.changes.trees import WHITEOUT, Dir, File, Node, Symlink, build
from tests.unit.permissions.given import DIGEST, FOR_A_COMMAND, HOME, ONE_OF_EACH, OWN, PROJECT, REQUESTS, name_of
from unspill.changes.scan import Reader, scan
from unspill.errors import DeniedError, RootRefused, UsageError
from unspill.model.permission import (
    REQUESTS as REQUEST_KINDS,
)
from unspill.model.permission import (
    AsRoot,
    Choice,
    Egress,
    HeldPath,
    MaskedSecret,
    NetworkForCommand,
    ReadablePath,
    Request,
    RequestBase,
    RequestId,
    Unsandboxed,
    WritableRoot,
)
from unspill.model.policy import Policy, Rules
from unspill.permissions.broker import Deny, decide
from unspill.permissions.question import (
    COLUMNS,
    COMMAND_BYTES,
    KINDS,
    check_request,
    choices_for,
    denial_text,
    describe_held,
    digest_of_held,
    head_of_held,
    make_question,
    question_text,
    shorten,
    show_command,
    show_word,
)
from unspill.store.permissions import from_form, plain_request, to_form

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


def test_the_question_for_network_says_what_is_granted() -> None:
    """Control: the host's own network has all of that, and the question says something else."""
    request = NetworkForCommand(**FOR_A_COMMAND)
    told = "reaches:   any public host, by HTTP, HTTPS or SOCKS through a proxy; no raw sockets, UDP or ping"
    assert told in make_question(request, ("once",)).lines
    assert told not in make_question(request.replace(mode="host"), ("once",)).lines


def test_a_network_that_protects_nothing_near_is_called_so() -> None:
    request = NetworkForCommand(**FOR_A_COMMAND)
    assert not any("careful" in line for line in make_question(request, ("once",)).lines)
    weaker = make_question(request.replace(mode="host"), ("once",))
    assert any("that listens on this machine" in line for line in weaker.lines)


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
    assert r'"curl ex\u{430}mple.org"' in question.text
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


def check(request: Request) -> None:
    check_request(request, home=HOME, own=OWN)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_a_good_request_of_every_kind_passes(request_: Request) -> None:
    check(request_)


@pytest.mark.parametrize(
    "change",
    [
        {"project": b"project"},
        {"project": b"/home/ann/../ann/project"},
        {"project": b"/home/ann/project/"},
        {"project": b"/home\0"},
        {"cwd": b"sub"},
        {"cwd": b"/a//b"},
        {"argv": (b"ls\0x",)},
        {"argv": (b"", b"x")},
        {"names": ("PATH", "HOME")},
        {"names": ("PATH", "PATH")},
        {"names": ("A=B",)},
        {"names": ("",)},
        {"script": "x"},
        {"variables": "x"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_a_malformed_request_is_the_callers_mistake(request_: Request, change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check(request_.replace(**change))


@pytest.mark.parametrize(
    "request_",
    [
        NetworkForCommand(project=PROJECT),
        Unsandboxed(project=PROJECT),
        *(
            Unsandboxed(project=PROJECT, argv=(b"ls",), environ=environ)
            for environ in (
                (b"A",),
                (b"=x",),
                (b"A B=x",),
                (b"A=x\0",),
                (b"B=1", b"A=1"),
                (b"A=1", b"A=2"),
                (b"LD_PRELOAD=/x",),
                (b"BASH_ENV=/x",),
            )
        ),
        Egress(project=PROJECT, hosts=()),
        Egress(project=PROJECT, hosts=("a.example.org",) * 51),
        Egress(project=PROJECT, hosts=("example.org", "localhost")),
        ReadablePath(project=PROJECT, path=b"notes"),
        HeldPath(project=PROJECT, root=PROJECT, path=b"/etc/passwd", digest=DIGEST),
        HeldPath(project=PROJECT, root=PROJECT, path=b"../x", digest=DIGEST),
        HeldPath(project=PROJECT, root=PROJECT, path=b"", digest=DIGEST),
        HeldPath(project=PROJECT, root=b"project", path=b"x", digest=DIGEST),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=""),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, why="fine\nproject: other"),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, becomes="a\x1b[8m file"),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, why="y" * 501),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, head=b"y" * 4097),
        HeldPath(project=PROJECT, root=PROJECT, path=b"x", digest=DIGEST, head=b"y", rest="no"),
    ],
    ids=repr,
)
def test_a_request_that_asks_for_nothing_clear_is_refused(request_: Request) -> None:
    with pytest.raises(UsageError):
        check(request_)


@pytest.mark.parametrize("path", [b"/", b"/etc", b"/home", HOME, HOME + b"/.ssh", OWN[0], OWN[0] + b"/layers", b"/usr"])
def test_a_person_is_not_asked_to_make_such_a_directory_writable(path: bytes) -> None:
    with pytest.raises(RootRefused):
        check(WritableRoot(project=PROJECT, path=path))


@pytest.mark.parametrize("path", [b"/", b"/home", HOME, HOME + b"/.ssh/id_rsa", OWN[0], OWN[0] + b"/store.db"])
@pytest.mark.parametrize("kind", [ReadablePath, MaskedSecret])
def test_a_person_is_not_asked_to_show_what_is_never_shown(kind: type[ReadablePath], path: bytes) -> None:
    with pytest.raises(RootRefused):
        check(kind(project=PROJECT, path=path))


TOO_MUCH: dict[str, Request] = {
    "a long word": NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x" * COMMAND_BYTES, b"y")}),
    "many empty words": NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x", *(b"",) * COMMAND_BYTES)}),
    "many variables": NetworkForCommand(**FOR_A_COMMAND | {"names": tuple(f"V{at:05}" for at in range(5000))}),
    "a long variable": Unsandboxed(**FOR_A_COMMAND, environ=(b"A=" + b"x" * 20_000,)),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_nobody_is_asked_about_what_nobody_can_read(case: str) -> None:
    with pytest.raises(DeniedError, match="too many to ask about") as caught:
        check(TOO_MUCH[case])
    assert caught.value.remedy


def test_somebody_is_asked_about_a_command_that_is_just_short_enough() -> None:
    check(NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x" * COMMAND_BYTES,)}))


@pytest.mark.parametrize("field", ["cwd", "path"])
def test_no_path_of_a_request_is_longer_than_a_path_can_be(field: str) -> None:
    values: dict[str, Any] = {"project": PROJECT, "path": b"/srv/x"}
    check(ReadablePath(**values | {field: b"/" + b"x" * 4094}))
    with pytest.raises(UsageError, match="longer than any can be"):
        check(ReadablePath(**values | {field: b"/" + b"x" * 4095}))


def test_nobody_is_asked_about_a_command_of_which_only_the_beginning_is_known() -> None:
    long = NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x" * 20_000,)})
    check(long)
    with pytest.raises(UsageError, match="only the beginning"):
        check(long.bounded())


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("example.org", True),
        ("a-b.example.org", True),
        ("xn--bcher-kva.example.org", True),
        ("*.example.org", True),
        ("*.org", False),
        ("*", False),
        ("a.*.org", False),
        ("example", False),
        ("localhost", False),
        ("example.org.", False),
        (".example.org", False),
        ("a..org", False),
        ("Example.org", False),
        ("127.0.0.1", False),
        ("192.168.0.1", False),
        ("[::1]", False),
        ("1.2.3.4", True),
        ("[2a00::1]:8443", True),
        ("[2A00::1]", False),
        ("a.org:443", True),
        ("a.org:0443", False),
        ("0x7f.1", False),
        ("a_b.org", False),
        ("-a.org", False),
        ("a-.org", False),
        ("u@a.org", False),
        ("a.org\0.b.org", False),
        ("a.org\n", False),
        ("ä.org", False),
        ("\u2460.org", False),
        ("a" * 64 + ".org", False),
        (".".join(["a" * 60] * 5), False),
        ("", False),
    ],
)
def test_a_host_is_asked_about_only_in_the_one_form_that_the_proxy_compares(host: str, expected: bool) -> None:
    request = Egress(project=PROJECT, hosts=(host,))
    if expected:
        check(request)
    else:
        with pytest.raises(UsageError, match=r"no host|it is not public \((private|loopback)\)"):
            check(request)


def digests(tmp_path: Path, name: str, layer: Mapping[str | bytes, Node]) -> dict[bytes, str]:
    live = build(tmp_path / f"{name}-live", {"a": File(b"old"), "b": File(b"old")})
    upper = build(tmp_path / f"{name}-upper", layer)
    with Reader(live) as reader:
        return {change.path: digest_of_held(change, reader) for change in scan([upper], (), live)}


def test_the_same_change_has_the_same_digest_wherever_and_whenever_it_is_made(tmp_path: Path) -> None:
    one = digests(tmp_path, "one", {"a": File(b"new", mtime_ns=1), "b": WHITEOUT})
    two = digests(tmp_path, "two", {"a": File(b"new", mtime_ns=2), "b": WHITEOUT})
    assert one == two
    assert set(one) == {b"a", b"b"}


def test_other_content_mode_kind_or_fate_has_another_digest(tmp_path: Path) -> None:
    nodes = (
        *(File(b"new"), File(b"neW"), File(b"new", mode=0o755), File(b"")),
        *(Symlink(b"new"), Symlink(b"b"), Dir(), WHITEOUT),
    )
    found = {digests(tmp_path, str(number), {"a": node})[b"a"] for number, node in enumerate(nodes)}
    assert len(found) == len(nodes)
    assert all(len(digest) == 64 for digest in found)


def test_a_change_that_is_exchanged_after_the_question_has_another_digest(tmp_path: Path) -> None:
    before = digests(tmp_path, "x", {"a": File(b"shown")})[b"a"]
    upper = os.fsencode(tmp_path / "x-upper")
    with open(upper + b"/a", "wb") as file:
        file.write(b"other")
    with Reader(os.fsencode(tmp_path / "x-live")) as reader:
        (change,) = scan([upper], (), os.fsencode(tmp_path / "x-live"))
        assert digest_of_held(change, reader) != before


def test_whoever_is_asked_is_told_what_a_path_becomes(tmp_path: Path) -> None:
    nodes = {
        "a file of 1 byte": (File(b"x"), (b"x", "")),
        "a file of 5000 bytes, executable": (File(b"y" * 5000, mode=0o755), (b"y" * 200, "4800")),
        "a file of 3 bytes, executable, writable by everybody, with the same content": (
            File(b"old", mode=0o777),
            (b"old", ""),
        ),
        "a symbolic link": (Symlink(b"/etc/" + b"x" * 1000), (b"/etc/" + b"x" * 1000, "")),
        "nothing: it is deleted": (WHITEOUT, (b"", "")),
    }
    for number, (words, (node, head)) in enumerate(nodes.items()):
        live = build(tmp_path / f"{number}-live", {"a": File(b"old")})
        (change,) = scan([build(tmp_path / f"{number}-upper", {"a": node})], (), live)
        with Reader(live) as reader:
            assert (describe_held(change), head_of_held(change, reader)) == (words, head)


STORABLE = {"bytes", "str", "tuple[bytes, ...]", "tuple[str, ...]"}

# Written by earlier versions: what is remembered or waits in a database of theirs has to be read for ever
STORED: dict[str, Request] = {
    '{"argv":["git","fetch"],"cwd":"/p","kind":"network","mode":"proxy","names":["HOME"],"project":"/p","run":"2222",'
    '"sandbox":"1111","script":""}': NetworkForCommand(
        project=b"/p", sandbox="1111", run="2222", argv=(b"git", b"fetch"), cwd=b"/p", names=("HOME",)
    ),
    '{"argv":[],"cwd":"","hosts":["example.org"],"kind":"egress","names":[],"project":"/p","run":"","sandbox":"",'
    '"script":""}': Egress(project=b"/p", hosts=("example.org",)),
    '{"argv":[],"cwd":"","kind":"writable-root","names":[],"path":"/\\udcff","project":"/p","run":"","sandbox":"",'
    '"script":""}': WritableRoot(project=b"/p", path=b"/\xff"),
    '{"argv":[],"cwd":"","kind":"readable-path","names":[],"path":"/r","project":"/p","run":"","sandbox":"",'
    '"script":""}': ReadablePath(project=b"/p", path=b"/r"),
    '{"argv":["make"],"cwd":"","kind":"masked-secret","names":[],"path":"/p/.env","project":"/p","run":"","sandbox":"",'
    '"script":"unknown","stdin":"inherited","variables":"%(digest)s"}': MaskedSecret(
        project=b"/p", argv=(b"make",), path=b"/p/.env", script="unknown", stdin="inherited", variables=DIGEST
    ),
    '{"argv":[],"becomes":"a file of 9 bytes","cwd":"","digest":"%(digest)s","head":"x","kind":"held-path","names":[],'
    '"path":".envrc","project":"/p","rest":"8","root":"/p","run":"","sandbox":"","script":"","why":"direnv runs it"}': (
        HeldPath(
            project=b"/p",
            root=b"/p",
            path=b".envrc",
            digest=DIGEST,
            why="direnv runs it",
            becomes="a file of 9 bytes",
            head=b"x",
            rest="8",
        )
    ),
    '{"argv":["ls"],"cwd":"","environ":["A=1"],"kind":"unsandboxed","names":[],"project":"/p","run":"","sandbox":"",'
    '"script":"","stdin":"%(digest)s","stdin_head":"in"}': Unsandboxed(
        project=b"/p", argv=(b"ls",), environ=(b"A=1",), stdin=DIGEST, stdin_head=b"in"
    ),
    '{"argv":[],"cwd":"","kind":"as-root","names":[],"project":"/p","run":"","sandbox":"","script":""}': AsRoot(
        project=b"/p"
    ),
}


def lacking(kind: type[RequestBase]) -> list[str]:
    """Return what a kind of request does not have."""
    found = []
    if kind not in REQUEST_KINDS:
        found.append("a place in Request")
    if kind not in KINDS:
        found.append("a row in KINDS")
    if getattr(Rules(), getattr(kind, "setting", ""), None) not in ("ask", "deny"):
        found.append("a setting of [permissions]")
    if not STORABLE.issuperset(kind.field_types().values()):
        found.append("fields that can be stored")
    if not set(kind.optional) <= set(kind._defaults):  # type: ignore[attr-defined]
        found.append("defaults for what the stored form leaves out")
    if sum(other.kind == getattr(kind, "kind", "") for other in REQUEST_KINDS) != 1:
        found.append("a name of its own")
    return found


DEFINED = [kind for kind in RequestBase.__subclasses__() if kind.__module__ == RequestBase.__module__]


@pytest.mark.parametrize("kind", DEFINED, ids=lambda kind: kind.__name__)
def test_every_kind_of_request_has_all_that_one_needs(kind: type[RequestBase]) -> None:
    assert lacking(kind) == []


def test_control_a_kind_that_is_only_half_there_is_seen() -> None:
    class Half(RequestBase):
        kind = "network"
        optional = ("number",)

        number: int

    assert lacking(Half) == [
        "a place in Request",
        "a row in KINDS",
        "a setting of [permissions]",
        "fields that can be stored",
        "defaults for what the stored form leaves out",
    ]

    class Nameless(RequestBase):
        setting = "network"

    assert lacking(Nameless) == ["a place in Request", "a row in KINDS", "a name of its own"]


def test_the_tests_have_one_request_of_each_kind() -> None:
    assert {type(request) for request in ONE_OF_EACH} == set(REQUEST_KINDS) == set(KINDS)
    assert {type(request) for request in STORED.values()} == set(REQUEST_KINDS)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_its_own_setting_denies_it_and_no_other_does(request_: Request) -> None:
    asks = {kind.setting: "ask" for kind in REQUEST_KINDS}
    denied = [
        setting
        for setting in asks
        if isinstance(decide(request_, Policy(permissions=Rules(**asks | {setting: "deny"})), now_ns=1), Deny)  # type: ignore[arg-type]
    ]
    assert denied == [request_.setting]


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_its_question_is_its_own_and_what_it_is_about_is_shown_whole(request_: Request) -> None:
    others = {question_text(other) for other in ONE_OF_EACH if other is not request_}
    assert question_text(request_) not in others
    long = request_.replace(argv=(b"x" * 1000,))
    assert any(PROJECT.decode() in line for line in make_question(long, ("once",)).whole)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_without_a_command_it_is_refused_where_it_means_nothing_without(request_: Request) -> None:
    without = request_.replace(argv=())
    if not request_.needs_command:
        check_request(without, home=HOME, own=OWN)
        return
    with pytest.raises(UsageError, match="names no command"):
        check_request(without, home=HOME, own=OWN)


@pytest.mark.parametrize("form", STORED, ids=lambda form: STORED[form].kind)
def test_what_earlier_versions_stored_is_read_and_written_alike(form: str) -> None:
    raw = form.replace("%(digest)s", DIGEST).encode()
    assert from_form(raw) == STORED[form]
    assert to_form(STORED[form]) == raw


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_the_audit_keeps_nothing_that_the_stored_form_has_not(request_: Request) -> None:
    plain = plain_request(request_) | {"environ": []}
    assert set(request_.audited()) <= set(plain)
