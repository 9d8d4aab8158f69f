# SPDX-License-Identifier: Apache-2.0
"""Merging of texts: what two sides made of one base, judged by `git merge-file`."""

import random
import subprocess
import time
from pathlib import Path

import pytest

from unspill.changes.merge import LARGEST_TEXT, Clash, merge_texts

# In a text some lines are the same everywhere
COMMON = (b"\n", b"}\n", b"    return None\n", b"# ---\n")


def draw_text(chance: random.Random) -> list[bytes]:
    size = chance.randint(0, 40)
    return [chance.choice(COMMON) if chance.random() < 0.25 else b"line %d\n" % number for number in range(size)]


def edited(chance: random.Random, lines: list[bytes]) -> list[bytes]:
    made = list(lines)
    for _ in range(chance.randint(0, 4)):
        at, size = chance.randint(0, len(made)), chance.randint(1, 3)
        new = [chance.choice(COMMON) if chance.random() < 0.25 else b"new %d\n" % chance.randrange(1 << 20)] * size
        match chance.choice(("add", "remove", "replace")):
            case "add":
                made[at:at] = new
            case "remove":
                del made[at : at + size]
            case "replace":
                made[at : at + size] = new
    if made and chance.random() < 0.1:
        made[-1] = made[-1].rstrip(b"\n") or b"end"
    return made


def test_random_edits_of_both_sides_merge_as_git_merges_them(tmp_path: Path, full: bool) -> None:
    """The time buys 400 texts, and 5,000 with `--full`."""
    conflicts = 0
    for seed in range(5_000 if full else 400):
        chance = random.Random(seed)
        base = draw_text(chance)
        ours = edited(chance, base)
        # Some of what one side does the other does too
        theirs = edited(chance, ours if chance.random() < 0.15 else base)
        texts = {name: b"".join(lines) for name, lines in (("ours", ours), ("base", base), ("theirs", theirs))}
        for name, text in texts.items():
            (tmp_path / name).write_bytes(text)
        found = subprocess.run(["git", "merge-file", "-p", *texts], cwd=tmp_path, capture_output=True, check=False)
        assert 0 <= found.returncode < 128, found.stderr
        merge = merge_texts(texts["base"], texts["ours"], texts["theirs"])
        assert merge is not None
        assert bool(merge.clashes) == (found.returncode > 0), f"seed {seed}: {texts}"
        if not merge.clashes:
            assert merge.text() == found.stdout, f"seed {seed}: {texts}"
        conflicts += bool(merge.clashes)
    assert conflicts > 50, "there is little to tell apart"


CASES: dict[str, tuple[bytes, bytes, bytes, bytes]] = {
    "edits that do not touch": (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nC\n", b"A\nb\nC\n"),
    "the same edit on both sides": (b"a\nb\n", b"a\nB\n", b"a\nB\n", b"a\nB\n"),
    "one side has done nothing": (b"a\n", b"a\n", b"b\n", b"b\n"),
    "lines added at both ends": (b"m\n", b"first\nm\n", b"m\nlast\n", b"first\nm\nlast\n"),
    "a last line without a line feed": (b"a\nb\nc", b"A\nb\nc", b"a\nb\nC", b"A\nb\nC"),
    "carriage returns are content": (b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n", b"a\r\nb\r\nC\r\n", b"A\r\nb\r\nC\r\n"),
    "bytes that are no UTF-8": (b"\xe9\nb\nc\n", b"\xe8\nb\nc\n", b"\xe9\nb\nC\n", b"\xe8\nb\nC\n"),
    "one of several lines alike": (b"x\n\ny\n\nz\n", b"x\n\n\ny\n\nz\n", b"x\n\ny\n\nZ\n", b"x\n\n\ny\n\nZ\n"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_both_sides_did_is_in_the_result(name: str) -> None:
    base, ours, theirs, result = CASES[name]
    merge = merge_texts(base, ours, theirs)
    assert merge is not None
    assert (merge.clashes, merge.text()) == ((), result)


def test_lines_that_both_changed_are_a_clash_with_a_place_and_both_sides() -> None:
    merge = merge_texts(b"a\nb\nc\nd\ne\n", b"new\na\nb\nours\nd\ne\n", b"a\nb\ntheirs\nd\nE\n")
    assert merge is not None
    assert merge.clashes == (Clash(line=4, base=(b"c\n",), ours=(b"ours\n",), theirs=(b"theirs\n",)),)
    assert merge.where() == "line 4"
    assert merge.text("ours") == b"new\na\nb\nours\nd\nE\n"
    assert merge.text("theirs") == b"new\na\nb\ntheirs\nd\nE\n"
    assert merge.text("markers") == (b"new\na\nb\n<<<<<<< yours\nours\n=======\ntheirs\n>>>>>>> the run's\nd\nE\n")


def test_edits_that_touch_are_a_clash() -> None:
    merge = merge_texts(b"a\nb\nc\nd\n", b"a\nB\nc\nd\n", b"a\nb\nC\nd\n")
    assert merge is not None
    assert [clash.line for clash in merge.clashes] == [2]


@pytest.mark.parametrize("bad", [b"a\0b", b"x" * (LARGEST_TEXT + 1)])
@pytest.mark.parametrize("at", range(3))
def test_what_is_no_text_or_too_large_is_not_merged(bad: bytes, at: int) -> None:
    texts = [b"a\n", b"b\n", b"c\n"]
    texts[at] = bad
    assert merge_texts(*texts) is None


def numbered(side: int) -> bytes:
    return b"".join(b"%d %d\n" % (side, number) for number in range(30_000))


HOSTILE = {
    "everything differs": (numbered(0), numbered(1), numbered(2)),
    "all lines are the same": (b"\n" * 100_000, b"\n" * 100_300, b"\n" * 99_700),
    "two lines in turns": (b"a\nb\n" * 30_000, b"b\na\n" * 30_000, b"a\n" * 60_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name: str) -> None:
    began = time.process_time()
    merge_texts(*HOSTILE[name])
    assert time.process_time() - began < 10
