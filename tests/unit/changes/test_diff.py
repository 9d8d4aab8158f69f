# SPDX-License-Identifier: Apache-2.0
"""Diffs as they are shown, their hunks, and texts with some of those."""

import difflib
import hashlib
import os
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.changes.by_hand import by_hand
from tests.unit.changes.trees import STAMP, WHITEOUT, Dir, Fifo, File, Stack, Symlink, Tree, build
from unspill.changes import diff as subject
from unspill.changes.diff import NO_NEWLINE, apply_hunks, diff_lines, hunks, numbered_lines, split_lines
from unspill.changes.scan import scan
from unspill.errors import UsageError

GOLDEN: dict[str, tuple[Tree, Tree, list[str]]] = {
    "a modified file": (
        {"a.c": File(b"one\ntwo\n")},
        {"a.c": File(b"one\n2\n", mode=0o755)},
        ["modified a.c  [mode 644 to 755]", "--- a/a.c", "+++ b/a.c", "@@ -1,2 +1,2 @@", " one", "-two", "+2"],
    ),
    "an added file": (
        {},
        {"a b": File(b"one\n")},
        ['added "a b"', "--- /dev/null", '+++ b/"a b"', "@@ -0,0 +1 @@", "+one"],
    ),
    "a deleted file": (
        {"a": File(b"one")},
        {"a": WHITEOUT},
        ["deleted a", "--- a/a", "+++ /dev/null", "@@ -1 +0,0 @@", "-one", "\\ No newline at end of file"],
    ),
    "an added empty file": ({}, {"a": File(b"")}, ["added a", "(empty)"]),
    "a deleted directory": ({"d/a": File()}, {"d": WHITEOUT}, ["deleted d", "(with everything in it)"]),
    "another mode alone": ({"a": File()}, {"a": File(mode=0o755)}, ["metadata a  [mode 644 to 755]"]),
    "a mere touch": ({"a": File()}, {"a": File(mtime_ns=STAMP + 1)}, []),
    "another target": (
        {"l": Symlink(b"old")},
        {"l": Symlink(b"../new")},
        [
            "modified l  [points outside the project]",
            "-> old  [old target]",
            "-> ../new  [new target]",
        ],
    ),
    "a symlink instead of a file": (
        {"a": File(b"one\n")},
        {"a": Symlink(b"b")},
        [
            "replaced a  [was a file, is a symlink]",
            "-> b",
            "--- a/a",
            "+++ /dev/null",
            "@@ -1 +0,0 @@",
            "-one",
        ],
    ),
    "a fifo instead of a directory": (
        {"d/a": File()},
        {"d": Fifo()},
        ["replaced d  [was a directory, is a special file]"],
    ),
    "an added directory": ({}, {"d": Dir()}, ["added d"]),
    "content that imitates a header": (
        {"a": File(b"-- a/etc/passwd\n")},
        {"a": File(b"++ b/etc/passwd\n")},
        [
            "modified a",
            "--- a/a",
            "+++ b/a",
            "@@ -1 +1 @@",
            "--- a/etc/passwd",
            "+++ b/etc/passwd",
        ],
    ),
    "content that moves the cursor": (
        {"a": File(b"safe\n")},
        {"a": File(b"evil\rsafe\x1b[1A\x1b[2K \xe2\x80\xae\n")},
        ["modified a", "--- a/a", "+++ b/a", "@@ -1 +1 @@", "-safe", r"+evil\rsafe\u{1b}[1A\u{1b}[2K \u{202e}"],
    ),
    "Latin-1 text": (
        {"a": File(b"gr\xfcn und blau\n")},
        {"a": File(b"gr\xfcn und rot\n")},
        ["modified a", "--- a/a", "+++ b/a", "@@ -1 +1 @@", r"-gr\xfcn und blau", r"+gr\xfcn und rot"],
    ),
}


@pytest.mark.parametrize(("live", "layer", "wanted"), GOLDEN.values(), ids=GOLDEN)
def test_a_diff_is_as_printed(stack: Stack, live: Tree, layer: Tree, wanted: list[str]) -> None:
    assert diff_lines(stack.scan(live, layer)) == wanted


