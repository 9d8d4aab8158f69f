# SPDX-License-Identifier: Apache-2.0
"""Every benchmark works, ends with the JSON that all have, and keeps to its bars, with the short form's tolerance.

Takes about a minute: a benchmark that nothing runs is broken by the next change. With --full the cost of protection is
measured well, judged without a tolerance, and its figures are kept.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark_runs import PROGRAMS, is_within_bars, parse_report, run_benchmark
from tests.figures import record_figure

pytestmark = [pytest.mark.kernel, pytest.mark.bench, pytest.mark.alone, pytest.mark.timeout(600)]

PROTECTION = next(path for path in PROGRAMS if path.stem == "protection")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_in_its_short_form_ends_well_and_keeps_to_its_bars(program: Path) -> None:
    found = run_benchmark(program, "--short")
    assert found["name"] == program.stem
    assert [case for case in found["cases"] if case["ok"] is False] == []


def test_a_short_form_that_misses_a_bar_exits_with_1_and_still_reports(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        "from measuring import Case, parse_options, report\n"
        'cases = [Case("met", 10, "ms", 8, 1.0), Case("missed", 8000, "ms", 8, 1.0)]\n'
        'report("slow", cases, parse_options(""))\n'
    )
    path = str(PROTECTION.parent)
    for form, code, met in (("--short", 1, True), ("--json", 0, False)):
        words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); exec(open({str(program)!r}).read())"]
        done = subprocess.run([*words, form], capture_output=True, text=True, check=False)
        found = parse_report(done.stdout)
        assert (done.returncode, done.stderr) == (code, "")
        assert [case["ok"] for case in found["cases"]] == [met, False]
        assert not is_within_bars(found)


def test_a_case_without_a_ratio_is_an_error(tmp_path: Path) -> None:
    path = str(PROTECTION.parent)
    text = f"import sys; sys.path.insert(0, {path!r}); from measuring import Case; Case('memory', 1, 'MiB', -0.5, 1.5)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "memory: no ratio of 1 and -0.5" in done.stderr


@pytest.fixture(scope="module")
def protection(pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """Return the cases of what protection costs."""
    return list(run_benchmark(PROTECTION, "--full" if pytestconfig.getoption("--full") else "--short")["cases"])


def test_every_cost_of_protection_has_a_baseline_of_the_same_run(
    protection: list[dict[str, Any]],
) -> None:
    assert len(protection) == 8
    for case in protection:
        assert case["baseline"], case
        note = f"{case['value']:.4g} {case['unit']}, bar {case['bar']:g}".replace(" ,", ",")
        record_figure(f"protection, {case['case']}", f"{case['ratio']:.2f} times", note)


def test_500_connections_are_held_at_once(protection: list[dict[str, Any]]) -> None:
    (held,) = [case for case in protection if case["case"].startswith("connections held")]
    assert held["value"] == 500


def test_protection_misses_no_bar(protection: list[dict[str, Any]]) -> None:
    assert [case for case in protection if not case["ok"]] == []
