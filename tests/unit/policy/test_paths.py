# SPDX-License-Identifier: Apache-2.0
"""One spelling per path, and `/a/b` does not contain `/a/bc`."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.policy.paths import contains, lies_beneath, normalise, show

NAMES = st.lists(st.sampled_from([b"a", b"b", b"a-x", b".", b"..", b"", b"\xff", b"\n"]), max_size=6)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/", b"/"),
        (b"//", b"/"),
        (b"//a", b"/a"),
        (b"///a//b/", b"/a/b"),
        (b"/a/./b/../c", b"/a/c"),
        (b"/../..", b"/"),
        (b"/a\n/\xff", b"/a\n/\xff"),
    ],
)
def test_each_path_has_one_spelling(path: bytes, expected: bytes) -> None:
    assert normalise(path) == expected


@pytest.mark.parametrize("path", [b"", b"a", b"./a", b"~/a", b"/a\0b"])
def test_what_is_not_an_absolute_path_is_refused(path: bytes) -> None:
    with pytest.raises(ValueError):
        normalise(path)


@given(NAMES)
def test_a_normalised_path_is_its_own_normal_form(names: list[bytes]) -> None:
    path = normalise(b"/" + b"/".join(names))
    assert normalise(path) == path
    assert path == b"/" or not path.endswith(b"/")
    assert b"//" not in path


@given(NAMES, NAMES)
def test_containment_is_that_of_components(one: list[bytes], other: list[bytes]) -> None:
    outer, inner = (normalise(b"/" + b"/".join(names)) for names in (one, other))
    assert contains(outer, inner) == (posixpath.commonpath([outer, inner]) == outer)
    assert lies_beneath(inner, outer) == (contains(outer, inner) and inner != outer)


@given(st.binary())
def test_a_shown_path_has_nothing_that_moves_a_cursor(path: bytes) -> None:
    assert show(path).isprintable()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/a b", "/a b"),
        ("/ü".encode(), "/ü"),
        (b"/\xff", "/\\xff"),
        (b"/\x1b[2J\n", "/\\x1b[2J\\n"),
        ("/a\u202eb".encode(), "/a\\u202eb"),
    ],
)
def test_a_path_is_shown_as_text(path: bytes, expected: str) -> None:
    assert show(path) == expected
