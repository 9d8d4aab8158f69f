# SPDX-License-Identifier: Apache-2.0
"""The layer of a killed run is sealed when nothing can write it any more, and a kill in between loses nothing."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.killed_callers import Callers, callers, kill, start
from tests.kernel.leftovers import descendants, state_problems, within
from tests.kernel.tracing import Order, trace
from tests.support import VIEW_LINES, Event, Ground, kinds, printed, processes_with, run_cli
from unspill import OutputChunk, Sandbox
from unspill.host import job
from unspill.host.job import run_name

__all__ = ["callers"]

pytestmark = pytest.mark.kernel

# A copy of one run that holds a file, as if its process had been killed: no end, an owner of another boot, open layers
REOPEN = """
UPDATE layers SET state = 'open' WHERE run IN (SELECT id FROM runs WHERE held);
UPDATE runs SET ended_ns = NULL, outcome = NULL, held = 0, changed = 0, owner_boot = 'another' WHERE held;
"""
OPEN = (
    VIEW_LINES
    + """
import os, sys
from unspill import Policy, Sandbox
sandbox = Sandbox(sys.argv[1], policy=Policy(**VIEW, bwrap=os.fsencode(sys.argv[2])))
print(len(sandbox.interrupted_runs))
"""
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kill_at_any_system_call_of_sealing_leaves_either_the_unfinished_run_or_the_held_one(
    ground: Ground, full: bool
) -> None:
    assert ground.sandbox().run("echo x > file; mkdir d; echo y > d/e").held
    for sandbox in ground.opened:
        sandbox.close()
    layers = os.listdir(ground.state / "layers")

    def orphan() -> None:
        with closing(sqlite3.connect(ground.state / "store.db")) as db:
            db.executescript(REOPEN)
        for layer in layers:
            (ground.state / "work" / layer / "work").mkdir(parents=True, exist_ok=True)

    def open_it(at: int) -> Any:
        words = [sys.executable, "-c", OPEN, os.fspath(ground.project), os.fsdecode(ground.bwrap)]
        argv = ["/bin/sh", "-c", 'echo >&3; read -r go <&4; exec 3>&- 4<&-; exec "$@"', "sh", *words]
        depth = 0 if at else None
        return trace(
            Order(
                argv=argv,
                cwd="/",
                environ=dict(os.environ),
                depth=depth,
                at=at,
                victim=None,
                grace_s=1.0,
                limit_s=30.0,
            )
        )

    orphan()
    traced = open_it(0)
    assert traced["output"] == "1\n"
    calls = traced["counts"]["0"]
    states = {"unfinished": 0, "held": 0}
    # Sealing is what is done last, and little comes after the change
    for at in (
        range(calls * 6 // 10, calls, 2) if full else (*range(calls * 6 // 10, calls, 110), calls - 16, calls - 6)
    ):
        orphan()
        assert open_it(at)["killed"]
        with closing(sqlite3.connect(ground.state / "store.db")) as db:
            ((ended, held),) = db.execute("SELECT ended_ns IS NOT NULL, held FROM runs WHERE number = 1")
            found = db.execute("SELECT state FROM layers").fetchall()
        assert (ended, held, found) in ((0, 0, [("open",)]), (1, 1, [("sealed",)]))
        states["held" if held else "unfinished"] += 1
        done = run_cli("run", "-q", "--discard", "--", "cat", "file", "d/e", cwd=ground.project)
        assert done.stdout == b"x\ny\n"
        assert state_problems(ground.state) == []
    assert min(states.values()) > 0
    record_figure(
        "kills while a killed run's layer is sealed",
        f"{sum(states.values())} kills: 0 layers lost",
        f"SIGKILL at system calls of the opening; {states['unfinished']} before and {states['held']} after the change",
    )


WRITER = "while :; do echo x >> noise; mkdir d; rmdir d; done & while [ ! -e noise ]; do :; done"
FORGE = r"""
import os
fields = open("/proc/1/stat", "rb").read().rpartition(b")")[2].split()
memory = os.open("/proc/1/mem", os.O_RDWR)
os.pwrite(memory, b"something-else-entirely", int(fields[45]))
"""


def tree_of(top: Path) -> list[tuple[str, int]]:
    """Return what lies in a directory and the size of it, so that each write of a writer shows."""
    found = []
    for path in sorted(top.rglob("*")):
        with suppress(FileNotFoundError):
            found.append((os.fspath(path), path.lstat().st_size))
    return found


def abandon(callers: Callers, ground: Ground, command: str) -> tuple[int, ...]:
    """Kill a caller whose spawner is stopped and can't see that: its command writes on. Return the stopped ones."""
    pid = start(callers, ground, f"{command}; {WRITER}", after="apply")
    names = descendants(pid)
    spawners = tuple(child for child, name in names.items() if name.startswith(("python", "spawner")))
    assert len(spawners) >= 1
    for spawner in spawners:
        os.kill(spawner, signal.SIGSTOP)
    callers[-1].kill()
    callers[-1].wait()
    return spawners


