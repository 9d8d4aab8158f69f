# SPDX-License-Identifier: Apache-2.0
"""Each project has a playground of its own, which stays, for its owner alone."""

import os
import stat
from pathlib import Path

import pytest

from unspill.errors import RootRefused, StoreError
from unspill.layers.lifecycle import playground_dir, project_key

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
