# SPDX-License-Identifier: Apache-2.0
"""A part of a long text, and what is said of the rest."""

from hypothesis import given
from hypothesis import strategies as st

from unspill.adapters.answers import many, whole_characters, window

LINES = st.lists(st.text(st.characters(exclude_characters="\n")))


@given(LINES, st.integers(0, 30), st.integers(1, 10), st.integers(1, 60))
def test_a_window_is_the_lines_from_one_on_within_the_bounds(
    lines: list[str], offset: int, most: int, size: int
) -> None:
    found = window(lines, offset, most, size)
    shown = "\n".join(found.lines)
    assert len(found.lines) <= most
    assert len(shown.encode("utf-8", "surrogatepass")) <= size
    if found.left_out:
        assert len(found.lines) == 1
        assert lines[offset].startswith(found.lines[0])
        left_out = lines[offset][len(found.lines[0]) :].encode("utf-8", "surrogatepass")
        assert found.left_out == len(left_out)
        assert f" {many(len(left_out), 'byte')} at the end are left out" in found.notes("diff")[0]
    else:
        assert list(found.lines) == lines[offset : offset + len(found.lines)]


@given(LINES, st.integers(1, 10), st.integers(1, 60))
def test_following_the_offsets_shows_every_line(lines: list[str], most: int, size: int) -> None:
    offset: int | None = 0
    seen: list[str] = []
    while offset is not None:
        found = window(lines, offset, most, size)
        assert found.left_out or list(found.lines) == lines[offset : offset + len(found.lines)]
        seen += lines[offset : offset + len(found.lines)]
        offset = found.next_offset
    assert seen == lines


@given(st.text(), st.integers(0, 30))
def test_what_is_cut_ends_with_a_whole_character(text: str, size: int) -> None:
    raw = text.encode()
    shown = whole_characters(raw[:size])
    assert shown.decode() == raw[:size].decode("utf-8", "ignore")


def test_what_is_no_text_is_cut_anywhere() -> None:
    assert whole_characters(b"\xff\xfe\xfd\xfc\xfb") == b"\xff\xfe\xfd\xfc\xfb"
    assert whole_characters(b"\x80\x80\x80\x80") == b"\x80\x80\x80\x80"
    assert whole_characters(b"\xff and \xe2\x82") == b"\xff and "


def test_one_is_not_many() -> None:
    assert [many(count, "byte") for count in (0, 1, 2)] == ["0 bytes", "1 byte", "2 bytes"]
