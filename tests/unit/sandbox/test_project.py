# SPDX-License-Identifier: Apache-2.0
"""Where things are kept, which directory is the project, and that a program's policy is checked like a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from unspill.errors import PolicyError, UsageError
from unspill.model.policy import Policy
from unspill.model.rootfs import RootfsSpec
from unspill.sandbox.project import Locations, find_locations, find_project, load_policy, resolve_project
from unspill.store.db import Store


def test_the_defaults_lie_in_the_home() -> None:
    assert find_locations(b"/h", {}) == Locations(
        home=b"/h",
        state=b"/h/.local/state/unspill",
        config=b"/h/.config/unspill",
        data=b"/h/.local/share/unspill",
        rootfs=b"/h/.local/share/unspill/rootfs",
    )


def test_xdg_variables_are_followed() -> None:
    variables = {b"XDG_STATE_HOME": b"/s", b"XDG_CONFIG_HOME": b"/c", b"XDG_DATA_HOME": b"/d"}
    found = find_locations(b"/h", variables)
    assert (found.state, found.config, found.data) == (b"/s/unspill", b"/c/unspill", b"/d/unspill")


def test_our_own_variable_goes_before_them() -> None:
    assert find_locations(b"/h", {b"UNSPILL_STATE_DIR": b"/mine", b"XDG_STATE_HOME": b"/s"}).state == b"/mine"


def test_a_rootfs_that_was_baked_in_is_where_the_variable_says() -> None:
    assert find_locations(b"/h", {b"ROOTFS_DIR": b"/opt/roots", b"XDG_DATA_HOME": b"/d"}).rootfs == b"/opt/roots"
    assert find_locations(b"/h", {b"ROOTFS_DIR": b"", b"XDG_DATA_HOME": b"/d"}).rootfs == b"/d/unspill/rootfs"


def test_an_empty_variable_is_none() -> None:
    assert (
        find_locations(b"/h", {b"XDG_STATE_HOME": b"", b"UNSPILL_STATE_DIR": b""}).state == b"/h/.local/state/unspill"
    )


@pytest.mark.parametrize(
    "name", [b"UNSPILL_STATE_DIR", b"XDG_STATE_HOME", b"XDG_CONFIG_HOME", b"XDG_DATA_HOME", b"ROOTFS_DIR"]
)
def test_a_relative_path_is_refused(name: bytes) -> None:
    with pytest.raises(UsageError, match=name.decode()):
        find_locations(b"/h", {name: b"relative"})


def test_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    found = find_locations(b"/h", {b"UNSPILL_STATE_DIR": os.fsencode(tmp_path / "link")})
    assert found.state == os.fsencode(tmp_path / "real")


@pytest.mark.parametrize("mark", [".git", ".unspill.toml", ".hg", ".jj"])
def test_the_nearest_marked_directory_above_is_the_project(tmp_path: Path, mark: str) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / mark).mkdir()
    assert find_project(os.fsencode(tmp_path / "a" / "b" / "c")) == os.fsencode(tmp_path / "a")


def test_without_a_mark_it_is_where_the_person_stands(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert find_project(os.fsencode(tmp_path / "a")) == os.fsencode(tmp_path / "a")


def test_the_home_is_never_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a").mkdir()
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    assert find_project(os.fsencode(tmp_path / "a")) == os.fsencode(tmp_path / "a")


@pytest.fixture
def nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in a repository, and an own state directory."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("UNSPILL_STATE_DIR", os.fspath(state))
    (tmp_path / "outer" / ".git").mkdir(parents=True)
    (tmp_path / "outer" / "inner" / "src").mkdir(parents=True)
    return tmp_path / "outer" / "inner"


def use(project: Path, *, marked: bool) -> None:
    """Record a project as a run of it does."""
    with Store.open(os.fsencode(os.environ["UNSPILL_STATE_DIR"])) as store:
        row = store.sandboxes.get_or_create(os.fsencode(project), "default", 1, project.stat().st_ino)
        if marked:
            store.sandboxes.mark(row.id)


@pytest.mark.parametrize("where", ["", "src"])
def test_a_project_that_lost_its_mark_stays_one(nested: Path, where: str) -> None:
    start = os.fsencode(nested / where)
    assert find_project(start) == os.fsencode(nested.parent)
    use(nested, marked=True)
    assert find_project(start) == os.fsencode(nested)


def test_a_mark_that_a_person_makes_further_up_counts_where_there_never_was_one(nested: Path) -> None:
    use(nested, marked=False)
    assert find_project(os.fsencode(nested / "src")) == os.fsencode(nested.parent)


def test_another_directory_in_place_of_a_project_is_not_that_project(nested: Path) -> None:
    use(nested, marked=True)
    nested.rename(nested.parent / "old")
    nested.mkdir()
    assert find_project(os.fsencode(nested)) == os.fsencode(nested.parent)


def test_a_nearer_mark_counts_more_than_a_project_that_is_known(nested: Path) -> None:
    use(nested.parent, marked=True)
    (nested / ".git").mkdir()
    assert find_project(os.fsencode(nested / "src")) == os.fsencode(nested)


def test_a_project_that_is_known_is_never_further_up_than_where_the_person_stands_without_marks(nested: Path) -> None:
    use(nested, marked=True)
    (nested.parent / ".git").rmdir()
    assert find_project(os.fsencode(nested / "src")) == os.fsencode(nested / "src")


def test_a_project_is_named_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for given in (tmp_path / "link", os.fspath(tmp_path / "link"), os.fsencode(tmp_path / "link")):
        assert resolve_project(given) == os.fsencode(tmp_path / "real")


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_directory_is_no_project(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="no such project directory"):
        resolve_project(tmp_path / name)


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    home = tmp_path / "home"
    for name in ("state", "config", "data", "home/skills", "home/.ssh", "home/project"):
        (tmp_path / name).mkdir(parents=True)
    (home / "link").symlink_to(home / ".ssh")
    names = {name: str(tmp_path / name).encode() for name in ("home", "state", "config", "data")}
    return Locations(**names)


def load(locations: Locations, given: Policy | None) -> Policy:
    return load_policy(locations, locations.home + b"/project", given)


def test_a_policy_that_a_program_made_passes_if_all_of_it_is_right(locations: Locations) -> None:
    policy = Policy(
        view="rootfs",
        rootfs="alpine",
        rootfs_dir=b"/srv/roots",
        mounts=((b"/skills", locations.home + b"/skills"),),
        provision=RootfsSpec(source="alpine"),
        tmp="persistent",
    )
    assert load(locations, policy) == policy


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("view", {"view": "bare"}),
        ("roots", {"roots": "/srv/data"}),
        ("roots", {"roots": b"/srv/data"}),
        ("roots", {"roots": ("/srv/data",)}),
        ("tmp", {"tmp": "kept"}),
        ("rootfs", {"rootfs": "../x"}),
        ("rootfs", {"rootfs": "/a/../b"}),
        ("rootfs_dir", {"rootfs_dir": b"roots"}),
        ("mounts", {"mounts": ((b"/proc/x", b"/srv"),)}),
        ("mounts", {"mounts": ((b"/x", b"/srv"), (b"/x/y", b"/opt"))}),
        ("provision.tier", {"provision": RootfsSpec(source="alpine", tier=7)}),
    ],
    ids=str,
)
def test_what_is_wrong_in_it_is_named(locations: Locations, named: str, given: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=f"the policy's {named}"):
        load(locations, Policy(**given))


@pytest.mark.parametrize("name", [b".ssh", b"link", b""])
def test_a_secret_is_not_mounted_under_another_name(locations: Locations, name: bytes) -> None:
    directory = (locations.home + b"/" + name).rstrip(b"/")
    with pytest.raises(PolicyError, match="can't be mounted"):
        load(locations, Policy(mounts=((b"/skills", directory),)))
    own = f'[mounts]\n"/skills" = "{directory.decode()}"\n'
    Path((locations.config + b"/config.toml").decode()).write_text(own)
    with pytest.raises(PolicyError, match="can't be mounted"):
        load(locations, None)


def test_the_directory_of_the_rootfs_itself_is_not_mounted(locations: Locations) -> None:
    policy = Policy(rootfs_dir=b"/srv/roots", mounts=((b"/x", b"/srv/roots/staging"),))
    with pytest.raises(PolicyError, match="its own files"):
        load(locations, policy)
    assert load(locations, policy.replace(rootfs_dir=b"")).mounts
