# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a live sandbox that is never quiet: exact as of one moment, applied, undone, and told."""

import errno
import os
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.checkpoint_writers import WRITERS
from tests.support import Ground, kinds, lasting, parent_of, processes_with
from unspill import Sandbox
from unspill.apply.recover import OwnEntries
from unspill.errors import SandboxUnavailable
from unspill.host import stopper
from unspill.layers.checkpoint import LayerCopy
from unspill.runner.background import BackgroundRun
from unspill.runner.launcher import stop_launchers
from unspill.runner.live import LiveSandbox
from unspill.sandbox.apply import _without_claims
from unspill.sandbox.checkpoints import SpanCopies
from unspill.sandbox.live import Live
from unspill.sandbox.terminal import Terminal

pytestmark = [pytest.mark.kernel, pytest.mark.any_python]


@pytest.fixture
def sandbox(ground: Ground) -> Iterator[Sandbox]:
    with ground.sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def live(sandbox: Sandbox) -> Iterator[Live]:
    with sandbox.live() as live:
        yield live


def start(live: Live, code: str, after: str = "hold") -> BackgroundRun:
    """Start a program of Python's that says when it is up, and wait for that."""
    run = live.start(["python3", "-c", code], after=after)  # type: ignore[arg-type]
    found, offset = b"", 0
    while b"up" not in found:
        more, offset, _lost = run.output(offset, timeout=20)
        assert more, (found, run.wait(0))
        found += more
    return run


def server(live: Live, after: str) -> BackgroundRun:
    return start(live, "print('up', flush=True); input()", after)


def tree(top: Path | bytes) -> dict[str, tuple[int, bytes]]:
    """Return kind, mode and content of all below a directory; deletions are left out."""
    found = {}
    for path in sorted(Path(os.fsdecode(top)).rglob("*")):
        status = path.lstat()
        if not stat.S_ISCHR(status.st_mode):
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found[str(path.relative_to(os.fsdecode(top)))] = status.st_mode, content
    return found


class Oracle:
    """Reads a layer while everything stands still, and compares the copy with that when it is finished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compared = 0
        self.wrong: list[str] = []
        truth: dict[bytes, dict[str, tuple[int, bytes]]] = {}
        catch_up, finish = LayerCopy.catch_up, LayerCopy.finish

        def watched(copy: LayerCopy, mapped: list[bytes] | None) -> None:
            catch_up(copy, mapped)
            truth[copy.dest] = tree(copy.upper)
            # What is written although nothing should be
            time.sleep(0.002)
            if tree(copy.upper) != truth[copy.dest]:
                self.wrong.append("written while everything stood still")

        def compared(copy: LayerCopy) -> None:
            finish(copy)
            expected, found = truth[copy.dest], tree(copy.dest)
            self.compared += 1
            self.wrong += [path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)]

        monkeypatch.setattr(LayerCopy, "catch_up", watched)
        monkeypatch.setattr(LayerCopy, "finish", compared)


@pytest.mark.parametrize("names", [("mapper", "mover"), ("remapper", "vforks"), ("chain", "tracer"), ("waker",)])
def test_a_checkpoint_is_exact_under_writers(
    live: Live, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], full: bool
) -> None:
    oracle = Oracle(monkeypatch)
    for name in names:
        start(live, WRITERS[name])
    rounds = 250 if full else 8
    standstills = [live.checkpoint(after="hold") for _ in range(rounds)]
    assert [one.unsettled for one in standstills] == [""] * rounds
    assert (oracle.wrong, oracle.compared) == ([], rounds)
    record_figure(
        f"checkpoints under writers: {' and '.join(names)}",
        f"0 of {rounds} differ",
        "each copy compared with the whole layer while everything stands still",
    )


# Its last argument is a word by which its parent is found
JOB = """
import itertools, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("u" + "p", flush=True)
for number in itertools.count():
    with open(f"job-{number % 5}", "w") as file:
        file.write(str(number))
