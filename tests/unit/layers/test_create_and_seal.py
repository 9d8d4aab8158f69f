# SPDX-License-Identifier: Apache-2.0
"""Runs are opened with a layer over each root, and closed into sealed layers or nothing."""

import os
import resource
import stat
from pathlib import Path

import pytest

from tests.unit.layers.ground import NOTHING, Ground, ended, layers_of, leave_work, upper, write
from unspill.errors import RootRefused, SandboxUnavailable
from unspill.layers.lifecycle import clean, discard_stacks, drop_run, load_stacks, seal_run
from unspill.layers.sweep import sweep
from unspill.store.state import list_aside


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
    (stack,) = seal_run(ground.store, opened, ended(opened)).stacks
    assert len(stack.sealed) == 1, "a changed mode of the root is a change"
    again = ground.open()
    assert mode(upper(again)) == 0o711
    assert os.getxattr(upper(again), "user.mine") == b"1"


def test_a_held_layer_is_under_the_next_run(ground: Ground) -> None:
    first, second = ground.hold(b"a"), ground.hold(b"b", b"d/c")
    (before,), (after,) = first.stacks, second.stacks
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
    run = ground.store.runs.find(closed.stacks[0].sealed[0].run)
    assert run is not None
    assert run.held


def test_a_layer_that_nothing_was_written_to_is_dropped(ground: Ground) -> None:
    (stack,) = ground.hold().stacks
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
    assert [len(stack.sealed) for stack in closed.stacks] == [0, 1]
    assert load_stacks(ground.store, ground.sandbox.id, (other, ground.project)) == closed.stacks[::-1]
    assert ground.left() == {b"layers": 1, b"work": 0, b"runs": 0}


def test_a_dropped_run_leaves_nothing_but_its_record(ground: Ground) -> None:
    opened = ground.open()
    write(upper(opened) + b"/deep/er/file")
    ground.drop(opened)
    assert ground.left() == NOTHING
    assert ground.rows() == 0
    assert ground.store.runs.find(opened.run.id) == ended(opened)


@pytest.mark.parametrize("is_killed", [True, False])
def test_directories_can_be_left_for_later(ground: Ground, is_killed: bool) -> None:
    opened = ground.open()
    write(upper(opened) + b"/file")
    leave_work(opened)
    closed = drop_run(ground.store, opened, ended(opened), defer=True)
    assert ground.left() == {b"layers": 1, b"work": 1, b"runs": 0}
    assert os.path.exists(upper(opened) + b".dropped/file")
    assert ground.rows() == 0
    if is_killed:
        sweep(ground.store)
    else:
        clean(ground.store.state, closed.garbage)
    assert ground.left() == NOTHING
    assert list_aside(ground.store.state) == {}


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
    with pytest.raises(SandboxUnavailable, match="still going on"):
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
