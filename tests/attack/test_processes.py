# SPDX-License-Identifier: Apache-2.0
"""Other processes, and living on: commands that ignore their end, callers that are killed, core dumps."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import END, Arena, naive_bwrap, processes_with, python, wait_until
from tests.kernel.leftovers import state_problems
from tests.support import VIEW_LINES, kinds, short
from unspill import Cancelled, Exited, Signalled, TimedOut
from unspill.runner.launcher import stop_launchers
from unspill.runner.watch import rlimits

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

LOOK = """
mark, pids = "".join(%r), %r
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try: words = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError: continue
    if mark.encode() in words and b"lost(" not in words:
        won("sees", pid)
        pids.append(int(pid))
for pid in pids:
    attempt(f"signal {pid}", os.kill, pid, 0)
    call(f"pidfd {pid}", libc.syscall(434, pid, 0))
    for name in ("environ", "mem", "maps", "root/etc", "cwd", "fd"):
        try: os.stat(f"/proc/{pid}/{name}")
        except OSError: continue
        won(f"/proc/{pid}/{name}")
for pid in pids:
    try: os.kill(pid, signal.SIGTERM)
    except OSError: continue
    won("killed", pid)
"""


def test_a12_no_process_of_the_host_is_seen_or_reached(arena: Arena, engine: str) -> None:
    """A process of the same user runs on the host: look for it, signal it, read its memory and files.
    Control: without `--unshare-pid` the same script finds and kills it."""
    mark = f"unspill-victim-{os.getpid()}"
    parts = [mark[:9], mark[9:]]
    victim = subprocess.Popen(["sh", "-c", "while :; do sleep 1; done", mark])
    try:
        # A sandbox has few processes, so its own numbers are small
        pids = [pid for pid in (victim.pid, os.getpid(), os.getppid()) if pid > 64]
        assert not arena.attack(LOOK % (parts, pids)).won
        assert victim.poll() is None
        naive = naive_bwrap(arena.ground.bwrap, "--unshare-user", "--proc", "/proc", *python(LOOK % (parts, [])))
        assert f"WON sees {victim.pid}" in naive.stdout.decode()
        assert wait_until(lambda: victim.poll() is not None)
    finally:
        victim.kill()
        victim.wait()


def test_a12_no_process_of_another_sandbox_is_seen_or_reached(arena: Arena) -> None:
    """Two sandboxes of one spawner: the second looks for the command of the first and signals it.
    Control: without `--unshare-pid` the second finds the first one's command and kills it."""
    mark = f"unspill-other-{os.getpid()}"
    assert not victim_of(arena, mark, lambda: arena.attack(LOOK % ([mark[:9], mark[9:]], []), name="attacker").won)

    def with_shared_pids() -> tuple[str, ...]:
        with arena.without(b"--unshare-pid"):
            return arena.attack(LOOK % ([mark[:9], mark[9:]], []), name="attacker").won

    assert any(what.startswith("killed") for what in victim_of(arena, mark, with_shared_pids))


def victim_of(arena: Arena, mark: str, attack: Any) -> tuple[str, ...]:
    """Return what an attack achieves while another sandbox runs a command; end that one afterwards."""
    cancel_read, cancel_write = os.pipe()
    victim = arena.ground.sandbox("victim")
    thread = threading.Thread(
        target=lambda: victim.run(["sh", "-c", "while :; do sleep 1; done", mark], cancel_fd=cancel_read)
    )
    thread.start()
    try:
        assert wait_until(lambda: processes_with(mark))
        return tuple(attack())
    finally:
        os.write(cancel_write, b"x")
        thread.join()
        os.close(cancel_read)
        os.close(cancel_write)


PTRACE = """
libc.ptrace.argtypes = [ctypes.c_long] * 4
with open("kept", "w") as file: file.write("written before")
os.write(2, b"bwrap: execvp forged: No such file or directory\\n")
os.write(1, b'{ "exit-code": 0 }\\n')
"""


