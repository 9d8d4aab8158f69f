# SPDX-License-Identifier: Apache-2.0
"""A live sandbox while a door enters it: who is alive inside races the newcomer, and pids that somebody else gets.

Commands are dead before another door enters. These attacks ask what would be lost if one were not: they have the
spawner make a second door beside a command that waits for it. The spawner is a fork of this process, so what is changed
here is changed there.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts.seccomp.rules import numbers_of
from tests.attack.arena import END, Arena, python
from tests.attack.test_live_door import WAIT_S, forked, watched
from tests.kernel.checkpoint_writers import WRITERS
from tests.kernel.seccomp_box import MACHINE
from tests.support import lasting, processes_with
from unspill import Sandbox
from unspill.errors import SandboxUnavailable
from unspill.host import door, libc, spawner
from unspill.host.dirfd import make_pair
from unspill.host.door import FAILED, NOT_AS_BEFORE, READY, STARTED
from unspill.host.job import is_dead, send
from unspill.runner import live as live_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import SocketType

    from unspill.host.door import Frame
    from unspill.runner.background import BackgroundRun
    from unspill.sandbox.live import Live

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.any_bwrap]

# Waits for a process that was not there before
WAIT = """
import resource
known = set(os.listdir("/proc"))
end = time.monotonic() + 20
def is_alive(name):
    # Of what ended just now there is a name left, and a zombie is nobody's door
    try: return b") Z" not in open(f"/proc/{name}/stat", "rb").read()
    except OSError: return False
def newcomer():
    print("up", flush=True)
    while time.monotonic() < end:
        for name in os.listdir("/proc"):
            if name.isdecimal() and name not in known and is_alive(name): return int(name)
    sys.exit("nobody came")
def says(name):
    try: return open(f"/proc/{pid}/{name}", "rb").read()
    except OSError: return b""
"""
# The ways to a process that is not one's own; `pid` is whose turn it is
WAYS = """
def numbered(name, *rest):
    return libc.syscall(ctypes.c_long(NUMBERS[name]), *map(ctypes.c_long, (*rest, *(0,) * (6 - len(rest)))))
def trace(request):
    if numbered("ptrace", request, pid) < 0: raise OSError
    if request == 0x4206: numbered("ptrace", 0x4207, pid)
    os.waitpid(pid, 0x40000000)
    numbered("ptrace", 17, pid)
def take():
    pidfd = os.pidfd_open(pid)
    fd = numbered("pidfd_getfd", pidfd, 3)
    os.close(pidfd)
    if fd < 0: raise OSError
    os.close(fd)
own = ctypes.create_string_buffer(8)
part = (ctypes.c_size_t * 2)(ctypes.addressof(own), 8)
nowhere = (ctypes.c_size_t * 2)(8, 8)
def touch(name):
    # Who may reach for its memory hears that nothing lies there
    numbered(name, pid, ctypes.addressof(part), 1, ctypes.addressof(nowhere), 1)
    if ctypes.get_errno() != errno.EFAULT: raise OSError
def words():
    if says("cmdline").strip(bytes(1)) in (b"", b"unspill-spawner", b"unspill-door"): raise OSError
def read_it(name):
    # That of a process that is about to be gone can be opened, and is empty
    if not says(name): raise OSError
ways = {name: lambda name=name: read_it(name) for name in ("environ", "maps")}
ways |= {name: lambda name=name: os.readlink(f"/proc/{pid}/{name}") for name in ("exe", "root", "cwd")}
def open_it(name): os.close(os.open(f"/proc/{pid}/{name}", os.O_RDWR))
ways |= {name: lambda name=name: open_it(name) for name in ("mem", "oom_score_adj")}
ways |= {"fd": lambda: os.listdir(f"/proc/{pid}/fd"), "pidfd_getfd": take, "words": words}
ways |= {"seize": lambda: trace(0x4206), "attach": lambda: trace(16)}
ways |= {name: lambda name=name: touch(name) for name in ("process_vm_readv", "process_vm_writev")}
reached = set()
def reach():
    for name, way in ways.items():
        try: way()
        except OSError: continue
        reached.add(name)
