# SPDX-License-Identifier: Apache-2.0
"""The async face of `Sandbox.run`: the same code in a thread of its own, cancelled through a descriptor.

A thread per run, not the loop's pool: a run may take ten minutes, and there may be hundreds.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unspill.model.event import Event
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Command, Sandbox


async def run_in_thread(sandbox: Sandbox, command: Command, options: dict[str, Any]) -> RunResult:
    """Run a command; when the task is cancelled, kill the run, wait until it is dead and raise."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[RunResult] = loop.create_future()
    cancel_read, cancel_write = os.pipe2(os.O_CLOEXEC)

    def work() -> None:
        try:
            result = sandbox.run(command, cancel_fd=cancel_read, **options)
        except BaseException as error:
            loop.call_soon_threadsafe(_settle, done, None, error)
        else:
            loop.call_soon_threadsafe(_settle, done, result, None)

    thread = threading.Thread(target=work, name="unspill-run", daemon=True)
    thread.start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        os.write(cancel_write, b"x")
        await asyncio.wait([done])
        done.exception()
        raise
    finally:
        thread.join()
        os.close(cancel_read)
        os.close(cancel_write)


async def stream_from_thread(
    sandbox: Sandbox, command: Command, options: dict[str, Any]
) -> AsyncIterator[Event | RunResult]:
    """Yield the events of a run, then its result. Leaving the loop early kills the run."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    def hand_over(event: Event) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    task = asyncio.create_task(run_in_thread(sandbox, command, {**options, "on_event": hand_over}))
    task.add_done_callback(lambda _task: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        yield await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


def _settle(done: asyncio.Future[RunResult], result: RunResult | None, error: BaseException | None) -> None:
    if error is not None:
        done.set_exception(error)
    elif result is not None:
        done.set_result(result)
