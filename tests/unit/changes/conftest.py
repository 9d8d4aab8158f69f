# SPDX-License-Identifier: Apache-2.0
"""A place for layers and live trees, on a filesystem with user attributes and whiteouts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.changes.trees import Stack


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    place = tmp_path / "stack"
    place.mkdir()
    yield Stack(place)
    remove(os.fspath(place))


def remove(root: str) -> None:
    """Remove a tree of any depth and mode: each directory is moved up before it is emptied."""
    moved = 0
    pending = [root]
    while pending:
        directory = pending.pop()
        os.chmod(directory, 0o700)
        for entry in list(os.scandir(directory)):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                moved += 1
                pending.append(f"{root}.{moved}")
                os.rename(entry.path, pending[-1])
            else:
                os.unlink(entry.path)
        os.rmdir(directory)