def test_binary_content_is_told_by_size_and_digest(stack: Stack) -> None:
    old, new = b"\0old", b"\0newer"
    lines = diff_lines(stack.scan({"a": File(old)}, {"a": File(new)}))
    assert lines == [
        "modified a",
        f"(binary, old: 4 bytes, sha256 {hashlib.sha256(old).hexdigest()})",
        f"(binary, new: 6 bytes, sha256 {hashlib.sha256(new).hexdigest()})",
    ]


def test_text_that_becomes_binary_far_inside_is_binary(stack: Stack) -> None:
    lines = diff_lines(stack.scan({"a": File(b"text\n")}, {"a": File(b"text\n" * 5000 + b"\0")}))
    assert [line[:8] for line in lines[1:]] == ["(binary,", "(binary,"]


def test_a_large_file_is_told_by_its_sizes(stack: Stack) -> None:
    lines = diff_lines(stack.scan({"a": File(b"x")}, {"a": File(b"x" * 1001)}), max_file_bytes=1000)
    assert lines == ["modified a", "(too large to show: 1 bytes to 1001 bytes)"]


def test_a_diff_is_cut_with_the_number_of_lines_and_changes_left_out(stack: Stack) -> None:
    layer: Tree = {f"{n}": File(b"one\ntwo\n") for n in range(9)}
    lines = diff_lines(stack.scan({}, layer), max_lines=8)
    assert len(lines) == 9
    assert lines[-1] == "... cut here: 4 more lines and 7 more changes"


def test_an_unreadable_base_is_said(stack: Stack) -> None:
    lines = diff_lines(stack.scan({"a": File(mode=0)}, {"a": File(mode=0)}))
    assert lines == ["modified a  [not readable]", "(not readable: Permission denied)"]


def test_the_diff_of_one_run_is_against_the_layers_beneath(stack: Stack) -> None:
    live = stack.live({"a": File(b"live\n")})
    below = build(stack.base / "below", {"a": File(b"first\n")})
    layer = build(stack.base / "layer", {"a": File(b"second\n")})
    changes = scan([layer], [below], live)
    assert diff_lines(changes, {live: [below]})[-2:] == ["-first", "+second"]