def test_a24_pid_1_that_is_made_to_crash_forges_no_outcome(arena: Arena) -> None:
    """Trace bwrap's pid 1 inside, set its instruction pointer to nowhere and let it run: everything dies.
    Control: a run that is not started at all has the outcome that the crash would like to have."""
    script = f"""{PTRACE}
print({END!r}, flush=True)
libc.ptrace(16, 1, 0, 0); os.waitpid(1, 0x40000000)
libc.ptrace(6, 1, 16 * 8, 16)
libc.ptrace(17, 1, 0, signal.SIGSEGV)
time.sleep(5)
"""
    tried = arena.attack(script)
    assert isinstance(tried.result.outcome, Signalled | Exited)
    assert tried.result.exit_code not in (0, 125, 126, 127)
    assert kinds(tried.result.changes) == {"kept": "added"}
    assert tried.result.held
    assert arena.ground.sandbox().run(["forged-no-such-program"]).exit_code == 127


def test_a24_the_channel_of_pid_1_is_worth_no_more_than_an_exit_code(arena: Arena) -> None:
    """Take the descriptor by which pid 1 tells its parent the exit code, and write other codes to it.
    Control: the code arrives, and the run is over with it: the same as `exit 77`, and every process is dead."""
    mark = f"unspill-forger-{os.getpid()}"
    script = (
        PTRACE
        + f"""
subprocess.Popen(["sh", "-c", "sleep 20", "{mark}"])
for number in range(3, 64):
    taken = libc.syscall(438, libc.syscall(434, 1, 0), number, 0)
    if taken >= 0:
        print({END!r}, flush=True)
        os.write(taken, struct.pack("Q", 78))
        time.sleep(5)
sys.exit("there was no such descriptor")
"""
    )
    tried = arena.attack(script)
    assert tried.result.outcome == Exited(code=77)
    assert kinds(tried.result.changes) == {"kept": "added"}
    assert processes_with(mark) == []


def test_a12_the_namespaces_of_a_sandbox_are_its_own(arena: Arena) -> None:
    """Compare every namespace with the host's, and try to enter those of pid 1.
    Control: without each `--unshare` option that namespace is the one of the process that starts bwrap."""
    script = """
    for name in sorted(os.listdir("/proc/self/ns")): print("NS", name, os.readlink(f"/proc/self/ns/{name}"))
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        # One's own namespaces can be entered again by those who have the right, so a refusal says that nobody has it
        call(f"setns {name}", libc.setns(os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0))
    """
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}

    def shared(tried: Any) -> set[str]:
        inside = dict(line.split()[1:3] for line in tried.lines if line.startswith("NS "))
        assert set(inside) == set(ours)
        return {name for name, link in inside.items() if ours[name] == link}

    tried = arena.attack(script)
    assert not tried.won
    assert shared(tried) <= {"time", "time_for_children"}
    for name, flags in {"ipc": (), "net": (), "uts": (b"--hostname unspill",)}.items():
        with arena.without(b"--unshare-" + name.encode(), *flags):
            assert name in shared(arena.attack(script))


# Each goes on for a minute, whatever it is told; {mark} is what its processes are known by
STUBBORN = {
    "trap": "trap '' TERM INT HUP QUIT PIPE USR1; sh -c 'trap \"\" TERM; sleep 60' {mark}; sleep 60",
    "daemon": "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' {mark} </dev/null >/dev/null 2>&1 & sleep 60",
    "double fork": "(setsid sh -c 'setsid sh -c \"sleep 60\" {mark} & exit' &) ; sleep 60",
    "stdout held": "sh -c 'sleep 60' {mark} & exec sleep 60 >/dev/null",
    "many": "for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'trap \"\" TERM; sleep 60' {mark} & done; sleep 60",
    "forking": "sh -c 'while :; do (sleep 0.01 &) ; sleep 0.01; done' {mark}; sleep 60",
    "stopped": "sh -c 'kill -STOP $$; sleep 60' {mark} & sleep 60",
    "flood": "sh -c 'while :; do echo flood; done' {mark}",
}


def mark_of(name: str) -> str:
    return f"unspill-{name.replace(' ', '-')}-{os.urandom(4).hex()}"


