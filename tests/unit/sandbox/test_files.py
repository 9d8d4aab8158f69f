# SPDX-License-Identifier: Apache-2.0
"""What is made of an answer from inside: nothing that is said there is believed beyond its form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import SandboxUnavailable
from unspill.sandbox.files import USUAL_BYTES, FileEntry, _cut_lines, _parse_listing, _refusal

MESSAGES = [
    ("stat: cannot statx '/w/a': No such file or directory", "not_found"),
    ("stat: can't stat '/w/a': No such file or directory", "not_found"),
    ("unspill-write: 17: cannot create /w/a: Directory nonexistent", "not_found"),
    ("unspill-write: line 17: can't create /w/a: nonexistent directory", "not_found"),
    ("unspill-write: line 17: /w/a: No such file or directory", "not_found"),
    ("stat: cannot statx '/w/a/b': Not a directory", "not_a_directory"),
    ("mkdir: cannot create directory '/w/a': File exists", "not_a_directory"),
    ("unspill-write: 17: cannot create /w/a/: Is a directory", "is_directory"),
    ("unspill-write: 17: cannot create /w/a: Permission denied", "permission_denied"),
    ("mkdir: cannot create directory '/w': Read-only file system", "permission_denied"),
    ("cat: write error: No space left on device", "too_large"),
    ("cat: write error: File too large", "too_large"),
    ("stat: cannot statx '/w/a': Too many levels of symbolic links", "failed"),
    ("stat: cannot statx '/w/Permission denied': Input/output error", "failed"),
    ("", "failed"),
]


@pytest.mark.parametrize(("message", "kind"), MESSAGES)
def test_a_reason_is_known_by_its_end(message: str, kind: str) -> None:
    assert _refusal(b"/w/a", "-", message, "").kind == kind


def test_a_reason_that_is_not_known_is_shown_without_what_a_terminal_obeys() -> None:
    error = _refusal(b"/w/a\x1b[2J", "-", "cat: \x1b]0;x\x07\n" + "y" * 10_000, "")
    assert error.message.isprintable()
    assert len(error.message) < 300


def test_a_kind_that_is_not_known_is_a_failure() -> None:
    assert _refusal(b"/w/a", "ambiguous and more", "", "").kind == "failed"


LONG = b"x" * USUAL_BYTES


@pytest.mark.parametrize(
    ("content", "limit", "kept", "following", "is_cut"),
    [
        (b"", 2, b"", None, False),
        (b"a", 2, b"a", None, False),
        (b"a\nb\n", 2, b"a\nb\n", None, False),
        (b"a\nb\nc", 2, b"a\nb\n", 7, False),
        (b"a\r\x0bb\x0c\n\n", 2, b"a\r\x0bb\x0c\n\n", None, False),
        (b"a\n", 0, b"", 5, False),
        (LONG, 2, LONG, None, False),
        (LONG + b"x", 2, LONG, 6, True),
        (LONG[1:] + b"\n" + b"b", 2, LONG[1:] + b"\n", 6, False),
        (b"a\n" + LONG, 2, b"a\n", 6, False),
    ],
)
def test_lines_are_cut_at_the_bound_and_it_is_said_where_they_go_on(
    content: bytes, limit: int, kept: bytes, following: int | None, is_cut: bool
) -> None:
    found = _cut_lines(b"/w/a", content, 5, limit)
    assert (found.content, found.next_offset, found.is_cut) == (kept, following, is_cut)
    assert found.count == kept.count(b"\n") + (not kept.endswith(b"\n") and bool(kept))


names = st.binary(min_size=1).filter(lambda name: b"\0" not in name).map(lambda name: b"./" + name)
MODES = {"81a4": "file", "41ed": "directory", "a1ff": "link", "11a4": "pipe", "c1ed": "socket", "21b6": "device"}


@given(
    st.lists(st.lists(st.tuples(names, st.sampled_from([*MODES]), st.integers(0, 1 << 63)), min_size=1)), st.booleans()
)
def test_a_listing_is_read_as_it_was_said(batches: list[list[tuple[bytes, str, int]]], is_whole: bool) -> None:
    said = b""
    for batch in batches:
        said += b"%d\n" % len(batch) + b"".join(b"%b %d\n" % (mode.encode(), size) for _name, mode, size in batch)
        said += b"".join(name + b"\0" for name, _mode, _size in batch)
    entries, found = _parse_listing(said + (b"end 0\n" if is_whole else b"end 1\n"), b"/w")
    expected = [
        {"path": name[2:], "kind": MODES[mode], "size": size} for batch in batches for name, mode, size in batch
    ]
    assert [entry.as_dict() for entry in entries] == expected
    assert found is is_whole


PIECES = [b"end ", b"0\n", b"1\n", b"2\n", b"-1\n", b"\0", b"./a", b"81a4 1\n", b"f" * 40, b" ", b"9" * 5000, b"\n"]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4))).map(b"".join))
def test_any_other_listing_is_our_failure(said: bytes) -> None:
    try:
        entries, _is_whole = _parse_listing(said, b"/w")
    except SandboxUnavailable:
        return
    assert all(isinstance(entry, FileEntry) for entry in entries)
