# SPDX-License-Identifier: Apache-2.0
"""What lost its spawner and its caller is found by its name and killed; whatever only looks like it is not."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.support import Ground, run_cli
from unspill.host.job import kill_strays, run_name

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, name: bytes) -> "subprocess.Popen[bytes]":
    """Start a program that stays alive under a name, until the test ends."""
    program = stack.enter_context(subprocess.Popen([name, b"1000"], executable="/bin/sleep"))
    stack.callback(program.kill)
    return program


def test_only_processes_with_the_very_name_of_a_run_are_killed(started: ExitStack) -> None:
    strays = [start(started, run_name("0123")) for _ in range(3)]
    others = [start(started, name) for name in (run_name("01234"), run_name("012"), b"x" + run_name("0123"))]
    assert kill_strays(["0123", "4567"]) == 3
    assert [stray.wait(1) for stray in strays] == [-9, -9, -9]
    assert [other.poll() for other in others] == [None, None, None]
    assert kill_strays(["0123"]) == 0


def test_a_process_that_gets_its_name_a_little_later_is_found(started: ExitStack) -> None:
    script = f"sleep 0.1; exec -a {run_name('89ab').decode()} sleep 1000"
    late = started.enter_context(subprocess.Popen(["bash", "-c", script]))
    started.callback(late.kill)
    assert kill_strays(["89ab"]) == 0
    assert kill_strays(["89ab"], settle_s=0.5) == 1
    assert late.wait(1) == -9


def test_the_next_start_kills_what_is_alive_of_a_run_whose_caller_is_dead(ground: Ground, started: ExitStack) -> None:
    run_cli("run", "-q", "-c", "true", cwd=ground.project)
    with closing(sqlite3.connect(ground.state / "store.db")) as db, db:
        # As a killed caller leaves it: no end, and an owner that nobody is
        db.execute("UPDATE runs SET ended_ns = NULL, owner_started = owner_started + 1")
        ((run,),) = db.execute("SELECT id FROM runs")
    stray = start(started, run_name(run))
    assert run_cli("run", "-q", "-c", "true", cwd=ground.project).returncode == 0
    assert stray.wait(1) == -9