@pytest.mark.parametrize("way", STUBBORN)
def test_b6_a_timeout_kills_everything_at_once(arena: Arena, way: str) -> None:
    """Trap signals, become a daemon, fork twice, hold the output, stop, fork without end: the time is over.
    Control: bwrap without a pid namespace and without `--die-with-parent`, killed by itself, leaves survivors."""
    mark = mark_of(way)
    command = STUBBORN[way].format(mark=mark)
    begun = time.monotonic()
    result = arena.ground.sandbox().run(command, timeout=0.5)
    assert result.outcome == TimedOut(after_s=0.5)
    assert time.monotonic() - begun < 3
    assert processes_with(mark) == []


@pytest.mark.parametrize("way", ["daemon", "double fork", "stdout held"])
def test_b6_what_is_left_when_the_command_ends_dies_with_it(arena: Arena, way: str) -> None:
    """The command itself ends at once and leaves processes behind that hold its output.
    Control: the same without a pid namespace, below."""
    mark = mark_of(way)
    command = STUBBORN[way].format(mark=mark).replace("; sleep 60", "; exit 0").replace("& exec sleep 60", "& exit 0")
    begun = time.monotonic()
    result = arena.ground.sandbox().run(command.replace("& sleep 60", "& exit 0"), timeout=20)
    assert result.outcome == Exited(code=0)
    assert time.monotonic() - begun < 10
    assert processes_with(mark) == []


@pytest.mark.parametrize(
    ("flags", "survives"),
    [
        ((), True),
        (("--die-with-parent",), True),
        (("--unshare-pid",), True),
        (("--unshare-pid", "--die-with-parent"), False),
    ],
)
def test_b6_control_a_killed_bwrap_leaves_a_daemon_unless_it_has_both_flags(
    arena: Arena, flags: tuple[str, ...], survives: bool
) -> None:
    """The control arm of the tests above, and what the flags are for.
    Control: this is it."""
    mark = mark_of("control")
    command = STUBBORN["daemon"].format(mark=mark)
    words = [os.fsdecode(arena.ground.bwrap), *flags, "--ro-bind", "/", "/", "--dev", "/dev", "sh", "-c", command]
    started = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: processes_with(f"sleep 1; done\0{mark}"))
        started.kill()
        started.wait()
        assert wait_until(lambda: not processes_with(mark), 0.7) is not survives
    finally:
        for pid in processes_with(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_b6_a_cancelled_run_is_dead_when_the_call_returns(arena: Arena) -> None:
    """Cancel a run of daemons.
    Control: that of the tests above."""
    mark = mark_of("cancelled")
    read, write = os.pipe()
    threading.Timer(0.4, os.write, (write, b"x")).start()
    result = arena.ground.sandbox().run(STUBBORN["many"].format(mark=mark), cancel_fd=read)
    assert result.outcome == Cancelled()
    assert processes_with(mark) == []
    os.close(read)
    os.close(write)


def test_b6_nothing_is_written_after_a_run_has_ended(arena: Arena) -> None:
    """Leave writers in the background and exit; compare the layer with what was scanned.
    Control: after `wait()` of bwrap alone, writers were seen to go on; that it can happen is shown by a process that
    still runs when the command itself has ended."""
    script = "for i in 1 2 3 4; do (while :; do date +%N >> log-$i; done) & done; sleep 0.05; exit 0"
    sandbox = arena.ground.sandbox()
    for _ in range(12):
        result = sandbox.run(script)
        [layer] = [Path(os.fsdecode(change.layer)) for change in result.changes if change.layer][:1]
        found = {change.path: change.entry.size for change in result.changes if change.entry}
        time.sleep(0.03)
        assert {path: os.stat(layer / os.fsdecode(path)).st_size for path in found} == found
        assert len(found) == 4
        sandbox.discard()


CALLER = (
    VIEW_LINES
    + """
import os, sys
from unspill import Policy, Sandbox
sandbox = Sandbox(sys.argv[1], policy=Policy(**VIEW, bwrap=os.fsencode(sys.argv[2]), after="hold"))
print("open", flush=True)
sandbox.run(["sh", "-c", "setsid sleep 60 & echo x > file; sleep 60", sys.argv[3]])
"""
)


def kill_after(ground: Ground, words: list[str], delay_s: float, *, whom: str, mark: str) -> None:
    """Start a caller, kill it or its spawner after a moment, and wait for its end."""
    caller = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ground.project
    )
    try:
        time.sleep(delay_s)
        victims = [caller.pid] if whom == "caller" else children_of(caller.pid)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if whom == "caller":
            caller.wait(10)
            return
        # Without its spawner a caller says so and ends, or starts another and goes on
        if not wait_until(lambda: caller.poll() is not None, 1):
            caller.terminate()
        caller.wait(10)
    finally:
        caller.kill()


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("whom", ["caller", "spawner"])
@pytest.mark.parametrize("face", ["library", "command line"])
def test_b7_a_caller_that_is_killed_early_leaves_no_process_and_what_was_changed_on_hold(
    arena: Arena, full: bool, face: str, whom: str
) -> None:
    """Kill the caller, or its spawner, at random moments of the start and after it.
    Control: bwrap without `--die-with-parent` lives on, above."""
    ground, mark = arena.ground, mark_of("early")
    chance = random.Random(7)
    library = [sys.executable, "-c", CALLER, os.fspath(ground.project), os.fsdecode(ground.bwrap), mark]
    program = os.fspath(Path(sys.executable).with_name("unspill"))
    command = [program, "run", "--", "sh", "-c", "setsid sleep 60 & echo x > file; sleep 60", mark]
    for _ in range(50 if full else 6):
        delay_s = chance.uniform(0.02, 0.35)
        kill_after(ground, library if face == "library" else command, delay_s, whom=whom, mark=mark)
        assert wait_until(lambda: not processes_with(mark), 5), (face, whom, delay_s)
    assert list(ground.project.iterdir()) == []
    again = subprocess.run([program, "run", "--", "true"], cwd=ground.project, check=False, capture_output=True)
    assert again.returncode == 0, again
    assert state_problems(ground.state) == []
    held = ground.sandbox().changes()
    assert {change.path for change in held} <= {b"file"}
    ground.sandbox().discard()
    assert ground.left_behind() == []


