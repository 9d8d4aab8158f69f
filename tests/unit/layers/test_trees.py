# SPDX-License-Identifier: Apache-2.0
"""Trees that a command made are removed whole, and nothing else is: whatever links, modes and depths it chose."""

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unspill.layers.trees import empty_tree, remove_tree

SECRET = "precious"


@pytest.fixture
def tree(tmp_path: Path) -> bytes:
    path = tmp_path / "tree"
    path.mkdir()
    return os.fsencode(path)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory next to the tree that must not change."""
    path = tmp_path / "outside"
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "file").write_text(SECRET)
    (path / "sub").chmod(0o750)
    before = path.stat().st_mtime_ns
    yield path
    assert (path / "sub" / "file").read_text() == SECRET
    assert (path / "sub").stat().st_mode & 0o777 == 0o750
    assert path.stat().st_mtime_ns == before


def naive_remove(path: bytes) -> None:
    """Remove a tree as the design this one replaces did: whatever is a directory is entered, links too."""
    for name in os.listdir(path):
        child = os.path.join(path, name)
        if os.path.isdir(child):
            naive_remove(child)
        else:
            os.unlink(child)
    if not os.path.islink(path):
        os.rmdir(path)


def test_links_are_removed_and_what_they_lead_to_stays(tree: bytes, outside: Path) -> None:
    targets = [str(outside), str(outside / "sub"), str(outside / "sub" / "file"), "/", "..", ".", "missing"]
    for number, target in enumerate(targets):
        os.symlink(target, tree + b"/link%d" % number)
        os.makedirs(tree + b"/deep/%d" % number)
        os.symlink(target, tree + b"/deep/%d/link" % number)
    assert remove_tree(tree)
    assert not os.path.lexists(tree)


def test_a_directory_is_emptied_and_stays_and_what_links_lead_to_does_too(tree: bytes, outside: Path) -> None:
    """The control is the removal that follows links, below."""
    os.makedirs(tree + b"/deep/closed", exist_ok=True)
    os.symlink(outside, tree + b"/link")
    os.symlink(outside, tree + b"/deep/closed/link")
    os.chmod(tree + b"/deep/closed", 0)
    before = os.stat(tree).st_ino
    assert empty_tree(tree)
    assert os.listdir(tree) == []
    assert os.stat(tree).st_ino == before, "a running sandbox may have it mounted"
    assert sorted(outside.iterdir())
    os.rmdir(tree)
    os.symlink(outside, tree)
    with pytest.raises(NotADirectoryError):
        empty_tree(tree)
    assert sorted(outside.iterdir())


def test_a_removal_that_follows_links_would_destroy_what_they_lead_to(tree: bytes, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text(SECRET)
    os.symlink(victim, tree + b"/link")
    with pytest.raises(OSError):
        naive_remove(tree)
    assert list(victim.iterdir()) == []


def test_the_tree_itself_may_be_a_link_or_a_file(tree: bytes, outside: Path) -> None:
    os.rmdir(tree)
    os.symlink(outside, tree)
    assert remove_tree(tree)
    assert not os.path.lexists(tree)
    Path(os.fsdecode(tree)).write_text("file")
    assert remove_tree(tree)
    assert remove_tree(tree), "removing what is not there is no failure"


def test_directories_without_any_rights_are_removed(tree: bytes) -> None:
    for bits in (0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600):
        path = tree + b"/%o/inner/innermost" % bits
        os.makedirs(path)
        os.close(os.open(path + b"/file", os.O_CREAT, 0))
        for directory in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
            os.chmod(directory, bits)
    os.chmod(tree, 0)
    assert remove_tree(tree)
    assert not os.path.lexists(tree)


def test_a_plain_removal_fails_on_directories_without_rights(tree: bytes) -> None:
    """The control arm, and the reason for the work directory's treatment."""
    os.makedirs(tree + b"/work/inner")
    os.chmod(tree + b"/work", 0)
    result = subprocess.run(["rm", "-rf", tree], capture_output=True, check=False)
    assert b"Permission denied" in result.stderr
    assert remove_tree(tree)


