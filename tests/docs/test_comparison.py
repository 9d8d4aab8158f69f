# SPDX-License-Identifier: Apache-2.0
"""docs/comparison.md shows what the script would run, and has measured every tool or says why not."""

import re
import subprocess
import sys

import pytest

from tests.docs.tables import ROOT

DOCUMENT = (ROOT / "docs/comparison.md").read_text("utf-8")
MADE = DOCUMENT.partition("<!-- made by ")[2].partition("<!-- end -->")[0]


@pytest.fixture(scope="module")
def commands() -> list[str]:
    """The table of command lines, as the script prints it."""
    words = [sys.executable, str(ROOT / "benchmarks/peers/compare.py"), "--commands"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def rows_with(text: str) -> dict[str, list[str]]:
    """Return tables as rows, by what stands in their first cell."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            first, *rest = [cell.strip() for cell in re.split(r" \| ", line.strip("| "))]
            found.setdefault(first, []).append(" | ".join(rest))
    return found


def test_the_command_lines_are_those_that_the_script_runs(commands: list[str]) -> None:
    assert "\n".join(commands) in MADE, "run benchmarks/peers/compare.py --write"


def test_every_tool_was_measured_or_the_reason_is_given(commands: list[str]) -> None:
    names = [line.split(" | ")[0].strip("| ") for line in commands[2:]]
    assert len(names) >= 10
    found = rows_with(MADE)
    for name in names:
        times, *more = found[name]
        assert re.search(r"\d ms \(\d", times) or times.startswith("not measured | "), name
        # What it can read and undo, and its command line
        assert len(more) == (1 if times.startswith("not measured") else 2), name


def test_what_unspill_promises_is_what_was_found() -> None:
    for name in ("unspill run", "unspill, live"):
        _times, can, _command = rows_with(MADE)[name]
        assert can.split(" | ") == ["0 of 11", "no", "no", "6 of 6", "yes"]
