# SPDX-License-Identifier: Apache-2.0
"""Patterns for paths: what they match, against a plain oracle, and in bounded time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unspill.changes.select import Glob

CASES: list[tuple[str, list[str], list[str]]] = [
    ("a.py", ["a.py"], ["b.py", "d/a.py", "a.pyc"]),
    ("*.py", ["a.py", ".py", ".a.py"], ["d/a.py", "a.pyc"]),
    ("*", ["a", ".hidden", "line\nbreak"], ["a/b"]),
    ("d/*", ["d/a"], ["d", "d/a/b"]),
    ("**", ["a", "a/b/c"], []),
    ("d/**", ["d/a", "d/a/b"], ["d", "da"]),
    ("**/*.py", ["a.py", "d/a.py", "d/e/a.py"], ["a.pyc"]),
    ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb", "x/a/b"]),
    ("**/x/**", ["x/a", "a/x/b/c"], ["x", "ax/b"]),
    ("**/**/x", ["x", "a/x", "a/b/x"], ["ax"]),
    ("a**b", ["ab", "axb", "a/x/b"], ["a/x/bc"]),
    ("a?c", ["abc", "aüc", "a\udcffc"], ["ac", "abbc", "a/c"]),
    ("[a-c]", ["a", "b", "c"], ["d", "-", ""]),
    ("[!a-c]", ["d", "ü"], ["a", "/", ""]),
    ("[^a]", ["b"], ["a"]),
    ("[]a]", ["]", "a"], ["b"]),
    ("[!]a]", ["b"], ["]", "a"]),
    ("[a-]", ["a", "-"], ["b"]),
    ("[*?]", ["*", "?"], ["a"]),
    ("[ab", ["[ab"], ["a"]),
    ("[]", ["[]"], ["a"]),
]


@pytest.mark.parametrize(("pattern", "matched", "others"), CASES, ids=[case[0] for case in CASES])
def test_a_pattern_matches_these_paths_and_not_those(pattern: str, matched: list[str], others: list[str]) -> None:
    glob = Glob(encoded(pattern))
    assert [path for path in matched if not glob.matches(encoded(path))] == []
    assert [path for path in others if glob.matches(encoded(path))] == []


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def oracle(pattern: str, path: str, *, starts_name: bool = True) -> bool:
    """Match by trying everything, which takes time without bounds but is easily seen to be right."""
    if not pattern:
        return not path
    if pattern.startswith("**"):
        rest = pattern.lstrip("*")
        if starts_name and rest.startswith("/") and oracle(rest[1:], path):
            return True
        return any(oracle(rest, path[at:], starts_name=False) for at in range(len(path) + 1))
    if pattern[0] == "*":
        name, _, _ = path.partition("/")
        return any(oracle(pattern[1:], path[at:], starts_name=False) for at in range(len(name) + 1))
    if not path or (path[0] == "/") != (pattern[0] == "/"):
        return False
    return pattern[0] in ("?", path[0]) and oracle(pattern[1:], path[1:], starts_name=pattern[0] == "/")


@settings(max_examples=500)
@given(pattern=st.text("ab/*?", max_size=10), path=st.text("ab/", max_size=8))
def test_a_pattern_matches_what_trying_everything_finds(pattern: str, path: str) -> None:
    assert Glob(pattern.encode()).matches(path.encode()) == oracle(pattern, path)


def test_no_pattern_takes_long() -> None:
    started = time.process_time()
    assert not Glob(b"*a" * 500 + b"b").matches(b"a" * 4000)
    assert not Glob(b"**/" * 500 + b"b").matches(b"a/" * 2000 + b"a")
    assert time.process_time() - started < 2