"""


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "by signals"])
@pytest.mark.parametrize("has_terminal", [False, True], ids=["job", "terminal"])
def test_a_shell_that_is_killed_while_all_stands_still_does_not_wake_its_job(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, has_terminal: bool, is_control: bool, full: bool
) -> None:
    """The kernel continues the stopped jobs of a shell that dies. Control: one that is stopped by SIGSTOP writes."""
    oracle = Oracle(monkeypatch)
    word = lasting()
    catch_up = LayerCopy.catch_up

    def kill_first(copy: LayerCopy, mapped: list[bytes] | None) -> None:
        shell = parent_of(word)
        os.kill(shell, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while state_of(shell) not in "ZX":
            assert time.monotonic() < deadline
        catch_up(copy, mapped)

    monkeypatch.setattr(LayerCopy, "catch_up", kill_first)
    if is_control:
        monkeypatch.setattr(stopper.Stopper, "_seize", lambda stops, tid: stops._refused.add(tid))
        monkeypatch.setattr(stopper.Stopper, "is_still", lambda _stops: True)
    stop_launchers()
    job = shlex.join(["python3", "-c", JOB, word])
    # On a busy machine a job that is awake may not write at once
    rounds = 50 if is_control else 20 if full else 1
    with Sandbox(ground.project, policy=ground.policy(), may_fork=True) as sandbox, sandbox.live() as live:
        for _ in range(rounds):
            run = start_shell(live, job) if has_terminal else start_job(live, job)
            found = live.checkpoint(after="hold")
            assert is_control or not found.unsettled
            run.wait(20)
            # A copy may see by itself that something writes
            is_awake = bool(oracle.wrong) or "it moves" in found.unsettled
            if is_awake:
                break
    stop_launchers()
    assert is_awake is is_control
    assert is_control or oracle.compared == rounds


def start_shell(live: Live, job: str) -> Terminal:
    """Start a shell with a job in its terminal; return when the job is up."""
    terminal = live.terminal(["bash", "--norc", "--noprofile", "-i"], after="hold")
    terminal.write(job.encode() + b"\r")
    seen = b""
    while b"up\r\n" not in seen:
        seen += terminal.read(timeout=20)
    return terminal


def start_job(live: Live, job: str) -> BackgroundRun:
    """Start a shell with a job in a process group of its own; return when the job is up."""
    run = live.start(["bash", "-c", f"set -m; {job} & wait"], after="hold")
    assert heard(run, b"up\n")
    return run


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def test_without_the_rule_for_mappings_a_write_is_missed(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is mapped and dirty changes, and nothing that can be looked at does."""
    oracle = Oracle(monkeypatch)
    monkeypatch.setattr(LayerCopy, "_inodes", lambda *_rest: set())
    start(live, WRITERS["mapper"])
    for _ in range(100):
        live.checkpoint(after="hold")
        if "mapped" in oracle.wrong:
            break
    assert "mapped" in oracle.wrong


