# SPDX-License-Identifier: Apache-2.0
"""Linter, formatter, type checker and import contracts are tests, so that pytest alone is the whole gate."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.frameworks import framework_files
from tests.architecture.sources import ROOT, TREES

CACHE = Path.home() / ".cache" / "unspill-tests"
pytestmark = pytest.mark.timeout(300)


def check(*command: str | Path) -> None:
    """Run a tool of the virtual environment in the root of the project; it must be content."""
    tool = Path(sys.executable).with_name(str(command[0]))
    result = subprocess.run(
        [tool, *command[1:]],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if result.returncode != 0:
        print(result.stdout)
        pytest.fail(f"{command[0]} found something", pytrace=False)


def test_ruff_finds_nothing() -> None:
    check("ruff", "check", "--no-cache", *TREES)


def test_ruff_would_format_nothing_differently() -> None:
    check("ruff", "format", "--no-cache", "--check", *TREES)


@pytest.mark.slow
def test_mypy_is_content_with_every_file_that_needs_no_framework() -> None:
    """The others are checked where the frameworks are: tests/agents/test_extras.py."""
    others = (word for path in sorted(framework_files()) for word in ("--exclude", f"^{re.escape(path)}$"))
    check("mypy", "--cache-dir", CACHE / "mypy", *others, *TREES)


def test_packages_import_downwards_only_and_keep_inside_their_fences() -> None:
    check("lint-imports", "--no-cache")
