# SPDX-License-Identifier: Apache-2.0
"""The connections of the HTTP server, before they have said anything that could be judged, and its end.

Another user's is closed at once, one that stays silent after a while; of many silent ones the oldest goes first, so
that nobody who lacks the token can use up what the server's clients need.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from unspill.adapters.mcp.judging import MOST_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

MOST_SILENT = 64
HEADERS_WAIT_S = 10.0
_MOST_WAITING = 1024
_CREDENTIALS = struct.Struct("3i")


class Door(H11Protocol):
    """A connection of HTTP/1.1; whoever got past the first request has shown the token, since a refusal ends it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let a connection in, or close it."""
        super().connection_made(transport)
        if not is_own(transport.get_extra_info("socket")):
            transport.abort()
            return
        self.loop.call_later(HEADERS_WAIT_S, self._leave_if_silent)
        # One that was told to go is among the connections until the loop comes round
        silent = [one for one in self.connections if isinstance(one, Door) and one.is_silent and not one.is_leaving]
        for one in sorted(silent, key=lambda one: one.since)[:-MOST_SILENT]:
            one.transport.abort()

    @property
    def is_silent(self) -> bool:
        """Whether there was no whole request yet."""
        return getattr(self, "cycle", None) is None

    @property
    def is_leaving(self) -> bool:
        """Whether it was closed already."""
        return bool(self.transport.is_closing())

    def _leave_if_silent(self) -> None:
        if self.is_silent:
            self.transport.abort()


def is_own(connected: Any) -> bool:
    """Tell whether the other end of a unix socket is of the same user; of a port nobody can tell."""
    if connected.family != socket.AF_UNIX:
        return True
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(peer)[1] == os.geteuid())


class Server(uvicorn.Server):
    """One that leaves signals to us: its own way ends the process before what runs is dead and recorded."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            # The rest waits in the kernel meanwhile, where nobody else's connection is lost for it
            listener.listen(_MOST_WAITING)
        if self.started:
            self._ready()

    def _stop(self) -> None:
        # That requests are cut short now is no failure to be told of
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.should_exit = True


async def serve(application: ASGIApp, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve on a socket until the process is told to end; `ready` is called when clients can connect."""
    config = uvicorn.Config(
        application,
        http=Door,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level=logging.ERROR,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Holds only for headers that come in several pieces; the guard measures the others
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        # As many are taken in one turn of the loop, before any of them can be sent away
        backlog=MOST_SILENT,
        timeout_graceful_shutdown=1,
    )
    await Server(config, ready).serve(sockets=[listener])
