# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel that would be shipped, from a copy of the checkout and without a network; loads scripts."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]


def copy_checkout(scratch: Path) -> None:
    """Copy what a wheel is built from."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, scratch)
    for name in ("src", "scripts"):
        shutil.copytree(ROOT / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))


def load_script(name: str) -> ModuleType:
    """Load a script of the project as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a directory that the first of all workers fills; tests only read it."""
    base = factory.getbasetemp()
    top = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, made = top / name, top / f"{name}.made"
    with (top / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place)
            made.touch()
    return place
