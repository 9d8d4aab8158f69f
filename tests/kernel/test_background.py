# SPDX-License-Identifier: Apache-2.0
"""Background runs of a live sandbox: their output, their input, their end, and what they share with others."""

import fcntl
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support import Ground, kinds, lasting, parent_of, processes_with
from unspill import Exited, Sandbox, Signalled
from unspill.adapters import background as adapter
from unspill.adapters.answers import text_answer
from unspill.adapters.background import BackgroundRuns
from unspill.errors import SandboxUnavailable, UsageError
from unspill.layers.locks import keeper_files, refuse_kept
from unspill.runner import background
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


@pytest.fixture
def served(sandbox: Sandbox) -> Iterator[BackgroundRuns]:
    runs = BackgroundRuns(sandbox)
    yield runs
    runs.close()


def test_who_only_looks_whether_there_are_background_runs_keeps_nobody_from_having_some(
    served: BackgroundRuns, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keeper_files(sandbox._project.store.state, sandbox.id)[0]
    looking = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(looking, fcntl.LOCK_SH)
    refusals = []

    def refuse(*words: Any) -> None:
        refusals.append(words)
        refuse_kept(*words)
        if len(refusals) == 2:
            fcntl.flock(looking, fcntl.LOCK_UN)

    monkeypatch.setattr(adapter, "refuse_kept", refuse)
    assert served.start({"command": "true"}, None).values["run"] == 1
    assert len(refusals) == 2
    os.close(looking)


def test_who_keeps_the_claim_of_a_sandbox_is_not_waited_for(
    served: BackgroundRuns, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_CLAIM_S", 0.0)
    path = keeper_files(sandbox._project.store.state, sandbox.id)[0]
    holding = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(holding, fcntl.LOCK_EX)
    with pytest.raises(SandboxUnavailable, match="background runs of another process"):
        served.start({"command": "true"}, None)
    os.close(holding)


def test_the_end_of_a_run_that_is_no_longer_listed_is_still_told(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MOST_ENDED", 0)
    has_ended, may_go_on = Event(), Event()

    def take(_result: object) -> None:
        has_ended.set()
        assert may_go_on.wait(20)

    served = BackgroundRuns(sandbox, take)
    served.start({"command": f"exec sleep {lasting()}"}, None)
    served.start({"command": "exit 3"}, None)
    assert has_ended.wait(20)
    # With this one the ended run is no longer listed, before anybody was told of it
    served.start({"command": f"exec sleep {lasting()}"}, None)
    with pytest.raises(UsageError):
        served.output({"run": 2}, None)
    may_go_on.set()
    told = ""
    deadline = time.monotonic() + 20
    while "run 2" not in told:
        assert time.monotonic() < deadline
        told = served.with_news(text_answer([], {})).text
    assert told.startswith("Note: run 2 has ended in the background.\nExit code: 3\n")
    served.close()


def test_a_run_whose_door_stands_still_can_be_killed(served: BackgroundRuns) -> None:
    word = lasting()
    served.start({"command": f"exec sleep {word}"}, None)
    os.kill(parent_of(word), signal.SIGSTOP)
    assert served.kill({"run": 1}, None).values["run"] == 1
    assert processes_with(word) == []
