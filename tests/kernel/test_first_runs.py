# SPDX-License-Identifier: Apache-2.0
"""The first runs of a person, many at once: each finds out for itself what the machine can do, and all run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ground

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def run_at_once(ground: Ground, count: int) -> list[tuple[str, str]]:
    """Start so many runs in a new state directory, and return what each of them printed and what unspill said."""
    shutil.rmtree(ground.state)
    program = os.fspath(Path(sys.executable).with_name("unspill"))
    started = [
        subprocess.Popen(
            [program, "run", "-q", "--sandbox", f"s{number}", "-c", f"echo {number}"],
            cwd=ground.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    return [process.communicate(timeout=1200) for process in started]


@pytest.mark.timeout(7200)
def test_first_runs_at_once_all_run(ground: Ground, full: bool) -> None:
    count, rounds = (200, 10) if full else (12, 2)
    for _ in range(rounds):
        assert run_at_once(ground, count) == [(f"{number}\n", "") for number in range(count)]
