# SPDX-License-Identifier: Apache-2.0
"""A process that has a run going on is killed: whoever opens the project next seals and holds what the run wrote."""

import os
import shutil
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
from tests.kernel.twin_world import IDENTITY, lines, sh
from tests.support import NO_CACHES, VIEW_LINES, Event, Ground, kinds, printed, processes_with, run_cli
from unspill import LimitReached, OutputChunk, Sandbox
from unspill.host import job
from unspill.host.job import run_name
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


def test_of_a_run_that_was_killed_while_its_layers_were_made_nothing_is_left_open(
    ground: Ground, callers: Callers, tmp_path: Path
) -> None:
    """One of two roots has no directory for what is written yet."""
    (tmp_path / "second").mkdir()
    roots = (os.fsencode(tmp_path / "second"),)
    kill(callers, ground, "echo x > file", after="hold", roots=[os.fspath(tmp_path / "second")])
    with closing(sqlite3.connect(ground.state / "store.db")) as db:
        ((layer,),) = db.execute("SELECT id FROM layers WHERE root = ?", roots)
    shutil.rmtree(ground.state / "layers" / layer)
    assert kinds(ground.sandbox(roots=roots).changes()) == {"file": "added"}
    assert state_problems(ground.state) == []


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
    ("limits", "limit", "what"),
    [
        ({"layer_bytes": 1 * MIB}, "layer_bytes", "wrote more than 1 MiB"),
        ({"layer_entries": 10}, "layer_entries", "made more than 10 files"),
    ],
)
def test_a_layer_over_the_bound_of_its_run_is_dropped_and_that_is_said(
    ground: Ground, callers: Callers, limits: dict[str, int], limit: Any, what: str
) -> None:
    command = "head -c 3000000 /dev/zero > big; for i in $(seq 30); do echo > f$i; done"
    # Written at once and killed at once: nobody has measured it yet
    kill(callers, ground, command, after="apply", limits=limits)
    sandbox = ground.sandbox()
    (run,) = sandbox.interrupted_runs
    reached = LimitReached(limit=limit, bound=limits[limit])
    assert (run.outcome, run.held) == (reached, False)
    said = sandbox.describe_interrupted(run)
    assert said.endswith(f"Its changes were dropped: it {what} (`limits.{limit}`).")
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
        [program, "run", "--alone", "--hold", "-c", "cat file"],
        cwd=ground.project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as waits:
        assert waits.stderr is not None
        assert waits.stderr.readline().startswith(b"unspill: waiting for run 1 of this sandbox (")
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


FSCK = "git fsck --full --no-dangling --no-progress 2>&1"
COMMIT = "git commit -qm agent"
# What the run had done when its caller was killed, and what is left to do for the next one
WORK = {"committed": (f"&& {COMMIT}", "true"), "only staged": ("", COMMIT)}


def killed_run(ground: Ground, callers: Callers, more: str) -> Sandbox:
    """Have a run killed, let the person commit, and open the project again."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    sh(ground.project, "git init -q && echo base > base && git add base && git commit -qm base")
    kill(callers, ground, f"echo agent > agent && git add agent {more}", after="apply")
    sh(ground.project, "echo person > person && git add person && git commit -qm person")
    sandbox = ground.sandbox(after="hold")
    (run,) = sandbox.interrupted_runs
    assert run.held
    return sandbox


def staged(sandbox: Sandbox) -> list[str]:
    """Return what git finds broken in the sandbox, and what it would commit there; not what it does not know."""
    text = printed(sandbox.run(f"{FSCK}; git status --porcelain", after="discard"))
    return [line for line in text.splitlines() if not line.startswith("??")]


@pytest.mark.parametrize("work", WORK)
def test_the_work_of_a_killed_run_does_not_revert_what_the_person_committed(
    ground: Ground, callers: Callers, work: str
) -> None:
    done, rest = WORK[work]
    sandbox = killed_run(ground, callers, done)
    assert staged(sandbox) == ([] if work == "committed" else ["A  agent"])
    printed(sandbox.run(rest))
    assert sandbox.apply().left == ()
    assert sh(ground.project, f"{FSCK}; git status --porcelain").stdout == ""
    assert lines(ground.project, "log", "--format=%s", "main") == ["person", "base"]
    # The commit of the run lies beside it, made from what the run saw
    assert lines(ground.project, "log", "--format=%s", "main..", "--all") == ["agent"]
    sh(ground.project, "git merge -q --no-edit $(git for-each-ref --format='%(refname)' refs/unspill)")
    assert lines(ground.project, "ls-tree", "--name-only", "HEAD") == ["agent", "base", "person"]
    assert staged(sandbox) == []


def test_it_did_when_the_repository_that_the_run_saw_was_not_kept(
    ground: Ground, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the run has staged lies over the person's commit, so a commit would delete their file."""
    monkeypatch.setattr("unspill.sandbox.scan.left_base", lambda *_: None)
    assert "D  person" in staged(killed_run(ground, callers, WORK["only staged"][0]))


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
    """The time buys one process for each kill, at one system call of sealing after the other."""
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
    # Not `rglob`, which stops at a directory that is gone meanwhile
    for directory, directories, files in os.walk(top):
        for name in (*directories, *files):
            with suppress(FileNotFoundError):
                found.append((os.path.join(directory, name), os.lstat(os.path.join(directory, name)).st_size))
    return sorted(found)


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
