# SPDX-License-Identifier: Apache-2.0
"""Layers from their making to their end, caches, time marks, and directories of a project that stay."""

import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import MOUNTS
from tests.unit.layers.ground import NOTHING, Ground, ended, layers_of, leave_work, upper, write
from unspill.errors import RootRefused, SandboxUnavailable, StoreError
from unspill.host.overlay import OPAQUE
from unspill.layers import lifecycle
from unspill.layers.lifecycle import (
    FAN,
    OpenRun,
    Swept,
    discard_stacks,
    drop_run,
    load_stacks,
    merge_uppers,
    playground_dir,
    project_key,
    seal_run,
    sweep,
    take_mark,
)
from unspill.layers.trees import remove_tree
from unspill.model.run import LayerId, RunId
from unspill.store.db import Store, list_aside
from unspill.store.layers import CacheRow


def mode(path: bytes) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_a_run_has_an_open_layer_over_each_root(ground: Ground, tmp_path: Path) -> None:
    other = os.fsencode(tmp_path / "other")
    os.mkdir(other)
    opened = ground.open(roots=(ground.project, other))
    assert [stack.live for stack in opened.stacks] == [ground.project, other]
    assert [stack.inode for stack in opened.stacks] == [os.stat(ground.project).st_ino, os.stat(other).st_ino]
    assert len({layer.id for layer in layers_of(opened)}) == 2
    for layer in layers_of(opened):
        assert os.listdir(layer.upper) == os.listdir(layer.work) == []
        assert layer.run == opened.run.id
    assert ground.left() == {b"layers": 2, b"work": 2, b"runs": 0}
    assert ground.store.layers.ids(only_open=True) == {layer.id for layer in layers_of(opened)}


@pytest.mark.parametrize("bits", [0o755, 0o700, 0o750, 0o775, 0o777, 0o1777, 0o2755, 0o555, 0o500])
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_the_upper_has_the_roots_own_mode_whatever_the_umask(ground: Ground, bits: int, umask: int) -> None:
    os.chmod(ground.project, bits)
    before = os.umask(umask)
    try:
        opened = ground.open()
    finally:
        os.umask(before)
    assert mode(upper(opened)) == bits
    assert mode(os.path.dirname(upper(opened))) == 0o700
    ground.drop(opened)
    assert ground.left() == NOTHING
    os.chmod(ground.project, 0o755)


def test_the_upper_has_the_roots_own_attributes_but_none_of_overlayfs(ground: Ground) -> None:
    os.setxattr(ground.project, "user.mine", b"\0value")
    os.setxattr(ground.project, "user.overlay.opaque", b"y")
    opened = ground.open()
    assert os.listxattr(upper(opened)) == ["user.mine"]
    assert os.getxattr(upper(opened), "user.mine") == b"\0value"


def test_the_next_upper_looks_like_the_layer_below_it(ground: Ground) -> None:
    opened = ground.open()
    os.chmod(upper(opened), 0o711)
    os.setxattr(upper(opened), "user.mine", b"1")
    (stack,) = seal_run(ground.store, opened, ended(opened))
    assert len(stack.sealed) == 1, "a changed mode of the root is a change"
    again = ground.open()
    assert mode(upper(again)) == 0o711
    assert os.getxattr(upper(again), "user.mine") == b"1"


def test_a_held_layer_is_under_the_next_run(ground: Ground) -> None:
    first, second = ground.hold(b"a"), ground.hold(b"b", b"d/c")
    (before,), (after,) = first, second
    assert after.sealed[:1] == before.sealed
    opened = ground.open()
    assert opened.stacks[0].sealed == after.sealed
    assert opened.stacks[0].lowers() == (after.sealed[1].upper, after.sealed[0].upper, ground.project)
    assert [sorted(os.listdir(layer.upper)) for layer in after.sealed] == [[b"a"], [b"b", b"d"]]
    assert load_stacks(ground.store, ground.sandbox.id, (ground.project,))[0] == after
    assert ground.store.runs.find_number(ground.sandbox.id, 2) is not None


