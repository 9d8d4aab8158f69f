# SPDX-License-Identifier: Apache-2.0
"""What is told of refused accesses in a rootfs: nothing of what the host has, all of what the rootfs refuses."""

from __future__ import annotations

import pytest

from unspill.model.plan import Bind, Directory, File, Overlay, ReadOnly, Symlink, Tmpfs
from unspill.plan.explain import Judge, remedy_of

MOUNTS = (
    Bind(source=b"/r/usr", dest=b"/usr", why="of the rootfs, read-only"),
    Bind(source=b"/r/etc", dest=b"/etc", why="of the rootfs, read-only"),
    Directory(dest=b"/srv", why="of the rootfs, empty"),
    Symlink(target=b"usr/bin", dest=b"/bin", why=""),
    Tmpfs(dest=b"/tmp", size_bytes=1, why="temporary files"),
    Overlay(lowers=(b"/home/ann/shop",), dest=b"/workspace", upper=b"/u", work=b"/w", why="root"),
    Overlay(lowers=(b"/e", b"/home/ann/read"), dest=b"/home/ann/read", why="readable by your policy"),
    File(content=b"root:x:0:0::/:/bin/sh\n", dest=b"/etc/passwd", over=True, why="the caller has a name inside"),
    Tmpfs(dest=b"/home/ann/read/private", size_bytes=1, mode=0o555, why="hidden by your policy"),
    ReadOnly(dest=b"/home/ann/read/private", why=""),
)
JUDGE = Judge(MOUNTS, has_rootfs=True)


@pytest.mark.parametrize(
    "path", [b"/home/ann/notes", b"/data/x", b"/tmp/none", b"/etc/none", b"/etc/passwd", b"/bin/none", b"/srv/x"]
)
def test_nothing_is_told_of_a_file_that_a_rootfs_does_not_have(path: bytes) -> None:
    assert JUDGE.refusal(path, is_write=False) is None


def test_masks_are_told_as_anywhere() -> None:
    refusal = JUDGE.refusal(b"/home/ann/read/private/x", is_write=False)
    assert refusal is not None
    assert refusal.kind == "masked"


@pytest.mark.parametrize("path", [b"/usr/x", b"/bin/x", b"/etc/x", b"/srv/x"])
def test_a_write_to_the_rootfs_is_told_with_the_setting_that_allows_it(path: bytes) -> None:
    refusal = JUDGE.refusal(path, is_write=True)
    assert refusal is not None
    assert refusal.kind == "read-only"
    assert "`rootfs_writable = true`" in remedy_of(refusal, is_write=True, home=b"/workspace")


@pytest.mark.parametrize(
    ("path", "word"), [(b"/data/x", "--root /data"), (b"/home/ann/read/x", "--root /home/ann/read")]
)
def test_a_write_elsewhere_is_told_with_the_root_that_allows_it(path: bytes, word: str) -> None:
    refusal = JUDGE.refusal(path, is_write=True)
    assert refusal is not None
    assert word in remedy_of(refusal, is_write=True, home=b"/workspace")


def test_a_file_with_a_content_is_no_mask_in_any_view() -> None:
    assert Judge(MOUNTS).refusal(b"/etc/passwd", is_write=False) is None
