# SPDX-License-Identifier: Apache-2.0
"""An entry is recognised after a rename, and not after anything else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from unspill.apply.steps import entry_of, matches


def rename(path: Path) -> None:
    path.rename(path.with_name("moved"))
    (path.with_name("moved")).rename(path)


def write(path: Path) -> None:
    path.write_text("other")


def replace(path: Path) -> None:
    path.with_name("new").write_text("text")
    path.with_name("new").rename(path)


def chmod(path: Path) -> None:
    path.chmod(0o600)


def swap_for_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("x")


@pytest.mark.parametrize(
    ("change", "is_same"), [(rename, True), (write, False), (replace, False), (chmod, False), (swap_for_link, False)]
)
def test_only_a_rename_leaves_a_file_what_it_was(tmp_path: Path, change: Callable[[Path], None], is_same: bool) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    path.chmod(0o644)
    os.utime(path, ns=(1, 1))
    entry = entry_of(os.lstat(path))
    change(path)
    assert matches(os.lstat(path), entry) == is_same


def test_a_directory_is_the_same_whatever_is_in_it(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    entry = entry_of(os.lstat(directory))
    (directory / "x").write_text("x")
    directory.chmod(0o700)
    assert matches(os.lstat(directory), entry)
