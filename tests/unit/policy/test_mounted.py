# SPDX-License-Identifier: Apache-2.0
"""What of the host may be mounted into a rootfs, and where: never what is private, never over what a sandbox has."""

from __future__ import annotations

import pytest

from unspill.policy.defaults import mount_place_problem, mount_places_problem, mount_source_problem

HOME = b"/home/ann"
OWN = (b"/home/ann/.local/state/unspill", b"/srv/roots")


@pytest.mark.parametrize("place", [b"/skills", b"/opt/data", b"/home/ann/skills", b"/etc/app", b"/var/lib", b"/tmpx"])
def test_a_place_of_its_own_is_free(place: bytes) -> None:
    assert mount_place_problem(place) == ""


@pytest.mark.parametrize(
    "place",
    [
        b"",
        b"x",
        b"/",
        b"/proc",
        b"/dev/shm",
        b"/sys",
        b"/run/x",
        b"/tmp",
        b"/var/tmp/x",
        b"/workspace",
        b"/a/../b",
        b"/a\0",
    ],
)
def test_a_place_that_a_sandbox_has_itself_is_not_free(place: bytes) -> None:
    assert mount_place_problem(place)


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ([b"/a", b"/b", b"/ab"], ""),
        ([b"/a", b"/a"], "/a appears twice"),
        ([b"/a/b/c", b"/a"], "/a/b/c is inside /a"),
    ],
)
def test_no_place_lies_inside_another(places: list[bytes], problem: str) -> None:
    assert mount_places_problem(places) == problem


@pytest.mark.parametrize("directory", [b"/home/ann/skills", b"/srv/data", b"/opt", b"/var/lib/app", b"/home/bob/x"])
def test_an_ordinary_directory_can_be_mounted(directory: bytes) -> None:
    assert mount_source_problem(directory, home=HOME, own=OWN) == ""


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        (b"/", "home directory"),
        (b"/home", "home directory"),
        (HOME, "home directory"),
        (b"relative", "absolute"),
        (b"/a/../b", "normalised"),
        (b"/srv/roots/x", "its own files"),
        (b"/srv", "its own files"),
        (b"/home/ann/.ssh", "never shown"),
        (b"/home/ann/.ssh/keys", "never shown"),
        (b"/home/ann/.config", "contains"),
        (b"/var", "contains /var/"),
        (b"/proc/1", "kernel"),
        (b"/run/user/1000", "kernel"),
    ],
)
def test_what_is_private_is_never_mounted(directory: bytes, why: str) -> None:
    assert why in mount_source_problem(directory, home=HOME, own=OWN)
