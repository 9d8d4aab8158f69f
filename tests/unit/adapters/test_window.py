# SPDX-License-Identifier: Apache-2.0
"""A part of a long text, and what is said of the rest."""

from hypothesis import given
from hypothesis import strategies as st

from unspill.adapters.window import many, window

LINES = st.lists(st.text(st.characters(exclude_characters="\n")))


@given(LINES, st.integers(0, 30), st.integers(1, 10), st.integers(1, 60))
def test_a_window_is_the_lines_from_one_on_within_the_bounds(
    lines: list[str], offset: int, most: int, size: int
) -> None:
    found = window(lines, offset, most, size)
    shown = "\n".join(found.lines)
    assert len(found.lines) <= most
    assert len(shown.encode("utf-8", "surrogatepass")) <= size
    if found.is_cut:
        assert len(found.lines) == 1
        assert lines[offset].startswith(found.lines[0])
    else:
        assert list(found.lines) == lines[offset : offset + len(found.lines)]


@given(LINES, st.integers(1, 10), st.integers(1, 60))
def test_following_the_offsets_shows_every_line(lines: list[str], most: int, size: int) -> None:
    offset: int | None = 0
    seen: list[str] = []
    while offset is not None:
        found = window(lines, offset, most, size)
        assert found.is_cut or list(found.lines) == lines[offset : offset + len(found.lines)]
        seen += lines[offset : offset + len(found.lines)]
        offset = found.next_offset
    assert seen == lines


def test_one_is_not_many() -> None:
    assert [many(count, "byte") for count in (0, 1, 2)] == ["0 bytes", "1 byte", "2 bytes"]
