# SPDX-License-Identifier: Apache-2.0
"""The async face of what takes long: the same code in a thread of its own, cancelled through a descriptor.

A thread per run, not the loop's pool: a run may take ten minutes, and there may be hundreds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, TypeVar

from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import make_pipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from unspill.model.run import Event

    Start = Callable[[Callable[[], None]], object]


Found = TypeVar("Found")

# Of at most 64 KiB each
_WAITING_EVENTS = 64
_LONGEST_WAIT_S = 1.0


async def run_in_thread(run: Callable[..., Found], command: object, options: Mapping[str, object]) -> Found:
    """Run a command; when the task is cancelled, kill the run, wait until it is dead and raise."""
    return await call_in_thread(lambda cancel_fd: run(command, cancel_fd=cancel_fd, **options))


async def call_in_thread(work: Callable[[int], Found], start: Start | None = None) -> Found:
    """Do something that takes a `cancel_fd`, in a thread; when the task is cancelled, wait until it has given up.

    `start` has it done by a thread that is there already, for whoever calls often.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Found] = loop.create_future()
    cancel_read, cancel_write = make_pipe()

    def do() -> None:
        try:
            found = work(cancel_read)
        except BaseException as error:
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, found)

    thread = None if start is not None else threading.Thread(target=do, name="unspill-run", daemon=True)
    try:
        if thread is not None:
            thread.start()
        elif start is not None:
            start(do)
    except RuntimeError:
        os.close(cancel_read)
        os.close(cancel_write)
        raise SandboxUnavailable("this user can't start more threads") from None
    try:
        # Not by `shield`, which tells the event loop of the exception of what was given up, from Python 3.14 on
        await asyncio.wait([done])
    except asyncio.CancelledError:
        os.write(cancel_write, b"x")
        # Some cancel again and again until a task gives in, as anyio does; a thread can't be left, nor waited for below
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        done.exception()
        raise
    else:
        return done.result()
    finally:
        if thread is not None:
            thread.join()
        os.close(cancel_read)
        os.close(cancel_write)


async def stream_from_thread(
    run: Callable[..., Found], command: object, options: Mapping[str, object]
) -> AsyncIterator[Event | Found]:
    """Yield the events of a run, then its result. Leaving the loop early kills the run."""
    feed = Feed(asyncio.get_running_loop())
    task = asyncio.create_task(run_in_thread(run, command, {**options, "on_event": feed.put}))
    task.add_done_callback(lambda _task: feed.end())
    try:
        while (event := await feed.get()) is not None:
            yield event
        yield await task
    finally:
        feed.leave()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


class Feed:
    """Events from a thread to an event loop. A loop that is behind holds the thread back, and so the command."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._room = threading.Semaphore(_WAITING_EVENTS)
        self._is_left = False

    def put(self, event: Event) -> None:
        """Hand over an event, in the thread. Waits a while for room, never for ever: deadlines must be kept."""
        if not self._is_left:
            self._room.acquire(timeout=_LONGEST_WAIT_S)
        if not self._is_left:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def end(self) -> None:
        """Say, in the loop, that there is no more."""
        self._events.put_nowait(None)

    async def get(self) -> Event | None:
        """Return the next event, None at the end."""
        event = await self._events.get()
        self._room.release()
        return event

    def leave(self) -> None:
        """Take no more: the thread, if it waits for room, goes on and does not wait again."""
        self._is_left = True
        self._room.release()
