# SPDX-License-Identifier: Apache-2.0
"""What a tool call costs, by the benchmark: every adapter and both eras of MCP are measured and keep to their bars."""

import pytest

from tests.benchmark_runs import PROGRAMS, run_benchmark

pytestmark = [pytest.mark.kernel, pytest.mark.agents, pytest.mark.bench, pytest.mark.timeout(300)]


def test_every_adapter_is_measured_and_keeps_to_its_bar() -> None:
    found = run_benchmark(next(path for path in PROGRAMS if path.stem == "tools"), "--short")
    assert not [note for note in found["notes"] if "not installed" in note]
    assert [case for case in found["cases"] if case["ok"] is False] == []
