# SPDX-License-Identifier: Apache-2.0
"""What of a command's output reaches a terminal as it is, and what is shown instead."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.terminal_model import state_after
from unspill.cli.output import Screen, Traces
from unspill.cli.terminal import _SwitchedModes
from unspill.policy.paths import TERMINAL_RESET

OBEYED = re.compile(rb"\x1b\[[0-9;:]*[mK]|[\n\r\t\b]")
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def rendered(*chunks: bytes) -> bytes:
    screen = Screen()
    return b"".join([*map(screen.render, chunks), screen.rest()])


@pytest.mark.parametrize(
    "text",
    [
        b"plain\n",
        "Grüße, 你好, 👩‍👩‍👧 مرحبا\n".encode(),
        b"\x1b[31mred\x1b[0m \x1b[1;38;5;200mpink\x1b[m\n",
        b"\x1b[38:2::1:2:3mdirect\x1b[0m",
        b"10%\r20%\x1b[K\r100%\n",
        b"a\tb\n",
        b"ab\b\bcd",
    ],
)
def test_text_colours_and_progress_pass(text: bytes) -> None:
    assert rendered(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"\x1b]0;title\x07", rb"\x1b]0;title\x07"),
        (b"\x1b]52;c;ZXZpbA==\x1b\\", b"\\x1b]52;c;ZXZpbA==\\x1b\\"),
        (b"\x1b[c", rb"\x1b[c"),
        (b"\x1b[6n", rb"\x1b[6n"),
        (b"\x1b[2J\x1b[H", rb"\x1b[2J\x1b[H"),
        (b"\x1b[5A", rb"\x1b[5A"),
        (b"\x1b[?1049h", rb"\x1b[?1049h"),
        (b"\x1bP+q544e\x1b\\", b"\\x1bP+q544e\\x1b\\"),
        (b"\x1b[" + b"1;" * 40 + b"m", b"\\x1b[" + b"1;" * 40 + b"m"),
        (b"\x9b31m", rb"\x9b31m"),
        (b"\xc2\x9b31m", rb"\x9b31m"),
        (b"\x05\x07\x0e\x00", rb"\x05\x07\x0e\x00"),
        (b"\xff\xfe", rb"\xff\xfe"),
        ("a\u202eb\u2066c".encode(), rb"a\u{202e}b\u{2066}c"),
        (b"\x1b", rb"\x1b"),
        (b"\x1b[31", rb"\x1b[31"),
        (b"\xe4\xbd", rb"\xe4\xbd"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: bytes, shown: bytes) -> None:
    assert rendered(text) == shown


@given(st.lists(st.sampled_from([b"\x1b", b"[", b"3", b"1;", b"m", b"K", b"H", b"]", b"\xc2", b"\x9b", b"x", b"\n"])))
def test_nothing_else_is_ever_obeyed_however_it_is_cut(chunks: list[bytes]) -> None:
    left = OBEYED.sub(b"", rendered(*chunks)).decode("utf-8", "surrogateescape")
    assert not CONTROLS.search(left)
    assert rendered(*chunks) == rendered(b"".join(chunks))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_safe_and_cutting_changes_nothing(text: bytes, at: int) -> None:
    shown = rendered(text[:at], text[at:])
    assert shown == rendered(text)
    assert not CONTROLS.search(OBEYED.sub(b"", shown).decode("utf-8", "surrogateescape"))


def reset_after(*chunks: bytes, is_read: bool = True) -> bytes:
    traces = Traces()
    for chunk in chunks:
        traces.note(chunk)
    return traces.reset(is_read=is_read)


# All that a terminal may be left in, each by its own bytes
LEFT = {
    **{f"mode {number}": b"\x1b[?%dh" % number for number in (1, 5, 6, 9, 38, 45, 47, 69, 1047, 1049, 2004, 2026)},
    **{f"mouse {number}": b"\x1b[?%dh" % number for number in (1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016)},
    **{f"no mode {number}": b"\x1b[?%dl" % number for number in (2, 7, 25)},
    "insertion": b"\x1b[4h",
    "new lines": b"\x1b[20h",
    "margins": b"\x1b[1;2r",
    "a printer": b"\x1b[5i",
    "a copy on a printer": b"\x1b[?5i",
    "the status line": b"\x1b[1$}",
    **{f"set {place}": b"\x1b%b0" % place.encode() for place in "()*+"},
    "shift out": b"\x0e",
    "locking shift": b"\x1bn",
    "attributes": b"\x1b[8m\x1b[?6h",
    "a link": b"\x1b]8;;https://example.org\x1b\\",
    "keypad": b"\x1b=",
    "keys": b"\x1b[>4;2m",
    "keyboard": b"\x1b[>1u",
    **{f"colour {number}": b"\x1b]%d;#000000\x07" % number for number in (10, 11, 12)},
    "a palette": b"\x1b]4;7;#000000\x1b\\",
    **{f"open string {name}": b"\x1b%b0;x" % name.encode() for name in "]P_^Xk"},
}


@pytest.mark.parametrize("name", LEFT)
def test_whatever_a_terminal_is_left_in_is_taken_back(name: str) -> None:
    left = LEFT[name]
    assert state_after(left), "the model knows it"
    assert state_after(left + reset_after(left)) == {}
    # However it is cut
    assert {reset_after(left[:at], left[at:]) for at in range(len(left) + 1)} == {reset_after(left)}


@pytest.mark.parametrize("name", [name for name in LEFT if not name.startswith(("colour", "a palette", "mode 6"))])
def test_a_question_takes_back_all_but_colours(name: str) -> None:
    """And the origin, which means nothing without margins, and without which the cursor would move."""
    assert state_after(LEFT[name].removesuffix(b"\x1b[?6h") + TERMINAL_RESET) == {}


def test_nothing_is_ever_cleared() -> None:
    for reset in (TERMINAL_RESET, reset_after(b"\x1b[H"), reset_after(b"\x1b]0;")):
        assert b"\x1bc" not in reset
        assert not re.search(rb"\x1b\[[0-9?]*[JKLMPX]", reset)


@pytest.mark.parametrize(
    ("chunks", "reset"),
    [
        ([], b""),
        ([b"plain\n", "Grüße\n".encode()], b""),
        ([b"no end"], b"\n"),
        ([b"10%\r100%\r"], b"\n"),
        ([b"\x1b[31mred\x1b[0m\n"], b"\x1b[0m"),
        ([b"red\n\x1b[", b"0m"], b"\x1b[0m"),
        ([b"red\n", b"\x1b[0m\x1b[K"], b"\x1b[0m"),
        ([b"red\x1b[0m"], b"\x1b[0m\n"),
    ],
)
def test_plain_lines_need_no_reset_and_colours_only_the_end_of_colours(chunks: list[bytes], reset: bytes) -> None:
    assert reset_after(*chunks) == reset
    assert reset_after(*chunks, is_read=False) == reset.rstrip(b"\n")


TO_THE_END = b"\x1b[9999;1H\r\n"
# As programs leave a terminal
IN_ITS_ROW = {
    "less -F": (b"\x1b[?1h\x1b=\r1\n2\n\r\x1b[K\x1b[?1l\x1b>", b"\r"),
    "a shell": (b"\x1b[?2004h$ exit\r\n\x1b[?2004l\rexit\r\n", b"\r"),
    "npm": (b"\x1b[1G\x1b[0K|\x1b[1G\x1b[0Kadded 1\n\x1b[1G\x1b[0K\x1b[?25h", b"\r"),
    "a prompt that is gone": (b"\x1b=1\n(END)\r\x1b[K", b"\r"),
    "a title": (b"\x1b]0;title\x07text", b"\r\n"),
    "no new line": (b"\x1b[?25ltext\x1b[3D", b"\r\n"),
}


@pytest.mark.parametrize("name", IN_ITS_ROW)
def test_where_the_cursor_is_surely_in_the_last_row_it_stays_there(name: str) -> None:
    text, then = IN_ITS_ROW[name]
    assert reset_after(text).removeprefix(TERMINAL_RESET).rpartition(b"\x1b\\")[2] == then
    assert {reset_after(text[:at], text[at:]) for at in range(len(text) + 1)} == {reset_after(text)}


MOVES = (
    *(
        b"\x1b[%b" % final
        for final in (b"A", b"H", b"3;1f", b"2d", b"F", b"u", b"s", b"r", b"2J", b"L", b"T", b"8;9;9t")
    ),
    *(b"\x1b[?%dh" % number for number in (3, 6, 45, 47, 69, 1047, 1048, 1049)),
    *(b"\x1b" + final for final in (b"M", b"7", b"8", b"c", b"D", b"#8", b"Px", b"]66;s=2;x\x07", b"]0;\x1b[A")),
    *(b"\x0b", b"\x0c", b"\xc2\x9bA", b"\x1b[?25;6h", b"\x1b\x1b[A"),
)


@pytest.mark.parametrize("text", MOVES)
def test_wherever_else_it_may_be_it_goes_to_the_end(text: bytes) -> None:
    for before in (b"", b"\x1b[?25l", b"\x1b]0;x\x07y\r"):
        whole = before + text
        for at in range(len(whole) + 1):
            assert reset_after(whole[:at], whole[at:], b"\n").endswith(TO_THE_END)


def test_what_another_program_shows_is_taken_for_moved() -> None:
    """The terminal may get it before or after what came beside it."""
    traces = Traces()
    for chunk in (b"\x1b[", b"?25h", b"5A"):
        traces.note(chunk, is_in_order=False)
    assert traces.reset(is_read=True).endswith(TO_THE_END)


@given(st.lists(st.sampled_from([b"\x1b", b"[", b"3", b"1;", b"m", b"K", b"H", b"]", b"\xc2", b"\x9b", b"x", b"\n"])))
def test_what_is_taken_back_does_not_depend_on_how_output_is_cut(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    assert reset_after(*chunks) == (reset_after(whole) if whole else b"")


def switched(*chunks: bytes) -> bytes:
    modes = _SwitchedModes()
    for chunk in chunks:
        modes.note(chunk)
    return modes.sequences()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"plain \x1b[31mred\x1b[0m", b""),
        (b"\x1b[?1049h\x1b[?1h\x1b[?25l", b"\x1b[?1049h\x1b[?1h\x1b[?25l"),
        (b"\x1b[?1049hx\x1b[?1049l", b"\x1b[?1049l"),
        (b"\x1b[?1000;1006hx", b"\x1b[?1000h\x1b[?1006h"),
        (b"\x1b[?12\x1b[?25h", b"\x1b[?25h"),
        (b"\x1b[?h\x1b[?1;h\x1b[?xh\x1b[?6$p", b""),
    ],
)
def test_the_modes_of_a_terminal_are_found_however_they_are_cut(text: bytes, expected: bytes) -> None:
    assert switched(text) == expected
    assert switched(*(text[at : at + 1] for at in range(len(text)))) == expected


@given(st.lists(st.sampled_from([b"\x1b[?", b"\x1b", b"[?", b"1049", b";", b"h", b"l", b"25", b"\xff", b"9" * 80])))
def test_whatever_is_printed_its_modes_are_few_and_well_formed(chunks: list[bytes]) -> None:
    assert re.fullmatch(rb"(\x1b\[\?[0-9]{1,64}[hl]){0,64}", switched(*chunks))


def test_there_is_a_bound_to_the_modes_that_are_kept() -> None:
    assert switched(b"".join(b"\x1b[?%dh" % number for number in range(1000))).count(b"h") == 64
