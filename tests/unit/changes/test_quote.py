# SPDX-License-Identifier: Apache-2.0
"""Names and lines of strangers: legible, unmistakable and harmless."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.policy.paths import COLUMNS, is_mixed_script, quote, show_line


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"src/a.c", "src/a.c"),
        ("grün".encode(), "grün"),
        ("日本".encode(), "日本"),
        (b"-rf", "-rf"),
        (b"", '""'),
        (b" a", '" a"'),
        (b"a b", '"a b"'),
        (b'a"b', r'"a\"b"'),
        (b"it's", '"it\'s"'),
        (b"a\\nb", r'"a\\nb"'),
        (b"a\nb", r'"a\nb"'),
        (b"a\rb\tc", r'"a\rb\tc"'),
        (b"\x1b[2J", r'"\u{1b}[2J"'),
        (b"\xff\xfe", r'"\xff\xfe"'),
        (b"\xc2\x9b", r'"\u{9b}"'),
        ("a\u202eb".encode(), r'"a\u{202e}b"'),
        ("a\u200bb".encode(), r'"a\u{200b}b"'),
        ("a\u00a0b".encode(), r'"a\u{a0}b"'),
        ("a\u2028b".encode(), r'"a\u{2028}b"'),
        ("\U000e0041".encode(), r'"\u{e0041}"'),
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),
    ],
)
def test_a_name_is_shown_so_that_it_can_not_be_mistaken(name: bytes, shown: str) -> None:
    assert quote(name) == shown


@given(st.binary(max_size=40))
def test_what_is_shown_of_a_name_is_printable_and_can_be_sent_anywhere(name: bytes) -> None:
    shown = quote(name)
    assert shown.isprintable()
    shown.encode("utf-8")


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_two_names_are_never_shown_alike(one: bytes, other: bytes) -> None:
    assert (quote(one) == quote(other)) == (one == other)


@given(st.text(max_size=12), st.text(max_size=12))
def test_two_texts_are_never_shown_alike(one: str, other: str) -> None:
    raw = one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass")
    assert (quote(raw[0]) == quote(raw[1])) == (raw[0] == raw[1])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain text", "plain text"),
        (b"\tx\ty", "        x       y"),
        (b"a\rb", r"a\rb"),
        (b"red \x1b[31m", r"red \u{1b}[31m"),
        (b"back\\slash", "back\\slash"),
        (b"latin \xe9", r"latin \xe9"),
        ("if \u2066x".encode(), r"if \u{2066}x"),
    ],
)
def test_a_line_of_content_is_shown_without_its_tricks(line: bytes, shown: str) -> None:
    assert show_line(line) == shown


@pytest.mark.parametrize("character", [b"x", "é".encode(), "💾".encode(), b"\xff"])
def test_a_long_line_is_cut_with_its_length(character: bytes) -> None:
    line = character * 10_000
    shown = show_line(line)
    assert shown.endswith(f" [cut: {len(line)} bytes in this line]")
    assert len(shown) < COLUMNS + 60


def test_a_line_of_exactly_the_width_is_not_cut() -> None:
    assert show_line(b"x" * COLUMNS) == "x" * COLUMNS
    assert show_line("💾".encode() * COLUMNS) == "💾" * COLUMNS


@given(st.binary(max_size=3000).filter(lambda line: b"\n" not in line))
def test_what_is_shown_of_a_line_is_printable_and_bounded(line: bytes) -> None:
    shown = show_line(line)
    assert shown.isprintable()
    assert len(shown) < COLUMNS + 60


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (b"paypal", False),
        ("p\u0430ypal".encode(), True),
        ("файл.txt".encode(), False),
        ("файл".encode(), False),
        ("grün".encode(), False),
        ("日本語abc".encode(), False),
    ],
)
def test_names_that_mix_scripts_that_look_alike_are_found(name: bytes, wanted: bool) -> None:
    assert is_mixed_script(name) == wanted
