# SPDX-License-Identifier: Apache-2.0
"""Callers that are interrupted, cancelled, killed, forked or gone: no process survives; what they changed is held."""

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.leftovers import adopt_orphans, descendants, mounts_of, reap_adopted, state_problems, tree_of, within
from tests.support import VIEW_LINES, Event, Ground, kinds, lasting, printed, processes_with, run_cli
from unspill import Cancelled, LimitReached, OutputChunk, RunResult, Sandbox
from unspill.apply import operate
from unspill.layers.lifecycle import seal_run
from unspill.model.policy import MIB, Limits
from unspill.runner import watch
from unspill.sandbox import running, scan

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

UNSPILL = Path(sys.executable).with_name("unspill")
BUSY = """
echo held > new.$0; trap '' TERM HUP INT
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
    """A project with a held layer, whose state directory must be in order after the next start, whatever was done.

    That is: no process and no mount is left, no work directory and no open layer; what was held before is.
    """
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


def start(ground: Ground, name: str = "file") -> "subprocess.Popen[bytes]":
    """Start the program in a session of its own, without a terminal; what its command writes first has that name."""
    return subprocess.Popen(
        [UNSPILL, "run", "-q", "--", "sh", "-c", BUSY, name],
        cwd=ground.project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def start_busy(ground: Ground, name: str = "file") -> "subprocess.Popen[bytes]":
    """Start the program and wait until its command is at work."""
    program = start(ground, name)
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    return program


def start_on_terminal(ground: Ground, *options: str) -> "tuple[subprocess.Popen[bytes], int]":
    """Start the program on a terminal and wait until its command is at work; return the terminal's other end too."""
    ours, theirs = pty.openpty()
    # It leads a session of its own with the terminal as its controlling one, as from a login shell
    words = ("run", "-q", *options, "--", "sh", "-c", BUSY, "file")
    command = ["setsid", "--ctty", "--wait", os.fspath(UNSPILL), *words]
    program = subprocess.Popen(command, cwd=ground.project, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(ours, 1024)
    return program, ours


def held_in(ground: Ground) -> set[str]:
    """Return the names at the top of the project that a new process finds on hold."""
    done = run_cli("changes", "--json", cwd=ground.project)
    return {change["path"] for root in json.loads(done.stdout)["roots"] for change in root["changes"]}


def test_an_interrupt_ends_the_run_and_holds_what_it_changed_at_once(prepared: Ground) -> None:
    program = start_busy(prepared)
    program.send_signal(signal.SIGINT)
    _output, errors = program.communicate(timeout=10)
    assert program.returncode == 130
    assert re.fullmatch(rb"unspill: Cancelled. Its changes are held \(\d+ added\). See .*\n", errors)
    assert state_problems(prepared.state) == []
    assert {"kept", "new.file"} <= held_in(prepared)


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.003, 0.01, 0.03])
def test_a_second_interrupt_loses_nothing(prepared: Ground, pause_s: float) -> None:
    program = start_busy(prepared)
    for _ in range(5):
        program.send_signal(signal.SIGINT)
        time.sleep(pause_s)
    program.communicate(timeout=10)
    # The first one that comes when the changes are safe kills it
    assert program.returncode in (130, -signal.SIGINT)
    assert {"kept", "new.file"} <= held_in(prepared)


