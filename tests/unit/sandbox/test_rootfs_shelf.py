# SPDX-License-Identifier: Apache-2.0
"""The facade of every rootfs: what a program does with them, from real archives on disk."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from tests.rootfs_tree import make_small_tree
from unspill import Policy, RootfsShelf, RootfsWish
from unspill.errors import RootfsError, RootfsUnverified, UsageError
from unspill.model.rootfs import Progress
from unspill.sandbox.rootfs_use import find_rootfs
from unspill.sandbox.upkeep import find_own_locations


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own."""
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", os.fspath(made))
    for name in ("ROOTFS_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "UNSPILL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return made


def archived(top: Path, content: str = "one") -> RootfsWish:
    tree = make_small_tree(top / content)
    (tree / "etc/motd").write_text(content)
    path = top / "root.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(tree, ".")
    return RootfsWish(source="archive", location=os.fspath(path), label="small")


def test_what_is_pulled_is_found_by_its_name_and_its_steps_are_told(tmp_path: Path, home: Path) -> None:
    shelf = RootfsShelf()
    assert (shelf.list(), shelf.current()) == ((), None)
    steps: list[Progress] = []
    made = shelf.pull(archived(tmp_path), report=steps.append)
    assert made.tree.startswith(os.fsencode(home / ".local/share/unspill/rootfs/roots"))
    assert shelf.list() == (made,)
    assert made == shelf.current() == shelf.find() == shelf.find("small") == shelf.find(made.name)
    assert shelf.verify() == "none"
    assert steps[0].step == "resolving"
    assert shelf.pull(archived(tmp_path / "again").replace(location=os.fspath(tmp_path / "root.tar"))) == made


def test_an_upgrade_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    shelf = RootfsShelf()
    old = shelf.pull(archived(tmp_path))
    assert not shelf.upgrade().is_newer
    archived(tmp_path, "two")
    upgraded = shelf.upgrade("small")
    assert (upgraded.is_newer, upgraded.old) == (True, old)
    assert shelf.current() == upgraded.new
    assert (Path(os.fsdecode(old.tree)) / "etc/motd").read_text() == "one"
    assert shelf.use(old.name) == shelf.current() == old
    assert shelf.remove_unused() == ()
    assert shelf.remove(upgraded.new.name) == upgraded.new.name


def test_a_directory_of_the_programs_own_choice_goes_before_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOTFS_DIR", os.fspath(tmp_path / "baked"))
    assert RootfsShelf().directory == os.fsencode(tmp_path / "baked")
    assert RootfsShelf(tmp_path / "mine").directory == os.fsencode(tmp_path / "mine")
    assert RootfsShelf(policy=Policy(rootfs_dir=b"/srv/roots")).directory == b"/srv/roots"


def test_the_persons_file_says_where_and_the_variable_goes_before_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".config/unspill").mkdir(parents=True)
    (home / ".config/unspill/config.toml").write_text(f'rootfs_dir = "{tmp_path}/configured"\n')
    assert RootfsShelf().directory == os.fsencode(tmp_path / "configured")
    monkeypatch.setenv("ROOTFS_DIR", os.fspath(tmp_path / "baked"))
    assert RootfsShelf().directory == os.fsencode(tmp_path / "baked")


def test_what_a_policy_provides_is_found_in_a_directory_that_can_only_be_read(tmp_path: Path) -> None:
    wish = archived(tmp_path)
    shelf = RootfsShelf(tmp_path / "baked")
    made = shelf.pull(wish)
    (tmp_path / "baked/current").unlink()
    # Where the archive is gone, nothing but what is ready can be meant
    (tmp_path / "root.tar").unlink()
    for path in (tmp_path / "baked", *(tmp_path / "baked").iterdir()):
        path.chmod(0o555)
    policy = Policy(view="rootfs", rootfs_dir=shelf.directory, provision=wish)
    try:
        assert find_rootfs(policy, find_own_locations()) == made
    finally:
        for path in (tmp_path / "baked", *(tmp_path / "baked").iterdir()):
            path.chmod(0o755)


def test_a_wish_that_nobody_could_meet_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="location"):
        RootfsShelf().pull(RootfsWish(source="archive", label="x"))
    with pytest.raises(UsageError, match="source"):
        RootfsShelf().pull(RootfsWish(source="image"))  # type: ignore[arg-type]


def test_a_tree_that_was_made_by_hand_can_be_described_but_not_upgraded(tmp_path: Path) -> None:
    shelf = RootfsShelf(policy=Policy(rootfs=os.fspath(make_small_tree(tmp_path / "tree"))))
    assert shelf.find().manifest is None
    with pytest.raises(RootfsError, match="no source"):
        shelf.upgrade()
    with pytest.raises(RootfsUnverified, match="by hand"):
        shelf.verify()
