# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark as a program, each form of it once per test session, and checks the JSON that it ends with."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support import MOUNTS

BENCHMARKS: Final = Path(__file__).parents[1] / "benchmarks"
# What every benchmark has; the others are parts of these
PROGRAMS: Final = sorted(path for path in BENCHMARKS.rglob("*.py") if "\nfrom measuring import" in path.read_text())
OTHER_FILESYSTEMS: Final = (MOUNTS / "xfs/work", MOUNTS / "btrfs/work")
FIELDS: Final = {"case", "value", "unit", "baseline", "ratio", "bar", "ok"}
# Another job can slow a few seconds down by any factor, but hardly three times in a row
ATTEMPTS: Final = 3


@functools.cache
def run_benchmark(program: Path, form: str) -> dict[str, Any]:
    """Return what a benchmark reports; with a bar that is missed, the last of several attempts.

    Raises:
        AssertionError: it failed, or its last line is not of the form that all have.
    """
    words = [sys.executable, str(program), "--json", form]
    if '"--on"' in program.read_text():
        words += [word for place in OTHER_FILESYSTEMS for word in ("--on", str(place))]
    for _ in range(ATTEMPTS):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        found = parse_report(done.stdout)
        assert done.returncode == (0 if is_within_bars(found) or form != "--short" else 1), done.stderr
        if is_within_bars(found):
            break
    return found


def parse_report(printed: str) -> dict[str, Any]:
    """Return the last line of a benchmark's output, which must be of the form that all have."""
    assert printed, "the benchmark printed nothing"
    found = json.loads(printed.splitlines()[-1])
    assert isinstance(found["name"], str)
    assert found["cases"]
    for case in found["cases"]:
        assert set(case) == FIELDS
        assert isinstance(case["case"], str)
        assert case["value"] >= 0
        assert case["baseline"] is None or case["baseline"] > 0, case
        assert (case["ratio"] is None) == (case["baseline"] is None) == (case["ok"] is None), case
    return dict(found)


def is_within_bars(found: dict[str, Any]) -> bool:
    """Tell whether no case missed its bar, which with --short has a tolerance."""
    return all(case["ok"] is not False for case in found["cases"])
