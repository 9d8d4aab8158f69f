# SPDX-License-Identifier: Apache-2.0
"""Directories by descriptor: opened again when needed, never through a link, closed in the end."""

import os
from pathlib import Path

import pytest

from tests.unit.changes.trees import Fifo, File, Node, Symlink, build
from unspill.changes.walk import Dir, Pool


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_directory_that_was_closed_is_opened_again_with_its_ancestors(tmp_path: Path) -> None:
    root = build(tmp_path / "t", {"a/b/c/d/file": File()})
    before = descriptors()
    with Pool(limit=2) as pool:
        chain = [pool.upper_root(root)]
        for name in (b"a", b"b", b"c", b"d"):
            chain.append(chain[-1].open_child(name))
        assert sum(directory.fd >= 0 for directory in chain) == 2
        for directory in chain:
            assert [name for name, _, _ in directory.names()]
            assert descriptors() <= before + 2
    assert descriptors() == before


@pytest.mark.parametrize("node", [File(), Symlink(b"."), Fifo()])
def test_only_a_directory_is_opened_as_one(tmp_path: Path, node: Node) -> None:
    root = build(tmp_path / "t", {"x": node})
    with Pool() as pool, pytest.raises(NotADirectoryError):
        pool.upper_root(root).open_child(b"x")


@pytest.mark.parametrize("node", [Symlink(b"file"), Fifo()])
def test_only_a_regular_file_is_opened_as_one(tmp_path: Path, node: Node) -> None:
    root = build(tmp_path / "t", {"x": node, "file": File()})
    before = descriptors()
    with Pool() as pool:
        directory = pool.upper_root(root)
        with pytest.raises(OSError):
            directory.open_file(b"x")
    assert descriptors() == before


def test_names_of_any_bytes_come_back_as_they_are(tmp_path: Path) -> None:
    names = {b"\xff\xfe", b"a\nb", b" ", "ü".encode(), b"x" * 255}
    root = build(tmp_path / "t", {name: File() for name in names})
    with Pool() as pool:
        assert {name for name, _, _ in pool.upper_root(root).names()} == names


def test_a_live_root_is_found_again_by_its_descriptor_alone(tmp_path: Path) -> None:
    root = build(tmp_path / "t", {"d/file": File()})
    with Pool(limit=1) as pool:
        live: Dir = pool.live_root(root)
        child = live.open_child(b"d")
        os.rename(root, root + b".moved")
        build(tmp_path / "t", {"d/other": File()})
        pool.release(child)
        assert [name for name, _, _ in child.names()] == [b"file"]
