# SPDX-License-Identifier: Apache-2.0
"""How a run ends, each way for real, and that our own failure is never taken for the command's or the reverse."""

import os
import signal
import threading
import time

import pytest

from tests.support import Event, Ground, kinds, lasting, printed, processes_with, run_cli, short
from unspill import Cancelled, Ended, Exited, NeverStarted, OutputChunk, Signalled, Started, TimedOut
from unspill.errors import BwrapMissing, BwrapUnsafe, SandboxUnavailable, UsageError
from unspill.runner.launcher import get_launcher

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


@pytest.mark.parametrize("code", [0, 1, 2, 77, 124, 125, 126, 127, 128, 193, 255])
def test_a_code_is_the_commands_own(ground: Ground, engine: str, code: int) -> None:
    result = ground.run(f"exit {code}")
    assert result.outcome == Exited(code=code)
    assert result.exit_code == code
    assert result.ok == (code == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_a_signal_is_named(ground: Ground, engine: str, number: int) -> None:
    result = ground.run(["python3", "-c", f"import os; os.kill(os.getpid(), {int(number)})"])
    assert result.outcome == Signalled(signal=number)
    assert result.exit_code == 128 + number


def test_a_timeout_keeps_what_was_printed_and_written(ground: Ground, engine: str) -> None:
    begun = time.monotonic()
    result = ground.run("echo before; echo err >&2; echo x > file; sleep 60; echo after", timeout=0.7)
    assert result.outcome == TimedOut(after_s=0.7)
    assert result.exit_code == 124
    assert time.monotonic() - begun < 10
    assert result.stdout.kept() == b"before\n"
    assert result.stderr.kept() == b"err\n"
    assert result.held
    assert kinds(result.changes) == {"file": "added"}


def test_a_timeout_kills_grandchildren_in_sessions_of_their_own(ground: Ground, engine: str) -> None:
    long = lasting()
    command = f"""
    trap '' TERM INT HUP
    setsid sh -c "trap '' TERM; while :; do echo x >> file; sleep 0.05; done" &
    (setsid sleep {long} &) ; nohup sleep {long} >/dev/null 2>&1 &
    sleep {long}
    """
    result = ground.run(command, timeout=0.7)
    assert isinstance(result.outcome, TimedOut)
    (layer,) = (ground.state / "layers").iterdir()
    size = (layer / "file").stat().st_size
    time.sleep(0.3)
    assert (layer / "file").stat().st_size == size
    assert processes_with(long) == []


def test_background_processes_do_not_outlive_or_delay_the_command(ground: Ground, engine: str) -> None:
    long = lasting()
    begun = time.monotonic()
    result = ground.run(f"(sleep {long}; echo late) & echo now")
    assert printed(result) == "now\n"
    assert time.monotonic() - begun < 5
    assert processes_with(long) == []


def test_what_a_cancelled_run_has_changed_is_held(ground: Ground, engine: str) -> None:
    read_end, write_end = os.pipe()
    sandbox = ground.sandbox()
    timer = threading.Timer(0.5, os.write, (write_end, b"x"))
    timer.start()
    result = sandbox.run("echo out; echo x > file; sleep 60", cancel_fd=read_end)
    timer.join()
    os.close(read_end)
    os.close(write_end)
    assert result.outcome == Cancelled()
    assert result.exit_code == 130
    assert result.stdout.kept() == b"out\n"
    assert result.held
    assert kinds(sandbox.changes()) == {"file": "added"}
    assert len(ground.left_behind()) == 1
    sandbox.discard()
    assert ground.left_behind() == []


def test_cancelling_before_the_start_is_in_time_and_holds_nothing(ground: Ground) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"x")
    result = ground.run("echo x > file; sleep 60", cancel_fd=read_end)
    os.close(read_end)
    os.close(write_end)
    assert result.outcome == Cancelled()
    assert not result.held
    assert ground.left_behind() == []


def test_a_command_that_is_not_there_is_127(ground: Ground, engine: str) -> None:
    result = ground.run(["no-such-command", "x"])
    assert isinstance(result.outcome, NeverStarted)
    assert result.exit_code == 127
    assert "no-such-command" in result.outcome.reason
    assert result.outcome.remedy
    assert (result.stdout.total, result.stderr.total) == (0, 0)
    assert not result.held


def test_a_file_that_is_no_program_is_126(ground: Ground, engine: str) -> None:
    ground.write("text", "hello").chmod(0o644)
    result = ground.run(["./text"])
    assert isinstance(result.outcome, NeverStarted)
    assert result.exit_code == 126
    assert result.stderr.total == 0


def test_the_shells_own_127_is_the_commands(ground: Ground) -> None:
    result = ground.run("no-such-command")
    assert result.outcome == Exited(code=127)
    assert b"not found" in result.stderr.kept()


def test_a_command_can_not_pretend_to_be_our_failure(ground: Ground) -> None:
    lie = "bwrap: execvp no: No such file or directory"
    result = ground.run(f"echo '{lie}' >&2; exit 125")
    assert result.outcome == Exited(code=125)
    assert result.stderr.kept().decode() == f"{lie}\n"
    assert not result.text().startswith("ERROR")


def test_a_command_can_not_write_to_the_status_channel(ground: Ground) -> None:
    attempt = """
import os
for fd in range(3, 1024):
    try:
        os.write(fd, b'{ "exit-code": 0 }')
        print("wrote to", fd)
    except OSError:
        pass
raise SystemExit(9)
"""
    result = ground.run(["python3", "-c", attempt])
    assert result.outcome == Exited(code=9)
    assert result.stdout.total == 0


