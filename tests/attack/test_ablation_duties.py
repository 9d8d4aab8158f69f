# SPDX-License-Identifier: Apache-2.0
"""What unspill does around bwrap, each duty left out once, with what overlaps it switched off: its attack succeeds.

Duties of the spawner are left out in one that is forked from this process, as the command line's is, so that it has
the same change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.attack.arena import Arena, processes_with, python, wait_until
from tests.attack.starting import forked_spawner
from unspill import NeverStarted, TimedOut
from unspill.errors import SandboxUnavailable
from unspill.host.job import Job
from unspill.runner import launcher
from unspill.runner.watch import RunPipes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]


LEAKED: Final = 50
THROUGH: Final = f"attempt('writes to the host', lambda: os.open('written', os.O_CREAT | os.O_WRONLY, dir_fd={LEAKED}))"


@contextmanager
def leaked_directory(arena: Arena) -> Iterator[Path]:
    """A directory of the host that every program inherits which this one starts."""
    victim = arena.ground.top / "victim"
    victim.mkdir()
    fd = os.open(victim, os.O_RDONLY)
    os.dup2(fd, LEAKED, inheritable=True)
    os.close(fd)
    try:
        yield victim
    finally:
        os.close(LEAKED)


def placed_without_closing(descriptors: Sequence[int]) -> None:
    """Place descriptors and close all others but one; the caller's pipes have to be closed, or they would never end."""
    for number, fd in enumerate([os.dup(fd) for fd in descriptors]):
        os.dup2(fd, number)
    os.closerange(len(descriptors), LEAKED)
    os.closerange(LEAKED + 1, 1 << 20)


def test_descriptors_that_a_forked_spawner_does_not_close_are_a_way_out(arena: Arena) -> None:
    """As the command line starts its spawner; the caller has an inheritable directory."""
    with leaked_directory(arena) as victim:
        with forked_spawner(arena, {}):
            assert not arena.attack(THROUGH)
        with forked_spawner(arena, {"unspill.host.spawner.place_descriptors": placed_without_closing}):
            assert arena.attack(THROUGH)
        assert os.listdir(victim) == ["written"]


UNCLOSED: Final = """
import os, sys
os.closerange = lambda *_: None
sys.path.insert(0, {!r})
from unspill.host.spawner import main
main()
"""


def test_descriptors_that_a_spawner_of_its_own_does_not_close_are_a_way_out(arena: Arena) -> None:
    """As a program that uses the library starts its spawner."""
    package = os.path.dirname(launcher._PACKAGE)
    program = arena.ground.top / "host" / "spawner_main.py"
    program.parent.mkdir()
    program.write_text(UNCLOSED.format(package))
    with leaked_directory(arena) as victim:
        launcher.stop_launchers()
        assert not arena.attack(THROUGH)
        launcher.stop_launchers()
        with arena.patch.context() as patch:
            patch.setattr(launcher, "_PACKAGE", os.fspath(arena.ground.top))
            assert arena.attack(THROUGH)
        launcher.stop_launchers()
        assert os.listdir(victim) == ["written"]


