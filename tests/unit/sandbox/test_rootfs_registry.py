# SPDX-License-Identifier: Apache-2.0
"""The facade of every rootfs: what a program does with them, from real archives on disk."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from tests.rootfs_tree import make_small_tree
from unspill import Policy, RootfsRegistry, RootfsSpec
from unspill.errors import RootfsError, RootfsUnverified, UsageError
from unspill.model.rootfs import Progress
from unspill.sandbox.project import find_own_locations
from unspill.sandbox.rootfs_use import find_rootfs


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own."""
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", os.fspath(made))
    for name in ("ROOTFS_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "UNSPILL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return made


def archived(top: Path, content: str = "one") -> RootfsSpec:
    tree = make_small_tree(top / content)
    (tree / "etc/motd").write_text(content)
    path = top / "root.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(tree, ".")
    return RootfsSpec(source="archive", location=os.fspath(path), label="small")


def test_what_is_pulled_is_found_by_its_name_and_its_steps_are_told(tmp_path: Path, home: Path) -> None:
    registry = RootfsRegistry()
    assert (registry.list(), registry.current()) == ((), None)
    steps: list[Progress] = []
    made = registry.pull(archived(tmp_path), report=steps.append)
    assert made.tree.startswith(os.fsencode(home / ".local/share/unspill/rootfs/roots"))
    assert registry.list() == (made,)
    assert made == registry.current() == registry.find() == registry.find("small") == registry.find(made.name)
    assert registry.verify() == "none"
    assert steps[0].step == "resolving"
    assert registry.pull(archived(tmp_path / "again").replace(location=os.fspath(tmp_path / "root.tar"))) == made


def test_an_upgrade_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    registry = RootfsRegistry()
    old = registry.pull(archived(tmp_path))
    assert not registry.upgrade().is_newer
    archived(tmp_path, "two")
    upgraded = registry.upgrade("small")
    assert (upgraded.is_newer, upgraded.old) == (True, old)
    assert registry.current() == upgraded.new
    assert (Path(os.fsdecode(old.tree)) / "etc/motd").read_text() == "one"
    assert registry.use(old.name) == registry.current() == old
    assert registry.remove_unused() == ()
    assert registry.remove(upgraded.new.name) == upgraded.new.name


def test_a_directory_of_the_programs_own_choice_goes_before_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOTFS_DIR", os.fspath(tmp_path / "baked"))
    assert RootfsRegistry().directory == os.fsencode(tmp_path / "baked")
    assert RootfsRegistry(tmp_path / "mine").directory == os.fsencode(tmp_path / "mine")
    assert RootfsRegistry(policy=Policy(rootfs_dir=b"/srv/roots")).directory == b"/srv/roots"


def test_the_persons_file_says_where_and_the_variable_goes_before_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".config/unspill").mkdir(parents=True)
    (home / ".config/unspill/config.toml").write_text(f'rootfs_dir = "{tmp_path}/configured"\n')
    assert RootfsRegistry().directory == os.fsencode(tmp_path / "configured")
    monkeypatch.setenv("ROOTFS_DIR", os.fspath(tmp_path / "baked"))
    assert RootfsRegistry().directory == os.fsencode(tmp_path / "baked")


def test_what_a_policy_provides_is_found_in_a_directory_that_can_only_be_read(tmp_path: Path) -> None:
    spec = archived(tmp_path)
    registry = RootfsRegistry(tmp_path / "baked")
    made = registry.pull(spec)
    (tmp_path / "baked/current").unlink()
    # Where the archive is gone, nothing but what is ready can be meant
    (tmp_path / "root.tar").unlink()
    for path in (tmp_path / "baked", *(tmp_path / "baked").iterdir()):
        path.chmod(0o555)
    policy = Policy(view="rootfs", rootfs_dir=registry.directory, provision=spec)
    try:
        assert find_rootfs(policy, find_own_locations()) == made
    finally:
        for path in (tmp_path / "baked", *(tmp_path / "baked").iterdir()):
            path.chmod(0o755)


def test_a_wish_that_nobody_could_meet_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="location"):
        RootfsRegistry().pull(RootfsSpec(source="archive", label="x"))
    with pytest.raises(UsageError, match="source"):
        RootfsRegistry().pull(RootfsSpec(source="image"))  # type: ignore[arg-type]


def test_a_tree_that_was_made_by_hand_can_be_described_but_not_upgraded(tmp_path: Path) -> None:
    registry = RootfsRegistry(policy=Policy(rootfs=os.fspath(make_small_tree(tmp_path / "tree"))))
    assert registry.find().manifest is None
    with pytest.raises(RootfsError, match="no source"):
        registry.upgrade()
    with pytest.raises(RootfsUnverified, match="by hand"):
        registry.verify()
