# SPDX-License-Identifier: Apache-2.0
"""Every bound of a run is enforced for real and named in the result; without the bound the same command succeeds."""

import os
import resource
import subprocess
import sys
import time

import pytest

from tests.support import NO_CACHES, Ground, chosen_view, kinds, printed, short
from unspill import Exited, LimitReached, Limits, TimedOut

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap, pytest.mark.rootfs_view]

MIB = 1 << 20


def test_the_wall_time_of_the_policy_holds(ground: Ground) -> None:
    begun = time.monotonic()
    result = ground.sandbox(limits=Limits(wall_s=0.5)).run("sleep 60")
    assert result.outcome == TimedOut(after_s=0.5)
    assert time.monotonic() - begun < 5


def test_ten_minutes_are_the_default() -> None:
    assert Limits().wall_s == 600


def test_a_single_call_may_have_another_time(ground: Ground) -> None:
    sandbox = ground.sandbox(limits=Limits(wall_s=0.3))
    assert sandbox.run("sleep 0.6", timeout=10).ok
    assert sandbox.run("sleep 0.6").outcome == TimedOut(after_s=0.3)


def test_a_run_may_be_without_a_time_limit(ground: Ground) -> None:
    assert ground.sandbox(limits=Limits(wall_s=None)).run("true").ok


def test_a_file_beyond_its_bound_ends_the_command_by_the_kernels_signal(ground: Ground, engine: str) -> None:
    write = ["head", "-c", str(2 * MIB), "/dev/zero"]
    sandbox = ground.sandbox()
    bounded = sandbox.run(["sh", "-c", "exec " + " ".join(write) + " > big"], limits=short(file_bytes=MIB))
    assert bounded.outcome == LimitReached(limit="file_bytes", bound=MIB)
    assert bounded.exit_code == 137
    # What fitted is held: the bound is one of a file, not of the layer
    assert kinds(bounded.changes) == {"big": "added"}
    assert printed(sandbox.run("stat -c %s big")) == f"{MIB}\n"
    assert sandbox.run(["sh", "-c", "exec " + " ".join(write) + " > big"], limits=short(file_bytes=4 * MIB)).ok


FILL = "i=0; while [ $i -lt {files} ]; do head -c {size} /dev/zero > f$i; i=$((i+1)); {pause}; done"


def test_a_layer_beyond_its_bytes_ends_the_run_and_is_dropped(ground: Ground, engine: str) -> None:
    command = FILL.format(files=4000, size=MIB, pause="sleep 0.02")
    sandbox = ground.sandbox()
    result = sandbox.run(command, limits=short(layer_bytes=8 * MIB))
    assert result.outcome == LimitReached(limit="layer_bytes", bound=8 * MIB)
    assert not result.held
    assert not sandbox.changes()
    assert ground.left_behind() == []


def test_a_layer_beyond_its_entries_ends_the_run_and_is_dropped(ground: Ground, engine: str) -> None:
    command = FILL.format(files=100_000, size=0, pause="mkdir d$i")
    result = ground.run(command, limits=short(layer_entries=300))
    assert result.outcome == LimitReached(limit="layer_entries", bound=300)
    assert not result.held
    assert ground.left_behind() == []


def test_a_layer_that_outgrew_its_bound_just_before_the_end_is_named_too(ground: Ground, engine: str) -> None:
    result = ground.run("head -c 4194304 /dev/zero > f", limits=short(layer_bytes=MIB))
    assert result.outcome == LimitReached(limit="layer_bytes", bound=MIB)
    assert not result.held
    entries = ground.run("for i in 1 2 3 4 5 6 7 8 9; do : > f$i; done", limits=short(layer_entries=5))
    assert entries.outcome == LimitReached(limit="layer_entries", bound=5)


def test_what_is_locked_away_is_measured_too(ground: Ground) -> None:
    result = ground.run("mkdir d; head -c 4194304 /dev/zero > d/f; chmod 0 d; sleep 0.7", limits=short(layer_bytes=MIB))
    assert result.outcome == LimitReached(limit="layer_bytes", bound=MIB)
    assert ground.left_behind() == []


def test_a_sparse_file_costs_what_it_takes_not_what_it_says(ground: Ground) -> None:
    result = ground.run("truncate -s 1G f; sleep 0.7", limits=short(layer_bytes=MIB, file_bytes=None))
    assert result.outcome == Exited(code=0)


def test_what_the_project_had_before_does_not_count(ground: Ground, engine: str) -> None:
    ground.write("large", b"x" * 4 * MIB)
    for number in range(20):
        ground.write(f"many/{number}")
    result = ground.run("sleep 0.7; echo y > new", limits=short(layer_bytes=MIB, layer_entries=10))
    assert result.outcome == Exited(code=0)
    assert kinds(result.changes) == {"new": "added"}


@NO_CACHES
def test_caches_count_towards_the_layer(ground: Ground) -> None:
    (ground.home / ".cache" / "pip").mkdir(parents=True)
    command = "cd ~/.cache/pip && " + FILL.format(files=4000, size=MIB, pause="sleep 0.02")
    result = ground.run(command, limits=short(layer_bytes=8 * MIB))
    assert result.outcome == LimitReached(limit="layer_bytes", bound=8 * MIB)


