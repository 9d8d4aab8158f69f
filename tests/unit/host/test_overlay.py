# SPDX-License-Identifier: Apache-2.0
"""Kinds and marks of an overlay, recognised by exact names only, and the mode of a directory that is half open."""

import os
import socket
from pathlib import Path

import pytest

from tests.unit.changes.trees import WHITEOUT, Dir, Fifo, File, Node, Symlink, build
from unspill.errors import SandboxUnavailable
from unspill.host.overlay import (
    before_opening,
    half_open,
    is_plain_attribute,
    is_user_attribute,
    is_whiteout,
    kind_of,
    refuse_foreign,
)


@pytest.mark.parametrize(
    ("node", "kind"),
    [(File(), "file"), (Dir(), "dir"), (Symlink(b"x"), "symlink"), (Fifo(), "special"), (WHITEOUT, "special")],
)
def test_an_entry_has_one_of_four_kinds(tmp_path: Path, node: Node, kind: str) -> None:
    build(tmp_path / "t", {"entry": node})
    status = os.lstat(tmp_path / "t" / "entry")
    assert kind_of(status) == kind
    assert is_whiteout(status) == (node is WHITEOUT)


def test_a_socket_is_special_and_no_whiteout(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "s"))
    assert kind_of(os.lstat(tmp_path / "s")) == "special"
    assert not is_whiteout(os.lstat(tmp_path / "s"))


def test_another_character_device_is_no_whiteout() -> None:
    assert not is_whiteout(os.lstat("/dev/null"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("user.note", True),
        ("user.overlays", True),
        ("user.overlay.overlay.opaque", True),
        ("user.overlay.overlay.overlay.x", True),
        ("user.overlay.opaque", False),
        ("user.overlay.origin", False),
        ("user.overlay.unknown", False),
        ("security.selinux", False),
        ("trusted.overlay.opaque", False),
    ],
)
def test_the_attributes_of_a_command_are_told_from_the_marks_of_the_kernel(name: str, wanted: bool) -> None:
    assert is_user_attribute(name) == wanted


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("user.mine", True),
        ("user.overlay", True),
        ("user.overlays.x", True),
        ("user.overlay.opaque", False),
        ("user.overlay.overlay.opaque", False),
        ("trusted.overlay.opaque", False),
        ("security.capability", False),
    ],
)
def test_only_names_that_no_overlay_reads_may_go_to_a_live_tree(name: str, *, plain: bool) -> None:
    assert is_plain_attribute(name) == plain


def test_marks_of_other_mounts_are_refused_by_exact_name() -> None:
    refuse_foreign(["user.overlay.origin", "user.overlay.overlay.redirect", "user.overlay.redirects"], b"d")
    with pytest.raises(SandboxUnavailable, match=r"user\.overlay\.redirect at b'd'") as caught:
        refuse_foreign(["user.overlay.redirect"], b"d")
    assert caught.value.remedy


@pytest.mark.parametrize("mode", range(0o1000))
def test_every_mode_without_special_bits_is_known_again(mode: int) -> None:
    between = half_open(mode)
    assert between & 0o700 == 0o200
    assert before_opening(between) == mode


@pytest.mark.parametrize("mode", [0o755, 0o000, 0o555, 0o200, 0o270, 0o2755, 0o1777, 0o6555])
def test_a_mode_that_nobody_is_about_to_change_is_what_it_is(mode: int) -> None:
    assert before_opening(mode) == mode


@pytest.mark.parametrize("mode", [0o2555, 0o1500, 0o6000])
def test_a_directory_with_special_bits_is_never_opened_wider_than_it_was(mode: int) -> None:
    assert half_open(mode) & ~0o200 & ~mode == 0
