# SPDX-License-Identifier: Apache-2.0
"""A live sandbox from inside: a door that says what it likes, no room for a process, and who will not stand still.

The hostile door is a real one: its spawner is a fork of this process, so what is changed here is changed there. No
command can change it like that; this asks what would be lost if one could.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.seccomp.rules import numbers_of
from tests.attack.arena import Arena, judge, python
from tests.kernel.checkpoint_writers import WRITERS
from tests.kernel.leftovers import within
from tests.kernel.seccomp_box import MACHINE
from tests.support import kinds, lasting, processes_with, short, starts
from unspill import NeverStarted, RunResult, Sandbox, Signalled, TimedOut
from unspill.errors import SandboxUnavailable
from unspill.host import door, job, stopper
from unspill.host.door import ENDED, FRAME_BYTES, QUIET, STARTED, frame, read_frame, waiting_program
from unspill.runner import live as live_runner
from unspill.runner.launcher import stop_launchers
from unspill.runner.live import LiveSandbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.runner.background import BackgroundRun
    from unspill.sandbox.live import Live
    from unspill.sandbox.terminal import Terminal

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.any_bwrap]

WAIT_S = 20


def forked(arena: Arena) -> Sandbox:
    return Sandbox(arena.ground.project, policy=arena.ground.policy(), may_fork=True)


def flood(to: socket.socket) -> None:
    """Say the same until nobody takes it any more."""
    to.setblocking(False)
    with suppress(OSError):
        for _ in range(1_000_000):
            to.send(frame(STARTED))
    to.setblocking(True)
    to.send(frame(ENDED))


FORGED: dict[str, Callable[[socket.socket], object]] = {
    "short": lambda to: to.send(frame(ENDED)[:-1]),
    "empty": lambda to: to.send(b""),
    "long": lambda to: to.send(frame(ENDED) + b"\0"),
    "huge": lambda to: to.send(frame(ENDED) * 4096),
    "halves": lambda to: (to.send(frame(ENDED)[:6]), to.send(frame(ENDED)[6:])),
    "unknown": lambda to: to.send(frame(99)),
    "for somebody else": lambda to: to.send(frame(QUIET)),
    "numbers": lambda to: to.send(frame(ENDED, -(1 << 31), (1 << 31) - 1)),
    "flood": flood,
}


def forge(monkeypatch: pytest.MonkeyPatch, when: int, hostile: Callable[[socket.socket], object]) -> None:
    """Have doors that are forked from now on say something else than a kind of frame."""
    tell = door._tell

    def forged(to: socket.socket, kind: int, *rest: int, **more: int) -> None:
        if kind == when:
            hostile(to)
        else:
            tell(to, kind, *rest, **more)

    monkeypatch.setattr(door, "_tell", forged)


@pytest.mark.parametrize("what", FORGED)
def test_a24_a_door_that_forges_its_frames_ends_its_own_sandbox_and_no_more(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Have a real door answer with frames of another length, kind or number, in halves, and by the million.

    Control: where the length is not looked at, a frame that is too long is believed.
    """
    with forked(arena) as sandbox:
        with monkeypatch.context() as patch:
            forge(patch, ENDED, FORGED[what])
            with sandbox.live() as live:
                first = live.run("echo x > f; exit 3", after="hold", timeout=WAIT_S)
                descriptors = len(os.listdir("/proc/self/fd"))
                second = live.run("echo y > g", after="hold", timeout=WAIT_S)
                # The search for secrets, which goes on after the first, may have had one. What watches ends by itself
                assert within(WAIT_S, lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
        # An end of the right form is believed, as a command's own code is
        assert (first.ok, kinds(first.changes)) == (what == "flood", {"f": "added"})
        assert kinds(second.changes) == {"g": "added"}
        if what == "long":
            monkeypatch.setattr(live_runner, "read_frame", lambda raw: read_frame(raw[:FRAME_BYTES]))
            with monkeypatch.context() as patch, forked(arena) as again:
                stop_launchers()
                forge(patch, ENDED, FORGED[what])
                with again.live() as live:
                    assert live.run("exit 3", after="discard").ok


def test_a24_a_door_that_says_too_early_that_a_command_has_ended_ends_it(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a real door say that a command has ended that goes on, so that its layer is scanned while it writes.

    Control: where layers are not taken away before they are scanned, the command is alive when its run has ended.
    """
    tell = door._tell

    def early(to: socket.socket) -> None:
        tell(to, STARTED)
        to.send(frame(ENDED))

    forge(monkeypatch, STARTED, early)
    monkeypatch.setattr(door.JoinedCommand, "kill", lambda _command: None)
    for is_control in (False, True):
        stop_launchers()
        word = lasting()
        with monkeypatch.context() as patch, forked(arena) as sandbox, sandbox.live() as live:
            if is_control:
                patch.setattr(LiveSandbox, "_detach", lambda _sandbox: None)
            live.run(f"exec sleep {word}", after="discard", timeout=WAIT_S)
            assert starts(word) if is_control else not processes_with(word)


def test_a24_a_door_can_not_pass_something_else_for_a_terminal(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a real door pass another descriptor where a terminal is expected.

    Control: where it is not looked at, the caller reads and writes that file.
    """
    tell = door._tell

    def forged(to: socket.socket, kind: int, *rest: int, **more: int) -> None:
        if "descriptor" in more:
            more["descriptor"] = os.open("/etc/passwd", os.O_RDONLY)
        tell(to, kind, *rest, **more)

    monkeypatch.setattr(door, "_tell", forged)
    with forked(arena) as sandbox, sandbox.live() as live, live.terminal("true", after="discard") as terminal:
        assert (terminal.fileno(), terminal.wait(WAIT_S).ok) == (-1, False)
    monkeypatch.setattr(live_runner, "is_terminal_master", lambda _fd: True)
    stop_launchers()
    with forked(arena) as sandbox, sandbox.live() as live, live.terminal("true", after="discard") as terminal:
        assert b"root" in terminal.read(timeout=WAIT_S)


# The call by which the program that is pid 1 becomes undumpable, and one in its place that changes nothing
NUMBERS = {
    "x86_64": (b"\xb8\x9d\0\0\0", b"\xb8\x27\0\0\0"),
    "aarch64": ((0xD2800008 | 167 << 5).to_bytes(4, "little"), (0xD2800008 | 172 << 5).to_bytes(4, "little")),
}
TAKE_OVER = """
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
def numbered(name, *rest):
    return libc.syscall(ctypes.c_long(NUMBERS[name]), *map(ctypes.c_long, (*rest, *(0,) * (6 - len(rest)))))
own = ctypes.create_string_buffer(4)
here, there = Part(ctypes.addressof(own), 4), Part(0x400000, 4)
parts = ctypes.addressof(here), 1, ctypes.addressof(there), 1
call("process_vm_readv", numbered("process_vm_readv", 1, *parts))
attempt("mem", os.open, "/proc/1/mem", os.O_RDWR)
call("pidfd_getfd", numbered("pidfd_getfd", os.pidfd_open(1), 1))
for what, request in (("seize", 0x4206), ("attach", 16)):
    if call(what, numbered("ptrace", request, 1)) >= 0:
        # Who is traced can be let go when it has stopped
        if what == "seize": numbered("ptrace", 0x4207, 1)
        os.waitpid(1, 0x40000000)
        numbered("ptrace", 17, 1)
"""


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "dumpable"])
def test_a24_pid_1_of_a_live_sandbox_can_not_be_taken_over(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    """Trace pid 1, which outlives every command and stands nowhere still, and reach for its memory and descriptors.

    Control: where pid 1 leaves out the call that makes it undumpable, each of these works.
    """
    if is_control:
        program = waiting_program(MACHINE)
        assert program is not None
        dumpable = program.replace(*NUMBERS[MACHINE])
        assert dumpable != program
        monkeypatch.setattr(live_runner, "waiting_program", lambda _machine: dumpable)
    names = ("process_vm_readv", "pidfd_getfd", "ptrace")
    numbers = {name: numbers_of(MACHINE)[name] for name in names}
    with arena.ground.sandbox("taken") as sandbox, sandbox.live() as live:
        attempt = judge(live.run(python(f"NUMBERS = {numbers}\n{TAKE_OVER}"), after="discard"))
    assert attempt.won == (("process_vm_readv", "mem", "pidfd_getfd", "seize", "attach") if is_control else ())


def test_the_waiting_program_of_each_machine_makes_the_same_calls() -> None:
    """That of another machine can't be run here, so it is read."""
    program = waiting_program("aarch64")
    assert program is not None
    words = [int.from_bytes(program[at : at + 4], "little") for at in range(120, len(program) - 32, 4)]
    registers: dict[int, int] = {}
    calls = []
    for at, word in enumerate(words):
        if word >> 21 == 0b11010010100:  # movz
            registers[word & 31] = word >> 5 & 0xFFFF
        elif word >> 24 == 0x10:  # adr
            registers[word & 31] = (at + (word >> 5 & 0x7FFFF)) * 4
        elif word == 0xD4000001:  # svc
            calls.append((registers[8], *(registers[number] for number in range(4) if number in registers)))
    action = len(words) * 4
    assert calls == [(167, 4, 0), (134, 17, action, 0, 8), (64, 1, action, 1, 8), (73, 0, 0, 0, 0)]
    # The last one is made again and again, with all its registers set anew
    assert (words[-1] >> 26, words[-1] & 0x3FFFFFF) == (0b000101, -6 & 0x3FFFFFF)
    assert words[-7] >> 21 == 0b11010010100
    assert waiting_program("riscv64") is None


BOMB = """
import os, time
try:
    while os.fork(): pass
except OSError:
    print("full", flush=True)
time.sleep(1000)
"""


def test_b1_a_command_that_finds_no_room_for_a_process_is_told_so(arena: Arena) -> None:
    """Take every process that a live sandbox may have, so that its door can start none, and start a command.

    Control: beside a program that takes one process the same command runs.
    """
    command = ["/usr/bin/python3", "-I", "-c", BOMB]
    with arena.ground.sandbox("full", limits=short(processes=40)) as sandbox, sandbox.live() as live:
        bomb = live.start(command, after="discard")
        assert b"full" in bomb.output(0, timeout=WAIT_S)[0]
        begun = time.monotonic()
        result = live.run("true", after="discard")
        assert time.monotonic() - begun < WAIT_S
        assert isinstance(result.outcome, NeverStarted)
        assert "limits.processes" in result.outcome.remedy
        # Nobody else notices
        assert arena.ground.sandbox("other").run("true", after="discard").ok
        bomb.kill()
        bomb.wait(WAIT_S)
        assert live.run("true", after="discard").ok
    with arena.ground.sandbox("roomy", limits=short(processes=40)) as sandbox, sandbox.live() as live:
        live.start([*command[:-1], "import time; time.sleep(1000)"], after="discard")
        assert live.run("true", after="discard").ok


def stop_door(live: Live) -> BackgroundRun:
    """Start a command that stops the door, which is the first process after pid 1; return when it is stopped."""
    stopping = live.start("read word; kill -STOP 2; echo up; exec sleep 1000", after="discard")
    stopping.write(b"now\n")
    assert b"up" in stopping.output(0, timeout=WAIT_S)[0]
    return stopping


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "unbounded"])
@pytest.mark.parametrize("what", ["kill", "timeout", "start"])
def test_b1_a_door_that_a_command_stops_ends_the_sandbox(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, what: str, is_control: bool
) -> None:
    """Stop the door by a signal; then a command is killed, or its time is over, or another is started.

    Control: where the door may take any time, nobody's wait comes to an end.
    """
    bound = 1e6 if is_control else 0.5
    monkeypatch.setattr(live_runner, "_KILLING_S", bound)
    monkeypatch.setattr(live_runner, "_STARTING_S", 1e6)
    word = lasting()
    found: list[RunResult | None] = []
    with arena.ground.sandbox(what) as sandbox, sandbox.live() as live:
        beside = live.start(f"exec sleep {word}", after="discard")
        stopping = stop_door(live)
        monkeypatch.setattr(live_runner, "_STARTING_S", bound if what == "start" else 1e6)

        def wait() -> None:
            if what == "kill":
                beside.kill()
                found.append(beside.wait(60))
            else:
                found.append(live.run("true", timeout=0.1 if what == "timeout" else None, after="discard"))

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(2 if is_control else WAIT_S)
        assert thread.is_alive() is is_control
        if not is_control:
            expected = {"kill": Signalled, "timeout": TimedOut, "start": NeverStarted}
            assert [type(result.outcome) for result in found if result is not None] == [expected[what]]
            # The others ended with it, and the next one has a sandbox again
            assert stopping.wait(WAIT_S) is not None
            assert beside.wait(WAIT_S) is not None
            assert processes_with(word) == []
            monkeypatch.setattr(live_runner, "_STARTING_S", 1e6)
            assert live.run("true", after="discard").ok
            assert live._live.built == 2
    thread.join(WAIT_S)


