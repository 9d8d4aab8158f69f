# SPDX-License-Identifier: Apache-2.0
"""Where things are kept, and which directory is the project."""

import os
from pathlib import Path

import pytest

from unspill.errors import UsageError
from unspill.sandbox.locations import Locations, find_locations
from unspill.sandbox.project import find_project, resolve_project


def test_the_defaults_lie_in_the_home() -> None:
    assert find_locations(b"/h", {}) == Locations(
        home=b"/h", state=b"/h/.local/state/unspill", config=b"/h/.config/unspill", data=b"/h/.local/share/unspill"
    )


def test_xdg_variables_are_followed() -> None:
    variables = {b"XDG_STATE_HOME": b"/s", b"XDG_CONFIG_HOME": b"/c", b"XDG_DATA_HOME": b"/d"}
    found = find_locations(b"/h", variables)
    assert (found.state, found.config, found.data) == (b"/s/unspill", b"/c/unspill", b"/d/unspill")


def test_our_own_variable_goes_before_them() -> None:
    assert find_locations(b"/h", {b"UNSPILL_STATE_DIR": b"/mine", b"XDG_STATE_HOME": b"/s"}).state == b"/mine"


def test_an_empty_variable_is_none() -> None:
    assert (
        find_locations(b"/h", {b"XDG_STATE_HOME": b"", b"UNSPILL_STATE_DIR": b""}).state == b"/h/.local/state/unspill"
    )


@pytest.mark.parametrize("name", [b"UNSPILL_STATE_DIR", b"XDG_STATE_HOME", b"XDG_CONFIG_HOME", b"XDG_DATA_HOME"])
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
