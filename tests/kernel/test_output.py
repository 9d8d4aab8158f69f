# SPDX-License-Identifier: Apache-2.0
"""What a command prints comes back byte for byte, while it runs, in bounded memory; what it reads is what was given."""

import hashlib
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support import VIEW_LINES, Event, Ground, printed, short
from unspill import Exited, LimitReached, Limits, Output, OutputChunk

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

MIB = 1 << 20


def test_both_streams_are_kept_apart(ground: Ground, engine: str) -> None:
    result = ground.run("echo out; echo err >&2; echo out2")
    assert result.stdout == Output(head=b"out\nout2\n")
    assert result.stderr == Output(head=b"err\n")


def test_every_byte_comes_back_unchanged(ground: Ground, engine: str) -> None:
    result = ground.run(["python3", "-c", "import os; os.write(1, bytes(range(256)) * 300)"])
    assert result.stdout.kept() == bytes(range(256)) * 300


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


@pytest.mark.slow
def test_a_flood_of_200_megabytes_is_taken_in_bounded_memory(ground: Ground) -> None:
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
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        sandbox.run("echo x; exit 1", stdin=b"y")
    assert len(os.listdir("/proc/self/fd")) == opened
    assert opened <= len(before) + 8
    assert resource.getrlimit(resource.RLIMIT_CORE)  # the caller's own limits are its own
