# SPDX-License-Identifier: Apache-2.0
"""A person whose home is outside of /tmp, for sandboxes that keep their /tmp: nothing may be mounted in that."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import Ground


@pytest.fixture
def apart(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with `home`, configured as the one of `ground`, and `tmp`, where directories are made for a while."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="unspill-tests-") as directory:
        top = Path(directory)
        for name in ("home", "tmp"):
            (top / name).mkdir(mode=0o700)
        monkeypatch.setenv("HOME", os.fspath(top / "home"))
        monkeypatch.setattr(tempfile, "tempdir", os.fspath(top / "tmp"))
        if (ground.home / ".config").is_dir():
            (top / "home/.config").symlink_to(ground.home / ".config")
        yield top


def left() -> list[str]:
    """Return what sandboxes have left there: projects, temporary files, playgrounds."""
    data = Path(os.environ["HOME"], ".local/share/unspill")
    return sorted(os.fspath(path) for path in (*Path(tempfile.gettempdir()).iterdir(), *data.glob("*/*")))
