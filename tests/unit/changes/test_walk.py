# SPDX-License-Identifier: Apache-2.0
"""Directories by descriptor: opened again when needed, never through a link, measured, closed in the end."""

import os
import stat
from pathlib import Path

import pytest

from tests.unit.changes.trees import WHITEOUT, Fifo, File, Node, Stack, Symlink, build
from tests.unit.changes.trees import Dir as TreeDir
from unspill.changes.walk import Dir, Pool, has_fresh, measure
from unspill.layers.lifecycle import is_empty, is_untouched


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


def test_an_upper_without_entries_is_empty(stack: Stack) -> None:
    assert is_empty(build(stack.base / "upper", {}))


@pytest.mark.parametrize("node", [File(), TreeDir(), Symlink(b"x"), WHITEOUT])
def test_any_entry_makes_an_upper_not_empty(stack: Stack, node: Node) -> None:
    assert not is_empty(build(stack.base / "upper", {"a": node}))


def test_an_upper_closed_to_its_owner_is_left_to_the_scan(stack: Stack) -> None:
    upper = build(stack.base / "upper", {})
    os.chmod(upper, 0)
    assert not is_empty(upper)


def test_a_changed_root_is_seen_only_when_there_is_something_to_compare_with(stack: Stack) -> None:
    live, upper = stack.live({"a": File()}), build(stack.base / "upper", {})
    assert is_untouched(upper, live)
    os.chmod(upper, 0o700)
    assert is_empty(upper)
    assert not is_untouched(upper, live)
    os.chmod(upper, 0o755)
    os.setxattr(upper, "user.overlay.impure", b"y")
    assert is_untouched(upper, live)
    os.setxattr(upper, "user.note", b"y")
    assert not is_untouched(upper, live)


def blocks(*paths: bytes) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in paths)


def test_bytes_are_those_on_disk_and_every_entry_is_counted(stack: Stack) -> None:
    upper = build(stack.base / "upper", {"d/a": File(b"x" * 10_000), "d/e/w": WHITEOUT, "l": Symlink(b"x")})
    os.truncate(build(stack.base / "upper", {"sparse": File()}) + b"/sparse", 1 << 40)
    names = (b"d", b"d/a", b"d/e", b"d/e/w", b"l", b"sparse")
    assert measure(upper) == (blocks(*(os.path.join(upper, name) for name in names)), len(names))


def test_a_hard_link_takes_no_more_bytes(stack: Stack) -> None:
    upper = build(stack.base / "upper", {"a": File(b"x" * 10_000)})
    os.link(upper + b"/a", upper + b"/b")
    assert measure(upper) == (blocks(upper + b"/a"), 2)


def test_measuring_stops_soon_after_a_cap(stack: Stack) -> None:
    upper = build(stack.base / "upper", {f"{n}": File(b"x" * 5000) for n in range(100)})
    total, count = measure(upper, entries_cap=10)
    assert count == 11
    total, count = measure(upper, bytes_cap=10_000)
    assert 10_000 < total < 30_000


def test_closed_directories_are_measured_once_nothing_runs_any_more(stack: Stack) -> None:
    upper = build(stack.base / "upper", {"d": TreeDir(mode=0), "d/a": File(b"x" * 10_000)})
    assert measure(upper)[1] == 1
    assert measure(upper, unlock=True)[1] == 2
    assert stat.S_IMODE(os.lstat(upper + b"/d").st_mode) == 0


def test_a_deep_upper_is_measured(stack: Stack) -> None:
    upper = build(stack.base / "upper", {})
    here = os.open(upper, os.O_RDONLY)
    for _ in range(400):
        os.mkdir(b"d", dir_fd=here)
        below = os.open(b"d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert measure(upper)[1] == 400


def test_what_was_written_since_a_moment_is_told_from_what_was_there(stack: Stack) -> None:
    upper = build(stack.base / "upper", {"d/old": File(b"x" * 10_000), "l": Symlink(b"x")})
    os.utime(upper + b"/d/old", (2**31, 2**31))
    moment = max(os.lstat(upper + name).st_ctime_ns for name in (b"/d/old", b"/l")) + 1
    while os.stat(build(stack.base / "clock", {"now": File()}) + b"/now").st_ctime_ns < moment:
        os.unlink(os.fsencode(stack.base) + b"/clock/now")
    os.chmod(upper + b"/d/old", 0o600)
    os.link(upper + b"/d/old", upper + b"/d/older")
    os.unlink(upper + b"/l")
    os.rename(upper + b"/d", upper + b"/e")
    assert not has_fresh(upper, moment, over_bytes=0, over_entries=0)
    build(stack.base / "upper", {"e/new": File(b"x" * 10_000), "f/g": TreeDir()})
    os.utime(upper + b"/e/new", (0, 0))
    assert has_fresh(upper, moment, over_bytes=1 << 20, over_entries=2)
    assert has_fresh(upper, moment, over_bytes=9_000, over_entries=10)
    assert not has_fresh(upper, moment, over_bytes=1 << 20, over_entries=3)