def test_colour_marks_lines_only_when_asked_for(stack: Stack) -> None:
    changes = stack.scan({"a": File(b"one\n")}, {"a": File(b"two\n")})
    assert not any("\033" in line for line in diff_lines(changes))
    assert diff_lines(changes, colour=True)[-2:] == ["\033[31m-one\033[0m", "\033[32m+two\033[0m"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(old=st.binary(max_size=200), new=st.binary(max_size=200))
def test_no_content_gets_anything_unprintable_through(stack: Stack, old: bytes, new: bytes) -> None:
    for line in diff_lines(stack.scan({"a": File(old)}, {"a": File(new)})):
        assert line.isprintable()


def test_modes_of_layers_are_as_before(stack: Stack) -> None:
    changes = stack.scan({}, {"d": Dir(mode=0), "d/a": File(b"one\n", mode=0)})
    assert diff_lines(changes)[-1] == "+one"
    assert os.lstat(stack.base / "layer0" / "d").st_mode & 0o777 == 0


HUNKS_GOLDEN = {
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


@pytest.mark.parametrize(("old", "new", "wanted"), HUNKS_GOLDEN.values(), ids=HUNKS_GOLDEN)
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


OLD = b"".join(b"%d\n" % number for number in range(40))
NEW = OLD.replace(b"\n3\n", b"\nthree\n").replace(b"\n20\n", b"\n").replace(b"39\n", b"39\nforty\n")

PARTIAL_LINES = st.lists(st.sampled_from([b"a", b"b", b"c", b"", b"d"]), max_size=60)


@st.composite
def texts(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two texts that share most lines, with or without a line feed at their ends."""
    old = draw(PARTIAL_LINES)
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
    changed = [line for line in numbered_lines(OLD, NEW) if line.number]
    assert [(line.hunk, line.mark, line.text, line.number, line.old, line.new) for line in changed] == [
        (1, "-", b"3\n", 1, 4, 0),
        (1, "+", b"three\n", 2, 0, 4),
        (2, "-", b"20\n", 3, 21, 0),
        (3, "+", b"forty\n", 4, 0, 40),
    ]


@given(pair=texts())
def test_numbered_lines_are_those_that_a_diff_shows(pair: tuple[bytes, bytes]) -> None:
    old, new = map(split_lines, pair)
    lines = list(numbered_lines(*pair))
    shown = [line for line in hunks(*pair) if not line.startswith(("@@", NO_NEWLINE))]
    assert [line.mark for line in lines] == [line[0] for line in shown]
    assert [line.number for line in lines if line.number] == list(range(1, sum(bool(n.number) for n in lines) + 1))
    assert all(old[line.old - 1] == line.text for line in lines if line.old)
    assert all(new[line.new - 1] == line.text for line in lines if line.new)


def numbers_of(pair: tuple[bytes, bytes]) -> set[int]:
    return {line.hunk for line in numbered_lines(*pair)}


@given(pair=texts(), chance=st.randoms(use_true_random=False))
def test_picked_lines_are_taken_over_and_no_others(pair: tuple[bytes, bytes], chance: random.Random) -> None:
    lines = list(numbered_lines(*pair))
    picked = {line.number for line in lines if line.number and chance.random() < 0.5}
    half = apply_hunks(*pair, (), picked)
    assert half == by_hand(pair[0], lines, picked)
    # What was not picked is still to be had
    assert apply_hunks(half, pair[1], numbers_of((half, pair[1]))) == pair[1]
    assert apply_hunks(*pair, (), {line.number for line in lines if line.number}) == pair[1]


@pytest.mark.parametrize(
    ("picked", "wanted"),
    [
        ({1, 4}, b"A\nb\nc\n"),
        ({2, 4}, b"a\nA\nc\n"),
        ({1, 3, 4, 5}, b"A\nb\nB\n"),
        ({3, 4, 5, 6}, b"a\nb\nA\nB\nC"),
        ({4}, b"a\nb\nc\nA\n"),
        ({1, 2, 3}, b""),
        ({6}, b"a\nb\nc\nC"),
    ],
)
def test_an_added_line_takes_the_place_of_a_removed_one(picked: set[int], wanted: bytes) -> None:
    assert apply_hunks(b"a\nb\nc\n", b"A\nB\nC", (), picked) == wanted


def test_a_line_without_its_end_gets_one_where_another_follows() -> None:
    assert apply_hunks(b"a", b"x\ny", (), {3}) == b"a\ny"


@pytest.mark.parametrize("line", [0, 5])
def test_a_number_that_no_changed_line_has_is_refused(line: int) -> None:
    with pytest.raises(UsageError, match=f"no changed line {line}: .* 1 to 4"):
        apply_hunks(OLD, NEW, (), (line,))


@given(pair=texts())
def test_as_many_hunks_are_counted_as_a_diff_has(pair: tuple[bytes, bytes]) -> None:
    assert len(numbers_of(pair)) == sum(line.startswith("@@") for line in hunks(*pair))


@given(pair=texts())
def test_all_hunks_make_the_new_text_and_none_the_old_one(pair: tuple[bytes, bytes]) -> None:
    everything = numbers_of(pair)
    assert apply_hunks(*pair, everything) == pair[1]
    assert apply_hunks(*pair, ()) == pair[0]


@given(pair=texts(), chance=st.randoms(use_true_random=False))
def test_some_hunks_and_then_the_others_make_the_new_text(pair: tuple[bytes, bytes], chance: random.Random) -> None:
    old, new = pair
    some = {number for number in sorted(numbers_of(pair)) if chance.random() < 0.5}
    half = apply_hunks(old, new, some)
    others = numbers_of((half, new))
    assert apply_hunks(half, new, others) == new
    # Taking the others back out of the new text leads to the same place
    assert apply_hunks(new, half, numbers_of((new, half))) == half
    assert bool(others) == (half != new)


@pytest.mark.parametrize("number", [0, -1, 4])
def test_a_number_that_no_hunk_has_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match=f"no hunk {number}: .* 1 to 3"):
        apply_hunks(OLD, NEW, (1, number))


@pytest.mark.parametrize("pair", [(b"a\n", b"\0\n"), (b"\x01\x02\x03", b"a\n")])
def test_what_is_not_text_has_no_hunks(pair: tuple[bytes, bytes]) -> None:
    with pytest.raises(UsageError, match="not a text file"):
        apply_hunks(*pair, (1,))
    with pytest.raises(UsageError, match="not a text file"):
        list(numbered_lines(*pair))
