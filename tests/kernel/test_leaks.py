# SPDX-License-Identifier: Apache-2.0
"""Many runs, and runs that fail in every way, leave no process, mount, descriptor, directory or row behind.

Nothing here is swept by a later start: what a run leaves, it must have removed itself.
"""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.leftovers import (
    adopt_orphans,
    descendants,
    descriptors,
    mounts_of,
    reap_adopted,
    state_problems,
    state_problems_apart,
    tree_of,
    within,
)
from tests.support import VIEW_LINES, Ground, short
from unspill import Cancelled, Ended, LimitReached, NeverStarted, OutputChunk, Sandbox, Started, TimedOut
from unspill.errors import SandboxUnavailable, UsageError
from unspill.runner.launcher import get_launcher

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

# Four processes, two of them with three callers each: eight callers
THREADS = (1, 3, 1, 3)

# The processes that launchers of this process have started and must reap
STARTED: set[int] = set()

WORKER = (
    VIEW_LINES
    + """
import json, os, sys, threading
from tests.kernel.leftovers import descendants, descriptors, within
from unspill import Policy, Sandbox

project, bwrap, worker, threads, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
COMMANDS = (
    ("true", "discard"), ("echo x > file; mkdir -p a/b/c; echo y > a/b/c/d", "discard"), ("exit 3", "hold"),
    ("setsid sleep 1000 & sleep 1000 & exit 0", "discard"), ("echo x >> held", "hold"), ("kill -9 $$", "hold"),
    ("head -c 3000000 /dev/zero", "discard"), (["no-such-command"], "hold"), ("rm -rf *; ls", "discard"),
)
wrong = []

def call(name, number):
    with Sandbox(project, name=name, policy=Policy(**VIEW, bwrap=os.fsencode(bwrap))) as sandbox:
        for index in range(number):
            command, after = COMMANDS[index % len(COMMANDS)]
            result = sandbox.run(command, after=after)
            if result.exit_code != (3 if command == "exit 3" else 137 if "kill" in command else 127 if
                                    isinstance(command, list) else 0):
                wrong.append(f"{command}: {result}")
            if index % 40 == 39:
                sandbox.discard()

def counts():
    within(2, lambda: len(descendants(os.getpid())) == 2)
    below = descendants(os.getpid())
    spawner = [pid for pid in below if pid != min(below)]
    return [sorted(descriptors(os.getpid()).values()), [sorted(descriptors(pid).values()) for pid in spawner],
            sorted(below.values())]

# Two callers of a process share one sandbox, so that they wait for one another
names = [f"{worker}-{thread // 2}" for thread in range(threads)]
call("warm-up", 9)
before = counts()
callers = [threading.Thread(target=call, args=(name, count)) for name in names]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
print(json.dumps({"wrong": wrong, "before": before, "after": counts()}))
"""
)


@dataclass(frozen=True)
class Balance:
    """What this process, its spawner and the host hold on its behalf."""

    own: list[str]
    spawners: list[list[str]]
    below: list[str]
    mounts: list[str]
    state: list[str]


def processes() -> list[int]:
    """Return the parent of this process's spawner, the spawner, and what else should not be there any more."""
    parent = get_launcher(own_namespace=True).pid
    STARTED.add(parent)
    # It takes the spawner a moment to be there, and another to reap what it has just told of
    within(2, lambda: len(descendants(parent)) == 1)
    return [parent, *descendants(parent)]


def balance(ground: Ground) -> Balance:
    # What an earlier test has left to be collected would be gone from the second balance
    gc.collect()
    alive = processes()
    reap_adopted(STARTED)
    return Balance(
        own=sorted(descriptors(os.getpid()).values()),
        spawners=[sorted(descriptors(pid).values()) for pid in alive],
        below=sorted(descendants(os.getpid()).values()),
        mounts=mounts_of(ground.top),
        state=state_problems_apart(ground.state),
    )


