# SPDX-License-Identifier: Apache-2.0
"""Serves MCP on this process's standard input and output, to the one client that started it.

While it serves, both descriptors lead elsewhere: what anything else writes to standard output misses the wire. When the
client closes its end, or the process is told to end, all that runs is killed and recorded first.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import anyio
from mcp.server.runner import serve_dual_era_loop

from unspill.adapters.mcp.pipes import open_wire

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from unspill.adapters.mcp.calls import Calls

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve_stdio(server: Server[Calls]) -> None:
    """Serve until the client goes away. A signal that ends the process does so once nothing runs any more."""
    try:
        anyio.run(_serve, server)
    except* ConnectionError:
        pass  # it went away while something was said to it


async def _serve(server: Server[Calls]) -> None:
    loop = asyncio.get_running_loop()
    async with open_wire() as (incoming, outgoing), server.lifespan(server) as calls:
        for number in SIGNALS:
            loop.add_signal_handler(number, _end_soon, calls, number)
        await serve_dual_era_loop(
            server,
            incoming,
            outgoing,
            lifespan_state=calls,
            init_options=server.create_initialization_options(),
        )


_ending: set[asyncio.Task[None]] = set()


def _end_soon(calls: Calls, number: int) -> None:
    task = asyncio.ensure_future(_end(calls, number))
    _ending.add(task)


async def _end(calls: Calls, number: int) -> None:
    await calls.close()
    # Whoever waits for this process shall see what ended it
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
