# SPDX-License-Identifier: Apache-2.0
"""Serve MCP on standard input and output, to the one client that started this process.

While it serves, descriptor 0 leads nowhere and 1 to standard error, so what a library prints by mistake never reaches
the client. When the client closes its end, or a signal ends the process, all that runs is killed and recorded first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from mcp.server.runner import serve_dual_era_loop
from mcp.server.stdio import stdio_server

from unspill.host.dirfd import above_standard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from mcp.server.lowlevel import Server

    from unspill.adapters.mcp.server import Calls

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LONGEST_LINE = 64 << 20
# What was asked right before the end shall be answered, if that takes no longer
_LAST_ANSWERS_S = 0.2
# The loop itself keeps only weak references to tasks
_ending: set[asyncio.Task[None]] = set()


def serve_stdio(server: Server[Calls]) -> None:
    """Serve until the client goes away. A signal that ends the process does so once nothing runs any more."""
    try:
        anyio.run(_serve, server)
    except* ConnectionError:
        pass  # the client went away while we were writing to it


async def _serve(server: Server[Calls]) -> None:
    loop = asyncio.get_running_loop()
    async with _open_streams() as (incoming, outgoing), server.lifespan(server) as calls:
        for number in _SIGNALS:
            loop.add_signal_handler(number, _end_soon, calls, number)
        await serve_dual_era_loop(
            server,
            incoming,
            outgoing,
            lifespan_state=calls,
            init_options=server.create_initialization_options(),
        )


def _end_soon(calls: Calls, number: int) -> None:
    _ending.add(asyncio.ensure_future(_end(calls, number)))


async def _end(calls: Calls, number: int) -> None:
    await calls.close()
    # Whoever waits for this process shall see what ended it
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _open_streams() -> AbstractAsyncContextManager[Any]:
    """Return what the SDK's `stdio_server` returns, read and written by the event loop itself where that is possible.

    The SDK uses a thread for each line, which takes as long as all else that it does for a call.
    """
    if all(_is_pipe(fd) for fd in (0, 1)):
        return _piped()
    return stdio_server()


def _is_pipe(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@asynccontextmanager
async def _piped() -> AsyncIterator[Any]:
    loop = asyncio.get_running_loop()
    incoming, outgoing = _take(0, os.O_RDONLY), _take(1, os.O_WRONLY)
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0))
    sink, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(outgoing, "wb", 0))
    writer = asyncio.StreamWriter(sink, flow, None, loop)
    try:
        async with stdio_server(_ClientLines(reader), _ClientWriter(writer)) as streams:  # type: ignore[arg-type]
            yield streams
    finally:
        source.close()
        sink.close()


def _take(fd: int, way: int) -> int:
    """Return a standard stream under another number, and let its own number lead elsewhere."""
    taken = above_standard(os.dup(fd))
    other = os.open(os.devnull, way) if way == os.O_RDONLY else os.dup(2)
    os.dup2(other, fd)
    os.close(other)
    return taken


class _ClientLines:
    """What the client sends, line by line, to its end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> _ClientLines:
        return self

    async def __anext__(self) -> str:
        line = await self._reader.readline()
        if not line:
            await asyncio.sleep(_LAST_ANSWERS_S)
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")


class _ClientWriter:
    """Writes to the client, and waits for one that reads slowly."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode("utf-8"))

    async def flush(self) -> None:
        await self._writer.drain()