def test_an_interrupt_is_heard_while_nobody_reads_the_output(prepared: Ground) -> None:
    command = (UNSPILL, "run", "-q", "-c", "echo x > new; exec yes")
    with subprocess.Popen([*command], cwd=prepared.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.read(1) == b"y"
        # The pipe is full by now, and the program waits in write(2)
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
        assert program.wait(10) == 130
    assert {"kept", "new"} <= held_in(prepared)


@pytest.mark.parametrize("options", [("--no-tty",), ()], ids=["without a terminal", "on a terminal"])
def test_ctrl_c_on_a_terminal_ends_a_command_that_ignores_it(prepared: Ground, options: tuple[str, ...]) -> None:
    """The key is unspill's own, or the command's; then several of them are unspill's too."""
    program, ours = start_on_terminal(prepared, *options)
    os.write(ours, b"\x03" if options else b"\x03" * 3)
    assert program.wait(10) == 130
    os.close(ours)
    assert state_problems(prepared.state) == []
    assert "new.file" in held_in(prepared)


def test_a_terminal_that_is_lost_ends_the_run_and_holds_what_it_changed(prepared: Ground) -> None:
    program, ours = start_on_terminal(prepared)
    os.close(ours)
    assert program.wait(10) == 129
    assert state_problems(prepared.state) == []
    assert "new.file" in held_in(prepared)


def test_a_run_whose_caller_has_hangups_ignored_goes_on(prepared: Ground) -> None:
    command = ("nohup", UNSPILL, "run", "-q", "-c", "echo ready; read -r go; echo x > new")
    with subprocess.Popen(
        [*command], cwd=prepared.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGHUP)
        program.stdin.write(b"go\n")
        program.stdin.close()
        assert program.wait(10) == 0
    assert "new" in held_in(prepared)


@pytest.mark.parametrize("command", ["true", "exit 3", "sleep 1000 & setsid sleep 1000 &", "no-such-command"])
def test_the_program_leaves_no_zombie_to_whoever_adopts_its_orphans(prepared: Ground, command: str) -> None:
    below = descendants(os.getpid())
    run_cli("run", "-q", "-c", command, cwd=prepared.project)
    assert set(descendants(os.getpid())) - set(below) == set()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, -3), (signal.SIGKILL, -9)]
)
def test_a_signal_that_ends_unspill_ends_everything_and_holds_what_was_changed(
    prepared: Ground, number: int, code: int
) -> None:
    program = start_busy(prepared)
    program.send_signal(number)
    program.communicate(timeout=10)
    assert program.returncode == code
    assert {"kept", "new.file"} <= held_in(prepared)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_moment_ends_everything_and_holds_what_was_changed(
    prepared: Ground, full: bool, number: int
) -> None:
    begun = set()
    steps = 60 if full else 8
    for step in range(steps + 1):
        program = start(prepared, str(step))
        assert program.stdout is not None
        # The last one has begun, however slow the machine is
        seen = program.stdout.readline() if step == steps else b""
        time.sleep(step * (0.01 if full else 0.08))
        program.send_signal(number)
        output, _errors = program.communicate(timeout=10)
        assert program.returncode != 0
        begun |= {f"new.{step}"} if b"ready" in seen + output else set()
    assert f"new.{steps}" in begun
    assert begun <= held_in(prepared)


