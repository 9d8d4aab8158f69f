# SPDX-License-Identifier: Apache-2.0
"""A held path is granted for what it would become, and for nothing else."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.unit.changes.trees import WHITEOUT, Dir, File, Node, Symlink, build
from unspill.changes.reader import Reader
from unspill.changes.scan import scan
from unspill.permissions.question import describe_held, digest_of_held, head_of_held


def digests(tmp_path: Path, name: str, layer: Mapping[str | bytes, Node]) -> dict[bytes, str]:
    live = build(tmp_path / f"{name}-live", {"a": File(b"old"), "b": File(b"old")})
    upper = build(tmp_path / f"{name}-upper", layer)
    with Reader(live) as reader:
        return {change.path: digest_of_held(change, reader) for change in scan([upper], (), live)}


def test_the_same_change_has_the_same_digest_wherever_and_whenever_it_is_made(tmp_path: Path) -> None:
    one = digests(tmp_path, "one", {"a": File(b"new", mtime_ns=1), "b": WHITEOUT})
    two = digests(tmp_path, "two", {"a": File(b"new", mtime_ns=2), "b": WHITEOUT})
    assert one == two
    assert set(one) == {b"a", b"b"}


def test_other_content_mode_kind_or_fate_has_another_digest(tmp_path: Path) -> None:
    nodes = (
        *(File(b"new"), File(b"neW"), File(b"new", mode=0o755), File(b"")),
        *(Symlink(b"new"), Symlink(b"b"), Dir(), WHITEOUT),
    )
    found = {digests(tmp_path, str(number), {"a": node})[b"a"] for number, node in enumerate(nodes)}
    assert len(found) == len(nodes)
    assert all(len(digest) == 64 for digest in found)


def test_a_change_that_is_exchanged_after_the_question_has_another_digest(tmp_path: Path) -> None:
    before = digests(tmp_path, "x", {"a": File(b"shown")})[b"a"]
    upper = os.fsencode(tmp_path / "x-upper")
    with open(upper + b"/a", "wb") as file:
        file.write(b"other")
    with Reader(os.fsencode(tmp_path / "x-live")) as reader:
        (change,) = scan([upper], (), os.fsencode(tmp_path / "x-live"))
        assert digest_of_held(change, reader) != before


def test_whoever_is_asked_is_told_what_a_path_becomes(tmp_path: Path) -> None:
    nodes = {
        "a file of 1 byte": (File(b"x"), (b"x", "")),
        "a file of 5000 bytes, executable": (File(b"y" * 5000, mode=0o755), (b"y" * 200, "4800")),
        "a file of 3 bytes, executable, writable for everybody, with the content that it has": (
            File(b"old", mode=0o777),
            (b"old", ""),
        ),
        "a symbolic link": (Symlink(b"/etc/" + b"x" * 1000), (b"/etc/" + b"x" * 1000, "")),
        "nothing: it is deleted": (WHITEOUT, (b"", "")),
    }
    for number, (words, (node, head)) in enumerate(nodes.items()):
        live = build(tmp_path / f"{number}-live", {"a": File(b"old")})
        (change,) = scan([build(tmp_path / f"{number}-upper", {"a": node})], (), live)
        with Reader(live) as reader:
            assert (describe_held(change), head_of_held(change, reader)) == (words, head)
