# SPDX-License-Identifier: Apache-2.0
"""A run's own control group. Version 2 with controllers can't be had here: its tree is made of plain files."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unspill.host import cgroup
from unspill.host.cgroup import make_group, sweep_groups
from unspill.model.policy import Limits

if TYPE_CHECKING:
    from unspill.model.plan import CgroupKind

MIB = 1 << 20


@pytest.fixture
def made_up_v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a group as systemd delegates one: ours, with both controllers handed down, this process beside."""
    top = tmp_path / "app.slice"
    own = top / "shell.scope"
    own.mkdir(parents=True)
    for group, handed_down in ((top, "memory pids"), (own, "")):
        (group / "cgroup.subtree_control").write_text(handed_down)
        (group / "cgroup.procs").write_text("")
    monkeypatch.setattr(cgroup, "read_memberships", lambda: {b"": os.fsencode(own)})
    return top


@pytest.fixture
def made_up_v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("")
    monkeypatch.setattr(
        cgroup, "read_memberships", lambda: {name: os.fsencode(tmp_path) + b"/" + name for name in (b"memory", b"pids")}
    )
    return tmp_path


def bounds(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_on_a_made_up_tree_of_version_2_all_bounds_are_in_one_group_beside_the_caller(made_up_v2: Path) -> None:
    group = make_group("v2", "abc", Limits(processes=64, memory_bytes=200 * MIB))
    assert group is not None
    place = made_up_v2 / "unspill-run-abc"
    assert bounds(place) == {"pids.max": "64", "memory.max": str(200 * MIB), "memory.swap.max": "0"}
    assert group.member_files() == (bytes(place / "cgroup.procs"),)


def test_on_a_made_up_tree_of_version_1_each_controller_has_a_group_of_its_own(made_up_v1: Path) -> None:
    group = make_group("v1", "abc", Limits(processes=64, memory_bytes=200 * MIB))
    assert group is not None
    size = str(200 * MIB)
    assert bounds(made_up_v1 / "memory" / "unspill-run-abc") == {
        "memory.limit_in_bytes": size,
        "memory.memsw.limit_in_bytes": size,
    }
    assert bounds(made_up_v1 / "pids" / "unspill-run-abc") == {"pids.max": "64"}
    assert len(group.member_files()) == 2


def test_on_a_made_up_tree_what_is_unlimited_is_not_bounded(made_up_v2: Path) -> None:
    assert make_group("v2", "abc", Limits(processes=None, memory_bytes=None)) is not None
    assert bounds(made_up_v2 / "unspill-run-abc") == {}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ({}, None),
        ({"memory.events": "low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n", "pids.events": "max 0\n"}, None),
        ({"memory.events": "max 9\noom 1\noom_kill 1\noom_group_kill 0\n"}, "memory"),
        ({"pids.events": "max 3\n"}, "processes"),
        ({"memory.events": "oom_kill 2\n", "pids.events": "max 3\n"}, "memory"),
        ({"memory.events": "oom_group_kill 1\noom_kill 0\n"}, None),
    ],
)
def test_on_a_made_up_tree_of_version_2_the_bound_that_was_hit_is_told_by_the_counters(
    made_up_v2: Path, events: dict[str, str], expected: str | None
) -> None:
    group = make_group("v2", "abc", Limits())
    assert group is not None
    for name, text in events.items():
        (made_up_v2 / "unspill-run-abc" / name).write_text(text)
    assert group.reached() == expected


@pytest.mark.parametrize(
    ("control", "expected"), [("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "memory"), ("", None)]
)
def test_on_a_made_up_tree_of_version_1_the_counter_has_another_name(
    made_up_v1: Path, control: str, expected: str | None
) -> None:
    group = make_group("v1", "abc", Limits())
    assert group is not None
    (made_up_v1 / "memory" / "unspill-run-abc" / "memory.oom_control").write_text(control)
    assert group.reached() == expected


@pytest.mark.usefixtures("made_up_v2")
def test_a_group_that_exists_already_is_somebody_elses_and_the_run_has_none() -> None:
    assert make_group("v2", "abc", Limits()) is not None
    assert make_group("v2", "abc", Limits()) is None


def test_on_a_made_up_tree_an_empty_group_of_a_dead_run_is_removed_and_no_other(made_up_v2: Path) -> None:
    for name in ("dead", "alive"):
        (made_up_v2 / f"unspill-run-{name}").mkdir()
    sweep_groups("v2", ["dead", "never-there"])
    assert {path.name for path in made_up_v2.iterdir() if path.is_dir()} == {"shell.scope", "unspill-run-alive"}


@pytest.mark.parametrize("kind", ["none", "v1", "v2"])
def test_where_nothing_is_delegated_there_is_no_group(kind: "CgroupKind", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "read_memberships", dict)
    assert make_group(kind, "abc", Limits()) is None