# What a command has of whoever started it
STANDING = """
import ctypes, os, resource
ioprio_get, ioprio_set = {"x86_64": (252, 251), "aarch64": (31, 30)}[os.uname().machine]
libc = ctypes.CDLL(None)
print([resource.getrlimit(number) for number in range(16)], os.getpriority(0, 0), os.sched_getscheduler(0))
print(os.sched_getaffinity(0), libc.syscall(ioprio_get, 1, 0))
"""
CHANGES = {
    "limit": "resource.prlimit(2, resource.RLIMIT_FSIZE, (0, 0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, 2, 7)",
    "priority of all": "os.setpriority(os.PRIO_USER, os.getuid(), 7)",
    "scheduler": "os.sched_setscheduler(2, os.SCHED_IDLE, os.sched_param(0))",
    "processors": "os.sched_setaffinity(2, {min(os.sched_getaffinity(0))})",
    "disk": "assert libc.syscall(ioprio_set, 1, 2, 3 << 13) == 0",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a24_what_a_command_does_to_the_door_the_next_one_does_not_have(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Change a limit, a priority or the processors of the door, of which the next command is a child.

    Control: where the door does not look at itself, the next command has them.
    """
    look = ["/usr/bin/python3", "-I", "-c", STANDING]
    seen = {}
    for is_control in (False, True):
        stop_launchers()
        with monkeypatch.context() as patch, forked(arena) as sandbox, sandbox.live() as live:
            if is_control:
                patch.setattr(door.DoorLoop, "_is_changed", lambda _self: False)
            before = live.run(look, after="discard").stdout.head
            assert live.run([*look[:-1], STANDING + CHANGES[what]], after="discard").ok
            seen[is_control] = before == live.run(look, after="discard").stdout.head
            assert live._live.built == (1 if is_control or what == "processors" else 2)
    # Where there is one processor, there is no other to choose
    assert seen == {False: True, True: what == "processors" and len(os.sched_getaffinity(0)) == 1}


def test_a24_beside_others_a_command_is_not_started_with_limits_that_one_of_them_chose(arena: Arena) -> None:
    """Change a limit of the door while others are alive, so that the next command seems to reach it.

    Control: the same command after the sandbox was built anew, and the test above.
    """
    with arena.ground.sandbox("beside") as sandbox, sandbox.live() as live:
        beside = live.start("exec sleep 1000", after="discard")
        assert live.run(["/usr/bin/python3", "-I", "-c", STANDING + CHANGES["limit"]], after="discard").ok
        outcome = live.run("echo x > f", after="discard").outcome
        assert isinstance(outcome, NeverStarted)
        assert "changed the limits" in outcome.reason
        assert beside.wait(WAIT_S) is not None
        assert live.run("echo x > f", after="discard").ok


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "waits"])
def test_b1_connections_that_a_stopped_door_does_not_make_are_refused(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    """Stop the door, and have more connections made to a port than its socket has room for.

    Control: who waits for that room waits for ever, and has the lock that the end of the sandbox needs.
    """
    if is_control:
        monkeypatch.setattr(live_runner, "send", lambda *words, **_may_wait: job.send(*words))
    with arena.ground.sandbox("ports") as sandbox, sandbox.live() as live:
        stop_door(live)
        refused = threading.Event()

        def connect() -> None:
            with suppress(SandboxUnavailable):
                for _ in range(10_000):
                    live._live.ask_connection(8123, is_ipv6=False).close()
            refused.set()

        thread = threading.Thread(target=connect)
        thread.start()
        assert refused.wait(2 if is_control else WAIT_S) is not is_control
        assert live._live._lock.locked() is is_control
        if is_control:
            assert live._live._launched is not None
            live._live._launched.kill()
        thread.join()


# In a user namespace of its own the bound counts nobody else
CROWDED = """
import resource, sys
from unspill import Sandbox
from unspill.errors import SandboxUnavailable
bound = int(sys.argv[2])
with Sandbox(sys.argv[1]) as sandbox, sandbox.live() as live:
    resource.setrlimit(resource.RLIMIT_NPROC, (bound, bound))
    try:
        print("ran" if live.run("true", after="discard", timeout=10).ok else "told")
    except SandboxUnavailable:
        print("told")
"""


def test_b1_where_the_user_has_no_room_for_a_door_the_caller_is_told(arena: Arena, full: bool) -> None:
    """Let the user have only so many processes that spawner, bwrap, door or command can't be made, one after the other.

    Control: with enough of them the same program runs.
    """
    bounds = [*range(1, 20), 60] if full else [4, 7, 60]
    said = []
    for bound in bounds:
        words = ["unshare", "--user", "--map-current-user", sys.executable, "-c", CROWDED]
        done = subprocess.run(
            [*words, arena.ground.project, str(bound)], capture_output=True, check=True, timeout=60, env=os.environ
        )
        said.append(done.stdout)
    assert set(said) == {b"told\n", b"ran\n"}
    assert (said[0], said[-1]) == (b"told\n", b"ran\n")


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "by signals"])
def test_b6_a_shell_does_not_notice_that_it_was_stopped(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, is_control: bool, full: bool
) -> None:
    """Stand a shell and its job still again and again: it must neither tell nor take the terminal from the job.

    Control: stopped by SIGSTOP alone, the shell says that its job was stopped.
    """
    kill = stopper._kill

    def kill_in_turn(pid: int, number: int) -> None:
        # On a busy machine nobody may run before the last has its signal
        kill(pid, number)
        time.sleep(0.01)

    if is_control:
        monkeypatch.setattr(stopper.Stopper, "_seize", lambda self, tid: self._refused.add(tid))
        monkeypatch.setattr(stopper, "_kill", kill_in_turn)
    with forked(arena) as sandbox, sandbox.live() as live:
        shell = ["bash", "--norc", "--noprofile", "-i"]
        with live.terminal(shell, env={"PS1": "in> "}, after="discard") as terminal:
            heard(terminal, b"in> ")
            terminal.write(b"while :; do sleep 0.01 | sleep 0.01 | cat; echo go''t; done\r")
            heard(terminal, b"got")
            # The control ends when it is noticed; where none can be stopped in time, that takes more of them
            times = 1000 if is_control else 100 if full else 25
            assert (b"Stopped" in stood_still(live, terminal, times)) is is_control


def stop_nothing(_self: stopper.Stopper) -> bool:
    return True


def stop_by_signal(self: stopper.Stopper) -> bool:
    """Signal whoever there is, once, and believe that they stand still."""
    for pid in self._list(is_stopped=False)[0]:
        self._signalled.add(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return True


NAIVE = {"chain": stop_by_signal, "vforks": stop_nothing, "tracer": stop_nothing, "waker": stop_by_signal}


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "control"])
@pytest.mark.parametrize("name", NAIVE)
def test_b6_nothing_escapes_a_stop(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, name: str, is_control: bool, full: bool
) -> None:
    """Write while everything is to stand still: by children of children, by vfork, under a tracer, woken by a timer.

    Control: stopped by one SIGSTOP to each, or not at all, the same program writes.
    """
    if is_control:
        monkeypatch.setattr(stopper.Stopper, "stop", NAIVE[name])
        monkeypatch.setattr(stopper.Stopper, "is_still", lambda _self: True)
    with forked(arena) as sandbox, sandbox.live() as live:
        writer = live.start(["/usr/bin/python3", "-I", "-c", WRITERS[name]], after="discard")
        assert b"up" in writer.output(0, timeout=WAIT_S)[0]
        rounds = 100 if full or is_control else 8
        assert any(watched(live)[0] for _ in range(rounds)) is is_control


def watched(live: Live, for_s: float = 0.02) -> tuple[bool, bool]:
    """Have everything stand still, and tell whether anything is written meanwhile, and whether that is denied."""
    span = live._span
    assert span is not None
    [stack] = span.under_way.stacks
    assert stack.open is not None
    with live._live.standstill() as still:
        before = written(stack.open.upper)
        time.sleep(for_s)
        has_moved = written(stack.open.upper) != before
    return has_moved, still.was_kept


def test_b6_whoever_moves_when_its_child_is_killed_is_found_at_the_end(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait in a vfork for a child that a timer kills, and write then, though everything stands still.

    Control: where nobody looks at the end, such a standstill counts as one.
    """
    for is_control in (False, True):
        stop_launchers()
        with monkeypatch.context() as patch, forked(arena) as sandbox, sandbox.live() as live:
            if is_control:
                patch.setattr(stopper.Stopper, "is_still", lambda _self: True)
            writer = live.start(["/usr/bin/python3", "-I", "-c", WRITERS["orphaner"]], after="discard")
            assert b"up" in writer.output(0, timeout=WAIT_S)[0]
            # Longer than its child has to live, so that it is killed while everything stands still
            rounds = (watched(live, 0.1) for _ in range(100))
            was_kept = next(was_kept for has_moved, was_kept in rounds if has_moved)
            assert was_kept is is_control


MAPPER = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
# Of two neighbours only one can be written, so they do not become one
for number in range(60000):
    libc.mmap(None, 4096, 1 + 2 * (number & 1), 1, fd, 0)
print("up", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "unbounded"])
def test_b6_more_mappings_than_can_be_read_in_time_count_as_all_files(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    """Map a file so often that to read all of that takes seconds, while everybody stands still.

    Control: where what is read has no bound, all of it is read.
    """
    if is_control:
        monkeypatch.setattr(stopper, "MOST_MAPS_BYTES", 1 << 40)
    with forked(arena) as sandbox, sandbox.live() as live:
        mapper = live.start(["/usr/bin/python3", "-I", "-c", MAPPER], after="discard")
        assert b"up" in mapper.output(0, timeout=WAIT_S)[0]
        found = live._live.mapped()
    assert (found is not None and any(path.endswith(b"/mapped") for path in found)) is is_control
    assert (found is None) is not is_control


def test_a_stop_that_fails_is_tried_again_the_next_time(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, failures = stopper.Stopper.stop, [OSError(errno.EMFILE, "no descriptor")]

    def fail_first(self: stopper.Stopper) -> bool:
        assert stop(self)
        if failures:
            raise failures.pop()
        return True

    monkeypatch.setattr(stopper.Stopper, "stop", fail_first)
    with forked(arena) as sandbox, sandbox.live() as live:
        writer = live.start(["/usr/bin/python3", "-I", "-c", WRITERS["mover"]], after="discard")
        assert b"up" in writer.output(0, timeout=WAIT_S)[0]
        with pytest.raises(SandboxUnavailable, match="no descriptor"):
            live._live.stop()
        # It went on, and now it does not
        assert live.run("true", after="discard").ok
        assert watched(live) == (False, True)


def test_a_request_for_a_door_that_lost_its_descriptor_is_answered(arena: Arena) -> None:
    with arena.ground.sandbox("lost") as sandbox, sandbox.live() as live:
        assert live.run("true", after="discard").ok
        live._live._await_answers()
        with pytest.raises(SandboxUnavailable, match=os.strerror(errno.EMFILE)):
            live._live._ask(("door", b"", None, False), "made")
        assert live.run("true", after="discard").ok
        assert live._live.built == 1


def written(top: bytes) -> dict[bytes, bytes]:
    found = {}
    for name in os.listdir(top):
        with suppress(OSError):
            found[name] = Path(os.fsdecode(top), os.fsdecode(name)).read_bytes()
    return found


def heard(terminal: Terminal, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += terminal.read(timeout=WAIT_S)
    return seen


def stood_still(live: Live, terminal: Terminal, times: int) -> bytes:
    """Take checkpoints; return what was printed until the shell noticed one, or after all of them."""
    seen = b""
    for _ in range(times):
        with suppress(SandboxUnavailable):
            live.checkpoint(after="discard")
        with suppress(TimeoutError):
            seen += terminal.read(timeout=0.2)
        if b"Stopped" in seen:
            break
    return seen
