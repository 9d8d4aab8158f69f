# SPDX-License-Identifier: Apache-2.0
"""What is shown of an output that is too long: its beginning and its end, and the truth about the rest."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.adapters.answers import clip, shown_as
from unspill.model.run import Output

NUMBERS = b"".join(b"%d\n" % number for number in range(1, 101))


def kept(raw: bytes) -> Output:
    return Output(head=raw)


# The streams, at most so many lines and bytes, what is shown, and what is said of it
CASES: dict[str, tuple[tuple[Output, ...], int, int, str, str]] = {
    "lines": ((kept(NUMBERS),), 5, 1000, "1\n2\n[...]\n98\n99\n100\n", "after line 2, at …: 95 of 100 lines left out"),
    "one line too many": ((kept(b"a\nb\nc\n"),), 2, 1000, "a\n[...]\nc\n", "after line 1, at …: 1 of 3 lines left out"),
    "one line only": ((kept(NUMBERS),), 1, 1000, "[...]\n100\n", "before its end, at …: 99 of 100 lines left out"),
    "bytes of one line": ((kept(b"0123456789"),), 50, 5, "01[...]789", "in line 1, at …: 5 bytes left out"),
    "a long line between others": (
        (kept(b"a\n" + b"x" * 100 + b"\nz\n"),),
        50,
        20,
        "a\nxxxxxx[...]xxxxxxxxx\nz\n",
        "in line 2, at …: 85 bytes left out",
    ),
    "both streams": (
        (kept(NUMBERS), kept(b"no\n")),
        5,
        1000,
        "1\n2\n[...]\n99\n100\nno\n",
        "after line 2, at …: 96 of 101 lines left out",
    ),
    "a stream without its last end of line": (
        (kept(b"a"), kept(b"b\nc\nd")),
        3,
        99,
        "a\n[...]\nc\nd",
        "after line 1, at …: 1 of 4 lines left out",
    ),
    "more than was kept": (
        (Output(head=b"a\nb", tail=b"y\nz\n", left_out=1000),),
        50,
        1000,
        "a\nb[...]y\nz\n",
        "in line 2, at …: 1000 bytes left out",
    ),
    "more of both than was kept": (
        (Output(head=b"a\n", tail=b"b", left_out=10), Output(head=b"c", tail=b"\nd\n", left_out=10)),
        50,
        1000,
        "a\n[...]\nd\n",
        "after line 1, at …: 22 bytes left out",
    ),
    "a command that prints the mark": (
        (kept(b"[...] all is well [.....]\n" + b"x" * 100 + b"[....]!"),),
        50,
        50,
        "[...] all is well [.[.....]xxxxxxxxxxxxxxxxxxxxxxx[....]!",
        "in line 1, at …: 83 bytes left out",
    ),
    "only what was put between them": ((kept(b"a" * 5), kept(b"b" * 5)), 50, 10, "aaaaa\nbbbbb", ""),
    "one byte more": (
        (kept(b"a" * 5), kept(b"b" * 6)),
        50,
        10,
        "aaaa[...]\nbbbbbb",
        "in line 1, at …: 1 byte left out",
    ),
    "a gap in a character": (
        (Output(head="aé".encode()[:2], tail="éz".encode()[1:], left_out=7),),
        50,
        1000,
        "a[...]z",
        "in line 1, at …: 9 bytes left out",
    ),
    "a cut in a character": ((kept("éééééé".encode()),), 50, 7, "é[...]éé", "in line 1, at …: 6 bytes left out"),
    "not text": (
        (kept(b"\xff" * 100),),
        50,
        40,
        r"\xff" * 4 + "[...]" + r"\xff" * 6,
        "in line 1, at …: 90 bytes left out",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_beginning_and_the_end_are_shown(case: str) -> None:
    streams, lines, size, text, told = CASES[case]
    found = clip(streams, lines, size)
    assert found.text == text
    assert bool(found.left_out) is bool(told)
    assert not told or found.told() == f"the output is cut {told}".replace("…", f'"{found.mark}"')


@pytest.mark.parametrize("raw", [b"", b"a", b"a\n", b"a\nb", b"a\nb\n", "é\n".encode()])
def test_what_fits_is_shown_as_it_is(raw: bytes) -> None:
    found = clip((kept(raw),), 2, 4)
    assert (found.text, found.left_out) == (raw.decode(), 0)


OUTPUTS = st.builds(
    Output,
    head=st.lists(st.sampled_from([b"a", b"bc", b"\n", "é".encode(), b"\xff", "💧".encode()]), max_size=40).map(
        b"".join
    ),
    tail=st.lists(st.sampled_from([b"x", b"\n", "é".encode(), b"\x80"]), max_size=20).map(b"".join),
    left_out=st.sampled_from([0, 0, 1, 5000]),
)


@given(st.lists(OUTPUTS, min_size=1, max_size=2), st.integers(1, 12), st.integers(4, 80))
def test_bounds_hold_and_every_byte_is_shown_or_counted(streams: list[Output], lines: int, size: int) -> None:
    found = clip(streams, lines, size)
    assert found.head.count(b"\n") + found.tail.count(b"\n") <= lines
    assert len((shown_as(found.head) + shown_as(found.tail)).encode()) <= size + len(streams) - 1
    total = sum(stream.total for stream in streams)
    # An end of line is put between streams where the first has none; it is none of the command's bytes
    assert total <= len(found.head) + found.left_out + len(found.tail) <= total + len(streams) - 1
    assert not found.left_out or found.text.count(found.mark) == 1
    everything = b"".join(stream.kept() for stream in streams)
    if len(streams) == 1:
        assert everything.startswith(found.head)
        assert everything.endswith(found.tail)
    if not found.left_out:
        assert not any(stream.left_out for stream in streams)


def test_megabytes_are_cut_as_fast_as_they_are_counted() -> None:
    begun = time.process_time()
    counted = sum((b"\n" * (4 << 20)).count(b"\n") for _ in range(20))
    bare = time.process_time() - begun
    begun = time.process_time()
    found = clip((kept(b"\n" * (4 << 20)), kept(b"\xff" * (4 << 20))), 50, 32 * 1024)
    assert found.left_out > 8_000_000
    assert counted
    assert time.process_time() - begun < bare * 10
