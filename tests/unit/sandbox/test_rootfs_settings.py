# SPDX-License-Identifier: Apache-2.0
"""A program's policy is checked as strictly as a file, and a link is no way round what stays private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unspill.errors import PolicyError
from unspill.model.policy import Policy
from unspill.model.rootfs import RootfsSpec
from unspill.sandbox.project import Locations, load_policy


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
