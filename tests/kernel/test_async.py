# SPDX-License-Identifier: Apache-2.0
"""The async face: the same runs, an event loop that is never blocked, and tasks whose end is the run's end."""

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.support import Ground, kinds, lasting, printed, processes_with, short
from unspill import Ended, Exited, Limits, OutputChunk, RunResult, Started, TimedOut
from unspill.errors import UsageError

pytestmark = pytest.mark.kernel


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a loop that complains of whatever blocks it."""

    async def watched() -> Any:
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = 0.25
        return await work

    return asyncio.run(watched(), debug=False)


def test_arun_returns_what_run_returns(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    result = drive(sandbox.arun("echo out; echo err >&2; touch file; exit 3", env={"A": "1"}, timeout=20))
    assert isinstance(result, RunResult)
    assert result.outcome == Exited(code=3)
    assert (result.stdout.kept(), result.stderr.kept()) == (b"out\n", b"err\n")
    assert kinds(result.changes) == {"file": "added"}
    assert kinds(sandbox.changes()) == {"file": "added"}


def test_errors_come_out_of_arun(ground: Ground) -> None:
    with pytest.raises(UsageError, match="Command cannot be empty"):
        drive(ground.sandbox().arun(""))


def test_a_timeout_is_a_result(ground: Ground) -> None:
    assert drive(ground.sandbox().arun("sleep 60", timeout=0.3)).outcome == TimedOut(after_s=0.3)


def test_the_event_loop_is_never_blocked(ground: Ground, engine: str) -> None:
    async def work() -> float:
        worst = 0.0
        done = asyncio.Event()

        async def tick() -> None:
            nonlocal worst
            while not done.is_set():
                begun = time.monotonic()
                await asyncio.sleep(0.005)
                worst = max(worst, time.monotonic() - begun)

        ticking = asyncio.create_task(tick())
        sandbox = ground.sandbox()
        await asyncio.sleep(0.02)
        worst = 0.0
        await sandbox.arun("echo x; sleep 0.7; seq 100000; for i in $(seq 200); do echo $i > f$i; done")
        done.set()
        await ticking
        return worst

    assert drive(work()) < 0.4


def test_cancelling_the_task_kills_the_run(ground: Ground, engine: str) -> None:
    long = lasting()
    sandbox = ground.sandbox()

    async def work() -> float:
        task = asyncio.create_task(sandbox.arun(f"touch file; sleep {long}"))
        await asyncio.sleep(0.5)
        task.cancel()
        begun = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - begun

    assert drive(work()) < 5
    # When the task is over, so is every process of it
    assert processes_with(long) == []
    assert kinds(sandbox.changes()) == {"file": "added"}
    assert len(ground.left_behind()) == 1


def test_a_run_that_waits_for_another_can_be_cancelled(ground: Ground) -> None:
    sandbox = ground.sandbox()
    read_end, write_end = os.pipe()
    word = lasting()

    async def work() -> None:
        # It has its turn until it is told to go on
        first = asyncio.create_task(sandbox.arun(["sh", "-c", "read line; touch first", word], stdin=read_end))
        while not processes_with(word):
            await asyncio.sleep(0.02)
        second = asyncio.create_task(sandbox.arun("touch second", alone=True))
        await asyncio.sleep(0.1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        os.write(write_end, b"go on\n")
        assert (await first).ok

    drive(work())
    os.close(read_end)
    os.close(write_end)
    assert kinds(sandbox.changes()) == {"first": "added"}


def test_a_timeout_of_asyncio_ends_the_run(ground: Ground) -> None:
    long = lasting()

    async def work() -> None:
        async with asyncio.timeout(0.4):
            await ground.sandbox().arun(f"sleep {long}")

    with pytest.raises(TimeoutError):
        drive(work())
    assert processes_with(long) == []


def test_fifty_runs_at_once(ground: Ground) -> None:
    sandboxes = [ground.sandbox(f"s{number}") for number in range(50)]

    async def work() -> list[RunResult]:
        return await asyncio.gather(
            *(
                sandbox.arun(f"echo {sandbox.name}; echo {sandbox.name} > f", limits=short(wall_s=50))
                for sandbox in sandboxes
            )
        )

    results = drive(work())
    assert [printed(result) for result in results] == [f"s{number}\n" for number in range(50)]
    assert all(kinds(result.changes) == {"f": "added"} for result in results)


def test_fifty_runs_that_want_to_be_alone_follow_one_another(ground: Ground) -> None:
    ground.write("count", "0\n")
    sandbox = ground.sandbox()

    async def work() -> None:
        await asyncio.gather(*(sandbox.arun("n=$(cat count); echo $((n+1)) > count", alone=True) for _ in range(50)))

    drive(work())
    assert printed(sandbox.run("cat count")) == "50\n"


def test_a_stream_yields_events_and_the_result_last(ground: Ground, engine: str) -> None:
    async def work() -> list[object]:
        return [event async for event in ground.sandbox().stream("echo a; sleep 0.2; echo b >&2; exit 2")]

    events = drive(work())
    result = events[-1]
    assert isinstance(result, RunResult)
    assert events == [
        Started(run=result.run),
        OutputChunk(stream="stdout", chunk=b"a\n"),
        OutputChunk(stream="stderr", chunk=b"b\n"),
        Ended(run=result.run, outcome=Exited(code=2)),
        result,
    ]


def test_a_stream_comes_while_the_command_runs(ground: Ground) -> None:
    async def work() -> list[float]:
        times = []
        async for event in ground.sandbox().stream("for i in 1 2 3; do echo $i; sleep 0.3; done"):
            if isinstance(event, OutputChunk):
                times.append(time.monotonic())
        return [*times, time.monotonic()]

    times = drive(work())
    assert len(times) == 4
    assert times[-1] - times[0] > 0.7


def test_leaving_a_stream_early_kills_the_run(ground: Ground) -> None:
    long = lasting()

    async def work() -> None:
        events = ground.sandbox().stream(f"echo a; sleep {long}")
        async for event in events:
            if isinstance(event, OutputChunk):
                break
        await events.aclose()  # type: ignore[attr-defined]

    drive(work())
    assert processes_with(long) == []
    assert ground.left_behind() == []


def test_a_reader_that_is_slow_holds_the_command_back_not_the_memory(ground: Ground) -> None:
    async def work() -> tuple[int, int]:
        taken = most = 0
        async for event in ground.sandbox().stream("yes", limits=Limits(output_bytes=32 << 20, kept_bytes=1000)):
            if not isinstance(event, OutputChunk):
                continue
            taken += len(event.chunk)
            if taken < 4 << 20:
                time.sleep(0.002)
            spilled = [path.stat().st_size for path in (ground.state / "runs").glob("*/stdout")]
            most = max(most, sum(spilled) - taken)
        return taken, most

    taken, most_ahead = drive(work())
    assert taken >= 32 << 20
    assert most_ahead < 12 << 20


def test_a_stream_that_nobody_reads_is_cancelled_at_once(ground: Ground) -> None:
    async def work() -> float:
        events = ground.sandbox().stream("yes")
        async for event in events:
            if isinstance(event, OutputChunk):
                break
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        await events.aclose()  # type: ignore[attr-defined]
        return time.monotonic() - begun

    assert drive(work()) < 3
    # What it printed stays with its record; nothing else does
    assert {name.partition("/")[0] for name in ground.left_behind()} <= {"runs"}


def test_errors_come_out_of_a_stream(ground: Ground) -> None:
    async def work() -> None:
        async for _event in ground.sandbox().stream("true", working_dir="missing"):
            pass

    with pytest.raises(UsageError, match="does not exist"):
        drive(work())
