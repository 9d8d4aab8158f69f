# SPDX-License-Identifier: Apache-2.0
"""Renamed files, recognised by their content."""

import pytest

from tests.unit.changes.trees import WHITEOUT, Dir, File, Stack, Tree
from unspill.changes import reader as subject
from unspill.changes.reader import Reader, find_renames


def renames(stack: Stack, live: Tree, layer: Tree) -> dict[bytes, bytes]:
    changes = stack.scan(live, layer)
    with Reader(changes.roots[0].root) as reader:
        return find_renames(list(changes), reader)


CASES: dict[str, tuple[Tree, Tree, dict[bytes, bytes]]] = {
    "a moved file is recognised": ({"a": File()}, {"a": WHITEOUT, "b": File()}, {b"b": b"a"}),
    "a file moved and touched is recognised": (
        {"a": File()},
        {"a": WHITEOUT, "b": File(mtime_ns=5, mode=0o600)},
        {b"b": b"a"},
    ),
    "other content is no rename": ({"a": File(b"one")}, {"a": WHITEOUT, "b": File(b"two")}, {}),
    "empty files are all alike and no renames": ({"a": File(b"")}, {"a": WHITEOUT, "b": File(b"")}, {}),
    "a copy is no rename": ({"a": File()}, {"b": File()}, {}),
    "one deleted file has one new name": (
        {"a": File()},
        {"a": WHITEOUT, "b": File(), "c": File()},
        {b"b": b"a"},
    ),
    "the same base name is the likelier origin": (
        {"x/one": File(), "x/two": File()},
        {"x/one": WHITEOUT, "x/two": WHITEOUT, "y/two": File()},
        {b"y/two": b"x/two"},
    ),
    "files of a deleted directory are not looked for": (
        {"d": Dir(), "d/a": File()},
        {"d": WHITEOUT, "b": File()},
        {},
    ),
}


@pytest.mark.parametrize(("live", "layer", "wanted"), CASES.values(), ids=CASES)
def test_renames_are_recognised_by_content(stack: Stack, live: Tree, layer: Tree, wanted: dict[bytes, bytes]) -> None:
    assert renames(stack, live, layer) == wanted


def test_the_work_is_bounded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_COMPARISONS", 3)
    live: Tree = {f"a{n}": File(b"%d" % n) for n in range(10)}
    layer: Tree = {**{f"a{n}": WHITEOUT for n in range(10)}, **{f"b{n}": File(b"%d" % n) for n in range(10)}}
    assert len(renames(stack, live, layer)) <= 3


def test_a_large_file_is_not_read_for_a_guess(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_BYTES", 3)
    assert renames(stack, {"a": File(b"long")}, {"a": WHITEOUT, "b": File(b"long")}) == {}
