# SPDX-License-Identifier: Apache-2.0
"""Bits and attributes of live directories, changed in place and taken back from any point in between."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from unspill.apply.staging import change_metadata, has_metadata, metadata_of, was_between
from unspill.model.operation import Metadata

PLAIN = Metadata(mode=0o755, attributes=(("user.a", b"1"), ("user.same", b"s")))
OTHER = Metadata(mode=0o500, attributes=(("user.a", b"2"), ("user.b", b"\xff"), ("user.same", b"s")))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "d"
    path.mkdir()
    for name, value in PLAIN.attributes:
        os.setxattr(path, name, value)
    path.chmod(PLAIN.mode)
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)
    path.chmod(0o700)


@pytest.mark.parametrize(
    "becomes", [OTHER, PLAIN, Metadata(mode=0o755), Metadata(mode=0o700, attributes=PLAIN.attributes)]
)
def test_a_directory_has_what_it_is_given_and_gets_its_own_back(directory: int, becomes: Metadata) -> None:
    change_metadata(directory, PLAIN, becomes)
    assert has_metadata(directory, becomes)
    change_metadata(directory, becomes, PLAIN)
    assert metadata_of(directory) == PLAIN


def test_a_change_that_stopped_half_way_is_recognised(directory: int) -> None:
    path = f"/proc/self/fd/{directory}"
    os.setxattr(path, "user.a", b"2")
    assert was_between(directory, PLAIN, OTHER)
    os.setxattr(path, "user.b", b"\xff")
    assert was_between(directory, PLAIN, OTHER)
    os.chmod(path, 0o500)
    assert was_between(directory, PLAIN, OTHER)


@pytest.mark.parametrize(("name", "value"), [("user.a", b"3"), ("user.theirs", b"x")])
def test_an_attribute_of_somebody_else_is_not_mistaken_for_ours(directory: int, name: str, value: bytes) -> None:
    os.setxattr(f"/proc/self/fd/{directory}", name, value)
    assert not was_between(directory, PLAIN, OTHER)


def test_a_directory_that_was_opened_to_change_its_attributes_is_recognised(directory: int) -> None:
    path = f"/proc/self/fd/{directory}"
    closed = OTHER.replace(mode=0o555)
    os.chmod(path, 0o755)
    assert was_between(directory, closed, PLAIN.replace(mode=0o555))
    change_metadata(directory, PLAIN, closed)
    assert metadata_of(directory) == closed


def test_another_mode_is_not_mistaken_for_ours(directory: int) -> None:
    os.chmod(f"/proc/self/fd/{directory}", 0o711)
    assert not was_between(directory, PLAIN, OTHER)


@pytest.mark.parametrize("mark", ["user.overlay.opaque", "user.overlay.overlay.opaque"])
def test_marks_of_overlays_are_neither_seen_nor_set_nor_removed(directory: int, mark: str) -> None:
    path = f"/proc/self/fd/{directory}"
    os.setxattr(path, mark, b"y")
    assert metadata_of(directory) == PLAIN
    forged = OTHER.replace(mode=0o755, attributes=(*OTHER.attributes, ("user.overlay.redirect", b"/")))
    change_metadata(directory, PLAIN, forged)
    assert sorted(os.listxattr(path)) == ["user.a", "user.b", mark, "user.same"]
    change_metadata(directory, forged, PLAIN)
    assert metadata_of(directory) == PLAIN
    assert os.getxattr(path, mark) == b"y"
