# SPDX-License-Identifier: Apache-2.0
"""A process that has a run going on is killed: whoever opens the project next holds what the run has written."""

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.killed_callers import Callers, callers, kill, start
from tests.kernel.leftovers import state_problems
from tests.support import NO_CACHES, Ground, kinds, printed, processes_with, run_cli
from unspill import LimitReached
from unspill.model.policy import MIB

__all__ = ["callers"]

pytestmark = pytest.mark.kernel


def told(ground: Ground, *words: str) -> list[str]:
    """Return what a new process says on stderr."""
    return run_cli(*(words or ("log",)), cwd=ground.project).stderr.decode().splitlines()


@pytest.mark.parametrize(
    "settings", [{"after": "apply"}, {"after": "apply", "after_cancel": "apply"}, {"after": "hold"}]
)
def test_what_a_killed_run_has_written_is_held_and_told_once(
    ground: Ground, callers: Callers, settings: dict[str, str]
) -> None:
    ground.write("edited", "old\n")
    ground.write("deleted", "old\n")
    kill(callers, ground, "echo new > edited; rm deleted; mkdir d; echo x > d/file", **settings)
    sandbox = ground.sandbox(after="apply")
    changed = {"edited": "modified", "deleted": "deleted", "d": "added", "d/file": "added"}
    assert kinds(sandbox.changes()) == changed
    (run,) = sandbox.interrupted_runs
    assert (run.number, run.outcome, run.held, run.changed) == (1, None, True, 4)
    assert sandbox.find_run(1) == run
    assert sandbox.describe_interrupted(run).startswith("Run 1 was interrupted: ")
    assert ground.sandbox().interrupted_runs == ()
    assert state_problems(ground.state) == []
    assert (ground.project / "edited").read_text() == "old\n"
    assert printed(sandbox.run("cat edited d/file", after="discard")) == "new\nx\n"
    assert sandbox.apply().left == ()
    assert (ground.project / "edited").read_text() == "new\n"
    assert not (ground.project / "deleted").exists()


def test_with_every_engine_it_is_held(ground: Ground, callers: Callers, engine: str) -> None:
    ground.write("kept", "same")
    kill(callers, ground, "echo x > file", after="apply")
    assert kinds(ground.sandbox().changes()) == {"file": "added"}
    assert state_problems(ground.state) == []
    assert processes_with("written") == []


def test_the_command_line_says_so_before_anything_else_and_once(ground: Ground, callers: Callers) -> None:
    start(callers, ground, "echo x > file")
    kill(callers, ground, "echo y > other", name="agent")
    callers[0].kill()
    callers[0].wait()
    first, second, summary, listed = told(ground, "run", "--", "sh", "-c", "touch third")
    assert first.startswith("unspill: Run 1 was interrupted: ")
    assert first.endswith("(1 path). See `unspill changes`, then `unspill apply` or `unspill discard`.")
    assert second.startswith("unspill: Run 1 in sandbox 'agent' was interrupted: ")
    assert (summary.startswith("unspill: 1 added. Applied as op 1"), listed) == (True, "  A third")
    assert told(ground) == []


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("echo x > file", {"after": "discard"}),
        ("echo x > file", {"after": "apply", "after_cancel": "discard"}),
        ("true", {"after": "apply"}),
        ("touch -r kept kept; : >> kept; touch new; rm new", {"after": "apply"}),
    ],
)
def test_a_killed_run_that_keeps_or_changed_nothing_is_removed_silently(
    ground: Ground, callers: Callers, command: str, settings: dict[str, str]
) -> None:
    kept = ground.write("kept", "same")
    os.utime(kept, (1, 1))
    kill(callers, ground, command, **settings)
    sandbox = ground.sandbox()
    assert sandbox.interrupted_runs == ()
    assert not sandbox.changes()
    assert ground.left_behind() == []
    (run,) = sandbox.runs()
    assert (run.ended_ns is not None, run.outcome, run.held) == (True, None, False)


@NO_CACHES
def test_what_a_killed_run_wrote_to_a_cache_is_dropped(ground: Ground, callers: Callers) -> None:
    (ground.home / ".cache" / "pip").mkdir(parents=True)
    kill(callers, ground, "echo x > file; echo x > ~/.cache/pip/wheel")
    assert kinds(ground.sandbox().changes()) == {"file": "added"}
    with closing(sqlite3.connect(ground.state / "store.db")) as db:
        assert db.execute("SELECT count(*) FROM caches").fetchone() == (0,)
    assert state_problems(ground.state) == []