"""
# Goes on until it has tried everything at all stages of a door
REACH = """
pid, rounds = newcomer(), 0
while rounds < 20 and time.monotonic() < end:
    rounds += says("comm") == b"unspill-door\\n"
    reach()
    # The door waits for that before its first step
    os.kill(pid, signal.SIGWINCH)
print("WON", *sorted(reached), flush=True)
"""
INSIDE = ["attach", "cwd", "environ", "exe", "fd", "maps", "mem", "oom_score_adj", "pidfd_getfd"]
INSIDE += ["process_vm_readv", "process_vm_writev", "root", "seize"]


def start_racer(live: Live, script: str) -> BackgroundRun:
    """Start a command that waits for a door, and return when it does."""
    names = ("ptrace", "pidfd_getfd", "ioprio_set", "process_vm_readv", "process_vm_writev")
    numbers = {name: numbers_of(MACHINE)[name] for name in names}
    racer = live.start(python(f"NUMBERS = {numbers}\n{WAIT}{script}"), after="discard")
    said(racer, b"up")
    return racer


def said(run: BackgroundRun, text: str | bytes) -> list[str]:
    """Return the lines that a run has printed when this text is among them."""
    wanted = os.fsencode(text)
    output, at = b"", 0
    while wanted not in output:
        part, at, _lost = run.output(at, timeout=WAIT_S)
        assert part, output
        output += part
    return output.decode().splitlines()


def enter_again(live: Live, wait_s: int = WAIT_S) -> tuple[SocketType, Any, Frame | None]:
    """Have another door enter while commands are alive; return its socket, and what the spawner and it say."""
    sandbox = live._live
    ours, theirs = make_pair()
    # Whoever waits for the end of a command would hear the answer instead
    with sandbox._lock:
        assert sandbox._launched is not None
        assert sandbox._shape is not None
        sandbox._await_answers()
        sandbox._launched.ask(("door", sandbox._shape.filter, None, False), (theirs.fileno(),))
        theirs.close()
        message = sandbox._launched.message()
    assert message is not None
    for fd in message[1]:
        os.close(fd)
    return ours, message[0], live_runner._hear(ours, wait_s * 1000) if message[0] == ("made",) else None


@pytest.mark.parametrize("way", ["as it is", "dumpable", "without a name"])
def test_a24_a_door_can_not_be_reached_while_it_enters(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Wait for a door, and reach for its memory, descriptors, variables, directories and words from its first moment.

    Control: where it is dumpable, all but its words are reached; these, where the spawner has the person's.
    """
    delay_second(monkeypatch, signal.sigpending)
    prctl = libc.prctl
    if way == "dumpable":
        monkeypatch.setattr(libc, "prctl", lambda option, value: option == libc.PR_SET_DUMPABLE or prctl(option, value))
    if way == "without a name":
        take_name = door.take_name
        monkeypatch.setattr(door, "take_name", lambda name: name == spawner._NAME or take_name(name))
    with forked(arena) as sandbox, sandbox.live() as live:
        racer = start_racer(live, WAYS + REACH)
        ours, _words, found = enter_again(live)
        assert found == (READY, 0, 0)
        reached = [line.split()[1:] for line in said(racer, END) if line.startswith("WON")]
        ours.close()
    assert reached == [{"as it is": [], "dumpable": INSIDE, "without a name": ["words"]}[way]]


