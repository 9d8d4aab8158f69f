# SPDX-License-Identifier: Apache-2.0
"""Diffs of change sets: golden texts, bounds, and content that tries to fool its reader."""

import hashlib
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.changes.trees import STAMP, WHITEOUT, Dir, Fifo, File, Stack, Symlink, Tree, build
from unspill.changes.diff import diff_lines
from unspill.changes.scan import scan

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
            "modified l  [leads out of the project]",
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