INTERRUPTED = """
import sys, weakref
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "unspill.cli.main":
            watched = type("Watched", (), {})()
            self.link = weakref.ref(watched, self.stop)
    def stop(self, link):
        raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 130), (["hook", "claude-code"], 2)])
def test_ctrl_c_while_the_program_is_loaded_ends_it(tmp_path: Path, words: list[str], code: int) -> None:
    """Even in a callback of Python's, which only prints what is raised in it. The control arm loads it without us."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    hit = {**os.environ, "PYTHONPATH": os.fspath(tmp_path)}

    def run(*program: str) -> tuple[int, bytes]:
        command = [sys.executable, *program, *words]
        done = subprocess.run(command, env=hit, input=b"", capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run("-m", "unspill") == (code, b"")
    _code, printed = run("-c", "from unspill.cli.main import main; main()")
    assert b"KeyboardInterrupt" in printed
    assert any(line.startswith(b"unspill") for line in printed.splitlines())


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
LONG = """
ready = threading.Event()
told = {"on_event": lambda event: "Chunk" in str(event) and ready.set()}
command = "echo x > new; echo ready; sleep 1000"
threading.Thread(target=sandbox.run, args=(command,), kwargs=told, daemon=True).start()
ready.wait()
"""
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
    assert ("new" in held_in(prepared)) is ("goes on" in caller)


HELD, APPLIED, GONE = "held", "applied", "gone"


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    """Have a Ctrl-C raise KeyboardInterrupt, also where the suite runs in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def cancelled(sandbox: Sandbox, command: str, **options: Any) -> RunResult:
    """Run a command that says when it has written all, and cancel it then."""
    read, write = os.pipe()

    def cancel(event: Event) -> None:
        if isinstance(event, OutputChunk):
            os.write(write, b"x")

    try:
        return sandbox.run(f"{command}; echo written; sleep {lasting()}", cancel_fd=read, on_event=cancel, **options)
    finally:
        os.close(read)
        os.close(write)


def fate_of(ground: Ground, sandbox: Sandbox) -> str:
    if (ground.project / "file").exists():
        assert not sandbox.changes()
        return APPLIED
    return HELD if kinds(sandbox.changes()) == {"file": "added"} else GONE


# What the policy says, what the call says, and what becomes of the changes
FATES: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"after": "apply"}, {}, HELD),
    ({"after": "apply", "after_cancel": "hold"}, {}, HELD),
    ({"after": "apply", "after_cancel": "discard"}, {}, GONE),
    ({"after": "apply", "after_cancel": "apply"}, {}, APPLIED),
    ({"after": "hold", "after_cancel": "apply"}, {}, HELD),
    ({"after": "hold", "after_cancel": "discard"}, {}, HELD),
    ({"after": "discard", "after_cancel": "apply"}, {}, GONE),
    ({"after": "discard", "after_cancel": "hold"}, {}, GONE),
    ({"after": "apply", "after_cancel": "apply"}, {"after": "hold"}, HELD),
    ({"after": "apply", "after_cancel": "apply"}, {"after": "discard"}, GONE),
    ({"after": "hold", "after_cancel": "discard"}, {"after": "apply"}, GONE),
    ({"after": "hold"}, {"after_cancel": "discard"}, GONE),
    ({"after": "apply"}, {"after_cancel": "apply"}, APPLIED),
)


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize(("settings", "options", "fate"), FATES)
def test_the_changes_of_a_cancelled_run_become_what_the_settings_say(
    ground: Ground, settings: dict[str, Any], options: dict[str, Any], fate: str
) -> None:
    sandbox = ground.sandbox(**settings)
    result = cancelled(sandbox, "echo x > file", **options)
    assert result.outcome == Cancelled()
    assert kinds(result.changes) == {"file": "added"}
    assert (result.held, result.operation is not None) == (fate == HELD, fate == APPLIED)
    assert fate_of(ground, sandbox) == fate
    (run,) = sandbox.runs()
    assert (run.outcome, run.held, run.changed) == (Cancelled(), fate == HELD, 1)
    if fate == APPLIED:
        sandbox.undo()
        assert not (ground.project / "file").exists()


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize(("own", "project", "fate"), [("", "discard", GONE), ("apply", "hold", HELD)])
def test_the_file_of_a_project_tightens_it(ground: Ground, own: str, project: str, fate: str) -> None:
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n' + (f'after_cancel = "{own}"' if own else ""))
    ground.write(".unspill.toml", f'after_cancel = "{project}"')
    with Sandbox(ground.project) as sandbox:
        assert cancelled(sandbox, "echo x > file").outcome == Cancelled()
        assert fate_of(ground, sandbox) == fate


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
def test_the_next_run_sees_what_a_cancelled_one_has_written(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    cancelled(sandbox, "echo one > file")
    assert printed(sandbox.run("cat file; echo two > file")) == "one\n"


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
def test_a_model_is_told_that_it_is_held(ground: Ground) -> None:
    text = cancelled(ground.sandbox(after="apply"), "echo x > file").text()
    assert "Command was cancelled\n" in text
    assert "Changes (held, not in the project):\n" in text


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
def test_a_layer_over_its_bound_is_dropped_although_the_run_was_cancelled(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    result = cancelled(sandbox, "head -c 3000000 /dev/zero > file", limits=Limits(layer_bytes=1 * MIB))
    assert result.outcome == LimitReached(limit="layer_bytes", bound=1 * MIB)
    assert "it wrote more than 1 MiB (`limits.layer_bytes`)" in result.text()
    assert "Changes (discarded, the project is unchanged):" in result.text()
    assert fate_of(ground, sandbox) == GONE
    assert ground.left_behind() == []


def interrupting(function: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """Return a function that a person interrupts by Ctrl-C each time when it begins and when it ends."""
    left = [times]

    def doing(*arguments: Any, **named: Any) -> Any:
        is_time = left[0] > 0
        left[0] -= 1
        if is_time:
            os.kill(os.getpid(), signal.SIGINT)
        found = function(*arguments, **named)
        if is_time:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    return doing


# The moments after the command has ended: what is called, what its changes become, and what the note says
MOMENTS: dict[str, tuple[Any, str, str, str]] = {
    "while it is scanned": (running, "scan_run", HELD, "was interrupted: "),
    "when it is sealed": (
        running,
        "seal_run",
        APPLIED,
        "Cancelled after the command had ended. Its changes were applied",
    ),
    "when it is applied": (
        operate,
        "perform",
        APPLIED,
        "Cancelled after the command had ended. Its changes were applied",
    ),
}


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_ctrl_c_after_the_command_has_ended_loses_nothing(
    ground: Ground, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, fate, told = MOMENTS[moment]
    monkeypatch.setattr(module, name, interrupting(getattr(module, name)))
    sandbox = ground.sandbox(after="apply")
    with pytest.raises(KeyboardInterrupt) as raised:
        sandbox.run("echo x > file")
    assert fate_of(ground, sandbox) == fate
    assert told in raised.value.__notes__[-1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("default_interrupt")
def test_a_second_ctrl_c_waits_until_every_process_is_dead(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    long = lasting()
    wait = watch.Watch._wait_for_end
    monkeypatch.setattr(watch.Watch, "_wait_for_end", interrupting(wait))

    def interrupt(event: Event) -> None:
        if isinstance(event, OutputChunk):
            raise KeyboardInterrupt

    sandbox = ground.sandbox(after="apply")
    with pytest.raises(KeyboardInterrupt):
        sandbox.run(f"echo x > file; echo written; sleep {long}", on_event=interrupt)
    assert processes_with(long) == []
    assert fate_of(ground, sandbox) == HELD


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
@pytest.mark.parametrize("is_deferred", [True, False])
def test_what_an_interrupt_kept_from_being_held_is_held_before_the_next_run(
    ground: Ground, is_deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm of the block that no signal interrupts. Without it a Ctrl-C comes between; nothing is lost."""
    if not is_deferred:
        monkeypatch.setattr(running, "DeferredSignals", threading.Lock)
    monkeypatch.setattr(running, "seal_run", interrupting(seal_run))
    sandbox = ground.sandbox()
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("echo x > file")
    assert fate_of(ground, sandbox) == (HELD if is_deferred else GONE)
    assert printed(sandbox.run("cat file")) == "x\n"
    assert fate_of(ground, sandbox) == HELD
    assert [run.number for run in sandbox.interrupted_runs] == ([] if is_deferred else [1])


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
def test_changes_that_can_not_be_read_are_held_all_the_same(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sandbox = ground.sandbox(after="apply")
    with monkeypatch.context() as patch:
        patch.setattr(running, "scan_run", fail)
        patch.setattr(scan, "scan_run", fail)
        with pytest.raises(OSError, match="Input/output error") as raised:
            sandbox.run("echo x > file")
    assert "Its changes are held. See" in raised.value.__notes__[0]
    assert fate_of(ground, sandbox) == HELD


@pytest.mark.any_bwrap
@pytest.mark.usefixtures("default_interrupt")
def test_the_record_of_a_cancelled_run_says_so(ground: Ground) -> None:
    cancelled(ground.sandbox(after="apply"), "echo x > file")
    assert b"cancelled  1 changed, held" in run_cli("log", cwd=ground.project).stdout
    assert b"A file" in run_cli("show", "run1", cwd=ground.project).stdout