def settled_balance(ground: Ground) -> Balance:
    """Return a balance that stays: a spawner that was started just now still opens and closes things."""
    found = balance(ground)
    for _ in range(50):
        time.sleep(0.1)
        again = balance(ground)
        if again == found:
            break
        found = again
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_runs_by_eight_callers_leave_nothing(ground: Ground, full: bool) -> None:
    """The time buys many runs at once in several processes, and thousands with `--full`."""
    adopt_orphans()
    for number in range(20):
        ground.write(f"d{number % 4}/file{number}", f"{number}\n")
    before, below = tree_of(ground.project), descendants(os.getpid())
    runs = 250 if full else 18
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, ground.project, ground.bwrap, f"w{index}", str(threads), str(runs)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[2])},
        )
        for index, threads in enumerate(THREADS)
    ]
    answers = [json.loads(worker.communicate(timeout=1700)[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0]
    assert [answer["wrong"] for answer in answers] == [[], [], [], []]
    assert [answer["after"] for answer in answers] == [answer["before"] for answer in answers]
    # The spawners are orphans of this process now, and end because their callers have
    assert within(2, lambda: all(shown.endswith("(Z)") for shown in new_below(below).values()))
    for pid in new_below(below):
        os.waitpid(pid, 0)
    assert new_below(below) == {}
    assert state_problems(ground.state) == []
    assert mounts_of(ground.top) == []
    assert tree_of(ground.project) == before
    record_figure(
        "runs without a leak",
        f"{runs * sum(THREADS)} runs: 0 survivors, zombies, mounts, descriptors, directories, rows",
        "eight callers in four processes; successes, failures, daemons, 3 MB of output",
    )


def new_below(before: dict[int, str]) -> dict[int, str]:
    return {pid: shown for pid, shown in descendants(os.getpid()).items() if pid not in before}


def run_missing_command(ground: Ground, sandbox: Sandbox) -> None:
    assert isinstance(sandbox.run(["no-such-command"]).outcome, NeverStarted)


def run_in_missing_directory(ground: Ground, sandbox: Sandbox) -> None:
    with pytest.raises(UsageError):
        sandbox.run("true", working_dir="no/such/directory")


def run_in_directory_that_only_bwrap_misses(ground: Ground, sandbox: Sandbox) -> None:
    sandbox.run("echo x > held")
    with pytest.raises(UsageError):
        sandbox.run("true", working_dir="no/such/directory")


def run_over_a_layer_that_vanished(ground: Ground, sandbox: Sandbox) -> None:
    sandbox.run("echo x > held")
    for layer in (ground.state / "layers").iterdir():
        layer.rename(ground.top / "away")
        with suppress(SandboxUnavailable):
            assert isinstance(sandbox.run("true").outcome, NeverStarted)
        (ground.top / "away").rename(layer)


def run_past_its_time(ground: Ground, sandbox: Sandbox) -> None:
    command = "trap '' TERM INT HUP; (setsid sh -c 'while :; do echo x >> noise; done' &); sleep 1000"
    assert isinstance(sandbox.run(command, timeout=0.2).outcome, TimedOut)


def run_past_a_bound(ground: Ground, sandbox: Sandbox) -> None:
    outcome = sandbox.run("yes", limits=short(output_bytes=100_000)).outcome
    assert isinstance(outcome, LimitReached)


def run_cancelled(ground: Ground, sandbox: Sandbox) -> None:
    # Most of them while bwrap starts up, which takes some five milliseconds
    for delay in (0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.007, 0.01, 0.05):
        read, write = os.pipe()
        timer = threading.Timer(delay, os.write, (write, b"x"))
        timer.start()
        assert sandbox.run("sleep 1000", cancel_fd=read).outcome == Cancelled()
        timer.join()
        os.close(read)
        os.close(write)


def run_in_task_that_is_cancelled(ground: Ground, sandbox: Sandbox) -> None:
    async def cancel_after(delay: float) -> None:
        task = asyncio.create_task(sandbox.arun("sleep 1000"))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for delay in (0.0, 0.001, 0.005, 0.01, 0.05):
        asyncio.run(cancel_after(delay))


def run_in_stream_that_is_left(ground: Ground, sandbox: Sandbox) -> None:
    async def leave() -> None:
        stream = sandbox.stream("echo x; sleep 1000")
        async for event in stream:
            if isinstance(event, OutputChunk):
                break
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())


def run_with_listener_that_raises(ground: Ground, sandbox: Sandbox) -> None:
    for kind in (Started, OutputChunk, Ended):
        for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
            _raise_at(sandbox, kind, error)


def _raise_at(sandbox: Sandbox, kind: type[object], error: type[BaseException]) -> None:
    def on_event(event: object) -> None:
        if isinstance(event, kind):
            raise error

    ending = "" if kind is Ended else "; sleep 1000"
    with pytest.raises(error):
        sandbox.run(f"echo x > file; echo y{ending}", on_event=on_event, after="discard")


def run_whose_spawner_is_killed(ground: Ground, sandbox: Sandbox) -> None:
    command = "echo x > file; setsid sleep 1000 & echo; sleep 1000"
    for index in (0, 1):
        with pytest.raises(SandboxUnavailable):
            sandbox.run(command, on_event=_kill_at_output(processes()[index]))


def _kill_at_output(victim: int) -> Callable[[object], None]:
    def on_event(event: object) -> None:
        if isinstance(event, OutputChunk):
            os.kill(victim, signal.SIGKILL)

    return on_event


def run_after_the_idle_spawner_was_killed(ground: Ground, sandbox: Sandbox) -> None:
    for index in (0, 1):
        os.kill(processes()[index], signal.SIGKILL)
        time.sleep(0.05)
        assert sandbox.run("echo fine", after="discard").stdout.head == b"fine\n"


FAILURES: tuple[Callable[[Ground, Sandbox], None], ...] = (
    run_missing_command,
    run_in_missing_directory,
    run_in_directory_that_only_bwrap_misses,
    run_over_a_layer_that_vanished,
    run_past_its_time,
    run_past_a_bound,
    run_cancelled,
    run_in_task_that_is_cancelled,
    run_in_stream_that_is_left,
    run_with_listener_that_raises,
    run_whose_spawner_is_killed,
    run_after_the_idle_spawner_was_killed,
)


@pytest.mark.parametrize("fail", FAILURES, ids=lambda fail: fail.__name__)
def test_nothing_is_left_by_a(ground: Ground, fail: Callable[[Ground, Sandbox], None]) -> None:
    adopt_orphans()
    ground.write("kept", "same")
    sandbox = ground.sandbox()
    sandbox.run("true")
    fail(ground, sandbox)
    sandbox.discard()
    before, project = settled_balance(ground), tree_of(ground.project)
    assert (before.mounts, before.state) == ([], [])
    for _ in range(3):
        fail(ground, sandbox)
        sandbox.discard()
    assert settled_balance(ground) == before
    assert tree_of(ground.project) == project
    assert sandbox.run("cat kept", after="discard").stdout.head == b"same"


def test_a_leak_is_seen(ground: Ground) -> None:
    """The control arm: each thing that a run might leave changes the balance."""
    ground.sandbox().run("true")
    before = balance(ground)
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert balance(ground).own != before.own
    os.close(descriptor)
    with subprocess.Popen(["sleep", "60"]) as process:
        assert balance(ground).below != before.below
        process.kill()
    (ground.state / "layers" / "0123456789abcdef").mkdir()
    assert balance(ground).state == ["layers without a row: ['0123456789abcdef']"]