@pytest.mark.parametrize(
    ("limits", "limit"),
    [({"layer_bytes": 1 * MIB}, "layer_bytes"), ({"layer_entries": 10}, "layer_entries")],
)
def test_a_layer_over_the_bound_of_its_run_is_dropped_and_that_is_said(
    ground: Ground, callers: Callers, limits: dict[str, int], limit: Any
) -> None:
    command = "head -c 3000000 /dev/zero > big; for i in $(seq 30); do echo > f$i; done"
    # Written at once and killed at once: nobody has measured it yet
    kill(callers, ground, command, after="apply", limits=limits)
    sandbox = ground.sandbox()
    (run,) = sandbox.interrupted_runs
    reached = LimitReached(limit=limit, bound=limits[limit])
    assert (run.outcome, run.held) == (reached, False)
    said = sandbox.describe_interrupted(run)
    assert said.endswith(f"Its changes were dropped: they are more than `limits.{limit}` allows ({limits[limit]}).")
    assert ground.left_behind() == []
    assert sandbox.find_run(1).outcome == reached


def test_a_layer_is_measured_by_the_bound_of_its_run_and_not_by_the_policy_of_who_finds_it(
    ground: Ground, callers: Callers
) -> None:
    kill(callers, ground, "for i in $(seq 30); do echo > f$i; done", after="apply", limits={"layer_entries": None})
    settings = ground.policy().limits.replace(layer_entries=10)
    assert len(ground.sandbox(limits=settings).changes()) == 30


def test_an_edit_made_while_a_killed_run_went_on_is_a_conflict_and_an_earlier_one_is_not(
    ground: Ground, callers: Callers
) -> None:
    for name in ("early", "late", "same"):
        ground.write(name, "old\n")
    ground.write("early", "edited before\n")
    time.sleep(0.05)
    start(callers, ground, "for f in early late same; do echo run > $f; done", after="apply")
    ground.write("late", "edited meanwhile\n")
    callers[-1].kill()
    callers[-1].wait()
    left = ground.sandbox().apply().left
    assert [(one.path, one.why) for one in left] == [(b"late", "conflict")]
    found = {name: (ground.project / name).read_text() for name in ("early", "late", "same")}
    assert found == {"early": "run\n", "late": "edited meanwhile\n", "same": "run\n"}


def test_a_process_that_is_open_for_long_holds_it_before_its_next_run(ground: Ground, callers: Callers) -> None:
    sandbox = ground.sandbox()
    sandbox.run("true")
    kill(callers, ground, "echo first > file")
    assert not kinds(sandbox.changes())
    assert printed(sandbox.run("cat file; echo second > file")) == "first\n"
    assert [found.number for found in sandbox.interrupted_runs] == [2]
    # Each layer lies on what its run has seen
    assert printed(sandbox.run("cat file", after="discard")) == "second\n"
    assert sandbox.apply().left == ()
    assert (ground.project / "file").read_text() == "second\n"


def test_a_run_that_waited_for_one_that_is_killed_sees_and_tells_what_that_has_written(
    ground: Ground, callers: Callers
) -> None:
    start(callers, ground, "echo first > file")
    program = Path(sys.executable).with_name("unspill")
    with subprocess.Popen(
        [program, "run", "--hold", "-c", "cat file"], cwd=ground.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as waits:
        time.sleep(0.7)
        assert waits.poll() is None
        callers[-1].kill()
        output, errors = waits.communicate(timeout=20)
    assert output == b"first\n"
    assert errors.startswith(b"unspill: Run 1 was interrupted: ")


def test_another_directory_in_the_place_of_the_project_gets_nothing_of_it(ground: Ground, callers: Callers) -> None:
    ground.write("file", "old\n")
    kill(callers, ground, "echo x > file")
    ground.project.rename(ground.top / "away")
    ground.project.mkdir()
    other = ground.write("file", "another\n")
    with suppress(Exception):
        ground.sandbox().apply()
    assert other.read_text() == "another\n"
    shutil.rmtree(ground.project)
    (ground.top / "away").rename(ground.project)
    assert kinds(ground.sandbox().changes()) == {"file": "modified"}


def test_a_secret_that_a_killed_run_was_shown_is_not_shown_to_others_by_its_layer(
    ground: Ground, callers: Callers
) -> None:
    ground.write(".env", "TOKEN=1\n")
    kill(callers, ground, "echo TOKEN=2 >> .env; echo x > file", options={"reveal": [".env"]})
    sandbox = ground.sandbox()
    assert kinds(sandbox.changes()) == {".env": "modified", "file": "added"}
    assert printed(sandbox.run("cat file; cat .env 2>/dev/null || echo hidden")) == "x\nhidden\n"
