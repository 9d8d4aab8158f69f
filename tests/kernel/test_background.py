# SPDX-License-Identifier: Apache-2.0
"""Background runs of a live sandbox: their output, their input, their end, and what they share with others."""

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import Ground, kinds, lasting, processes_with
from unspill import Exited, Sandbox, Signalled
from unspill.errors import UsageError
from unspill.runner.background import BackgroundRun, OutputRing, end_runs
from unspill.sandbox.live import Live

pytestmark = [pytest.mark.kernel, pytest.mark.rootfs_view]


@pytest.fixture
def sandbox(ground: Ground) -> Iterator[Sandbox]:
    with ground.sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def live(sandbox: Sandbox) -> Iterator[Live]:
    with sandbox.live() as live:
        yield live


def until(run: BackgroundRun, text: bytes) -> bytes:
    """Return the output of a run up to where it has a text."""
    found, offset = b"", 0
    while text not in found:
        more, offset, lost = run.output(offset, timeout=20)
        assert more, found
        assert not lost
        found += more
    return found


def test_a_background_run_goes_on_beside_others_and_shares_its_files_with_them(live: Live) -> None:
    server = live.start("echo up; read line; echo $line > answer; cat seen", after="hold")
    until(server, b"up\n")
    beside = live.run("echo by-run > seen; ls answer 2>&1", after="hold")
    assert kinds(beside.changes) == {"seen": "added"}
    server.write(b"asked\n")
    result = server.wait(20)
    assert result is not None
    assert result.outcome == Exited(code=0)
    assert until(server, b"by-run") == b"up\nby-run\n"
    # What a checkpoint has told of is not told again
    assert kinds(result.changes) == {"answer": "added"}
    assert (result.shared_with, beside.shared_with) == ((2,), (1,))
    assert result.held


def test_the_record_of_each_run_names_those_that_it_shared_with(sandbox: Sandbox, live: Live) -> None:
    server = live.start("echo up; read line", after="hold")
    until(server, b"up\n")
    live.run("echo x > f", after="hold")
    live.run("echo y > g", after="hold")
    server.close_input()
    server.wait(20)
    assert [sandbox.find_run(number).shared_with for number in (1, 2, 3)] == [(2, 3), (1, 3), (1, 2)]


def test_after_the_last_has_ended_a_command_has_changes_of_its_own_again(live: Live) -> None:
    server = live.start("read line", after="hold")
    live.run("echo x > f", after="hold")
    server.kill()
    result = server.wait(20)
    assert result is not None
    assert result.outcome == Signalled(signal=signal.SIGKILL)
    assert result.held
    alone = live.run("echo y > g; cat f", after="hold")
    assert (kinds(alone.changes), alone.stdout.head, alone.shared_with) == ({"g": "added"}, b"x\n", ())


def test_killing_one_spares_the_others(live: Live) -> None:
    word = lasting()
    kept = live.start("echo up; read line; exit 3", after="hold")
    until(kept, b"up\n")
    doomed = live.start(f"(sleep {word} & setsid sleep {word}) & echo up; sleep {word}", after="hold")
    until(doomed, b"up\n")
    doomed.kill()
    result = doomed.wait(20)
    assert result is not None
    assert result.outcome == Signalled(signal=signal.SIGKILL)
    kept.write(b"go\n")
    result = kept.wait(20)
    assert result is not None
    assert result.outcome == Exited(code=3)
    # What had left the group of its command goes with the last one
    assert processes_with(word) == []


def test_a_signal_reaches_the_command(live: Live) -> None:
    run = live.start("trap 'echo caught; exit 5' TERM; echo up; while :; do sleep 0.02; done")
    until(run, b"up\n")
    run.signal(signal.SIGTERM)
    result = run.wait(20)
    assert result is not None
    assert result.outcome == Exited(code=5)
    assert b"caught" in run.output()[0]


def test_all_end_with_the_sandbox_and_what_they_wrote_is_kept(ground: Ground, sandbox: Sandbox) -> None:
    word = lasting()
    with sandbox.live() as live:
        run = live.start(f"echo x > f; echo up; sleep {word}", after="hold")
        until(run, b"up\n")
    assert processes_with(word) == []
    assert not run.is_alive()
    assert kinds(sandbox.changes()) == {"f": "added"}


def test_while_it_is_busy_nothing_with_another_ending_can_begin(live: Live) -> None:
    run = live.start("read line", after="hold")
    with pytest.raises(UsageError, match="hold"):
        live.run("true", after="discard")
    run.kill()
    run.wait(20)
    assert live.run("true", after="discard").ok


def test_what_is_applied_lies_in_the_project(ground: Ground, sandbox: Sandbox, live: Live) -> None:
    run = live.start("read line; echo x > f", after="apply")
    live.run("echo y > g", after="apply")
    assert (ground.project / "g").exists()
    run.close_input()
    result = run.wait(20)
    assert result is not None
    assert result.operation is not None
    assert (ground.project / "f").read_text() + (ground.project / "g").read_text() == "x\ny\n"
    sandbox.undo()
    assert not (ground.project / "f").exists()


def test_output_beyond_memory_and_file_is_counted_as_lost(tmp_path: Path) -> None:
    ring = OutputRing(bytes(tmp_path), memory=100, file=300)
    whole = b"".join(b"%09d\n" % number for number in range(200))
    for start in range(0, len(whole), 35):
        ring.add(whole[start : start + 35])
        found, offset, lost = b"", 0, 0
        while offset < ring.end:
            more, offset, missed = ring.read(offset, 64)
            found, lost = found + more, lost + missed
        sent = whole[: ring.end]
        assert found == sent[lost:]
        assert lost <= max(0, len(sent) - 300)
    ring.close()


def test_output_that_a_full_disk_takes_only_in_part_is_counted_as_lost(tmp_path: Path) -> None:
    """A bound of the size of files does what a full disk does: a part is written, and then nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    whole = b"".join(b"%09d\n" % number for number in range(100))
    for bound, kept in ((hard, len(whole)), (250, 100)):
        ring = OutputRing(bytes(tmp_path), memory=100, file=1000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bound, hard))
        try:
            # At once beyond what fits: less than all of it is written
            ring.add(whole)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        found, offset, lost = b"", 0, 0
        while offset < ring.end:
            more, offset, missed = ring.read(offset, 64)
            assert more
            found, lost = found + more, lost + missed
        assert (found, lost) == (whole[-kept:], len(whole) - kept)
        ring.close()


def test_what_does_not_end_by_its_first_signal_is_killed(live: Live) -> None:
    deaf = live.start("trap '' TERM; echo up; while :; do sleep 0.02; done")
    tidy = live.start("trap 'exit 5' TERM; echo up; while :; do sleep 0.02; done")
    until(deaf, b"up\n")
    until(tidy, b"up\n")
    assert end_runs((deaf, tidy))
    assert deaf.wait().outcome == Signalled(signal=signal.SIGKILL)
    assert tidy.wait().outcome == Exited(code=5)