def test_marks_survive_the_store_and_never_go_back(ground: Ground) -> None:
    for _ in range(3):
        ground.hold(b"a")
    marks = [layer.mark.ctime_ns for layer in load_stacks(ground.store, ground.sandbox.id, (ground.project,))[0].sealed]
    assert marks == sorted(marks)
    assert marks[0] > 0


def test_sealing_removes_the_work_directory_and_records_the_run_as_held(ground: Ground) -> None:
    closed = ground.hold(b"a")
    assert ground.left() == {b"layers": 1, b"work": 0, b"runs": 0}
    assert ground.store.runs.unfinished() == ()
    run = ground.store.runs.find(closed[0].sealed[0].run)
    assert run is not None
    assert run.held


def test_a_layer_that_nothing_was_written_to_is_dropped(ground: Ground) -> None:
    (stack,) = ground.hold()
    assert stack.sealed == ()
    assert ground.left() == NOTHING
    assert ground.rows() == 0
    (run,) = ground.store.runs.latest(ground.sandbox.id, 5)
    assert not run.held
    assert run.ended_ns is not None


def test_only_the_written_one_of_two_roots_is_kept(ground: Ground, tmp_path: Path) -> None:
    other = os.fsencode(tmp_path / "other")
    os.mkdir(other)
    opened = ground.open(roots=(ground.project, other))
    write(upper(opened, 1) + b"/file")
    closed = seal_run(ground.store, opened, ended(opened))
    assert [len(stack.sealed) for stack in closed] == [0, 1]
    assert load_stacks(ground.store, ground.sandbox.id, (other, ground.project)) == closed[::-1]
    assert ground.left() == {b"layers": 1, b"work": 0, b"runs": 0}


def test_a_dropped_run_leaves_nothing_but_its_record(ground: Ground) -> None:
    opened = ground.open()
    write(upper(opened) + b"/deep/er/file")
    ground.drop(opened)
    assert ground.left() == NOTHING
    assert ground.rows() == 0
    assert ground.store.runs.find(opened.run.id) == ended(opened)


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_caller_does_not_wait_until_what_was_dropped_is_removed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    go_on = threading.Event()

    def remove_slowly(path: bytes) -> bool:
        # The sweep below stands for another process, which nothing slows down
        if threading.current_thread().name == "unspill-clean":
            go_on.wait(30)
        return remove_tree(path)

    opened = ground.open()
    write(upper(opened) + b"/file")
    leave_work(opened)
    monkeypatch.setattr(lifecycle, "remove_tree", remove_slowly)
    drop_run(ground.store, opened, ended(opened))
    assert os.path.exists(upper(opened) + b".dropped/file")
    assert ground.rows() == 0
    if is_killed:
        # What the next process does
        sweep(ground.store)
        assert not os.path.exists(upper(opened) + b".dropped")
    go_on.set()
    assert ground.left() == NOTHING
    assert list_aside(ground.store.state) == {}