def test_the_playground_does_not_grow_without_bound(ground: Ground) -> None:
    command = "cd ~/playground && " + FILL.format(files=4000, size=MIB, pause="sleep 0.02")
    result = ground.run(command, limits=short(layer_bytes=8 * MIB))
    assert result.outcome == LimitReached(limit="playground_bytes", bound=8 * MIB)


FORKS = """
import os, sys, time
made = 0
try:
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        made += 1
except BlockingIOError as error:
    print(made, error.strerror)
    sys.stdout.flush()
    os._exit(3)
print(made)
sys.stdout.flush()
os._exit(0)
"""


def test_processes_are_bounded_for_the_whole_sandbox(ground: Ground, engine: str) -> None:
    bounded = ground.run(["python3", "-c", FORKS], limits=short(processes=30))
    made = int(bounded.stdout.kept().split()[0])
    assert 10 < made < 30
    # Where there is a control group, the kernel says who it was; an rlimit says so only to the program
    assert bounded.outcome in (Exited(code=3), LimitReached(limit="processes", bound=30))
    assert printed(ground.run(["python3", "-c", FORKS], limits=short(processes=100))) == "60\n"


def test_runs_beside_each_other_have_bounds_of_their_own(ground: Ground) -> None:
    others = [subprocess.Popen(["sleep", "20"]) for _ in range(40)]
    try:
        assert ground.run(["python3", "-c", FORKS], limits=short(processes=100)).ok
        assert ground.run("true", limits=short(processes=20)).ok
    finally:
        for other in others:
            other.kill()
            other.wait()


EAT = "x = bytearray({}); print(len(x))"


def test_memory_is_bounded(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    bounded = sandbox.run(["python3", "-c", EAT.format(300 * MIB)], limits=short(memory_bytes=128 * MIB))
    assert not bounded.ok
    assert bounded.outcome == LimitReached(limit="memory", bound=128 * MIB) or b"MemoryError" in bounded.stderr.kept()
    assert sandbox.run(["python3", "-c", EAT.format(300 * MIB)], limits=short(memory_bytes=1024 * MIB)).ok


OPEN = "import os\nfds = [os.open('/dev/null', os.O_RDONLY) for _ in range(200)]\nprint(len(fds))"


def test_open_files_are_bounded(ground: Ground, engine: str) -> None:
    bounded = ground.run(["python3", "-c", OPEN], limits=short(open_files=100))
    assert bounded.outcome == Exited(code=1)
    assert b"Too many open files" in bounded.stderr.kept()
    assert ground.run(["python3", "-c", OPEN], limits=short(open_files=400)).ok


def test_a_command_can_not_raise_its_bounds(ground: Ground) -> None:
    command = (
        "ulimit -H -n; ulimit -n 5000 2>/dev/null || echo no; ulimit -c; ulimit -f 99999999 2>/dev/null || echo no"
    )
    assert printed(ground.run(command, limits=short(open_files=100, file_bytes=MIB))) == "100\nno\n0\nno\n"


def test_no_core_is_dumped(ground: Ground, engine: str) -> None:
    result = ground.run("ulimit -c unlimited 2>/dev/null; sh -c 'kill -SEGV $$'; ls")
    assert result.stdout.total == 0
    assert not result.changes


def test_the_callers_own_lower_bounds_stay(ground: Ground) -> None:
    program = f"""
import resource
from unspill import Limits, Policy, Sandbox
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 600))
sandbox = Sandbox({os.fspath(ground.project)!r}, policy=Policy(**{chosen_view()!r}, bwrap={ground.bwrap!r}))
result = sandbox.run("ulimit -n; ulimit -H -n", limits=Limits(open_files=4096))
print(result.stdout.kept().decode().split())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['600', '600']\n"


def test_the_bounds_are_not_those_of_the_caller(ground: Ground) -> None:
    before = [resource.getrlimit(kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)]
    ground.run("true", limits=short(file_bytes=MIB, open_files=50))
    assert [resource.getrlimit(kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)] == before


def test_what_is_unlimited_is_not_bounded(ground: Ground) -> None:
    nothing = Limits(
        wall_s=None, output_bytes=None, layer_bytes=None, layer_entries=None, file_bytes=None, processes=None,
        memory_bytes=None, open_files=None,
    )  # fmt: skip
    assert printed(ground.run("ulimit -f; ulimit -d", limits=nothing)) == "unlimited\nunlimited\n"


def test_tmp_is_bounded(ground: Ground, engine: str) -> None:
    command = "head -c 4194304 /dev/zero > /tmp/x"
    bounded = ground.run(command, limits=short(tmp_bytes=MIB))
    assert bounded.outcome == Exited(code=1)
    assert b"No space left on device" in bounded.stderr.kept()
    assert ground.run(command, limits=short(tmp_bytes=16 * MIB)).ok