# Counts the doors that it has tried everything on while they had what the spawner has, and while they had nothing more
AGAIN = """
def stage():
    status = says("status")
    if b"State:\\tZ" in status or b"CapBnd:" not in status: return "gone"
    return "with all" if int(status.partition(b"CapBnd:")[2].split()[0], 16) else "with nothing"
print("up", flush=True)
caught = {"with all": set(), "with nothing": set()}
end += 600 * (DOORS > 20)
while min(map(len, caught.values())) < DOORS and time.monotonic() < end:
    for name in set(os.listdir("/proc")) - known:
        known.add(name)
        pid = int(name) if name.isdecimal() else 0
        while pid and (before := stage()) != "gone":
            reach()
            if stage() == before: caught[before].add(pid)
print("caught", min(DOORS, *map(len, caught.values())))
print("WON", *sorted(reached), flush=True)
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "dumpable"])
def test_a24_none_of_many_doors_is_caught_while_it_enters(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, is_control: bool, full: bool
) -> None:
    """Reach for every newcomer at once, as fast as one can, while doors enter one after the other, none of them late.

    Control: where doors are dumpable, whoever comes in time reaches all that is theirs.
    """
    prctl = libc.prctl
    if is_control:
        monkeypatch.setattr(libc, "prctl", lambda option, value: option == libc.PR_SET_DUMPABLE or prctl(option, value))
    doors = 1_000 if full else 20
    with forked(arena) as sandbox, sandbox.live() as live:
        racer = start_racer(live, f"DOORS = {doors}\n{WAYS}{AGAIN}")
        while racer.wait(0) is None:
            ours, words, found = enter_again(live)
            ours.close()
            assert (words, found) == (("made",), (READY, 0, 0))
        lines = said(racer, END)
    assert f"caught {doors}" in lines
    assert [line.split()[1:] for line in lines if line.startswith("WON")] == [INSIDE if is_control else []]


LEAVE = """
ready = os.pipe()
if os.fork():
    # Layers that nothing was written to are kept, and the door with them
    open("written", "w").close()
    os.read(ready[0], 1)
else:
    known.add(str(os.getpid()))
    os.setsid()
    os.chdir("/tmp")
    for fd in range(3): os.dup2(os.open("/tmp/raced", os.O_RDWR | os.O_CREAT), fd)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(ready[1], b"x")
    pid = newcomer()
    print("WON", says("comm"), flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "left alive"])