def test_whoever_closes_a_sandbox_waits_also_while_another_thread_waits(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def remove_slowly(path: bytes) -> None:
        if threading.current_thread().name == "unspill-clean":
            go_on.wait(30)
        remove_tree(path)

    opened = ground.open()
    write(upper(opened) + b"/file")
    monkeypatch.setattr(lifecycle, "remove_tree", remove_slowly)
    drop_run(ground.store, opened, ended(opened))
    waiting = [threading.Thread(target=lifecycle.wait_until_clean) for _ in range(3)]
    for thread in waiting:
        thread.start()
        thread.join(0.2)
    assert all(thread.is_alive() for thread in waiting)
    go_on.set()
    for thread in waiting:
        thread.join(30)
    assert ground.left() == NOTHING


def test_a_layer_that_was_taken_away_is_not_sealed_in_silence(ground: Ground) -> None:
    opened = ground.open()
    write(upper(opened) + b"/file")
    ground.store.layers.remove([layers_of(opened)[0].id])
    with pytest.raises(SandboxUnavailable, match="gone"):
        seal_run(ground.store, opened, ended(opened))
    assert ground.store.layers.sealed(ground.sandbox.id) == ()


@pytest.mark.parametrize("instead", ["a link", "a file", "nothing"])
def test_a_root_that_is_no_directory_is_refused_and_nothing_recorded(ground: Ground, instead: str) -> None:
    os.rmdir(ground.project)
    if instead == "a link":
        os.symlink(b"/usr", ground.project)
    elif instead == "a file":
        write(ground.project)
    with pytest.raises(RootRefused):
        ground.open()
    assert ground.left() == NOTHING
    assert ground.rows() == 0
    assert ground.store.runs.latest(ground.sandbox.id, 5) == ()


def test_a_layer_that_can_not_be_made_leaves_nothing(ground: Ground) -> None:
    os.chmod(ground.store.state + b"/layers", 0o500)
    with pytest.raises(SandboxUnavailable, match="Permission denied") as failure:
        ground.open()
    assert "free space" in failure.value.remedy
    os.chmod(ground.store.state + b"/layers", 0o700)
    assert ground.left() == NOTHING
    assert ground.rows() == 0
    assert ground.store.runs.latest(ground.sandbox.id, 5) == ()


def test_a_discarded_sandbox_starts_from_the_live_tree_again(ground: Ground) -> None:
    for name in (b"a", b"b", b"c"):
        ground.hold(name)
    other = ground.store.sandboxes.get_or_create(ground.project, "other", 1, 2)
    Ground(ground.store, ground.project, other).hold(b"theirs")
    assert discard_stacks(ground.store, ground.sandbox.id) == 3
    assert load_stacks(ground.store, ground.sandbox.id, (ground.project,))[0].sealed == ()
    assert len(load_stacks(ground.store, other.id, (ground.project,))[0].sealed) == 1
    assert not any(run.held for run in ground.store.runs.latest(ground.sandbox.id, 5))
    assert ground.left()[b"layers"] == 1
    assert discard_stacks(ground.store, ground.sandbox.id) == 0


def test_nothing_is_discarded_under_a_run_that_stands_on_it(ground: Ground) -> None:
    ground.hold(b"a")
    opened = ground.open()
    with pytest.raises(SandboxUnavailable, match="still active"):
        discard_stacks(ground.store, ground.sandbox.id)
    ground.drop(opened)
    assert discard_stacks(ground.store, ground.sandbox.id) == 1


def test_a_run_costs_no_descriptor(ground: Ground) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        ground.hold(b"a")
        ground.drop(ground.open())
    discard_stacks(ground.store, ground.sandbox.id)
    assert len(os.listdir("/proc/self/fd")) == before < resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.fixture
def caches(tmp_path: Path) -> list[bytes]:
    paths = [tmp_path / "home" / "pip", tmp_path / "home" / "npm"]
    for path in paths:
        path.mkdir(parents=True)
    return [os.fsencode(path) for path in paths]


def put(opened: OpenRun, name: bytes, content: bytes = b"", cache: int = 0) -> None:
    """Write into a cache of a run that has one root."""
    write(upper(opened, 1 + cache) + b"/" + name, content)


def fill(ground: Ground, cache: bytes, *names: bytes) -> None:
    opened = ground.open(cache)
    for name in names:
        put(opened, name, name)
    ground.drop(opened)


def shown(ground: Ground, cache: bytes) -> set[bytes]:
    """Return the top-level names of all layers of a cache; enough where nothing is deleted."""
    opened = ground.open(cache)
    try:
        return {name for lower in opened.caches[0].stack.lowers() for name in os.listdir(lower)}
    finally:
        ground.drop(opened)


def depth(ground: Ground) -> int:
    return len(ground.store.caches.sealed(ground.project))


def test_each_cache_of_a_run_has_an_open_layer_over_the_live_one(ground: Ground, caches: list[bytes]) -> None:
    os.chmod(caches[1], 0o750)
    opened = ground.open(*caches)
    assert [cache.path for cache in opened.caches] == caches
    assert [cache.stack.lowers() for cache in opened.caches] == [(caches[0],), (caches[1],)]
    assert os.stat(upper(opened, 2)).st_mode & 0o777 == 0o750
    assert len({layer.id for layer in layers_of(opened)}) == 3


def test_what_is_no_directory_is_no_cache(ground: Ground, caches: list[bytes], tmp_path: Path) -> None:
    link, file = os.fsencode(tmp_path / "link"), os.fsencode(tmp_path / "file")
    os.symlink(caches[0], link)
    write(file)
    opened = ground.open(link, file, b"/nowhere", caches[1])
    assert [cache.path for cache in opened.caches] == [caches[1]]


def test_unwritten_caches_leave_nothing(ground: Ground, caches: list[bytes]) -> None:
    ground.drop(ground.open(*caches))
    assert ground.left() == NOTHING
    assert ground.rows() == 0


def test_what_a_run_wrote_is_in_the_next_runs_cache(ground: Ground, caches: list[bytes]) -> None:
    opened = ground.open(*caches)
    put(opened, b"wheel", b"content", cache=1)
    ground.drop(opened)
    again = ground.open(*caches)
    assert [len(cache.stack.sealed) for cache in again.caches] == [0, 1]
    folded = again.caches[1].stack.sealed[0]
    assert Path(os.fsdecode(folded.upper), "wheel").read_text() == "content"
    assert os.listdir(caches[1]) == [], "the live cache is not touched"
    assert ground.left() == {b"layers": 4, b"work": 3, b"runs": 0}


def test_held_and_dropped_runs_both_fill_caches_and_other_projects_have_their_own(
    ground: Ground, caches: list[bytes], tmp_path: Path
) -> None:
    opened = ground.open(caches[0])
    put(opened, b"a")
    seal_run(ground.store, opened, ended(opened))
    fill(ground, caches[0], b"b")
    assert shown(ground, caches[0]) == {b"a", b"b"}
    (tmp_path / "elsewhere").mkdir()
    elsewhere = os.fsencode(tmp_path / "elsewhere")
    other = Ground(ground.store, elsewhere, ground.store.sandboxes.get_or_create(elsewhere, "default", 1, 2))
    assert shown(other, caches[0]) == set()
    sibling = ground._replace(sandbox=ground.store.sandboxes.get_or_create(ground.project, "other", 1, 2))
    assert shown(sibling, caches[0]) == {b"a", b"b"}


def test_without_folding_the_caches_stay_as_they_were(ground: Ground, caches: list[bytes]) -> None:
    opened = ground.open(caches[0])
    put(opened, b"half-written")
    drop_run(ground.store, opened, ended(opened), fold=False)
    assert shown(ground, caches[0]) == set()
    assert ground.left() == NOTHING


def test_of_two_runs_the_first_to_end_wins_and_the_other_is_dropped(ground: Ground, caches: list[bytes]) -> None:
    first, second = ground.open(*caches), ground.open(*caches)
    put(first, b"first")
    put(second, b"second")
    put(second, b"npm", cache=1)
    ground.drop(second)
    ground.drop(first)
    assert shown(ground, caches[0]) == {b"second"}
    assert shown(ground, caches[1]) == {b"npm"}
    assert ground.left() == {b"layers": 2, b"work": 0, b"runs": 0}
    assert ground.rows() == 2


RACE = """
import os, sys
from tests.unit.layers.ground import Ground, upper, write
from unspill.store.db import Store
state, project, cache = map(os.fsencode, sys.argv[1:4])
store = Store.open(state)
ground = Ground(store, project, store.sandboxes.get_or_create(project, f"name {os.getpid()}", 1, 2))
for number in range(25):
    opened = ground.open(cache)
    below = {name for lower in opened.caches[0].stack.lowers() for name in os.listdir(lower)}
    write(upper(opened, 1) + b"/%d-%d" % (os.getpid(), number), b" ".join(sorted(below)))
    ground.drop(opened)
"""


def test_processes_that_race_build_one_chain(ground: Ground, caches: list[bytes]) -> None:
    """Each entry holds the names that were below it when it was written: no fold may hide or lose any of them."""
    command: list[str | bytes] = [sys.executable, "-c", RACE, ground.store.state, ground.project, caches[0]]
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    processes = [subprocess.Popen(command, env=environ) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    opened = ground.open(caches[0])
    uppers = [Path(os.fsdecode(layer.upper)) for layer in opened.caches[0].stack.sealed]
    entries = {path.name: set(path.read_text().split()) for upper in uppers for path in upper.iterdir()}
    assert len(entries) >= 25
    for name, below in entries.items():
        assert below <= set(entries) - {name}
    assert sorted(map(len, entries.values())) == list(range(len(entries)))
    ground.drop(opened)
    assert sweep(ground.store) == Swept()
    assert ground.left() == {b"layers": depth(ground), b"work": 0, b"runs": 0}


def test_a_deep_cache_is_squashed_tier_by_tier(ground: Ground, caches: list[bytes]) -> None:
    depths = []
    for number in range(FAN * FAN + 3):
        fill(ground, caches[0], b"%d" % number)
        depths.append(depth(ground))
    assert max(depths) == 2 * (FAN - 1)
    assert depths[FAN * FAN - 1] == 1
    assert shown(ground, caches[0]) == {b"%d" % number for number in range(FAN * FAN + 3)}
    assert ground.left() == {b"layers": depth(ground), b"work": 0, b"runs": 0}
    assert ground.rows() == depth(ground)


def test_layers_that_a_run_has_mounted_stay_until_it_ends(ground: Ground, caches: list[bytes]) -> None:
    for number in range(FAN - 1):
        fill(ground, caches[0], b"%d" % number)
    slow = ground.open(caches[0])
    mounted = slow.caches[0].stack.lowers()
    assert len(mounted) == FAN
    fill(ground, caches[0], b"last")
    assert depth(ground) == 1
    assert sweep(ground.store) == Swept()
    assert all(os.path.isdir(lower) for lower in mounted)
    late = ground.open(caches[0])
    assert len(late.caches[0].stack.sealed) == 1
    ground.drop(slow)
    assert not any(os.path.isdir(lower) for lower in mounted[:-1])
    assert os.path.isdir(late.caches[0].stack.sealed[0].upper)
    ground.drop(late)
    assert ground.left() == {b"layers": 1, b"work": 0, b"runs": 0}


def test_a_cache_that_can_not_be_squashed_is_cut_back(ground: Ground, caches: list[bytes]) -> None:
    for number in range(FAN):
        opened = ground.open(caches[0])
        put(opened, b"%d" % number)
        if number == 3:
            os.mkdir(upper(opened, 1) + b"/closed", 0)
        ground.drop(opened)
    assert depth(ground) == 0
    assert ground.left() == NOTHING
    assert ground.rows() == 0
    fill(ground, caches[0], b"again")
    assert shown(ground, caches[0]) == {b"again"}


def test_a_run_over_a_cache_that_was_cut_back_meanwhile_does_not_fold(ground: Ground, caches: list[bytes]) -> None:
    fill(ground, caches[0], b"a")
    opened = ground.open(caches[0])
    put(opened, b"b")
    ground.store.caches.retire(ground.store.caches.sealed(ground.project))
    ground.drop(opened)
    assert shown(ground, caches[0]) == set()
    assert ground.left() == NOTHING


def test_a_squash_of_a_killed_process_is_swept(ground: Ground, caches: list[bytes]) -> None:
    opened = ground.open(caches[0])
    row = CacheRow(id=LayerId("f" * 16), project=ground.project, path=caches[0], run=opened.run.id, tier=1)
    ground.store.caches.add_open([row])
    write(os.path.join(ground.store.state, b"layers", row.id.encode(), b"half"))
    assert sweep(ground.store) == Swept()
    ground.store.transaction.change("UPDATE runs SET owner_boot = 'an earlier boot'")
    # What the run wrote to the project is for whoever opens that
    assert sweep(ground.store) == Swept()
    assert ground.store.caches.ids() == set()
    assert ground.left() == NOTHING | {b"layers": 1, b"work": 1}
    ground.store.transaction.change("UPDATE runs SET after_cancel = 'discard'")
    assert sweep(ground.store) == Swept(runs=(RunId(opened.run.id),))
    assert ground.left() == NOTHING
    assert ground.rows() == 0


def test_two_squashes_of_the_same_layers_do_not_both_succeed(ground: Ground, caches: list[bytes]) -> None:
    for number in range(3):
        fill(ground, caches[0], b"%d" % number)
    old = ground.store.caches.sealed(ground.project)
    rows = [
        CacheRow(id=LayerId(letter * 16), project=ground.project, path=caches[0], run=old[0].run, tier=1)
        for letter in "ef"
    ]
    ground.store.caches.add_open(rows)
    assert [ground.store.caches.replace(old, row) for row in rows] == [True, False]
    assert [row.id for row in ground.store.caches.sealed(ground.project)] == ["e" * 16]


FILESYSTEMS = {
    "ext4": Path(tempfile.gettempdir()),
    "tmpfs": Path("/dev/shm"),
    "xfs": MOUNTS / "xfs/work",
    "btrfs": MOUNTS / "btrfs/work",
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


PROGRAM = Path(__file__).with_name("overlay_views.py")


@pytest.mark.kernel
@pytest.mark.timeout(600)
def test_merged_uppers_show_the_same_over_any_tree(tmp_path: Path, full: bool) -> None:
    seeds = [str(seed) for seed in range(2000 if full else 60)]
    command = ["unshare", "-Urm", sys.executable, str(PROGRAM), str(tmp_path), *seeds]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")


@pytest.mark.kernel
@pytest.mark.parametrize("fault", ["opaque", "whiteouts", "covered"])
def test_the_judge_notices_a_wrong_merge(tmp_path: Path, fault: str) -> None:
    """The control arm: without opaque markers, without whiteouts, or with all of them, the views differ."""
    faults = {
        "opaque": "lifecycle.is_opaque = lambda path: False",
        "whiteouts": "lifecycle.is_whiteout = lambda status: True; link = lifecycle._link; import os, stat;"
        " lifecycle._link = lambda a, b: None if stat.S_ISCHR(os.lstat(a).st_mode) else link(a, b)",
        "covered": "lifecycle.is_whiteout = lambda status: False",
    }
    program = (
        f"import sys; sys.path.insert(0, {os.fspath(PROGRAM.parent)!r}); from unspill.layers import lifecycle;"
        f" {faults[fault]}\nimport overlay_views; overlay_views.main()"
    )
    command = ["unshare", "-Urm", sys.executable, "-c", program, str(tmp_path), *map(str, range(40, 80))]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "seed" in judged.stdout or "No such file" in judged.stderr


@pytest.fixture
def uppers(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    return old, new


def merged(tmp_path: Path, uppers: tuple[Path, Path]) -> Path:
    dest = tmp_path / "dest"
    dest.mkdir()
    (tmp_path / "live").mkdir()
    merge_uppers(tuple(map(os.fsencode, uppers)), (os.fsencode(tmp_path / "live"),), os.fsencode(dest))
    return dest


def test_nothing_is_copied(tmp_path: Path, uppers: tuple[Path, Path]) -> None:
    (uppers[0] / "d").mkdir()
    (uppers[0] / "d" / "file").write_text("old")
    dest = merged(tmp_path, uppers)
    assert (dest / "d" / "file").samefile(uppers[0] / "d" / "file")


def test_a_link_below_a_newer_directory_is_not_followed(tmp_path: Path, uppers: tuple[Path, Path]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (uppers[0] / "x").symlink_to(outside)
    (uppers[1] / "x").mkdir()
    (uppers[1] / "x" / "own").touch()
    dest = merged(tmp_path, uppers)
    assert os.listdir(dest / "x") == ["own"]
    assert os.getxattr(dest / "x", OPAQUE) == b"y"


def test_directories_that_may_not_be_written_are_filled_before_they_are_closed(
    tmp_path: Path, uppers: tuple[Path, Path]
) -> None:
    for top in uppers:
        (top / "mod" / "inner").mkdir(parents=True)
        (top / "mod" / "inner" / top.name).touch()
        (top / "mod" / "inner").chmod(0o555)
        (top / "mod").chmod(0o555)
    dest = merged(tmp_path, uppers)
    assert sorted(os.listdir(dest / "mod" / "inner")) == ["new", "old"]
    assert [stat.S_IMODE((dest / part).stat().st_mode) for part in ("mod", "mod/inner")] == [0o555, 0o555]
    for top in (*uppers, dest):
        (top / "mod").chmod(0o755)
        (top / "mod" / "inner").chmod(0o755)


def test_what_overlayfs_keeps_for_itself_stays_behind_but_escaped_attributes_come_along(
    tmp_path: Path, uppers: tuple[Path, Path]
) -> None:
    (uppers[1] / "d").mkdir()
    kept = {"user.mine": b"1", "user.overlay.overlay.opaque": b"y"}
    for name, value in {**kept, "user.overlay.origin": b"", "user.overlay.impure": b"y"}.items():
        os.setxattr(uppers[1] / "d", name, value)
    dest = merged(tmp_path, uppers)
    assert {name: os.getxattr(dest / "d", name) for name in os.listxattr(dest / "d")} == kept


@pytest.mark.parametrize("trouble", ["a directory that can't be read", "a path that is too long"])
def test_what_can_not_be_merged_fails(tmp_path: Path, uppers: tuple[Path, Path], trouble: str) -> None:
    if trouble == "a path that is too long":
        fd = os.open(uppers[0], os.O_RDONLY)
        for _ in range(20):
            os.mkdir("d" * 250, dir_fd=fd)
            below = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
    else:
        (uppers[0] / "closed").mkdir(mode=0)
    with pytest.raises(OSError):
        merged(tmp_path, uppers)
    if trouble != "a path that is too long":
        (uppers[0] / "closed").chmod(0o700)


@pytest.mark.slow
@pytest.mark.any_python
def test_whiteouts_may_have_more_links_than_one_inode_can_count(tmp_path: Path, uppers: tuple[Path, Path]) -> None:
    """The time buys 70,000 links, or as many as one inode of this filesystem can have."""
    first = os.fsencode(uppers[0]) + b"/0"
    os.mknod(first, stat.S_IFCHR, os.makedev(0, 0))
    count = 1
    try:
        while count < 70_000:
            os.link(first, os.fsencode(uppers[0]) + b"/%d" % count)
            count += 1
    except OSError:
        pass
    dest = merged(tmp_path, uppers)
    assert len(os.listdir(dest)) == count
    assert all(stat.S_ISCHR(os.lstat(dest / str(number)).st_mode) for number in (0, count // 2, count - 1))


PROJECTS = [b"/home/me/p", b"/home/me/q", b"/home/you/p", b"/home/me/p/", b"/home/me/\xff", b"/", b"/" + b"x" * 4000]


def test_a_playground_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    data = os.fsencode(tmp_path / "share" / "unspill")
    before = os.umask(0)
    try:
        path = playground_dir(data, b"/home/me/project")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    Path(os.fsdecode(path), "kept").touch()
    assert playground_dir(data, b"/home/me/project") == path
    assert os.listdir(path) == [b"kept"]
    assert os.path.basename(path).startswith(b"project-")


def test_a_playground_that_others_may_enter_is_closed_again(tmp_path: Path) -> None:
    path = playground_dir(os.fsencode(tmp_path), b"/p")
    os.chmod(path, 0o777)
    playground_dir(os.fsencode(tmp_path), b"/p")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    path = playground_dir(os.fsencode(tmp_path), b"/p")
    os.rmdir(path)
    os.symlink(tmp_path, path)
    with pytest.raises(RootRefused):
        playground_dir(os.fsencode(tmp_path), b"/p")


def test_a_place_where_none_can_be_made_is_an_error() -> None:
    with pytest.raises(StoreError):
        playground_dir(b"/proc/self", b"/p")


def test_different_projects_have_different_keys_that_are_plain_names() -> None:
    keys = {project_key(project) for project in PROJECTS}
    assert len(keys) == len(PROJECTS)
    assert all(key.replace(b"-", b"").isalnum() and len(key) < 64 for key in keys)
