# SPDX-License-Identifier: Apache-2.0
"""Which rootfs a policy means: a directory that nobody else can change, one by its name, the one in use, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.rootfs.making import make
from unspill.errors import RootfsError, RootfsUnsafe
from unspill.model.policy import Policy
from unspill.model.rootfs import RootfsSpec
from unspill.rootfs.registry import Registry
from unspill.sandbox.project import Locations, rootfs_directory
from unspill.sandbox.rootfs_use import find_rootfs


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    for name in ("home/tree/bin", "home/.ssh", "home/project/tree", "state", "config", "data/rootfs"):
        (tmp_path / name).mkdir(parents=True, mode=0o755)
    tmp_path.chmod(0o755)
    names = {name: os.fsencode(tmp_path / name) for name in ("home", "state", "config", "data")}
    return Locations(**names, rootfs=names["data"] + b"/rootfs")


def find(locations: Locations, path: bytes, *roots: bytes) -> bytes:
    return find_rootfs(Policy(view="rootfs", rootfs=os.fsdecode(path)), locations, roots).tree


def test_a_directory_of_the_persons_own_is_taken_as_it_is(locations: Locations) -> None:
    tree = locations.home + b"/tree"
    found = find_rootfs(Policy(view="rootfs", rootfs=os.fsdecode(tree)), locations)
    assert (found.tree, found.name, found.manifest) == (tree, os.fsdecode(tree), None)
    os.symlink(tree, locations.home + b"/link")
    assert find(locations, locations.home + b"/link") == tree


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (b"", "home directory"),
        (b"/..", "home directory"),
        (b"/.ssh", "never shown"),
        (b"/../state", "its own files"),
        (b"/../data/rootfs/staging/x/tree", "its own files"),
        (b"/nothing", "No such file"),
        (b"/file", "not a directory"),
    ],
)
def test_what_is_no_tree_of_its_own_is_refused(locations: Locations, name: bytes, why: str) -> None:
    Path(os.fsdecode(locations.home), "file").touch()
    with pytest.raises(RootfsUnsafe, match=why) as refused:
        find(locations, os.path.normpath(locations.home + name))
    assert refused.value.remedy


def test_the_host_itself_is_never_the_rootfs(locations: Locations) -> None:
    with pytest.raises(RootfsUnsafe, match="whole file system"):
        find(locations, b"/")


def test_a_tree_that_commands_may_write_is_refused(locations: Locations) -> None:
    project = locations.home + b"/project"
    assert find(locations, project + b"/tree") == project + b"/tree"
    with pytest.raises(RootfsUnsafe, match="what commands may write"):
        find(locations, project + b"/tree", project)
    with pytest.raises(RootfsUnsafe, match="what commands may write"):
        find(locations, project, project + b"/tree")


@pytest.mark.parametrize("at", ["tree", "."])
def test_a_tree_that_others_could_change_is_refused(locations: Locations, at: str) -> None:
    tree, place = locations.home + b"/tree", Path(os.fsdecode(locations.home), at)
    assert find(locations, tree) == tree
    place.chmod(0o777)
    with pytest.raises(RootfsUnsafe, match="can be changed by others"):
        find(locations, tree)
    place.chmod(0o1777)
    if at == ".":
        assert find(locations, tree) == tree


def test_without_any_the_remedy_says_how_to_get_one(locations: Locations) -> None:
    for name in ("", "alpine"):
        with pytest.raises(RootfsError, match="There is no rootfs") as missing:
            find_rootfs(Policy(view="rootfs", rootfs=name), locations)
        assert "unspill rootfs pull alpine" in missing.value.remedy
        assert missing.value.exit_code == 8


def test_where_there_are_some_but_none_in_use_the_remedy_says_how_to_choose(locations: Locations) -> None:
    made = make(Registry(locations.rootfs))
    os.unlink(locations.rootfs + b"/current")
    with pytest.raises(RootfsError, match="no rootfs in use") as missing:
        find_rootfs(Policy(view="rootfs"), locations)
    assert "unspill rootfs use NAME" in missing.value.remedy
    # A policy means what it names: a longer name that happens to begin so is another one
    with pytest.raises(RootfsError, match="no rootfs alp "):
        find_rootfs(Policy(view="rootfs", rootfs="alp"), locations)
    assert find_rootfs(Policy(view="rootfs", rootfs="alpine"), locations) == made


def test_what_would_be_made_must_be_what_is_named(locations: Locations) -> None:
    policy = Policy(view="rootfs", rootfs="debian", provision=RootfsSpec(source="alpine"))
    with pytest.raises(RootfsError, match="would make alpine"):
        find_rootfs(policy, locations)


def test_a_program_may_choose_another_directory(locations: Locations) -> None:
    assert rootfs_directory(Policy(), locations) == locations.rootfs
    assert rootfs_directory(Policy(rootfs_dir=b"/srv/roots"), locations) == b"/srv/roots"


def test_a_link_that_others_could_have_laid_does_not_choose_the_directory(locations: Locations, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "rootfs").symlink_to(os.fsdecode(locations.rootfs))
    (shared / "tree").symlink_to(os.fsdecode(locations.home + b"/tree"))
    way = os.fsencode(shared / "rootfs")
    named = locations.replace(rootfs_way=way)
    shared.chmod(0o755)
    assert rootfs_directory(Policy(), named) == rootfs_directory(Policy(rootfs_dir=way), locations) == locations.rootfs
    assert find(locations, os.fsencode(shared / "tree")) == locations.home + b"/tree"
    shared.chmod(0o777)
    for policy, places in ((Policy(), named), (Policy(rootfs_dir=way), locations)):
        with pytest.raises(RootfsUnsafe, match="shared can be changed by others"):
            rootfs_directory(policy, places)
    with pytest.raises(RootfsUnsafe, match="can be changed by others"):
        find(locations, os.fsencode(shared / "tree"))
