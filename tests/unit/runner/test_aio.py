# SPDX-License-Identifier: Apache-2.0
"""What is done in a thread is waited for, however often its task is cancelled, and the event loop goes on meanwhile."""

import asyncio
import select
import time

import pytest

from unspill.runner.aio import call_in_thread


def give_up_slowly(cancel_fd: int) -> None:
    """Wait to be cancelled, take a while to give up, and fail."""
    select.select([cancel_fd], [], [])
    time.sleep(0.3)
    raise ValueError("given up")


def test_a_task_that_is_cancelled_again_and_again_waits_for_its_thread_and_holds_up_nobody() -> None:
    complaints: list[object] = []

    async def steps() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        task = asyncio.create_task(call_in_thread(give_up_slowly))
        await asyncio.sleep(0.05)
        beats = 0
        began = time.monotonic()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0.01)
            beats += 1
        assert time.monotonic() - began > 0.25
        with pytest.raises(asyncio.CancelledError):
            await task
        return beats

    assert asyncio.run(steps()) >= 5
    assert complaints == []