def test_a_run_whose_processes_are_not_waited_for_leaves_some_alive(arena: Arena) -> None:
    """A daemon stays when the command ends. Off is `--die-with-parent`; without it the spawner alone ends the run."""
    mark = f"unspill-late-{os.urandom(4).hex()}"
    command = ["sh", "-c", "setsid sh -c 'while :; do sleep 1; done' $0 >/dev/null 2>&1 & exit 0", mark]

    def only_bwrap(run: Any) -> bool:
        if run.status is None and os.waitid(os.P_PID, run.bwrap, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            run.status = os.waitpid(run.bwrap, 0)[1]
        return run.status is not None

    changes = {
        "unspill.host.spawner.SpawnedRun.reap": only_bwrap,
        "unspill.runner.watch.Watch._wait_for_init": lambda _watch: None,
    }
    with arena.without(b"--die-with-parent"):
        with forked_spawner(arena, {}):
            assert arena.ground.sandbox().run(command).ok
            assert processes_with(mark) == []
        with forked_spawner(arena, changes):
            assert arena.ground.sandbox().run(command).ok
            assert processes_with(mark) != []
    assert processes_with(mark) == []


def survivors(arena: Arena, ground: Ground, *, own_namespace: bool) -> bool:
    """Kill the spawner of a run and tell whether the command lives on."""
    mark = f"unspill-orphan-{os.urandom(4).hex()}"
    failed: list[BaseException] = []

    def run() -> None:
        try:
            ground.sandbox(engine="native").run(["sh", "-c", "while :; do sleep 1; done", mark])
        except SandboxUnavailable as error:
            failed.append(error)

    changes = {
        "unspill.host.job.kill_strays": lambda *_, **__: None,
        "unspill.runner.watch.Watch._wait_for_init": lambda _watch: None,
    }
    with arena.without(b"--die-with-parent"), forked_spawner(arena, changes, own_namespace=own_namespace):
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert wait_until(lambda: len(processes_with(f"sleep 1; done\0{mark}")) >= 3)
            [spawner] = launcher._launchers.values()
            inner = subprocess.run(["pgrep", "-P", str(spawner.pid)], capture_output=True, text=True, check=True)
            os.kill(int(inner.stdout.split()[0]) if own_namespace else spawner.pid, signal.SIGKILL)
            thread.join(20)
            assert failed
            return not wait_until(lambda: not processes_with(mark), 0.7)
        finally:
            for pid in processes_with(mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            thread.join(20)


def test_a_spawner_that_is_no_pid_1_leaves_commands_when_it_is_killed(
    arena: Arena, without_own_namespace: Ground
) -> None:
    """Off are `--die-with-parent`, the search for strays by their names, and that the caller waits for pid 1 inside."""
    assert not survivors(arena, without_own_namespace, own_namespace=True)
    assert survivors(arena, without_own_namespace, own_namespace=False)


def test_a_command_that_does_not_get_the_umask_of_the_person_makes_files_for_everybody(arena: Arena) -> None:
    """The person's own is 077."""
    script = "if os.fstat(os.open('made', os.O_CREAT | os.O_WRONLY, 0o666)).st_mode & 0o077: won('open to others')"
    before = os.umask(0o077)
    try:
        assert not arena.attack(script)
        with arena.patch.context() as patch:
            patch.setattr("unspill.runner.perform._umask", lambda: 0)
            assert arena.attack(script, name="other")
    finally:
        os.umask(before)


def test_a_file_in_place_of_a_pipe_lets_a_command_unsay_what_it_printed(arena: Arena) -> None:
    """Print, then truncate standard output by way of /proc."""
    script = """
    print("EVIDENCE", flush=True)
    attempt("unsay", lambda: os.truncate(os.open("/proc/self/fd/1", os.O_WRONLY), 0))
    """
    record = arena.ground.top / "record"

    class FilePipes(RunPipes):
        def __init__(self, has_stdin: bool) -> None:
            super().__init__(has_stdin)
            os.close(self.theirs[1])
            self.theirs[1] = os.open(record, os.O_CREAT | os.O_RDWR)

    tried = arena.attack(script)
    assert not tried.won
    assert "EVIDENCE" in tried.lines
    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.perform.RunPipes", FilePipes)
        assert arena.ground.sandbox().run(python(script)).ok
    text = record.read_text("utf-8", "replace")
    assert "WON unsay" in text
    assert "EVIDENCE" not in text


def test_variables_that_are_not_chosen_by_name_are_all_there(arena: Arena) -> None:
    """The person has a secret in a variable."""
    arena.patch.setenv("CLOUD_SECRET_KEY", "CANARY")
    script = 'if os.environ.get("CLOUD_SECRET_KEY"): won("reads it")'
    assert not arena.attack(script)
    with arena.patch.context() as patch:
        patch.setattr("unspill.plan.build.build_environ", lambda given, _mounts: tuple(given.environ))
        assert arena.attack(script)


def jobs_without(*gone: bytes) -> Callable[..., Job]:
    """Return what makes jobs whose bwrap is not given these words, and no value that follows an option."""

    def job(**named: Any) -> Job:
        words = list(named["argv"])
        for word in gone:
            at = words.index(word)
            del words[at : at + (1 if word == b"--" else 2)]
        return Job(**{**named, "argv": tuple(words)})

    return job


def test_a_command_that_is_not_set_apart_is_taken_for_options(arena: Arena) -> None:
    """The first words of the command are options that bind a directory of the host."""
    host = arena.ground.top / "host-directory"
    host.mkdir()
    command = ["--bind", os.fspath(host), "/run/host", "sh", "-c", "echo x > /run/host/written"]
    assert isinstance(arena.ground.sandbox().run(command).outcome, NeverStarted)
    assert os.listdir(host) == []
    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.perform.Job", jobs_without(b"--"))
        arena.ground.sandbox().run(command)
    assert os.listdir(host) == ["written"]


def test_without_the_word_of_bwrap_nobody_knows_how_a_command_ended(arena: Arena) -> None:
    """A command that ran is then told as one that never started: nothing of it is believed, least of all its output."""
    command = ["sh", "-c", "echo x > $HOME/playground/ran; echo '{ \"exit-code\": 0 }'"]
    assert arena.ground.sandbox().run(command).ok
    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.perform.Job", jobs_without(b"--json-status-fd"))
        assert isinstance(arena.ground.sandbox().run(command).outcome, NeverStarted)
        patch.setattr("unspill.runner.perform.Job", jobs_without(b"--info-fd"))
        # Nobody knows whom to let go
        assert arena.ground.sandbox().run(["true"], timeout=1).outcome == TimedOut(after_s=1)
