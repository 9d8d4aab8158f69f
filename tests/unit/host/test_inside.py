# SPDX-License-Identifier: Apache-2.0
"""Paths of a tree lead where they would if the tree were the root, never to the host."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.host.dirfd import find_inside, resolve_inside
from unspill.host.libc import openat2

RESOLVE_IN_ROOT = 0x10
LINKS = {
    "sh": "/bin/busybox",
    "relative": "bin/busybox",
    "chain": "sh",
    "climbing": "../../../bin/busybox",
    "out": "/../../etc/../bin/busybox",
    "usr": "/opt",
    "gone": "/bin/nothing",
    "circle": "circle",
    "host": "/etc/passwd",
    "through": "/usr/deep/../deep/program",
}
CASES = {
    b"bin/busybox": b"bin/busybox",
    b"/bin/busybox": b"bin/busybox",
    b"//bin/./busybox": b"bin/busybox",
    b"sh": b"bin/busybox",
    b"relative": b"bin/busybox",
    b"chain": b"bin/busybox",
    b"climbing": b"bin/busybox",
    b"out": b"bin/busybox",
    b"usr/deep/program": b"opt/deep/program",
    b"through": b"opt/deep/program",
    b"../../bin": b"bin",
    b"/": b"",
    b"": b"",
    b"gone": None,
    b"circle": None,
    b"host": None,
    b"etc/passwd": None,
    b"bin/busybox/x": None,
    b"bin/busybox/..": None,
    b"missing/../bin": None,
}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[int]:
    """An open tree with links of all kinds."""
    for name in ("bin/busybox", "opt/deep/program", "etc/release"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name, target in LINKS.items():
        (tmp_path / name).symlink_to(target)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("path", CASES)
def test_a_path_leads_where_it_would_if_the_tree_were_the_root(tree: int, path: bytes) -> None:
    assert resolve_inside(tree, path) == CASES[path]
    assert (find_inside(tree, path) is None) == (CASES[path] is None)


def test_the_host_would_have_been_found_by_following_the_link(tree: int) -> None:
    assert os.stat("host", dir_fd=tree).st_size > 0
    assert find_inside(tree, b"host") is None


def test_no_descriptor_is_left_open(tree: int) -> None:
    before = os.listdir("/proc/self/fd")
    for path in CASES:
        resolve_inside(tree, path)
    assert os.listdir("/proc/self/fd") == before


names = st.sampled_from(["a", "b", "c"])
targets = st.lists(st.sampled_from(["a", "b", "c", ".."]), min_size=1, max_size=5).map("/".join)
anywhere = st.tuples(st.sampled_from(["", "/"]), targets).map("".join)
entries = st.dictionaries(st.lists(names, min_size=1, max_size=3).map("/".join), st.none() | anywhere, max_size=10)


@given(entries=entries, path=anywhere)
def test_the_kernel_gives_the_same_answer(entries: dict[str, str | None], path: str) -> None:
    top = tempfile.mkdtemp()
    try:
        for name, target in sorted(entries.items()):
            place = os.path.join(top, name)
            os.makedirs(os.path.dirname(place), exist_ok=True) if _is_free(top, name) else None
            if not _is_free(top, name) or os.path.lexists(place):
                continue
            open(place, "x").close() if target is None else os.symlink(target, place)
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert resolve_inside(fd, path.encode()) == _asked(fd, top, path)
        finally:
            os.close(fd)
    finally:
        shutil.rmtree(top)


def _is_free(top: str, name: str) -> bool:
    """Tell whether nothing but directories is on the way to a name."""
    parts = name.split("/")[:-1]
    above = [os.path.join(top, *parts[: index + 1]) for index in range(len(parts))]
    return not any(os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)) for path in above)


def _asked(fd: int, top: str, path: str) -> bytes | None:
    while True:
        try:
            found = openat2(fd, path.encode(), os.O_PATH, RESOLVE_IN_ROOT)
            break
        except BlockingIOError:
            continue  # something was renamed or mounted, wherever on this machine: the kernel wants to be asked again
        except OSError:
            return None
    try:
        real = os.readlink(f"/proc/self/fd/{found}")
    finally:
        os.close(found)
    return os.path.relpath(real, os.path.realpath(top)).encode().removeprefix(b".")
