# SPDX-License-Identifier: Apache-2.0
"""Texts with some of their hunks: all is the new text, none the old one, and what is left leads to the new one."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.changes.diff import apply_hunks, hunks, numbered_hunks
from unspill.errors import UsageError

OLD = b"".join(b"%d\n" % number for number in range(40))
NEW = OLD.replace(b"\n3\n", b"\nthree\n").replace(b"\n20\n", b"\n").replace(b"39\n", b"39\nforty\n")

LINES = st.lists(st.sampled_from([b"a", b"b", b"c", b"", b"d"]), max_size=60)


@st.composite
def texts(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two texts that share most lines, with or without a line feed at their ends."""
    old = draw(LINES)
    new = list(old)
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(new)))
        new[at : at + draw(st.integers(0, 2))] = draw(st.lists(st.sampled_from([b"x", b"y", b"a"]), max_size=2))
    ends = [b"\n" if line_feed else b"" for line_feed in draw(st.tuples(st.booleans(), st.booleans()))]
    return b"\n".join(old) + ends[0], b"\n".join(new) + ends[1]


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ((1,), OLD.replace(b"\n3\n", b"\nthree\n")),
        ((2,), OLD.replace(b"\n20\n", b"\n")),
        ((3,), OLD + b"forty\n"),
        ((1, 3), OLD.replace(b"\n3\n", b"\nthree\n") + b"forty\n"),
        ((3, 2, 1), NEW),
        ((), OLD),
    ],
)
def test_only_the_chosen_hunks_are_as_in_the_new_text(numbers: tuple[int, ...], wanted: bytes) -> None:
    assert apply_hunks(OLD, NEW, numbers) == wanted


def test_hunks_have_the_numbers_and_lines_that_a_diff_shows() -> None:
    told = [line.partition("@@ ")[2] for line in hunks(OLD, NEW) if line.startswith("@@")]
    assert [line.rpartition("@@ ")[2] for line in told] == ["hunk 1", "hunk 2", "hunk 3"]
    assert [(hunk.number, hunk.line, hunk.removed, hunk.added) for hunk in numbered_hunks(OLD, NEW)] == [
        (1, 4, (b"3\n",), (b"three\n",)),
        (2, 21, (b"20\n",), ()),
        (3, 41, (), (b"forty\n",)),
    ]


@given(pair=texts())
def test_as_many_hunks_are_counted_as_a_diff_has(pair: tuple[bytes, bytes]) -> None:
    assert len(numbered_hunks(*pair)) == sum(line.startswith("@@") for line in hunks(*pair))


@given(pair=texts())
def test_all_hunks_make_the_new_text_and_none_the_old_one(pair: tuple[bytes, bytes]) -> None:
    everything = {hunk.number for hunk in numbered_hunks(*pair)}
    assert apply_hunks(*pair, everything) == pair[1]
    assert apply_hunks(*pair, ()) == pair[0]


@given(pair=texts(), chance=st.randoms(use_true_random=False))
def test_some_hunks_and_then_the_others_make_the_new_text(pair: tuple[bytes, bytes], chance: random.Random) -> None:
    old, new = pair
    everything = numbered_hunks(old, new)
    some = {hunk.number for hunk in everything if chance.random() < 0.5}
    half = apply_hunks(old, new, some)
    others = numbered_hunks(half, new)
    assert apply_hunks(half, new, {hunk.number for hunk in others}) == new
    # Taking the others back out of the new text leads to the same place
    assert apply_hunks(new, half, {hunk.number for hunk in numbered_hunks(new, half)}) == half
    assert bool(others) == (half != new)


@pytest.mark.parametrize("number", [0, -1, 4])
def test_a_number_that_no_hunk_has_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match=f"no hunk {number}: hunks are counted from 1 to 3"):
        apply_hunks(OLD, NEW, (1, number))


@pytest.mark.parametrize("pair", [(b"a\n", b"\0\n"), (b"\x01\x02\x03", b"a\n")])
def test_what_is_not_text_has_no_hunks(pair: tuple[bytes, bytes]) -> None:
    with pytest.raises(UsageError, match="only text has hunks"):
        apply_hunks(*pair, (1,))
    with pytest.raises(UsageError, match="only text has hunks"):
        numbered_hunks(*pair)
