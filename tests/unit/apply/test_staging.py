# SPDX-License-Identifier: Apache-2.0
"""Copies that go to a live tree, and the metadata of live directories, changed in place and taken back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from unspill.apply.staging import (
    OperationModes,
    change_metadata,
    copy_entry,
    drop_marks,
    give_mode_back,
    has_command_marks,
    has_metadata,
    metadata_of,
    was_between,
)
from unspill.model.operation import Metadata, OperationId

# As stored in a layer, and whether a live file may have it
ATTRIBUTES = {
    "user.mine": True,
    "user.overlay.origin": False,
    "user.overlay.impure": False,
    "user.overlay.overlay.opaque": False,
    "user.overlay.overlay.whiteout": False,
}


@pytest.fixture
def modes(tmp_path: Path) -> OperationModes:
    (tmp_path / "state" / "operations").mkdir(parents=True)
    return OperationModes(os.fsencode(tmp_path / "state"), OperationId("0" * 16))


def test_a_copy_has_no_attribute_that_an_overlay_would_take_for_its_own(tmp_path: Path, modes: OperationModes) -> None:
    (tmp_path / "file").write_text("content")
    for name in ATTRIBUTES:
        os.setxattr(tmp_path / "file", name, b"y")
    top = os.open(tmp_path, os.O_RDONLY)
    try:
        assert has_command_marks(top, b"file")
        assert drop_marks(os.fsencode(tmp_path), b"file", top, b"file", modes)
        copy_entry(top, b"file", os.stat(tmp_path / "file"), top, b"copy", modes)
    finally:
        os.close(top)
    assert os.listxattr(tmp_path / "copy") == [name for name, may_live in ATTRIBUTES.items() if may_live]
    assert (tmp_path / "copy").read_text() == "content"


def test_a_file_with_marks_of_the_kernel_alone_goes_itself_without_them(tmp_path: Path, modes: OperationModes) -> None:
    (tmp_path / "file").write_text("content")
    for name in ("user.mine", "user.overlay.origin", "user.overlay.impure"):
        os.setxattr(tmp_path / "file", name, b"y")
    top = os.open(tmp_path, os.O_RDONLY)
    try:
        assert not has_command_marks(top, b"file")
        assert not drop_marks(os.fsencode(tmp_path), b"file", top, b"file", modes)
    finally:
        os.close(top)
    assert os.listxattr(tmp_path / "file") == ["user.mine"]


@pytest.mark.parametrize(("more", "mode"), [((1, 0), 0o200), ((0, 1), 0o600)], ids=["another device", "another inode"])
def test_a_borrowed_mode_goes_back_after_a_reboot_that_gave_the_device_another_number(
    tmp_path: Path, modes: OperationModes, more: tuple[int, int], mode: int
) -> None:
    """A changed note stands for the reboot."""
    operation = OperationId("0" * 16)
    note = tmp_path / "state" / "operations" / operation / "loan"
    note.parent.mkdir()
    (tmp_path / "file").touch(0o200)
    handle = os.open(tmp_path / "file", os.O_PATH)
    modes.borrow(handle, 0o200, 0o400)
    os.close(handle)
    device, inode, rest = note.read_text().split(" ", 2)
    note.write_text(f"{int(device) + more[0]} {int(inode) + more[1]} {rest}")
    give_mode_back(os.fsencode(tmp_path / "state"), operation)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert not note.exists()


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
