# SPDX-License-Identifier: Apache-2.0
"""Where control groups may be made. Version 2 with controllers can't be had here: its tree is made of plain files."""

import os
from pathlib import Path

import pytest

from unspill.host.probe_cgroup import find_classic, find_delegated, probe_cgroup, read_memberships


def make_group(path: Path, *, hands_down: str = "", is_ours: bool = True) -> bytes:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.subtree_control").write_text(hands_down)
    (path / "cgroup.procs").write_text("")
    if not is_ours:
        (path / "cgroup.procs").chmod(0o444)
    return os.fsencode(path)


def test_on_a_made_up_tree_the_nearest_group_that_hands_both_controllers_down_is_taken(tmp_path: Path) -> None:
    make_group(tmp_path, hands_down="cpu memory pids", is_ours=False)
    make_group(tmp_path / "user.service", hands_down="memory pids")
    slice_ = make_group(tmp_path / "user.service/app.slice", hands_down="memory pids")
    own = make_group(tmp_path / "user.service/app.slice/shell.scope")
    place = find_delegated({b"": own})
    assert (place.kind, place.parents) == ("v2", (slice_,))


@pytest.mark.parametrize("hands_down", ["", "memory", "pids", "cpu io", "memorypids"])
def test_on_a_made_up_tree_a_group_without_both_controllers_is_not_taken(hands_down: str, tmp_path: Path) -> None:
    own = make_group(tmp_path / "own", hands_down=hands_down)
    place = find_delegated({b"": own})
    assert place.kind == "none"
    assert "delegated" in place.reason


def test_on_a_made_up_tree_a_group_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    own = make_group(tmp_path / "own", hands_down="memory pids", is_ours=False)
    assert find_delegated({b"": own}).kind == "none"


def test_without_any_version_2_the_reason_says_so() -> None:
    assert "version 2" in find_delegated({}).reason


def test_on_a_made_up_tree_version_1_needs_both_controllers(tmp_path: Path) -> None:
    groups = {name.encode(): make_group(tmp_path / name) for name in ("memory", "pids")}
    place = find_classic(groups)
    assert (place.kind, place.parents) == ("v1", (groups[b"memory"], groups[b"pids"]))
    assert find_classic({b"pids": groups[b"pids"]}).kind == "none"


def test_the_groups_of_this_process_are_directories() -> None:
    memberships = read_memberships()
    assert memberships
    assert all(os.path.isdir(group) for group in memberships.values())


def test_an_ordinary_user_without_delegation_is_told_why() -> None:
    place = probe_cgroup()
    assert place.kind in {"none", "v2"}
    assert bool(place.reason) is (place.kind == "none")


@pytest.mark.root
def test_root_can_make_groups_and_leaves_none_behind() -> None:
    place = probe_cgroup()
    assert place.kind in {"v1", "v2"}, place.reason
    for parent in place.parents:
        assert not [name for name in os.listdir(parent) if name.startswith(b"unspill-probe")]
