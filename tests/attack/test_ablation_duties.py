# SPDX-License-Identifier: Apache-2.0
"""Duties around bwrap and bounds of a run, each left out once, with what overlaps it off: its attack succeeds."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.attack.ablation_flags import given_to_bwrap
from tests.attack.arena import Arena, processes_with, python, wait_until
from tests.attack.starting import forked_spawner, started
from tests.support import short
from unspill import LimitReached, NeverStarted, OutputChunk, TimedOut
from unspill.errors import SandboxUnavailable
from unspill.host.job import Job
from unspill.host.libc import write_setting
from unspill.runner import launcher
from unspill.runner.watch import RunPipes, rlimits

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
            assert wait_until(lambda: processes_with(mark))
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
            patch.setattr("unspill.runner.launcher.umask_of_caller", lambda: 0)
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
        patch.setattr("unspill.runner.launcher.Job", jobs_without(b"--"))
        arena.ground.sandbox().run(command)
    assert os.listdir(host) == ["written"]


def test_without_the_word_of_bwrap_no_command_is_let_go(arena: Arena) -> None:
    """Nobody knows then whom to set limits for, nor how it ended; what the command itself prints is not believed."""
    command = ["sh", "-c", "echo x >> $HOME/playground/ran; echo '{ \"exit-code\": 0 }'"]
    assert arena.ground.sandbox().run(command).ok
    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.launcher.Job", jobs_without(b"--json-status-fd"))
        assert arena.ground.sandbox().run(command, timeout=1).outcome == TimedOut(after_s=1)
    assert arena.ground.sandbox().run(["sh", "-c", "cat $HOME/playground/ran"]).stdout.kept() == b"x\n"


MIB: Final = 1 << 20
BOUNDS: Final = short(open_files=64, file_bytes=MIB, processes=32, memory_bytes=256 * MIB)
EXCEED: Final = {
    resource.RLIMIT_CORE: "if __import__('resource').getrlimit(4)[1] != 0: won('may leave core files')",
    resource.RLIMIT_FSIZE: f"attempt('a large file', os.truncate, os.open('big', os.O_CREAT | os.O_RDWR), {2 * MIB})",
    resource.RLIMIT_NOFILE: "attempt('many files', lambda: [os.open('/dev/null', os.O_RDONLY) for _ in range(80)])",
    resource.RLIMIT_NPROC: """
for number in range(40):
    try: child = os.fork()
    except OSError: break
    if not child: time.sleep(5); os._exit(0)
else: won("many processes")
""",
    resource.RLIMIT_DATA: f"""
import mmap
try: mmap.mmap(-1, {300 * MIB}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
except OSError: pass
else: won("much memory")
""",
}


@pytest.mark.parametrize("kind", [kind for kind, _ in rlimits(BOUNDS, has_group=False)])
def test_a_limit_that_is_not_set_can_be_exceeded(arena: Arena, kind: int) -> None:
    """Each of the limits that a held child gets."""
    options = {"limits": BOUNDS}
    assert not arena.attack(EXCEED[kind], options=options)

    def without(*arguments: Any, **named: Any) -> tuple[tuple[int, int], ...]:
        return tuple(one for one in rlimits(*arguments, **named) if one[0] != kind)

    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.launcher.rlimits", without)
        assert arena.attack(EXCEED[kind], options=options)


def test_a_sandbox_that_is_not_offered_to_the_killer_of_processes_is_like_any_other(arena: Arena) -> None:
    """The spawner sets the score that the kernel looks at when memory runs out."""
    script = 'if open("/proc/self/oom_score_adj").read().strip() != "1000": won("is not the first to go")'

    def but_the_score(path: bytes, content: bytes) -> None:
        if not path.endswith(b"oom_score_adj"):
            write_setting(path, content)

    assert not arena.attack(script)
    with forked_spawner(arena, {"unspill.host.spawner.write_setting": but_the_score}):
        assert arena.attack(script)


def test_a_command_that_is_not_held_back_starts_before_its_limits_are_set(arena: Arena) -> None:
    """bwrap with the options of a plan and a pipe to wait for, to which nobody writes."""
    given = given_to_bwrap(arena)
    read, write = os.pipe()

    def begins(*words: bytes) -> bool:
        options, command = [*given.options, *words], ["echo", "began"]
        pipe = {"stdout": subprocess.PIPE, "start_new_session": True}
        with started(given, arena.ground.bwrap, options, command, pass_fds=[read], **pipe) as run:
            assert run.stdout is not None
            told = bool(select.select([run.stdout], [], [], 0.5)[0]) and run.stdout.readline() == b"began\n"
            if not told:
                # The group, with the child that waits: it does not notice that its parent is gone
                os.killpg(run.pid, signal.SIGKILL)
            return told

    try:
        assert not begins(b"--block-fd", b"%d" % read)
        assert begins()
    finally:
        os.close(read)
        os.close(write)


WATCHERS: Final = """
while libc.inotify_init() >= 0: pass
print("held", flush=True)
time.sleep(0.3)
"""


def test_what_the_kernel_counts_by_user_is_taken_whole_where_no_half_is_kept_back(arena: Arena) -> None:
    """Take every inotify instance, and see whether the person can still have one."""

    def is_one_left() -> bool:
        seen: list[bool] = []

        def look(event: object) -> None:
            if isinstance(event, OutputChunk) and b"held" in event.chunk:
                fd = int(ctypes.CDLL(None).inotify_init())
                seen.append(fd >= 0)
                if fd >= 0:
                    os.close(fd)

        assert arena.ground.sandbox().run(python(WATCHERS), on_event=look).ok
        return seen[0]

    with forked_spawner(arena, {}):
        assert is_one_left()
    with forked_spawner(arena, {"unspill.host.libc._COUNTED_BY_USER": ()}):
        assert not is_one_left()


def test_a_run_whose_clock_nobody_looks_at_takes_as_long_as_it_likes(arena: Arena) -> None:
    """A command that lasts longer than it may."""
    sandbox = arena.ground.sandbox()
    assert sandbox.run(["sleep", "0.6"], timeout=0.2).outcome == TimedOut(after_s=0.2)
    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.watch.Watch._check_clock", lambda _watch: None)
        assert sandbox.run(["sleep", "0.6"], timeout=0.2).ok


def test_a_layer_that_nobody_measures_grows_as_it_likes(arena: Arena) -> None:
    """A command that writes more than it may. It is measured while it runs and once more when it is over; each of these
    stops it alone, and nothing does without both."""
    script = "head -c 8M /dev/zero > big; sleep 0.6"
    limits = short(layer_bytes=MIB)
    sandbox = arena.ground.sandbox()
    assert sandbox.run(script, limits=limits).outcome == LimitReached(limit="layer_bytes", bound=MIB)
    watching, last = "unspill.runner.watch.find_excess", "unspill.sandbox.scan.find_excess"
    for looks in ((watching,), (last,), (watching, last)):
        with arena.patch.context() as patch:
            for look in looks:
                patch.setattr(look, lambda *_, **__: None)
            assert sandbox.run(script, limits=limits).ok is (looks == (watching, last))
