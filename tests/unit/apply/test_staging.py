# SPDX-License-Identifier: Apache-2.0
"""Copies that go to a live tree in the place of entries of a layer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from unspill.apply.staging import OperationModes, copy_entry, drop_marks, give_mode_back, has_command_marks
from unspill.model.operation import OperationId

if TYPE_CHECKING:
    from pathlib import Path

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