def name_alone(names: set[bytes], mounted: list[bytes], settle_s: float) -> tuple[int, bool]:
    return KILL_ALL(names, [], settle_s)


KILL_ALL = job._kill_all

# Which defence is there, and whether the command can write after its layer is sealed
SEARCHES: dict[str, tuple[Callable[..., tuple[int, bool]], str, bool]] = {
    "all of it": (KILL_ALL, "true", False),
    "all of it, against a forged name": (KILL_ALL, f"python3 -c '{FORGE}'", False),
    "the name alone": (name_alone, f"python3 -c '{FORGE}'", True),
    "nothing": (lambda *_: (0, True), "true", True),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_nothing_is_sealed_before_every_process_of_the_run_is_dead(
    ground: Ground, callers: Callers, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arms leave out the search for processes, or that for mounts: a command can forge its pid 1's name."""
    kill_all, command, is_written = SEARCHES[search]
    ground.sandbox().run("true")
    spawners = abandon(callers, ground, command)
    try:
        monkeypatch.setattr(job, "_kill_all", kill_all)
        monkeypatch.setattr("unspill.sandbox.scan._swept", set())
        sandbox = ground.sandbox()
        (run,) = sandbox.interrupted_runs
        assert run.held
        before = tree_of(ground.state / "layers")
        assert within(0.5, lambda: tree_of(ground.state / "layers") != before) is is_written
    finally:
        for spawner in spawners:
            with suppress(ProcessLookupError):
                os.kill(spawner, signal.SIGKILL)


def test_the_mounts_of_a_run_name_its_layer(ground: Ground, engine: str) -> None:
    """Which is what its processes are found by."""
    layers: list[str] = []

    def look(event: Event) -> None:
        if isinstance(event, OutputChunk):
            layers.extend(os.listdir(ground.state / "layers"))

    result = ground.sandbox(caches=False).run("cat /proc/1/mountinfo; sleep 0.2", on_event=look)
    assert layers
    assert layers[0] in printed(result)


def test_what_can_not_be_killed_is_left_for_the_next_opening(
    ground: Ground, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(callers, ground, "echo x > file")
    with monkeypatch.context() as patch:
        patch.setattr(job, "_kill_all", lambda *_: (1, False))
        assert ground.sandbox().interrupted_runs == ()
        assert not ground.sandbox().changes()
    assert len(ground.sandbox().interrupted_runs) == 1
    assert kinds(ground.sandbox().changes()) == {"file": "added"}


def test_a_process_of_another_user_with_the_name_of_a_run_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for another user: one that may not be signalled."""
    with subprocess.Popen([run_name("0123"), b"1000"], executable="/bin/sleep") as other:

        def refused(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(signal, "pidfd_send_signal", refused)
        begun = time.monotonic()
        assert job.end_run("0123", ["0" * 16])
        assert time.monotonic() - begun < 4
        other.kill()


def test_processes_of_a_killed_caller_are_dead_when_the_project_is_open(ground: Ground, callers: Callers) -> None:
    kill(callers, ground, "echo x > file; setsid sleep 4711.5 & true")
    assert isinstance(ground.sandbox(), Sandbox)
    assert processes_with("4711.5") == []
