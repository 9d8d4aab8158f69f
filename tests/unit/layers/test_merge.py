# SPDX-License-Identifier: Apache-2.0
"""Merged uppers show what the stack showed; the kernel is the judge."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from unspill.host.overlay import OPAQUE
from unspill.layers.lifecycle import merge_uppers

PROGRAM = Path(__file__).with_name("overlay_views.py")


@pytest.mark.kernel
@pytest.mark.timeout(600)
def test_merged_uppers_show_the_same_over_any_tree(tmp_path: Path, full: bool) -> None:
    seeds = [str(seed) for seed in range(2000 if full else 60)]
    command = ["unshare", "-Urm", sys.executable, str(PROGRAM), str(tmp_path), *seeds]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")


@pytest.mark.kernel
@pytest.mark.parametrize("fault", ["opaque", "whiteouts", "covered"])
def test_the_judge_notices_a_wrong_merge(tmp_path: Path, fault: str) -> None:
    """The control arm: without opaque markers, without whiteouts, or with all of them, the views differ."""
    faults = {
        "opaque": "lifecycle.is_opaque = lambda path: False",
        "whiteouts": "lifecycle.is_whiteout = lambda status: True; link = lifecycle._link; import os, stat;"
        " lifecycle._link = lambda a, b: None if stat.S_ISCHR(os.lstat(a).st_mode) else link(a, b)",
        "covered": "lifecycle.is_whiteout = lambda status: False",
    }
    program = (
        f"import sys; sys.path.insert(0, {os.fspath(PROGRAM.parent)!r}); from unspill.layers import lifecycle;"
        f" {faults[fault]}\nimport overlay_views; overlay_views.main()"
    )
    command = ["unshare", "-Urm", sys.executable, "-c", program, str(tmp_path), *map(str, range(40, 80))]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "seed" in judged.stdout or "No such file" in judged.stderr


@pytest.fixture
def uppers(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    return old, new


def merged(tmp_path: Path, uppers: tuple[Path, Path]) -> Path:
    dest = tmp_path / "dest"
    dest.mkdir()
    (tmp_path / "live").mkdir()
    merge_uppers(tuple(map(os.fsencode, uppers)), (os.fsencode(tmp_path / "live"),), os.fsencode(dest))
    return dest


def test_nothing_is_copied(tmp_path: Path, uppers: tuple[Path, Path]) -> None:
    (uppers[0] / "d").mkdir()
    (uppers[0] / "d" / "file").write_text("old")
    dest = merged(tmp_path, uppers)
    assert (dest / "d" / "file").samefile(uppers[0] / "d" / "file")


def test_a_link_below_a_newer_directory_is_not_followed(tmp_path: Path, uppers: tuple[Path, Path]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (uppers[0] / "x").symlink_to(outside)
    (uppers[1] / "x").mkdir()
    (uppers[1] / "x" / "own").touch()
    dest = merged(tmp_path, uppers)
    assert os.listdir(dest / "x") == ["own"]
    assert os.getxattr(dest / "x", OPAQUE) == b"y"


def test_directories_that_may_not_be_written_are_filled_before_they_are_closed(
    tmp_path: Path, uppers: tuple[Path, Path]
) -> None:
    for upper in uppers:
        (upper / "mod" / "inner").mkdir(parents=True)
        (upper / "mod" / "inner" / upper.name).touch()
        (upper / "mod" / "inner").chmod(0o555)
        (upper / "mod").chmod(0o555)
    dest = merged(tmp_path, uppers)
    assert sorted(os.listdir(dest / "mod" / "inner")) == ["new", "old"]
    assert [stat.S_IMODE((dest / part).stat().st_mode) for part in ("mod", "mod/inner")] == [0o555, 0o555]
    for top in (*uppers, dest):
        (top / "mod").chmod(0o755)
        (top / "mod" / "inner").chmod(0o755)


def test_what_overlayfs_keeps_for_itself_stays_behind_but_escaped_attributes_come_along(
    tmp_path: Path, uppers: tuple[Path, Path]
) -> None:
    (uppers[1] / "d").mkdir()
    kept = {"user.mine": b"1", "user.overlay.overlay.opaque": b"y"}
    for name, value in {**kept, "user.overlay.origin": b"", "user.overlay.impure": b"y"}.items():
        os.setxattr(uppers[1] / "d", name, value)
    dest = merged(tmp_path, uppers)
    assert {name: os.getxattr(dest / "d", name) for name in os.listxattr(dest / "d")} == kept


@pytest.mark.parametrize("trouble", ["a directory that can't be read", "a path that is too long"])
def test_what_can_not_be_merged_fails(tmp_path: Path, uppers: tuple[Path, Path], trouble: str) -> None:
    if trouble == "a path that is too long":
        fd = os.open(uppers[0], os.O_RDONLY)
        for _ in range(20):
            os.mkdir("d" * 250, dir_fd=fd)
            below = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
    else:
        (uppers[0] / "closed").mkdir(mode=0)
    with pytest.raises(OSError):
        merged(tmp_path, uppers)
    if trouble != "a path that is too long":
        (uppers[0] / "closed").chmod(0o700)


@pytest.mark.slow
def test_whiteouts_may_have_more_links_than_one_inode_can_count(tmp_path: Path, uppers: tuple[Path, Path]) -> None:
    first = os.fsencode(uppers[0]) + b"/0"
    os.mknod(first, stat.S_IFCHR, os.makedev(0, 0))
    count = 1
    try:
        while count < 70_000:
            os.link(first, os.fsencode(uppers[0]) + b"/%d" % count)
            count += 1
    except OSError:
        pass
    dest = merged(tmp_path, uppers)
    assert len(os.listdir(dest)) == count
    assert all(stat.S_ISCHR(os.lstat(dest / str(number)).st_mode) for number in (0, count // 2, count - 1))
