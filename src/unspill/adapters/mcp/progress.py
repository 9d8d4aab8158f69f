# SPDX-License-Identifier: Apache-2.0
"""Tells a client how a run goes on: the last line that it printed, not more often than anybody could read.

The only live channel there is. What is shown is safe to show and short; all of the output is in the result.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unspill.changes.render import safe_text
from unspill.model.run import OutputChunk

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

    from unspill.model.run import Event

_LONGEST = 200
_TAIL = 4096
PAUSE_S = 0.25


class Progress:
    """What a run printed last. `take` is for the run's thread, `report` for the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tail = b""
        self._count = 0
        self._is_told = True
        self._news = asyncio.Event()

    def take(self, event: Event) -> None:
        """Look at an event of the run."""
        if not isinstance(event, OutputChunk):
            return
        self._tail = (self._tail + event.chunk)[-_TAIL:]
        self._count += len(event.chunk)
        if self._is_told:
            self._is_told = False
            self._loop.call_soon_threadsafe(self._news.set)

    async def report(self, session: ServerSession) -> None:
        """Report until cancelled, to the client whose request this is."""
        while True:
            await self._news.wait()
            self._news.clear()
            self._is_told = True
            await session.report_progress(float(self._count), None, last_line(self._tail))
            await asyncio.sleep(PAUSE_S)


def last_line(tail: bytes) -> str:
    """Return the last line that is not blank, as it can be shown."""
    lines = tail.decode("utf-8", "replace").split("\n")
    for line in reversed(lines):
        if line.strip():
            return safe_text(line.strip())[:_LONGEST]
    return ""
