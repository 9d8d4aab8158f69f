# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel that would be shipped, from a copy of the checkout, without a network."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def copy_checkout(scratch: Path) -> None:
    """Copy what a wheel is built from."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, scratch)
    for name in ("src", "scripts"):
        shutil.copytree(ROOT / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))


def build_wheel(scratch: Path) -> Path:
    """Return a wheel of the checkout; copied first because the checkout may be read-only."""
    copy_checkout(scratch)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    result = subprocess.run(
        command, cwd=scratch, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert result.returncode == 0, result.stdout
    (path,) = Path(scratch, "dist").glob("*.whl")
    return path
