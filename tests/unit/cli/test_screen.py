# SPDX-License-Identifier: Apache-2.0
"""What of a command's output reaches a terminal as it is, and what is shown instead."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.cli.screen import Screen

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
