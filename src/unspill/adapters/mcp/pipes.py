# SPDX-License-Identifier: Apache-2.0
"""The standard streams of this process as the wire, read and written by the event loop itself.

The SDK has a thread read and another write each line, which takes as long as all else that it does for a call. While
the wire is taken, descriptor 0 leads nowhere and 1 to standard error: what a library prints by mistake misses it. What
is neither a pipe nor a socket is left to the SDK.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mcp.server.stdio import stdio_server

from unspill.host.descriptors import above_standard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from typing import Any

_LONGEST_LINE = 64 << 20
# What was asked right before the end shall be answered, if that takes no longer
_LAST_ANSWERS_S = 0.2


def open_wire() -> AbstractAsyncContextManager[Any]:
    """Return what `stdio_server` does, with less to do for each line where that can be had."""
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
        async with stdio_server(_Lines(reader), _Writer(writer)) as streams:  # type: ignore[arg-type]
            yield streams
    finally:
        source.close()
        sink.close()


def _take(fd: int, way: int) -> int:
    """Return the wire under another number, and let its own lead elsewhere."""
    taken = above_standard(os.dup(fd))
    other = os.open(os.devnull, way) if way == os.O_RDONLY else os.dup(2)
    os.dup2(other, fd)
    os.close(other)
    return taken


class _Lines:
    """What the client says, line by line, to its end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        line = await self._reader.readline()
        if not line:
            await asyncio.sleep(_LAST_ANSWERS_S)
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")


class _Writer:
    """What the client is told; a client that reads slowly is waited for."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode("utf-8"))

    async def flush(self) -> None:
        await self._writer.drain()