def test_by_the_time_of_the_last_change_alone_a_move_is_missed(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what lies in a directory that was moved is as old as it was."""
    oracle = Oracle(monkeypatch)
    begun: dict[bytes, int] = {}
    begin = LayerCopy.begin

    def timed(copy: LayerCopy, begun_ns: int, mapped: list[bytes] | None) -> None:
        begin(copy, begun_ns, mapped)
        begun[copy.dest] = time.time_ns()

    monkeypatch.setattr(LayerCopy, "begin", timed)
    monkeypatch.setattr(LayerCopy, "_has_moved", lambda copy, _path, look, _mapped: look[4] > begun[copy.dest])
    start(live, WRITERS["mover"])
    for _ in range(100):
        live.checkpoint(after="hold")
        if oracle.wrong:
            break
    assert oracle.wrong


def test_a_foreground_run_has_what_was_changed_since_the_last_checkpoint(live: Live, ground: Ground) -> None:
    ground.write("old", "old\n")
    server(live, "hold")
    first = live.run("mkdir d; echo 1 > d/f; echo 1 > g; rm old", after="hold")
    second = live.run("echo 2 > d/f; rm g; ln -s d link", after="hold")
    third = live.run("cat d/f", after="hold")
    assert kinds(first.changes) == {"d": "added", "d/f": "added", "g": "added", "old": "deleted"}
    assert kinds(second.changes) == {"d/f": "modified", "g": "deleted", "link": "added"}
    assert not third.changes
    assert first.held
    assert first.standstill_s is not None
    assert second.shared_with == (1, 2)
    assert (ground.project / "old").exists()
    live.close()


def test_what_a_checkpoint_applied_is_undone_to_the_very_tree_and_not_applied_again(
    live: Live, sandbox: Sandbox, ground: Ground
) -> None:
    ground.write("kept", "kept\n")
    ground.write("dir/inner", "inner\n")
    before = tree(ground.project)
    server(live, "apply")
    result = live.run("echo more >> kept; rm -r dir; mkdir new; echo x > new/file", after="apply")
    assert result.operation is not None
    assert set(tree(ground.project)) == {"kept", "new", "new/file"}
    sandbox.undo()
    assert tree(ground.project) == before
    assert live.run("echo y > other", after="apply").operation is not None
    assert tree(ground.project).keys() == {*before, "other"}
    live.close()
    assert tree(ground.project).keys() == {*before, "other"}


def test_what_was_applied_is_not_applied_twice_and_what_went_since_goes(live: Live, ground: Ground) -> None:
    run = server(live, "apply")
    live.run("echo 1 > a; mkdir d; echo 1 > d/b; echo 1 > d/c", after="apply")
    live.run("rm a d/b; echo 2 > d/c", after="apply")
    assert {name: content for name, (_mode, content) in tree(ground.project).items()} == {"d": b"", "d/c": b"2\n"}
    run.close_input()
    result = run.wait(20)
    assert result is not None
    assert (result.held, result.problem) == (False, "")
    assert not result.changes
    assert tree(ground.project).keys() == {"d", "d/c"}


def test_what_is_deleted_before_its_checkpoint_is_applied_goes_with_the_next(
    live: Live, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the layer has no mark of it: nothing lay beneath when it was deleted."""
    run = start(
        live, "open('a', 'w').close(); print('up', flush=True); input(); import os; os.unlink('a'); input()", "apply"
    )
    finish = LayerCopy.finish

    def delayed(copy: LayerCopy) -> None:
        finish(copy)
        monkeypatch.setattr(LayerCopy, "finish", finish)
        run.write(b"\n")
        deadline = time.monotonic() + 20
        while os.path.lexists(copy.upper + b"/a"):
            assert time.monotonic() < deadline
            time.sleep(0.002)

    monkeypatch.setattr(LayerCopy, "finish", delayed)
    assert kinds(live.checkpoint().changes) == {"a": "added"}
    assert (ground.project / "a").exists()
    assert kinds(live.checkpoint().changes) == {"a": "deleted"}
    assert not (ground.project / "a").exists()


def test_what_the_person_edits_under_a_busy_sandbox_is_a_conflict(live: Live, ground: Ground) -> None:
    for name in ("in-place", "renamed", "gone", "mine"):
        ground.write(name, "before\n")
    server(live, "apply")
    live.run("cat *; echo ours > mine", after="apply")
    ground.write("in-place", "edited\n")
    ground.write("fresh", "edited\n")
    ground.write("other", "edited\n")
    (ground.project / "other").rename(ground.project / "renamed")
    result = live.run("for f in in-place renamed fresh mine; do echo inside > $f; done", after="apply")
    assert result.operation is not None
    left = {os.fsdecode(one.path): one.why for one in result.operation.left}
    assert left == dict.fromkeys(("in-place", "renamed", "fresh"), "conflict")
    assert (ground.project / "in-place").read_text() == "edited\n"
    assert (ground.project / "mine").read_text() == "inside\n"


# Does at its end what it is told
PROGRAM = "import os; print('up', flush=True); os.system(input())"


@pytest.mark.parametrize("second", ["echo 2 > made/g; mv dir/a dir/b; echo > dir/a", "chmod 750 ."])
@pytest.mark.parametrize("by", ["checkpoint", "program"])
def test_what_a_checkpoint_has_changed_in_a_directory_is_no_edit_of_the_persons(
    live: Live, ground: Ground, second: str, by: str
) -> None:
    """Neither at the next one nor at the end: nothing is held as deleted or changed in the meantime."""
    ground.write("dir/a", "a\n")
    run = start(live, PROGRAM, "apply")
    live.run("mkdir made; echo 1 > made/f; chmod 600 dir/a; echo > dir/new", after="apply")
    result = live.run(second, after="apply") if by == "checkpoint" else None
    run.write(b"\n" if by == "checkpoint" else second.encode() + b"\n")
    result = result or run.wait(20)
    assert result is not None
    assert result.operation is not None
    assert not result.operation.left
    live.close()
    assert {*os.listdir(ground.project / "dir")} == ({"a", "new"} if "chmod" in second else {"a", "b", "new"})
    assert ("chmod" in second) == (stat.S_IMODE(ground.project.stat().st_mode) == 0o750)


# What is done first, then the person deletes the file, then what is done until a run writes it
DELETED = {
    "its directory has other bits": (["chmod 750 dir; echo x >> dir/a"], "dir/a", ["chmod 700 dir"]),
    "not watched": (["chmod 750 node_modules; echo x >> node_modules/a; echo > new"], "node_modules/a", []),
    "moved there": (["mkdir -p made/node_modules; mv a made/node_modules/a; echo > new"], "made/node_modules/a", []),
}


def write(live: Live, run: BackgroundRun, command: str, by: str) -> None:
    """Do something in a sandbox, by a command beside the program or by the program at its end."""
    if by == "checkpoint":
        live.run(command, after="apply")
    else:
        run.write(command.encode() + b"\n")
        run.wait(20)


@pytest.mark.parametrize("by", ["checkpoint", "program"])
@pytest.mark.parametrize("case", DELETED)
def test_what_the_person_deletes_after_a_checkpoint_is_not_brought_back(
    live: Live, ground: Ground, case: str, by: str
) -> None:
    path = delete_after_checkpoint(live, ground, case, by)
    assert not (ground.project / path).exists()


def delete_after_checkpoint(live: Live, ground: Ground, case: str, by: str) -> str:
    """Delete a file that a run writes afterwards; return its path."""
    first, path, then = DELETED[case]
    for name in ("a", "dir/a", "node_modules/a"):
        ground.write(name, "a\n")
    run = start(live, PROGRAM, "apply")
    for command in first:
        live.run(command, after="apply")
    (ground.project / path).unlink()
    for command in then:
        live.run(command, after="apply")
    write(live, run, f"echo y >> {path}", by)
    return path


@pytest.mark.parametrize("by", ["checkpoint", "program"])
@pytest.mark.parametrize("directory", [".", "dir"])
def test_what_the_person_deletes_where_nothing_can_be_watched_is_not_brought_back(
    live: Live, ground: Ground, monkeypatch: pytest.MonkeyPatch, directory: str, by: str
) -> None:
    def refuse(*_given: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("unspill.runner.live.Outside", refuse)
    ground.write(f"{directory}/a", "a\n")
    run = start(live, PROGRAM, "apply")
    live.run(f"chmod 750 {directory}; echo x >> {directory}/a; echo > new", after="apply")
    (ground.project / directory / "a").unlink()
    write(live, run, f"echo y >> {directory}/a", by)
    assert not (ground.project / directory / "a").exists()


@pytest.mark.parametrize("by", ["checkpoint", "program"])
@pytest.mark.parametrize("directory", ["dir", "node_modules"])
def test_what_the_person_deletes_while_a_checkpoint_is_applied_is_not_brought_back(
    live: Live, ground: Ground, monkeypatch: pytest.MonkeyPatch, directory: str, by: str
) -> None:
    delete_while_applied(live, ground, monkeypatch, directory, by)
    assert not (ground.project / directory / "a").exists()


def test_it_is_brought_back_where_names_are_not_compared(
    live: Live, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr("unspill.apply.recover._names_in", lambda _directory: {})
    delete_while_applied(live, ground, monkeypatch, "node_modules", "checkpoint")
    assert (ground.project / "node_modules" / "a").exists()


def test_a_deleted_file_is_brought_back_where_all_names_count_as_ours(
    live: Live, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(OwnEntries, "explains_names", lambda *_given: True)
    delete_after_checkpoint(live, ground, "not watched", "checkpoint")
    assert (ground.project / "node_modules" / "a").exists()


def delete_while_applied(live: Live, ground: Ground, monkeypatch: pytest.MonkeyPatch, directory: str, by: str) -> None:
    """Delete a file that a run writes afterwards, in a directory into which a checkpoint is just putting another."""
    ground.write(f"{directory}/a", "a\n")
    run = start(live, PROGRAM, "apply")
    live.run(f"echo x >> {directory}/a; echo > new", after="apply")

    def delete_first(*given: Any) -> Any:
        monkeypatch.setattr("unspill.sandbox.apply._without_claims", _without_claims)
        (ground.project / directory / "a").unlink()
        return _without_claims(*given)

    monkeypatch.setattr("unspill.sandbox.apply._without_claims", delete_first)
    live.run(f"echo > {directory}/b", after="apply")
    write(live, run, f"echo y >> {directory}/a", by)


# What is done first in the directory in which the person exchanges `d`
EXCHANGED = {
    ".": "chmod 750 .; echo x >> d/f; echo > new",
    "dir": "chmod 750 dir; echo x >> dir/d/f; echo > dir/new",
    "node_modules": "chmod 750 node_modules; echo x >> node_modules/d/f; echo > node_modules/new",
    "moved": "mkdir moved; mv d moved/d; echo x >> moved/d/f",
    "made": "mkdir -p made/d; echo x > made/d/f",
}


@pytest.mark.parametrize("by", ["checkpoint", "program"])
@pytest.mark.parametrize("directory", EXCHANGED)
def test_nothing_is_written_to_a_directory_that_the_person_put_there_after_a_checkpoint(
    live: Live, ground: Ground, directory: str, by: str
) -> None:
    """Nor if they have filled it since, so that its own times do not tell."""
    for name in (".", "dir", "node_modules"):
        ground.write(f"{name}/d/f", "f\n")
    ground.write("other/f", "mine\n")
    run = start(live, PROGRAM, "apply")
    live.run(EXCHANGED[directory], after="apply")
    place = ground.project / directory / "d"
    place.rename(ground.project.parent / "gone")
    (ground.project / "other").rename(place)
    (place / "fill").write_text("fill\n")
    write(live, run, f"echo y >> {directory}/d/f", by)
    assert (place / "f").read_text() == "mine\n"


# Its child waits for the other end of a FIFO before it becomes another program
IN_VFORK = """
import os
os.mkfifo("/tmp/fifo")
print("ready", flush=True)
actions = [(os.POSIX_SPAWN_OPEN, 0, "/tmp/fifo", os.O_RDONLY, 0)]
os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=actions), 0)
print("gone on", flush=True)
"""


def test_a_process_that_waits_for_the_child_of_its_vfork_goes_on_afterwards(live: Live) -> None:
    waits = live.start(["python3", "-c", IN_VFORK], after="hold")
    assert heard(waits, b"ready\n")
    children = live.start("until pgrep -P $(pgrep -xf 'python3 -c .*' | head -n 1); do sleep 0.02; done", after="hold")
    assert children.wait(30) is not None
    assert not live.checkpoint().unsettled
    live.start(": > /tmp/fifo", after="hold")
    assert heard(waits, b"ready\ngone on\n")
    assert waits.wait(30).exit_code == 0


# Each waits for children all the time: a signal that is lost, or a thread that is not let go, ends its output
LOOPS = (
    "while :; do sleep 0.001; echo x; done",
    "bash -c 'while :; do /bin/true; echo x; done'",
    """python3 -c 'import subprocess
while 1: subprocess.run(["true"]); print("x", flush=True)'""",
)


def test_shells_and_programs_go_on_after_many_checkpoints(live: Live, full: bool) -> None:
    runs = [live.start(loop, after="hold") for loop in LOOPS]
    offsets = [0] * len(runs)
    for _ in range(1000 if full else 30):
        assert not live.checkpoint().unsettled
        for number, run in enumerate(runs):
            text, offsets[number], _lost = run.output(offsets[number], timeout=20)
            assert text, LOOPS[number]


def heard(run: BackgroundRun, expected: bytes) -> bool:
    deadline = time.monotonic() + 30
    while (text := run.output()[0]) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return text == expected


def test_where_nothing_can_be_stopped_the_result_is_unsettled_and_says_why(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_sandbox: LiveSandbox) -> None:
        raise SandboxUnavailable("its processes could not be stopped")

    server(live, "hold")
    with monkeypatch.context() as patched:
        patched.setattr(LiveSandbox, "stop", refuse)
        result = live.run("echo x > f", after="hold")
    assert result.unsettled
    assert not result.changes
    assert "could not be stopped" in result.text()
    assert kinds(live.checkpoint().changes) == {"f": "added"}


def test_what_was_stopped_before_stays_stopped_and_signals_are_not_lost(live: Live) -> None:
    code = """
import os, signal, time
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGSTOP)
    open("woken", "w").close()
os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
# Of this one as many come as were sent
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
print("up", flush=True)
for _ in range(20): signal.sigwait([signal.SIGRTMIN])
open("heard", "w").close()
time.sleep(1000)
"""
    run = start(live, code)
    for _ in range(20):
        live.checkpoint()
        run.signal(signal.SIGRTMIN)
        time.sleep(0.005)
    deadline = time.monotonic() + 20
    seen: dict[str, str] = {}
    while "heard" not in seen:
        assert time.monotonic() < deadline
        seen |= kinds(live.checkpoint().changes)
    assert "woken" not in seen


def test_a_sandbox_that_is_killed_while_it_stands_still_leaves_nothing(sandbox: Sandbox) -> None:
    word = lasting()
    live = sandbox.live()
    live.start(f"sleep {word} & sleep {word}")
    deadline = time.monotonic() + 20
    while len(processes_with(word)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    live._live.stop()
    assert live._live._launched is not None
    live._live._launched.kill()
    # Whether its end is heard before the answer depends on who is faster
    with suppress(SandboxUnavailable):
        assert not live._live.go()[0]
    live.close()
    assert processes_with(word) == []


@pytest.mark.any_bwrap
def test_a_control_group_is_frozen_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "cgroup.freeze").write_text("0")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    found = stopper.Stopper(os.getpid(), (), (bytes(tmp_path / "cgroup.procs"),))
    assert found.stop()
    assert (found.used, (tmp_path / "cgroup.freeze").read_text()) == ("freeze", "1")
    found.release()
    assert (tmp_path / "cgroup.freeze").read_text() == "0"


COMMITS = {
    "after it": ("echo x > f", "git add f; git commit -qm second"),
    "before it": ("echo x > f; git add f; git commit -qm second", "true"),
    "before and after it": (
        "echo x > f; git add f; git commit -qm second",
        "echo y >> f; git commit -qam third",
    ),
    "by another branch": (
        "git checkout -qb side; echo x > f",
        "git add f; git commit -qm second; git checkout -q main",
    ),
}


@pytest.mark.parametrize("commits", COMMITS)
def test_a_commit_around_a_checkpoint_is_applied_at_the_end(ground: Ground, commits: str) -> None:
    """What is kept of a repository's old files are links to them, which must not make a change look like another."""
    first, last = COMMITS[commits]
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]

    def told(*words: str) -> str:
        return subprocess.run([*git, *words], cwd=ground.project, capture_output=True, text=True, check=True).stdout

    ground.write("a", "one\n")
    for words in (("init", "-q", "-b", "main"), ("add", "a"), ("commit", "-qm", "first")):
        told(*words)
    configure = "git config user.name A; git config user.email a@example.org"
    with ground.sandbox(after="apply") as sandbox, sandbox.live() as live:
        run = live.start(f"{configure}; {first}; echo up; read line; {last}")
        found, offset = b"", 0
        while b"up" not in found:
            more, offset, _lost = run.output(offset, timeout=20)
            assert more, found
            found += more
        assert live.checkpoint().unsettled == ""
        run.write(b"\n")
        result = run.wait(30)
        assert result is not None
        assert result.ok, until_end(run)
        assert result.operation is not None
        assert [(left.path, left.reason) for left in result.operation.left] == []
        assert not result.held
        expected = {"first", "second"} | ({"third"} if "third" in last else set())
        assert set(told("log", "--all", "--format=%s").split()) == expected
        told("fsck", "--strict")
        assert told("status", "--short") == ""
        for operation in sandbox.operations(limit=10):
            if operation.kind == "apply":
                sandbox.undo(operation.number)
    told("fsck", "--strict")
    assert told("log", "--branches", "--format=%s").split() == ["first"]
    assert not (ground.project / "f").exists()


def until_end(run: BackgroundRun) -> bytes:
    return run.output(0)[0]


# Until the last command has ended: overlayfs notes no deletion of what the project did not have yet
SEEN_AGAIN = pytest.mark.xfail(strict=True, reason="a refresh shows what the checkpoint has put into the project")


@pytest.mark.parametrize("where", ["in the project", pytest.param("inside", marks=SEEN_AGAIN)])
def test_what_is_removed_between_a_copy_and_its_apply_stays_removed(
    ground: Ground, live: Live, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    code = "import os; print('up', flush=True); input(); os.remove('made'); print('removed', flush=True); input()"
    run = start(live, code, "apply")
    keep_seen = SpanCopies._keep_seen

    def remove_first(*given: Any) -> None:
        monkeypatch.setattr(SpanCopies, "_keep_seen", keep_seen)
        run.write(b"\n")
        while b"removed" not in run.output(0, timeout=20)[0]:
            time.sleep(0.02)
        keep_seen(*given)

    monkeypatch.setattr(SpanCopies, "_keep_seen", remove_first)
    live.run("echo > made", after="apply")
    is_seen = live.run("test -e made", after="apply").exit_code == 0
    run.write(b"\n")
    run.wait(20)
    live.close()
    assert not (is_seen if where == "inside" else (ground.project / "made").exists())