def test_a24_nobody_is_alive_who_could_race_a_door_that_enters(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    """Leave a process behind that waits for the next door, in `strict`, where each command has a door of its own.

    Control: where the first door says that nobody is left, that process is alive and sees the second one enter.
    """
    if is_control:
        monkeypatch.setattr(door.DoorLoop, "_is_quiet", lambda _self: True)
    word = lasting()
    policy = arena.ground.policy(profile="strict")
    with Sandbox(arena.ground.project, policy=policy, may_fork=True) as sandbox, sandbox.live() as live:
        assert live.run([*python(WAIT + LEAVE), word], after="discard").ok
        assert bool(processes_with(word)) is is_control
        look = "for i in $(seq 400); do grep -q WON /tmp/raced && break; sleep 0.05; done; cat /tmp/raced"
        result = live.run(look if is_control else "cat /tmp/raced", after="discard")
        assert (b"WON b'unspill-" in result.stdout.head) is is_control


@pytest.mark.parametrize("what", ["SIGKILL", "SIGSTOP", "SIGWINCH"])
def test_a24_a_door_that_is_killed_or_stopped_while_it_enters_is_missed_and_the_next_one_enters(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Kill or stop a door between its fork and its first step, so that nobody ever hears of it.

    Control: a signal that does nothing changes nothing.
    """
    delay_second(monkeypatch, signal.sigpending)
    with forked(arena) as sandbox, sandbox.live() as live:
        racer = start_racer(live, f"os.kill(newcomer(), signal.{what})")
        ours, _words, found = enter_again(live, wait_s=1 if what == "SIGSTOP" else WAIT_S)
        assert found == ((READY, 0, 0) if what == "SIGWINCH" else None)
        said(racer, END)
        # The spawner has not waited for it, and neither does the end of the sandbox
        racer = start_racer(live, "os.kill(newcomer(), signal.SIGWINCH)")
        again, _words, found = enter_again(live)
        assert found == (READY, 0, 0)
        said(racer, END)
        for sock in (ours, again):
            sock.close()
        init = os.dup(live._live._init_fd)
    assert is_dead(init, 0)
    os.close(init)


# One signal, when the door is there; then it is watched until it is dead, or is no door for seconds
INTERRUPT = """
pid = newcomer()
os.kill(pid, signal.SIGINT)
end = time.monotonic() + 2
while (words := says("stat").rpartition(b")")[2].split()) and words[0] not in (b"Z", b"X"):
    if says("comm") == b"unspill-door\\n": break
    if time.monotonic() > end:
        won("a spawner inside", says("status").partition(b"CapEff:")[2].split()[0].decode())
        break
"""


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "not blocked"])
def test_a24_a_signal_to_a_door_that_enters_does_not_make_a_spawner_of_it(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    """Send SIGINT to a door between its fork and its first step, while it still has all that the spawner has.

    Control: where signals are not blocked, Python raises in it, and it goes on as a second spawner, inside.
    """
    if is_control:
        monkeypatch.setattr("unspill.host.spawner.signal.pthread_sigmask", lambda *_rest: ())
    delay_second(monkeypatch, signal.sigpending)
    wait = spawner.Spawner._wait_for

    def wait_or_rest(loop: spawner.Spawner, *rest: Any) -> None:
        # A second one gets this far, but must not do what the first is asked for
        while os.getpid() != 1:
            signal.pause()
        wait(loop, *rest)

    monkeypatch.setattr(spawner.Spawner, "_wait_for", wait_or_rest)
    with forked(arena) as sandbox, sandbox.live() as live:
        racer = start_racer(live, INTERRUPT)
        ours, _words, _found = enter_again(live, wait_s=1)
        lines = said(racer, END)
        ours.close()
        # Whatever is inside goes with pid 1
        assert live._live.init is not None
        os.kill(live._live.init[0], signal.SIGKILL)
    assert any(line.startswith("WON a spawner inside") for line in lines) is is_control


def for_second(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Have something changed in the spawner before it makes a door beside another one."""
    make_door = spawner.LiveRun._make_door

    def make(run: spawner.LiveRun, to: int, protection: door.Protection) -> int:
        if run.doors:
            change()
        return make_door(run, to, protection)

    monkeypatch.setattr(spawner.LiveRun, "_make_door", make)


def delay_second(monkeypatch: pytest.MonkeyPatch, condition: Callable[[], object]) -> None:
    """Have a door that enters beside another wait before its first step, until something has happened to it."""
    be_door = door.be_door

    def be_late(*rest: Any) -> None:
        wait_for(condition)
        be_door(*rest)

    for_second(monkeypatch, lambda: setattr(door, "be_door", be_late))


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)


CHANGES = {
    "limit": "resource.prlimit(pid, resource.RLIMIT_MSGQUEUE, (0, 0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, pid, 7)",
    "scheduler": "os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))",
    "disk": "assert libc.syscall(NUMBERS['ioprio_set'], 1, pid, 3 << 13) == 0",
}
# The kernel lets nobody change what has more capabilities, so it is tried until the door has none
CHANGE = """
pid = newcomer()
while time.monotonic() < end:
    try: {change}
    except (OSError, AssertionError): continue
    break
"""


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "by itself"])
@pytest.mark.parametrize("what", CHANGES)
def test_a24_what_is_done_to_a_door_that_enters_no_command_has(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, what: str, is_control: bool
) -> None:
    """Change a limit or a priority of a door before it has looked at itself for the first time.

    Control: where it compares with what it found then, the next command has what was changed.
    """
    make_loop = door.DoorLoop.__init__

    def look_late(loop: door.DoorLoop, sock: Any, protection: door.Protection) -> None:
        wait_for(lambda: door._read_standing() != protection.standing)
        make_loop(loop, sock, protection)
        if is_control:
            loop._before = door._read_standing()

    for_second(monkeypatch, lambda: setattr(door.DoorLoop, "__init__", look_late))
    with forked(arena) as sandbox, sandbox.live() as live:
        racer = start_racer(live, CHANGE.format(change=CHANGES[what]))
        ours, _words, found = enter_again(live)
        said(racer, END)
        assert found == (READY, 0, 0)
        answer, theirs = make_pair()
        send(ours, ("run", (b"/bin/true",), (), b"/", 0o022), (theirs.fileno(),))
        theirs.close()
        expected = (STARTED, 0, 0) if is_control else (FAILED, 0, NOT_AS_BEFORE)
        assert live_runner._hear(answer, WAIT_S * 1000) == expected
        answer.close()
        ours.close()


