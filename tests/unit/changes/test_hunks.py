# SPDX-License-Identifier: Apache-2.0
"""Unified diffs of two texts: right, small and in bounded time."""

import difflib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.changes import diff as subject
from unspill.changes.diff import NO_NEWLINE, hunks

GOLDEN = {
    "one line changed": (
        b"a\nb\nc\n",
        b"a\nB\nc\n",
        ["@@ -1,3 +1,3 @@", " a", "-b", "+B", " c"],
    ),
    "added to nothing": (b"", b"a\nb\n", ["@@ -0,0 +1,2 @@", "+a", "+b"]),
    "all removed": (b"a\n", b"", ["@@ -1 +0,0 @@", "-a"]),
    "the last newline lost": (b"a\n", b"a", ["@@ -1 +1 @@", "-a", "+a", NO_NEWLINE]),
    "the last newline gained": (b"a", b"a\n", ["@@ -1 +1 @@", "-a", NO_NEWLINE, "+a"]),
    "an appended line": (b"a\n", b"a\nb\n", ["@@ -1 +1,2 @@", " a", "+b"]),
    "a carriage return is seen": (b"a\n", b"evil\ra\n", ["@@ -1 +1 @@", "-a", "+evil\\ra"]),
    "two places far apart": (
        b"".join(b"%d\n" % n for n in range(20)),
        b"".join(b"%d\n" % n for n in range(20) if n not in (2, 17)),
        [
            *("@@ -1,6 +1,5 @@ hunk 1", " 0", " 1", "-2", " 3", " 4", " 5"),
            *("@@ -15,6 +14,5 @@ hunk 2", " 14", " 15", " 16", "-17", " 18", " 19"),
        ],
    ),
    "no difference": (b"a\n", b"a\n", []),
}


@pytest.mark.parametrize(("old", "new", "wanted"), GOLDEN.values(), ids=GOLDEN)
def test_hunks_are_as_people_know_them(old: bytes, new: bytes, wanted: list[str]) -> None:
    assert list(hunks(old, new)) == wanted


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "d"]), max_size=25)


def applied(old: list[str], lines: list[str]) -> list[str]:
    """Apply hunks to a text, checking every line that they quote."""
    result: list[str] = []
    at = 0
    for line in lines:
        if line.startswith("@@"):
            first, _, length = line.split()[1][1:].partition(",")
            start = int(first) - (length != "0")
            result += old[at:start]
            at = start
        elif line[0] in " -":
            assert old[at] == line[1:]
            at += 1
            result += [line[1:]] * (line[0] == " ")
        else:
            result.append(line[1:])
    return result + old[at:]


@given(old=LINES, new=LINES)
def test_hunks_turn_the_old_text_into_the_new_one(old: list[str], new: list[str]) -> None:
    texts = ["".join(f"{line}\n" for line in lines).encode() for lines in (old, new)]
    assert applied(old, list(hunks(*texts))) == new


@given(old=LINES, new=LINES)
def test_no_diff_of_difflib_is_shorter(old: list[str], new: list[str]) -> None:
    texts = ["".join(f"{line}\n" for line in lines).encode() for lines in (old, new)]
    ours = [line for line in hunks(*texts) if line[0] in "+-"]
    theirs = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
    assert len(ours) <= len(theirs)


def test_a_text_made_to_take_long_does_not() -> None:
    old = b"".join(b"%d\n" % (n % 7) for n in range(20_000))
    new = b"".join(b"%d\n" % (n % 5) for n in range(20_000))
    started = time.process_time()
    lines = list(hunks(old, new))
    assert time.process_time() - started < 10
    assert len(lines) <= 1 + 40_000


def test_beyond_the_bound_the_old_lines_are_followed_by_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "EDITS", 2)
    assert list(hunks(b"1\n2\n3\n", b"x\n2\ny\n")) == ["@@ -1,3 +1,3 @@", "-1", "-2", "-3", "+x", "+2", "+y"]