def dig(top: bytes, depth: int, name: bytes = b"d" * 50) -> None:
    """Make a chain of directories far beyond what a path can name."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("bottom", os.O_CREAT, dir_fd=fd))
    os.close(fd)


def test_trees_deeper_than_a_path_or_the_descriptors_reach_are_removed(tree: bytes) -> None:
    dig(tree, 1500)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 8, hard))
    try:
        assert remove_tree(tree)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not os.path.lexists(tree)


def test_special_files_and_odd_names_are_removed(tree: bytes) -> None:
    os.mkfifo(tree + b"/fifo")
    os.mknod(tree + b"/whiteout", 0o20000, os.makedev(0, 0))
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b"x" * 255, b" ", b"\x1b[31m"):
        os.mkdir(os.path.join(tree, name))
        os.close(os.open(os.path.join(tree, name, name), os.O_CREAT))
    os.link(tree + b"/fifo", tree + b"/second")
    assert remove_tree(tree)
    assert not os.path.lexists(tree)


def test_many_entries_take_little_memory(tree: bytes) -> None:
    program = f"""
import os, resource
from unspill.layers.trees import empty_tree, remove_tree
top = {tree!r}
for part in range(2):
    os.mkdir(top + b"/%d" % part)
    for number in range(4000):
        os.close(os.open(top + b"/%d/%0200d" % (part, number), os.O_CREAT))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert remove_tree(top)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(done.stdout) < 2048


def test_two_may_remove_one_tree_at_once(tree: bytes) -> None:
    for first in range(30):
        for second in range(10):
            os.makedirs(tree + b"/%d/%d/x" % (first, second))
            os.close(os.open(tree + b"/%d/%d/file" % (first, second), os.O_CREAT))
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(remove_tree(tree))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not os.path.lexists(tree)
    assert any(results)


def test_a_tree_that_changes_into_links_while_it_is_removed_leads_nowhere(tree: bytes, outside: Path) -> None:
    """A dying command may still write: directories become links to the outside under the remover's hands."""
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            try:
                os.makedirs(tree + b"/a/b/c", exist_ok=True)
                os.chmod(tree + b"/a/b", 0)
                os.rename(tree + b"/a", tree + b"/old")
                os.symlink(outside, tree + b"/a")
                os.unlink(tree + b"/a")
            except OSError:
                continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            remove_tree(tree)
    finally:
        stop.set()
        thread.join()
    assert remove_tree(tree)


shapes = st.recursive(
    st.sampled_from(["file", "link", "fifo", "empty"]),
    lambda below: st.dictionaries(st.sampled_from("abcdef"), below, max_size=4),
    max_leaves=25,
)


@settings(max_examples=60)
@given(shape=shapes, bits=st.lists(st.integers(0, 0o777), max_size=30))
def test_any_tree_is_removed(tmp_path_factory: pytest.TempPathFactory, shape: object, bits: list[int]) -> None:
    base = tmp_path_factory.mktemp("any")
    top = os.fsencode(base / "top")
    os.mkdir(top)
    plant(top + b"/x", shape, iter(bits))
    assert remove_tree(top)
    assert list(base.iterdir()) == []


def plant(path: bytes, shape: object, bits: Iterator[int]) -> None:
    makers: dict[str, Callable[[], object]] = {
        "file": lambda: os.close(os.open(path, os.O_CREAT)),
        "link": lambda: os.symlink(b"/usr", path),
        "fifo": lambda: os.mkfifo(path),
        "empty": lambda: os.mkdir(path),
    }
    if isinstance(shape, str):
        makers[shape]()
    elif isinstance(shape, dict):
        os.mkdir(path)
        for name, below in shape.items():
            plant(os.path.join(path, name.encode()), below, bits)
        os.chmod(path, next(bits, 0o700))


@pytest.mark.root
def test_what_resists_is_reported_and_the_rest_removed(tree: bytes) -> None:
    os.makedirs(tree + b"/a/b")
    os.close(os.open(tree + b"/stubborn", os.O_CREAT))
    subprocess.run(["chattr", "+i", tree + b"/stubborn"], check=True)
    try:
        assert not remove_tree(tree)
        assert os.listdir(tree) == [b"stubborn"]
    finally:
        subprocess.run(["chattr", "-i", tree + b"/stubborn"], check=True)
    assert remove_tree(tree)