def test_our_failure_is_one_line_that_starts_with_error(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = ground.sandbox()
    # A rule that every plan keeps, broken on purpose: bwrap refuses to start
    monkeypatch.setattr("unspill.plan.argv._namespaces", lambda *_given: (b"--no-such-option",))
    result = sandbox.run("echo never > file")
    assert isinstance(result.outcome, NeverStarted)
    assert result.exit_code == 125
    assert (result.stdout.total, result.stderr.total) == (0, 0)
    assert "no-such-option" in result.outcome.reason
    assert result.text().startswith("ERROR: sandbox could not be started: ")
    assert not result.held
    assert ground.left_behind() == []


def test_a_bwrap_that_is_not_there_is_refused_with_what_to_install(ground: Ground) -> None:
    with pytest.raises(BwrapMissing) as missing:
        ground.sandbox(bwrap=os.fsencode(ground.top / "bwrap"))
    assert "apt install bubblewrap" in missing.value.remedy


def test_a_bwrap_of_the_persons_own_is_not_trusted(ground: Ground) -> None:
    fake = ground.top / "bwrap"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o777)
    with pytest.raises(BwrapUnsafe):
        ground.sandbox(bwrap=os.fsencode(fake))


def test_a_layer_that_can_not_be_made_is_our_failure_and_leaves_nothing(ground: Ground) -> None:
    sandbox = ground.sandbox()
    (ground.state / "layers").chmod(0o500)
    try:
        with pytest.raises(SandboxUnavailable, match="layer"):
            sandbox.run("true")
    finally:
        (ground.state / "layers").chmod(0o700)
    assert ground.left_behind() == []
    assert sandbox.runs() == ()
    assert sandbox.run("true").ok


def test_a_layer_that_can_not_be_removed_does_not_mask_the_result(ground: Ground) -> None:
    sandbox = ground.sandbox()
    layers = ground.state / "layers"

    def close(event: Event) -> None:
        if isinstance(event, OutputChunk):
            layers.chmod(0o500)

    try:
        result = sandbox.run("echo out; exit 3", on_event=close)
    finally:
        layers.chmod(0o700)
    assert result.outcome == Exited(code=3)
    assert result.stdout.kept() == b"out\n"
    assert ground.left_behind() != []
    # The next start of another process sweeps it
    assert run_cli("changes", cwd=ground.project).returncode == 0
    assert ground.left_behind() == []


def test_a_root_that_vanished_is_said_so(ground: Ground) -> None:
    sandbox = ground.sandbox()
    ground.project.rename(ground.home / "elsewhere")
    with pytest.raises(UsageError):
        sandbox.run("true")
    assert ground.left_behind() == []


def test_a_spawner_that_was_killed_between_two_runs_is_started_again(ground: Ground) -> None:
    sandbox = ground.sandbox()
    sandbox.run("true")
    launcher = get_launcher(own_namespace=sandbox.engine == "mount")
    os.kill(launcher.pid, signal.SIGKILL)
    time.sleep(0.2)
    assert printed(sandbox.run("echo again")) == "again\n"


def test_a_spawner_that_is_killed_during_a_run_is_our_failure(ground: Ground) -> None:
    long = lasting()
    sandbox = ground.sandbox()

    def kill_spawner(event: Event) -> None:
        if isinstance(event, OutputChunk):
            os.kill(get_launcher(own_namespace=True).pid, signal.SIGKILL)

    with pytest.raises(SandboxUnavailable) as raised:
        sandbox.run(f"echo x > file; echo go; sleep {long}", on_event=kill_spawner)
    # Told when everything of it was dead
    assert processes_with(long) == []
    assert "Its changes are held (1 path)." in raised.value.__notes__[-1]
    assert kinds(sandbox.changes()) == {"file": "added"}
    assert len(ground.left_behind()) == 1
    assert printed(sandbox.run("cat file")) == "x\n"


def test_events_come_in_order(ground: Ground, engine: str) -> None:
    events: list[Event] = []
    result = ground.run("echo a; exit 3", on_event=events.append)
    assert events == [
        Started(run=result.run),
        OutputChunk(stream="stdout", chunk=b"a\n"),
        Ended(run=result.run, outcome=Exited(code=3)),
    ]


def test_a_callback_that_raises_ends_the_run(ground: Ground) -> None:
    long = lasting()

    def refuse(event: Event) -> None:
        if isinstance(event, OutputChunk):
            raise ValueError("no more")

    sandbox = ground.sandbox()
    with pytest.raises(ValueError, match="no more") as raised:
        sandbox.run(f"echo x > file; echo a; sleep {long}", on_event=refuse)
    assert processes_with(long) == []
    assert raised.value.__notes__[0].startswith("Cancelled. Its changes are held (1 added).")
    assert kinds(sandbox.changes()) == {"file": "added"}
    (run,) = sandbox.runs()
    assert (run.outcome, run.held, run.stdout.kept()) == (Cancelled(), True, b"a\n")


def test_ctrl_c_in_the_caller_ends_the_run(ground: Ground) -> None:
    long = lasting()

    def interrupt(event: Event) -> None:
        if isinstance(event, OutputChunk):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as raised:
        ground.run(f"echo x > file; echo a; sleep {long}", on_event=interrupt, limits=short())
    assert processes_with(long) == []
    assert raised.value.__notes__[0].startswith("Cancelled. Its changes are held (1 added).")
    assert kinds(ground.sandbox().changes()) == {"file": "added"}