def test_b8_a_command_outlives_the_thread_that_started_it_first(arena: Arena) -> None:
    """The spawner is started by a thread that ends; runs of other threads go on and new ones start.
    Control: a bwrap with `--die-with-parent` that a thread started is killed when the thread ends."""
    stop_launchers()
    sandbox = arena.ground.sandbox()
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(sandbox.run(["true"])))
    first.start()
    first.join()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sandbox.run, "sleep 0.3; echo done")
        assert running.result().stdout.head == b"done\n"
    assert results[0].ok
    assert sandbox.run("echo again").stdout.head == b"again\n"
    assert killed_with_its_thread(arena.ground)


def killed_with_its_thread(ground: Ground) -> bool:
    """Start bwrap in a thread, let the thread end while the command runs, and tell whether bwrap was killed."""
    mark = mark_of("thread")
    words = [os.fsdecode(ground.bwrap), "--die-with-parent", "--ro-bind", "/", "/", "sh", "-c", "sleep 2; :", mark]
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.append(subprocess.Popen(words))
        wait_until(lambda: any(pid != started[0].pid for pid in processes_with(mark)))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    return started[0].wait() == -signal.SIGKILL


CRASH = "ulimit -c unlimited 2>/dev/null; ulimit -c; python3 -c 'import os; os.abort()'; ls -A"


def test_b9_a_crash_leaves_no_core_file(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limit for core files and abort in the project.
    Control: without the limit that is set on the held child the core file is there."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    stop_launchers()
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        result = arena.ground.sandbox().run(CRASH, limits=short())
        assert result.stdout.head == b"0\n"
        assert kinds(result.changes) == {}
        monkeypatch.setattr(
            "unspill.runner.launcher.rlimits",
            lambda *given, **named: tuple(p for p in rlimits(*given, **named) if p[0] != resource.RLIMIT_CORE),
        )
        weaker = arena.ground.sandbox().run(CRASH, limits=short())
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        stop_launchers()
    assert weaker.stdout.head.startswith(b"unlimited\n")
    if not pattern.startswith(("|", "/", "@")):
        assert any("core" in path for path in kinds(weaker.changes))
