# SPDX-License-Identifier: Apache-2.0
"""What a run and its apply cost does not grow with the runs that a sandbox has had.

Both sandboxes are measured in turns, each time from opening to closing, and neighbours are compared: whatever else
the machine does falls on both. The processor time of this process tells more exactly what rows cost, since nearly all
of the time that passes is the sandbox's own. Other programs only ever add to a ratio of times that passed, so of three
series the best one counts; of processor time a single series is enough.
"""

import os
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support import Ground
from unspill import Sandbox
from unspill.sandbox import scan

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(600), pytest.mark.bwrap]

FEW, MANY = 100, 20_000
BAR = 1.2
ROUNDS = 15
OF_EACH: dict[str, dict[str, Any]] = {
    # What of a generated row differs from the one that it is made like
    "runs": {"stdout_head": b"printed\n" * 50, "held": 0},
    "operations": {"is_recorded": 1},
}


def add_rows(state: Path, table: str, count: int) -> None:
    """Record a number of runs or operations like the one that was really done."""
    with closing(sqlite3.connect(state / "store.db")) as db, db:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "seq"]
        (done,) = db.execute(f"SELECT {', '.join(columns)} FROM {table}")
        like = dict(zip(columns, done, strict=True)) | OF_EACH[table]
        rows = (
            tuple((like | {"id": os.urandom(8).hex(), "number": like["number"] + number}).values())
            for number in range(1, count)
        )
        db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})", rows)
        if table == "operations":
            db.execute("UPDATE counters SET number = ?", (count,))


class Arm:
    """A project whose sandbox has had a number of runs, each of them applied."""

    def __init__(self, ground: Ground, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ground, self._patch = ground, monkeypatch
        self.project, self.state = ground.home / f"project-{count}", ground.top / f"state-{count}"
        self.project.mkdir()
        self.state.mkdir(mode=0o700)
        (self.project / "file").write_text("0\n")
        self.run_and_apply()
        for table in OF_EACH:
            add_rows(self.state, table, count)
        self._number = 0

    def run_and_apply(self) -> None:
        self._patch.setenv("UNSPILL_STATE_DIR", os.fspath(self.state))
        # As a new process does, which looks first for what others have left
        scan._swept.clear()
        with Sandbox(self.project, policy=self._ground.policy()) as sandbox:
            assert sandbox.run("date +%N > file", after="apply").operation

    def measure(self) -> tuple[float, float]:
        """Return the time that passes and the processor time of this process."""
        begun, spent = time.perf_counter(), time.process_time()
        self.run_and_apply()
        return time.perf_counter() - begun, time.process_time() - spent


def ratios(few: Arm, many: Arm) -> tuple[float, float]:
    """Return how much longer it takes after many runs: in time that passes, and in processor time."""
    pairs = []
    for number in range(ROUNDS):
        arms = (few, many) if number % 2 else (many, few)
        measured = {arm: arm.measure() for arm in arms}
        pairs.append((measured[few], measured[many]))
    return statistics.median(b[0] / a[0] for a, b in pairs), statistics.median(b[1] / a[1] for a, b in pairs)


@pytest.fixture
def arms(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> tuple[Arm, Arm]:
    return Arm(ground, FEW, monkeypatch), Arm(ground, MANY, monkeypatch)


def test_a_run_and_its_apply_take_as_long_after_twenty_thousand_runs_as_after_a_hundred(
    arms: tuple[Arm, Arm],
) -> None:
    series = [ratios(*arms)]
    while series[-1][0] > BAR and len(series) < 3:
        series.append(ratios(*arms))
    assert min(passed for passed, _spent in series) <= BAR, series
    assert series[0][1] <= BAR, series


def test_without_the_index_on_held_runs_it_takes_longer(arms: tuple[Arm, Arm]) -> None:
    """The control arm: the time of processing is what tells."""
    for arm in arms:
        with closing(sqlite3.connect(arm.state / "store.db")) as db, db:
            db.execute("DROP INDEX runs_held")
    assert ratios(*arms)[1] > BAR