def test_a24_a_door_whose_limits_are_lowered_while_it_enters_says_so(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower a limit of a door that it is about to set, so that it can't be set as it should.

    Control: left alone, the same door enters.
    """
    size = resource.RLIMIT_FSIZE
    first = resource.getrlimit(size)
    delay_second(monkeypatch, lambda: resource.getrlimit(size) != first or signal.sigpending())
    with forked(arena) as sandbox, sandbox.live() as live:
        for change in ("resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))", "os.kill(pid, signal.SIGWINCH)"):
            racer = start_racer(live, CHANGE.format(change=change))
            ours, _words, found = enter_again(live)
            said(racer, END)
            ours.close()
            assert found == (READY, errno.EPERM if "prlimit" in change else 0, 0)


def take_number(number: int, sleep_s: str = "1000") -> int:
    """Return a new process of this namespace that has a pid which is free, and is pid 1 of namespaces of its own."""
    told, begin = os.pipe(), os.pipe()
    if not os.fork():
        libc.unshare(door._NAMESPACES | libc.CLONE_NEWNET | libc.CLONE_NEWPID)
        os.write(told[1], b"x")
        os.read(begin[0], 1)
        if pid := os.fork():
            os.write(told[1], b"%d" % pid)
            os.waitpid(pid, 0)
            os._exit(0)
        os.execvp("sleep", ["sleep", sleep_s])
    os.read(told[0], 1)
    libc.write_setting(b"/proc/sys/kernel/ns_last_pid", b"%d" % (number - 1))
    os.write(begin[1], b"x")
    return int(os.read(told[0], 20))


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "by number"])
def test_a24_a_door_does_not_enter_what_has_the_pid_of_a_sandbox_that_ended(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    """End a sandbox while a door is about to enter it, and have its pid taken by the pid 1 of other namespaces.

    Control: looked up by its number, those are entered.
    """
    make_door, be_door = spawner.LiveRun._make_door, door.be_door
    entered = arena.ground.top / "entered"

    def make_after_end(run: spawner.LiveRun, to: int, protection: door.Protection) -> int:
        assert run.init_fd is not None
        if not run.doors:
            return make_door(run, to, protection)
        libc.kill_pidfd(run.init_fd)
        for fd in run.doors.values():
            assert is_dead(fd, WAIT_S * 1000)
        spawner._reap_orphans({run.bwrap})
        assert is_dead(run.init_fd, WAIT_S * 1000)
        assert is_dead(run.bwrap_fd, WAIT_S * 1000)
        assert take_number(run.init) == run.init
        if is_control:
            os.dup2(os.pidfd_open(run.init), run.init_fd, inheritable=False)
        theirs = os.readlink(f"/proc/{run.init}/ns/pid")
        monkeypatch.setattr(door, "be_door", lambda *rest: be_door_of(theirs, *rest))
        made = make_door(run, to, protection)
        # The spawner ends it at once: bwrap is dead
        wait_for(entered.exists)
        return made

    def be_door_of(namespace: str, *rest: Any) -> None:
        is_there = os.readlink("/proc/self/ns/pid") == namespace
        draft = arena.ground.top / "draft"
        draft.write_text("that of another" if is_there else "its own")
        draft.rename(entered)
        be_door(*rest)

    monkeypatch.setattr(spawner.LiveRun, "_make_door", make_after_end)
    with forked(arena) as sandbox, sandbox.live() as live:
        live.start("exec sleep 1000", after="discard")
        ours, words, found = enter_again(live)
        ours.close()
    if is_control:
        assert words == ("made",)
        assert entered.read_text() == "that of another"
    else:
        assert not entered.exists()
        assert (words[0], found) == ("failed", None)
        assert os.strerror(errno.ESRCH) in words[1]


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "by number"])
def test_a24_who_has_the_pid_of_a_pid_1_that_died_at_once_is_not_taken_for_it(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    """End pid 1 of a sandbox between bwrap's word for its pid and the look for it, and have the pid taken by another.

    Control: where bwrap's word is enough, the other one is killed with the sandbox.
    """
    word = lasting()
    release = spawner.SpawnedRun._release

    def release_late(run: spawner.SpawnedRun) -> None:
        os.kill(run.init, signal.SIGKILL)
        # It has reaped pid 1 then
        assert is_dead(run.bwrap_fd, WAIT_S * 1000)
        assert take_number(run.init, word) == run.init
        wait_for(lambda: word.encode() in Path(f"/proc/{run.init}/cmdline").read_bytes())
        release(run)

    monkeypatch.setattr(spawner.SpawnedRun, "_release", release_late)
    if is_control:
        monkeypatch.setattr(spawner.SpawnedRun, "_is_of_bwrap", lambda _run: True)
    with forked(arena) as sandbox, sandbox.live() as live:
        with pytest.raises(SandboxUnavailable):
            live.run("true", after="discard")
        assert bool(processes_with(word)) is not is_control


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "by number"])
def test_b6_a_command_with_the_pid_of_a_dead_door_does_not_escape_a_stop(
    arena: Arena, own_spawner: None, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    """Write while everything is to stand still, with the pid of a door that has ended: doors are not stopped.

    Control: where that door is not asked for its death, the program writes.
    """
    make_door, serve = spawner.LiveRun._make_door, door.DoorLoop.serve

    def serve_on(loop: door.DoorLoop) -> None:
        serve(loop)
        # Only of one that ends after the next was made does the spawner still have the pid
        wait_for(lambda: count_doors() > 1)

    def make_after_end(run: spawner.LiveRun, to: int, protection: door.Protection) -> int:
        made = make_door(run, to, protection)
        for pid in run.doors.keys() - {run.door}:
            assert is_dead(run.doors[pid], WAIT_S * 1000)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
            # The next process has its pid
            libc.write_setting(b"/proc/sys/kernel/ns_last_pid", b"%d" % (pid - 1))
        return made

    monkeypatch.setattr(door.DoorLoop, "serve", serve_on)
    monkeypatch.setattr(spawner.LiveRun, "_make_door", make_after_end)
    if is_control:
        monkeypatch.setattr(spawner.LiveRun, "_living_doors", lambda run: list(run.doors))
    policy = arena.ground.policy(profile="strict")
    with Sandbox(arena.ground.project, policy=policy, may_fork=True) as sandbox, sandbox.live() as live:
        # Layers that nothing was written to are kept, and the door with them
        assert live.run("echo x > f", after="discard").ok
        writer = live.start(["/usr/bin/python3", "-I", "-c", WRITERS["mover"]], after="discard")
        said(writer, b"up")
        assert any(watched(live)[0] for _ in range(5)) is is_control


def count_doors() -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            found += path.read_bytes() == b"unspill-door\n"
    return found


# In a pid namespace of its own, in which it may say which pid is next
REUSED = """
import os, signal, sys, time
from unspill.host import door
def rest():
    while True: signal.pause()
told = os.pipe()
leader = os.fork()
if not leader:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    member = os.fork()
    if member: os.write(told[1], b"%d" % member)
    rest()
member = int(os.read(told[0], 20))
looks = [door._find_session(leader)]
assert {pid for pid, _start in looks[0]} == {leader, member}
os.kill(member, signal.SIGKILL)
until = time.monotonic() + 20
while os.path.exists(f"/proc/{member}") and time.monotonic() < until: pass
# The kernel counts when a process was started by the hundredth of a second
time.sleep(0.05)
for _ in range(1000):
    # A pid is free a moment after its process is gone
    open("/proc/sys/kernel/ns_last_pid", "w").write(str(member - 1))
    other = os.fork()
    if not other:
        os.setsid()
        rest()
    if other == member: break
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
assert other == member
find = door._find_session
door._find_session = lambda session: looks.pop() if looks else find(session)
if sys.argv[1] == "by number":
    door._kill = lambda pid, _start: os.kill(pid, signal.SIGKILL)
door.JoinedCommand(leader, -1, None).kill()
os.waitpid(leader, 0)
until = time.monotonic() + (20 if sys.argv[1] == "by number" else 0.05)
while os.waitpid(other, os.WNOHANG) == (0, 0):
    if time.monotonic() > until: sys.exit(print("alive"))
print("killed")
"""


@pytest.mark.parametrize("way", ["as it is", "by number"])
def test_a24_the_kill_of_a_run_does_not_hit_who_has_the_pid_of_one_of_its_processes(way: str) -> None:
    """End a process of a run between the look for it and its kill, and have its pid taken by another run's.

    Control: killed by its number, the other one dies.
    """
    own = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    words = [*own, sys.executable, "-c", REUSED, way]
    done = subprocess.run(words, capture_output=True, check=True, timeout=60, env=os.environ)
    assert done.stdout == (b"killed\n" if way == "by number" else b"alive\n")
