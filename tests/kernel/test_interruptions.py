# SPDX-License-Identifier: Apache-2.0
"""Callers that are interrupted, killed, forked or gone: nothing survives them, and the next start is as good as new."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.leftovers import (
    adopt_orphans,
    descendants,
    mounts_of,
    reap_adopted,
    state_problems,
    tree_of,
    within,
)
from tests.support import VIEW_LINES, Ground, run_cli

pytestmark = pytest.mark.kernel

UNSPILL = Path(sys.executable).with_name("unspill")
BUSY = """
echo held > new; trap '' TERM HUP INT
(setsid sh -c 'i=0; while :; do i=$((i+1)); echo x >> noise; mkdir -p d$i/e; echo y > d$i/e/f; done' &)
echo ready; while :; do sleep 0.01; done
"""


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Have programs started with no signal ignored, as from a terminal: a suite in the background ignores some."""
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
    # A handler, unlike SIG_IGN, is not inherited
    handlers = [signal.signal(number, signal.default_int_handler) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def prepared(ground: Ground, default_signals: None) -> Iterator[Ground]:
    """A project with a held layer, whose state directory must be clean after the next start, whatever was done."""
    adopt_orphans()
    ground.configure('after = "hold"')
    ground.write("file", "content")
    assert run_cli("run", "-q", "-c", "echo precious > kept", cwd=ground.project).returncode == 0
    before, below = tree_of(ground.project), descendants(os.getpid())
    yield ground
    assert within(2, lambda: not alive_below(below))
    assert (mounts_of(ground.top), tree_of(ground.project)) == ([], before)
    assert run_cli("run", "-q", "--discard", "-c", "cat kept", cwd=ground.project).stdout == b"precious\n"
    assert state_problems(ground.state) == []


def alive_below(before: dict[int, str]) -> dict[int, str]:
    reap_adopted(set(before))
    return {pid: shown for pid, shown in descendants(os.getpid()).items() if pid not in before}


def start(ground: Ground) -> "subprocess.Popen[bytes]":
    """Start the program in a session of its own, without a terminal."""
    return subprocess.Popen(
        [UNSPILL, "run", "-q", "-c", BUSY],
        cwd=ground.project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def start_busy(ground: Ground) -> "subprocess.Popen[bytes]":
    """Start the program and wait until its command is at work."""
    program = start(ground)
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    return program


def test_an_interrupt_ends_the_run_and_removes_its_layer_at_once(prepared: Ground) -> None:
    program = start_busy(prepared)
    program.send_signal(signal.SIGINT)
    _output, errors = program.communicate(timeout=10)
    assert program.returncode == 130
    assert errors == b"unspill: cancelled; nothing was changed\n"
    assert state_problems(prepared.state) == []


def test_a_second_interrupt_ends_it_as_well(prepared: Ground) -> None:
    program = start_busy(prepared)
    for _ in range(5):
        program.send_signal(signal.SIGINT)
        time.sleep(0.003)
    program.communicate(timeout=10)
    assert program.returncode != 0


def test_ctrl_c_on_a_terminal_interrupts_unspill_and_not_the_command(prepared: Ground) -> None:
    ours, theirs = pty.openpty()
    # It leads a session of its own with the terminal as its controlling one, as from a login shell
    command = ("setsid", "--ctty", "--wait", UNSPILL, "run", "-q", "-c", BUSY)
    program = subprocess.Popen([*command], cwd=prepared.project, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(ours, 1024)
    os.write(ours, b"\x03")
    assert program.wait(10) == 130
    os.close(ours)
    assert state_problems(prepared.state) == []


@pytest.mark.parametrize("command", ["true", "exit 3", "sleep 1000 & setsid sleep 1000 &", "no-such-command"])
def test_the_program_leaves_no_zombie_to_whoever_adopts_its_orphans(prepared: Ground, command: str) -> None:
    below = descendants(os.getpid())
    run_cli("run", "-q", "-c", command, cwd=prepared.project)
    assert set(descendants(os.getpid())) - set(below) == set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL])
def test_a_signal_that_ends_unspill_ends_everything(prepared: Ground, number: int) -> None:
    program = start_busy(prepared)
    program.send_signal(number)
    program.communicate(timeout=10)
    assert program.returncode != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_ends_everything(prepared: Ground, full: bool, number: int) -> None:
    for step in range(60 if full else 8):
        program = start(prepared)
        time.sleep(step * (0.004 if full else 0.03))
        program.send_signal(number)
        program.communicate(timeout=10)
        assert program.returncode != 0


def test_the_next_start_need_not_wait_for_the_death_of_the_last(prepared: Ground) -> None:
    for _ in range(5):
        program = start_busy(prepared)
        program.kill()
        assert run_cli("run", "-q", "--discard", "-c", "cat kept", cwd=prepared.project).stdout == b"precious\n"
        program.communicate(timeout=10)


CALLER = (
    VIEW_LINES
    + """
import os, sys, threading, time
from unspill import Policy, Sandbox
sandbox = Sandbox(sys.argv[1], policy=Policy(**VIEW, bwrap=os.fsencode(sys.argv[2])))
def check():
    assert sandbox.run("cat kept", after="discard").stdout.head == b"precious\\n"
check()
"""
)
LONG = "threading.Thread(target=sandbox.run, args=('sleep 1000',), daemon=True).start(); time.sleep(0.2)"
FORKED = """
child = os.fork()
check()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
check()
"""
CALLERS = {
    "returns while a run goes on": LONG,
    "exits hard while a run goes on": f"{LONG}\nos._exit(0)",
    "is killed while a run goes on": f"{LONG}\nos.kill(os.getpid(), 9)",
    "forks": FORKED,
    "forks while a run goes on in a thread": f"{LONG}\n{FORKED}\nos._exit(0)",
    "leaves a fork behind while a run goes on": f"{LONG}\nif not os.fork(): time.sleep(0.5)\nos._exit(0)",
}


@pytest.mark.parametrize("caller", CALLERS)
def test_nothing_survives_a_caller_that(prepared: Ground, caller: str) -> None:
    script = f"{CALLER}\n{CALLERS[caller]}"
    command = (sys.executable, "-c", script, prepared.project, prepared.bwrap)
    done = subprocess.run([*command], capture_output=True, check=False, timeout=30)
    assert done.returncode == (-9 if "killed" in caller else 0), done.stderr
