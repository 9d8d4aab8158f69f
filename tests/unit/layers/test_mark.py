# SPDX-License-Identifier: Apache-2.0
"""Whatever changes after a time mark has no older ctime, on every filesystem; and taking one leaves no trace."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.layers.ground import Ground, layers_of
from unspill.layers.lifecycle import take_mark
from unspill.store.db import Store

FILESYSTEMS = {
    "ext4": Path(tempfile.gettempdir()),
    "tmpfs": Path("/dev/shm"),
    "xfs": Path("/opt/unspill-ci/fs/xfs/work"),
    "btrfs": Path("/opt/unspill-ci/fs/btrfs/work"),
}


@pytest.fixture(params=FILESYSTEMS)
def place(request: pytest.FixtureRequest) -> Iterator[bytes]:
    """A directory on one of the filesystems, which a file on another may be compared with."""
    parent = FILESYSTEMS[request.param]
    if not parent.is_dir():
        pytest.skip(f"no {request.param} is mounted at {parent}; .ci/setup does it")
    path = tempfile.mkdtemp(prefix="unspill-mark-", dir=parent)
    yield os.fsencode(path)
    shutil.rmtree(path)


def changes(root: bytes, count: int) -> Iterator[bytes]:
    """Change things in a root in many ways, and name each after it was changed."""
    for number in range(count):
        path = os.path.join(root, b"new%d" % number)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        yield path
        os.chmod(path, 0o600)
        yield path
        os.rename(path, path + b"-moved")
        yield path + b"-moved"
        yield root


@pytest.mark.parametrize("state_on", ["the same", "another"])
def test_no_later_change_is_older_than_the_mark(place: bytes, tmp_path: Path, state_on: str, full: bool) -> None:
    state = place + b"/state" if state_on == "the same" else _elsewhere(place, tmp_path)
    root = place + b"/root"
    os.mkdir(root)
    with Store.open(state) as store:
        ground = Ground(store, root, store.sandboxes.get_or_create(root, "default", 1, 2))
        for _ in range(500 if full else 40):
            opened = ground.open()
            (layer,) = layers_of(opened)
            for path in changes(root, 2):
                assert os.lstat(path).st_ctime_ns >= layer.mark.ctime_ns
            ground.drop(opened)


def _elsewhere(place: bytes, tmp_path: Path) -> bytes:
    other = os.fsencode(tmp_path)
    if os.stat(other).st_dev != os.stat(place).st_dev:
        return other + b"/state"
    return os.fsencode(tempfile.mkdtemp(dir="/dev/shm")) + b"/state"


def test_a_change_that_was_made_long_before_is_older_than_the_mark(ground: Ground) -> None:
    os.utime(ground.project)
    before = os.stat(ground.project).st_ctime_ns
    while os.stat(ground.project).st_ctime_ns == before:
        os.utime(ground.project)
    opened = ground.open()
    assert layers_of(opened)[0].mark.ctime_ns > before


def test_a_change_that_was_made_right_before_is_older_than_the_mark(ground: Ground) -> None:
    """On kernels whose filesystems have fine times; on others the two are within one tick at times."""
    for number in range(200):
        path = ground.project + b"/file-%d" % number
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        opened = ground.open()
        assert layers_of(opened)[0].mark.ctime_ns > os.stat(path).st_ctime_ns
        ground.drop(opened)


@pytest.mark.parametrize("same", [True, False])
def test_taking_a_mark_leaves_no_trace_in_the_root(place: bytes, tmp_path: Path, same: bool) -> None:
    root = place + b"/root"
    os.mkdir(root)
    upper = place + b"/upper" if same else _elsewhere(place, tmp_path)
    os.mkdir(upper)
    before = os.stat(root)
    mark = take_mark(root, before, os.stat(upper))
    after = os.stat(root)
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    assert os.listdir(root) == []
    assert mark.ctime_ns >= before.st_ctime_ns


def test_a_named_file_would_leave_a_trace(place: bytes) -> None:
    """The control arm: even a file that is removed at once changes the root's own times."""
    before = os.stat(place).st_mtime_ns
    while os.stat(place).st_mtime_ns == before:
        os.close(os.open(place + b"/probe", os.O_CREAT | os.O_WRONLY))
        os.unlink(place + b"/probe")
    assert os.listdir(place) == []


def test_a_root_that_can_not_be_written_gets_its_mark_from_the_clock(place: bytes, tmp_path: Path) -> None:
    root = place + b"/root"
    os.mkdir(root)
    os.close(os.open(root + b"/file", os.O_CREAT | os.O_WRONLY))
    os.chmod(root, 0o555)
    # Another filesystem's device: as if the state directory were there.
    upper = os.stat("/proc")
    for _ in range(50):
        mark = take_mark(root, os.stat(root), upper)
        os.chmod(root + b"/file", 0o600)
        assert os.stat(root + b"/file").st_ctime_ns >= mark.ctime_ns
    os.chmod(root, 0o755)


def test_where_no_fractions_are_kept_the_clock_is_cut_too_as_if_on_fat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unspill.layers.lifecycle.time.clock_gettime_ns", lambda _clock: 1_700_000_001_999_999_999)
    whole_seconds = os.stat_result((0,) * 10, {"st_ctime_ns": 5_000_000_000, "st_mtime_ns": 7_000_000_000})
    mark = take_mark(b"/proc/self", whole_seconds, os.stat("/"))
    assert mark.ctime_ns == 1_700_000_000_000_000_000
