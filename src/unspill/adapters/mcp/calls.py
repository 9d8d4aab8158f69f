# SPDX-License-Identifier: Apache-2.0
"""Calls of tools that are under way, each in a thread; some wait between two requests of a client for its answers.

A call outlives the request that began it only while its questions wait: a client that does not come back in time has
left, and the call is ended. Whoever ends one waits until every process of it is dead.
"""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio

from unspill.adapters.mcp.bridge import Bridge
from unspill.adapters.mcp.progress import Progress
from unspill.errors import SandboxUnavailable
from unspill.sandbox.asynchronous import call_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_types import ResourceLink

    from unspill.adapters.answering import Answer
    from unspill.adapters.mcp.bridge import Pending

    Work = Callable[["Call", int], Answer]

MOST_ROUNDS = 10
"""As often clients let themselves be asked within one call; those of all SDKs have the same bound."""

READING = "reading"
"""The place of what reads all that is held, which takes memory and no time to speak of."""

_MOST_AT_ONCE = 64
_MOST_READING = 4
# A client that answers at the last moment shall find its call
_GRACE_S = 2.0


# Kept, since a server calls often: making one for each call takes as long as reading the call does
_threads = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="unspill-call")


class Call:
    """One call. `put` are the questions that its client was asked and has not answered.

    `links` lead to what its answer does not show.
    """

    def __init__(self, work: Work, slots: asyncio.Semaphore) -> None:
        self.identity = secrets.token_hex(16)
        self.rounds = 0
        self.put: tuple[Pending, ...] = ()
        self.links: list[ResourceLink] = []
        self.bridge = Bridge(asyncio.get_running_loop())
        self.progress = Progress(asyncio.get_running_loop())
        self.timer: asyncio.TimerHandle | None = None
        # A task of its own: cancelling a request must not interrupt the wait for dead processes
        self.task = asyncio.create_task(self._do(work, slots))
        self.task.add_done_callback(lambda _task: self.bridge.close("the call is over"))

    async def _do(self, work: Work, slots: asyncio.Semaphore) -> Answer:
        async with slots:
            return await call_in_thread(lambda cancel_fd: work(self, cancel_fd), _threads.submit)

    def is_over(self) -> bool:
        """Tell whether there is nothing more to wait for."""
        return self.task.done()

    async def until_news(self) -> None:
        """Wait until it is over, or something is asked."""
        if not self.task.done():
            # Set by the end as well, which closes the bridge
            await self.bridge.news.wait()

    async def end(self) -> None:
        """Cancel it, and return when every process of it is dead."""
        self.bridge.close("the call was cancelled")
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait((self.task,))
        if not self.task.cancelled():
            # Whoever ended it does not want to know; asked for, so that nobody complains about it
            self.task.exception()


class Calls:
    """The calls of a server; leaving the `async with` ends them all."""

    def __init__(self) -> None:
        self._under_way: set[Call] = set()
        self._paused: dict[str, Call] = {}
        # By place: what waits for its turn in one project must not hold up another, nor a look at either
        self._slots = {READING: asyncio.Semaphore(_MOST_READING)}
        self._ending: set[asyncio.Future[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(self, *_rest: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    async def close(self) -> None:
        """End all calls; nothing of them is left when this returns."""
        self._is_closed = True
        self._paused.clear()
        ending = [asyncio.ensure_future(call.end()) for call in tuple(self._under_way)]
        if ending:
            await asyncio.wait(ending)

    def slots(self, place: str) -> asyncio.Semaphore:
        """Return what bounds how much is done at once at a place: in a project, or `READING`."""
        return self._slots.setdefault(place, asyncio.Semaphore(_MOST_AT_ONCE))

    def begin(self, work: Work, place: str = "") -> Call:
        """Start a call.

        Raises:
            SandboxUnavailable: the server is ending.
        """
        if self._is_closed:
            raise SandboxUnavailable("the server is ending")
        call = Call(work, self.slots(place))
        self._under_way.add(call)
        call.task.add_done_callback(lambda _task: self._under_way.discard(call))
        return call

    def pause(self, call: Call, put: tuple[Pending, ...]) -> str:
        """Let a call wait for its client to come back with answers; return what the client has to show then."""
        call.rounds += 1
        call.put = put
        state = f"{call.identity}.{call.rounds}"
        self._paused[state] = call
        left_s = max(pending.left_s for pending in put) + _GRACE_S
        call.timer = asyncio.get_running_loop().call_later(left_s, self._give_up, state)
        return state

    def resume(self, state: str) -> Call | None:
        """Return the call that waits for this state, which is good for one time; None if none does."""
        call = self._paused.pop(state, None)
        if call is not None and call.timer is not None:
            call.timer.cancel()
            call.timer = None
        return call

    def _give_up(self, state: str) -> None:
        call = self._paused.pop(state, None)
        if call is not None:
            ending = asyncio.ensure_future(call.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
