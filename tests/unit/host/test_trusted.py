# SPDX-License-Identifier: Apache-2.0
"""A directory is the caller's and root's alone only if each one above it is."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from unspill.host.bwrap import find_changeable, find_changeable_way


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "above" / "place"
    path.mkdir(parents=True)
    for directory in (path, path.parent):
        directory.chmod(0o755)
    return path


CASES = {
    "the usual": ("place", 0o755, ""),
    "nobody else may even look": ("place", 0o700, ""),
    "a group may write": ("place", 0o775, "can be changed by others"),
    "all may write": ("place", 0o757, "can be changed by others"),
    "all may write, though it is sticky": ("place", 0o1777, "can be changed by others"),
    "all may write above": ("above", 0o777, "can be changed by others"),
    "others but the group may write above": ("above", 0o757, "can be changed by others"),
    "all may write above, where it is sticky": ("above", 0o1777, ""),
}


@pytest.mark.parametrize(("which", "mode", "reason"), CASES.values(), ids=CASES)
def test_a_mode_by_which_others_could_replace_it_is_found(place: Path, which: str, mode: int, reason: str) -> None:
    changed = place if which == "place" else place.parent
    changed.chmod(mode)
    found = find_changeable(os.fsencode(place))
    assert (found.reason if found else "") == reason
    assert found is None or found.path == os.fsencode(changed)


def test_a_group_of_the_caller_alone_is_nobody_else_and_any_other_group_is(place: Path) -> None:
    person = pwd.getpwuid(os.geteuid())
    is_alone = grp.getgrgid(person.pw_gid).gr_name == person.pw_name
    place.parent.chmod(0o775)
    assert (find_changeable(os.fsencode(place)) is None) == is_alone
    others = [group for group in os.getgroups() if group != person.pw_gid]
    for group in others[:1]:
        os.chown(place.parent, -1, group)
        place.parent.chmod(0o775)
        assert find_changeable(os.fsencode(place)) is not None


def test_what_is_no_directory_or_of_somebody_else_is_found(place: Path) -> None:
    (place / "file").touch()
    (place / "link").symlink_to("/")
    for name, reason in (("file", "is not a directory"), ("link", "is not a directory"), ("none", "can't be read")):
        found = find_changeable(os.fsencode(place / name))
        assert found is not None
        assert found.reason.startswith(reason)
    assert find_changeable(b"/usr") is None


def _other(place: Path) -> Path:
    """Lead from a place in an open directory to another directory of the caller's own."""
    other = place.parent.parent / "other"
    other.mkdir()
    (place.parent / "link").symlink_to(other)
    return place.parent / "link"


@pytest.mark.parametrize("below", ["", "deeper/still", "./..//other"])
@pytest.mark.parametrize(("mode", "is_found"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_link_that_others_could_have_laid_is_found(place: Path, below: str, mode: int, is_found: bool) -> None:
    way = _other(place) / below
    place.parent.chmod(mode)
    assert (find_changeable_way(os.fsencode(way)) is not None) == is_found
    # The control: where the way ends nothing is wrong
    assert find_changeable(os.fsencode(place.parent.parent / "other")) is None


def test_a_link_behind_a_link_is_found_too_and_a_loop_has_an_end(place: Path) -> None:
    way = _other(place)
    first = place.parent.parent / "first"
    first.symlink_to("above/link")
    assert find_changeable_way(os.fsencode(first)) is None
    place.parent.chmod(0o777)
    found = find_changeable_way(os.fsencode(first))
    assert found is not None
    assert found.path == os.fsencode(way.parent)
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    assert find_changeable_way(os.fsencode(place / "a")) is not None
