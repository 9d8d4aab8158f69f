# SPDX-License-Identifier: Apache-2.0
"""What protection costs, by the benchmark itself: its figures are kept, and judged where there is time to measure well.

Without --full only its form is looked at, and what does not depend on who else is at work.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "protection.py"
FIELDS = {"case", "value", "unit", "baseline", "ratio", "bar", "ok"}


@pytest.fixture(scope="module")
def cases(pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """Run the benchmark once and return its cases."""
    words = [sys.executable, str(PROGRAM), "--json", "--full" if pytestconfig.getoption("--full") else "--quick"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["name"] == "protection"
    return list(found["cases"])


def test_every_case_is_judged_against_a_baseline_of_the_same_run(cases: list[dict[str, Any]]) -> None:
    assert len(cases) == 8
    for case in cases:
        assert set(case) == FIELDS
        assert case["baseline"], case
        note = f"{case['value']:.4g} {case['unit']}, bar {case['bar']:g}".replace(" ,", ",")
        record_figure(f"protection, {case['case']}", f"{case['ratio']:.2f} times", note)


def test_500_connections_are_held_at_once(cases: list[dict[str, Any]]) -> None:
    (held,) = [case for case in cases if case["case"].startswith("connections held")]
    assert held["value"] == 500


def test_no_bar_is_missed(cases: list[dict[str, Any]], full: bool) -> None:
    missed = [case for case in cases if not case["ok"]]
    assert not full or missed == []
