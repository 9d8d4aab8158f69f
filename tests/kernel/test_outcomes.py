# SPDX-License-Identifier: Apache-2.0
"""How a run ends, each way for real, and what it prints: byte for byte, while it runs, in bounded memory."""

import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import VIEW_LINES, Event, Ground, kinds, lasting, printed, processes_with, run_cli, short
from unspill import (
    Cancelled,
    Ended,
    Exited,
    LimitReached,
    Limits,
    NeverStarted,
    Output,
    OutputChunk,
    Signalled,
    Started,
    TimedOut,
)
from unspill.errors import BwrapMissing, BwrapUnsafe, SandboxUnavailable, UsageError
from unspill.layers.lifecycle import wait_until_clean
from unspill.runner import launcher
from unspill.runner.launcher import Launcher, get_launcher
from unspill.runner.watch import Watch

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


@pytest.mark.parametrize("after", ["hold", "discard"])
def test_a_run_that_is_given_up_at_the_last_moment_does_not_begin(
    ground: Ground, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its turn, and all is ready. Control: where nobody looks then, it is at work before it is killed."""
    word = lasting()
    read_end, write_end = os.pipe()
    started: list[Event] = []

    def give_up_and_launch(**options: bool) -> Launcher:
        os.write(write_end, b"x")
        return get_launcher(**options)

    def watch_late(watch: Watch) -> Any:
        until(lambda: bool(processes_with(word)))
        return until_dead(watch)

    def attempt() -> Any:
        started.clear()
        return ground.run(f"sleep {word}", after=after, cancel_fd=read_end, on_event=started.append).outcome

    until_dead = Watch.until_dead
    monkeypatch.setattr(launcher, "get_launcher", give_up_and_launch)
    monkeypatch.setattr(Watch, "until_dead", watch_late)
    assert attempt() == Cancelled()
    assert not any(isinstance(event, Started) for event in started)
    assert ground.left_behind() == []
    monkeypatch.setattr(launcher, "is_given_up", lambda _fd: False)
    os.read(read_end, 1)
    assert attempt() == Cancelled()
    assert any(isinstance(event, Started) for event in started)
    os.close(read_end)
    os.close(write_end)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


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


@pytest.mark.any_bwrap
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


MIB = 1 << 20


def test_both_streams_are_kept_apart(ground: Ground, engine: str) -> None:
    result = ground.run("echo out; echo err >&2; echo out2")
    assert result.stdout == Output(head=b"out\nout2\n")
    assert result.stderr == Output(head=b"err\n")


def test_every_byte_comes_back_unchanged(ground: Ground, engine: str) -> None:
    result = ground.run(["python3", "-c", "import os; os.write(1, bytes(range(256)) * 300)"])
    assert result.stdout.kept() == bytes(range(256)) * 300


@pytest.mark.any_bwrap
def test_invalid_utf8_loses_no_byte_and_is_shown_safely(ground: Ground) -> None:
    result = ground.run(r"printf 'a\377b\303(\n'")
    assert result.stdout.kept() == b"a\xffb\xc3(\n"
    assert result.text() == "a\\xffb\\xc3(\n"


def test_output_arrives_while_the_command_runs(ground: Ground, engine: str) -> None:
    arrived: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, OutputChunk):
            arrived.append(time.monotonic())

    ground.run("for i in 1 2 3; do echo $i; sleep 0.4; done", on_event=note)
    ended = time.monotonic()
    assert len(arrived) == 3
    assert ended - arrived[0] > 0.9
    assert arrived[2] - arrived[0] > 0.6


def test_chunks_joined_are_the_output_of_each_stream(ground: Ground, engine: str) -> None:
    chunks: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    def collect(event: Event) -> None:
        if isinstance(event, OutputChunk):
            chunks[event.stream].append(event.chunk)

    result = ground.run("seq 20000; seq 20000 -1 1 >&2", on_event=collect)
    assert b"".join(chunks["stdout"]) == result.stdout.kept() == b"".join(b"%d\n" % n for n in range(1, 20001))
    assert b"".join(chunks["stderr"]) == result.stderr.kept() == b"".join(b"%d\n" % n for n in range(20000, 0, -1))


@pytest.mark.any_bwrap
def test_order_within_a_stream_is_kept_when_both_are_flooded(ground: Ground) -> None:
    text = "import os\nfor n in range(30000): os.write(1 + n % 2, b'%08d' % n)"
    result = ground.run(["python3", "-c", text])
    for output, first in ((result.stdout, 0), (result.stderr, 1)):
        kept = output.kept()
        assert [int(kept[i : i + 8]) for i in range(0, len(kept), 8)] == list(range(first, 30000, 2))


def test_head_and_tail_are_kept_and_the_rest_counted_and_spilled(ground: Ground, engine: str) -> None:
    whole = b"".join(b"%d\n" % n for n in range(1, 100_001))
    sandbox = ground.sandbox()
    result = sandbox.run("seq 100000", limits=Limits(kept_bytes=1000))
    assert result.outcome == Exited(code=0)
    output = result.stdout
    assert (output.head, output.tail) == (whole[:1000], whole[-1000:])
    assert output.left_out == len(whole) - 2000
    assert output.total == len(whole)
    assert output.file is not None
    assert Path(os.fsdecode(output.file)).read_bytes() == whole
    assert Path(os.fsdecode(output.file)).stat().st_mode & 0o777 == 0o600
    assert sandbox.find_run(result.number).stdout == output


@pytest.mark.any_bwrap
def test_output_that_just_fits_has_no_file(ground: Ground) -> None:
    for size, left_out in ((1000, 0), (2000, 0), (2001, 1)):
        result = ground.run(f"head -c {size} /dev/zero", limits=Limits(kept_bytes=1000))
        assert result.stdout.left_out == left_out
        assert (result.stdout.file is None) == (left_out == 0)
        assert result.stdout.total == size
        assert result.stdout.kept() == bytes(min(size, 2000))


def test_too_much_output_ends_the_run_and_names_the_bound(ground: Ground, engine: str) -> None:
    result = ground.run("yes", limits=short(output_bytes=3 * MIB, kept_bytes=1000))
    assert result.outcome == LimitReached(limit="output", bound=3 * MIB)
    assert result.exit_code == 137
    assert result.stdout.head == b"y\n" * 500
    assert result.stdout.tail == b"y\n" * 500
    assert result.stdout.file is not None
    assert Path(os.fsdecode(result.stdout.file)).stat().st_size == 3 * MIB


@pytest.mark.any_bwrap
def test_the_bound_holds_for_stderr_too(ground: Ground) -> None:
    result = ground.run("yes >&2", limits=short(output_bytes=MIB))
    assert result.outcome == LimitReached(limit="output", bound=MIB)


FLOOD = (
    VIEW_LINES
    + """
import resource, sys
from unspill import Limits, Policy, Sandbox
sandbox = Sandbox(sys.argv[1], policy=Policy(**VIEW, bwrap=sys.argv[2].encode()))
sandbox.run("true")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = sandbox.run("head -c 209715200 /dev/zero", limits=Limits(output_bytes=256 << 20))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(result.outcome.code, result.stdout.total, len(result.stdout.kept()), after - before)
"""
)


@pytest.mark.any_bwrap
@pytest.mark.slow
def test_a_flood_of_200_megabytes_is_taken_in_bounded_memory(ground: Ground) -> None:
    """The time buys 200 MiB through a real run, in a process whose memory is measured."""
    # In a process of its own: memory that this one once had would hide the growth
    done = subprocess.run(
        [sys.executable, "-c", FLOOD, ground.project, os.fsdecode(ground.bwrap)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    code, total, kept, grown_kib = map(int, done.stdout.split())
    assert (code, total) == (0, 200 * MIB)
    assert kept == 2 * MIB
    assert grown_kib < 16 * 1024


@pytest.mark.any_bwrap
def test_the_spilled_output_goes_with_the_run(ground: Ground) -> None:
    sandbox = ground.sandbox()
    result = sandbox.run("seq 100000", limits=Limits(kept_bytes=100))
    assert [name.partition("/")[0] for name in ground.left_behind()] == ["runs"]
    assert result.stdout.file is not None
    # Kept as long as its record is, so that `show` can point to it
    assert sandbox.find_run(result.number).stdout.file == result.stdout.file


def test_stdin_is_dev_null_unless_given(ground: Ground, engine: str) -> None:
    assert printed(ground.run("cat; readlink /proc/self/fd/0")) == "/dev/null\n"


def test_stdin_is_never_the_callers(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"secret of the caller\n")
    saved = os.dup(0)
    os.dup2(read_end, 0)
    try:
        result = ground.run("cat")
    finally:
        os.dup2(saved, 0)
        for fd in (saved, read_end, write_end):
            os.close(fd)
    assert result.stdout.total == 0


@pytest.mark.parametrize("given", [b"", b"x", b"line\n", bytes(range(256)), b"ab" * MIB])
def test_bytes_are_read_exactly(ground: Ground, engine: str, given: bytes) -> None:
    result = ground.run("sha256sum", stdin=given)
    assert printed(result).split()[0] == hashlib.sha256(given).hexdigest()


@pytest.mark.any_bwrap
def test_bytes_pass_through_a_command_that_writes_as_it_reads(ground: Ground) -> None:
    given = bytes(range(256)) * 16384
    result = ground.run(["cat"], stdin=given, limits=Limits(kept_bytes=8 * MIB))
    assert result.stdout.kept() == given


def test_a_descriptor_is_read_to_its_end(ground: Ground, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 3 * MIB)
    with path.open("rb") as file:
        result = ground.run("wc -c", stdin=file.fileno())
    assert printed(result).strip() == str(3 * MIB)


@pytest.mark.any_bwrap
def test_a_pipe_is_passed_on_as_it_fills(ground: Ground) -> None:
    read_end, write_end = os.pipe()
    seen = threading.Event()

    def feed() -> None:
        os.write(write_end, b"first\n")
        assert seen.wait(10)
        os.write(write_end, b"second\n")
        os.close(write_end)

    def note(event: Event) -> None:
        if isinstance(event, OutputChunk) and b"got first" in event.chunk:
            seen.set()

    thread = threading.Thread(target=feed)
    thread.start()
    result = ground.run("while read line; do echo got $line; done", stdin=read_end, on_event=note, limits=short())
    thread.join()
    os.close(read_end)
    assert printed(result) == "got first\ngot second\n"


@pytest.mark.parametrize("command", ["true", "exec 0<&-; sleep 0.1", "head -c 1 >/dev/null", "sleep 0.2"])
def test_a_command_that_does_not_read_its_input_ends_as_it_likes(ground: Ground, engine: str, command: str) -> None:
    begun = time.monotonic()
    result = ground.run(command, stdin=b"x" * 8 * MIB)
    assert result.ok
    assert time.monotonic() - begun < 5


def test_a_descriptor_that_stays_silent_does_not_hold_a_run_back(ground: Ground) -> None:
    read_end, write_end = os.pipe()
    try:
        assert printed(ground.run("echo done", stdin=read_end)) == "done\n"
    finally:
        os.close(read_end)
        os.close(write_end)


def test_there_is_no_terminal(ground: Ground, engine: str) -> None:
    result = ground.run("test -t 0 || test -t 1 || test -t 2 || echo none; echo x > /dev/tty || true")
    assert printed(result) == "none\n"


def test_what_processes_left_in_the_pipe_is_not_lost(ground: Ground) -> None:
    result = ground.run("(sleep 0.3; echo lost) & printf '%065000d' 0 & wait $!; exit 0")
    assert result.stdout.total == 65000


def test_the_callers_descriptors_do_not_leak(ground: Ground) -> None:
    before = set(os.listdir("/proc/self/fd"))
    sandbox = ground.sandbox()
    sandbox.run("true")
    wait_until_clean()
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        sandbox.run("echo x; exit 1", stdin=b"y")
    wait_until_clean()
    assert len(os.listdir("/proc/self/fd")) == opened
    assert opened <= len(before) + 8
    assert resource.getrlimit(resource.RLIMIT_CORE)  # the caller's own limits are its own
