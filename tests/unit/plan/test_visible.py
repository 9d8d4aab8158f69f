# SPDX-License-Identifier: Apache-2.0
"""What a list of mounts shows of the host."""

from __future__ import annotations

import pytest

from unspill.errors import SandboxUnavailable
from unspill.model.plan import Bind, Dev, File, Overlay, ReadOnly, Symlink, Tmpfs
from unspill.plan.view import check_no_mounts_beneath_roots, find_cover, is_shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import MountOp

USR = Bind(source=b"/usr", dest=b"/usr", why="")
BIN = Symlink(target=b"usr/bin", dest=b"/bin", why="")
LOOP = Symlink(target=b"loop", dest=b"/loop", why="")
HOME = Tmpfs(dest=b"/home/ann", size_bytes=1, why="")
TOOLS = Overlay(lowers=(b"/e", b"/home/ann/tools"), dest=b"/home/ann/tools", why="")
PLAY = Bind(source=b"/state/play", dest=b"/home/ann/playground", why="", writable=True)
ROOT = Overlay(lowers=(b"/home/ann/p",), dest=b"/home/ann/p", upper=b"/u", work=b"/w", why="")
LAST = ReadOnly(dest=b"/", why="")
ALL: tuple[MountOp, ...] = (USR, BIN, LOOP, Dev(dest=b"/dev", why=""), HOME, TOOLS, PLAY, ROOT, LAST)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"/usr", True),
        (b"/usr/bin/x", True),
        (b"/bin", True),
        (b"/bin/x", True),
        (b"/loop/x", False),
        (b"/", False),
        (b"/etc", False),
        (b"/usrlocal", False),
        (b"/home/ann", False),
        (b"/home/ann/.ssh", False),
        (b"/home/ann/tools/bin", True),
        (b"/home/ann/p/x", True),
        (b"/home/ann/playground/x", False),
        (b"/dev/null", False),
    ],
)
def test_a_path_is_shown_where_the_hosts_own_is_seen(path: bytes, shown: bool) -> None:
    assert is_shown(ALL, path) == shown


def test_the_later_of_two_operations_on_one_place_decides() -> None:
    mask = Tmpfs(dest=b"/usr", size_bytes=1, why="")
    assert find_cover((USR, mask), b"/usr/x") == mask
    assert find_cover((mask, USR), b"/usr/x") == USR


def test_the_deepest_operation_decides_whatever_the_order() -> None:
    inner = Tmpfs(dest=b"/usr/local", size_bytes=1, why="")
    assert find_cover((inner, USR), b"/usr/local/x") == inner


@pytest.mark.parametrize("outer", [ROOT, PLAY], ids=["root", "playground"])
@pytest.mark.parametrize(
    "make",
    [
        lambda dest: Tmpfs(dest=dest, size_bytes=1, why=""),
        lambda dest: Bind(source=b"/dev/null", dest=dest, why=""),
        lambda dest: Symlink(target=b"x", dest=dest, why=""),
        lambda dest: File(content=b"", dest=dest, why=""),
        lambda dest: ReadOnly(dest=dest, why=""),
        lambda dest: Overlay(lowers=(b"/x",), dest=dest, why=""),
    ],
    ids=["tmpfs", "bind", "symlink", "file", "remount", "overlay"],
)
def test_nothing_is_mounted_beneath_what_a_command_can_write(outer: Overlay | Bind, make: object) -> None:
    inner = make(outer.dest + b"/x")  # type: ignore[operator]
    with pytest.raises(SandboxUnavailable, match="inside a writable directory"):
        check_no_mounts_beneath_roots((inner, outer))
    check_no_mounts_beneath_roots((make(outer.dest + b"-x"), outer))  # type: ignore[operator]


def test_a_root_may_lie_in_what_is_read_only() -> None:
    check_no_mounts_beneath_roots(ALL)
