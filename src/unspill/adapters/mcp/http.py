# SPDX-License-Identifier: Apache-2.0
"""Serves MCP over streamable HTTP to programs of the same person on the same machine.

One process, on a unix socket or a loopback port, never without the token. Whatever a client may do here it may do by
stdio too: nothing is added but the way in. When the server is told to end, all that runs for its clients is killed.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import TransportSecuritySettings

from unspill.adapters.mcp.bearer import load_token
from unspill.adapters.mcp.door import serve
from unspill.adapters.mcp.guarding import Guard
from unspill.adapters.mcp.judging import MOST_BYTES, PATH, Rules, parse_origin
from unspill.adapters.mcp.listening import (
    UnixSocket,
    allowed_hosts,
    identity_of,
    listen,
    parse_address,
    remove_socket,
)
from unspill.adapters.mcp.unseen import check_unseen
from unspill.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp.server.lowlevel import Server

    from unspill.sandbox.sandbox import Sandbox

_MOST_CLIENTS = 256


class Serving(Record):
    """Where a server is reached, on which socket if it is a unix one, and which file has the token."""

    url: str
    socket: str
    token_file: str


def serve_http(
    server: Server[Any],
    address: str,
    *,
    token_file: str | bytes,
    origins: Sequence[str] = (),
    sandboxes: Sequence[Sandbox] = (),
    on_ready: Callable[[Serving], None] | None = None,
) -> None:
    """Serve until the process is told to end by SIGINT, SIGTERM or SIGHUP.

    Args:
        server: What is served.
        address: `unix:PATH`, `127.0.0.1:PORT` or `[::1]:PORT`; port 0 is any that is free.
        token_file: Where the token lies; it is made if it is missing.
        origins: What a client may give as its `Origin`; no page in a browser gets a permission by it.
        sandboxes: Whose commands must see neither the token nor the socket.
        on_ready: Called once, when clients can connect.

    Raises:
        UsageError: the address, the file or an origin can't be used.
    """
    place, token_path = parse_address(address), os.path.abspath(os.fsencode(token_file))
    allowed = frozenset(parse_origin(origin) for origin in origins)
    own_socket = place.path if isinstance(place, UnixSocket) else b""
    for path in filter(None, (token_path, own_socket)):
        check_unseen(path, sandboxes)
    token = load_token(token_path)
    listener = listen(place)
    identity = identity_of(own_socket) if own_socket else None
    try:
        port = 0 if own_socket else listener.getsockname()[1]
        rules = Rules(token=token, hosts=allowed_hosts(place, port), origins=allowed)
        url = f"http://localhost{PATH}" if isinstance(place, UnixSocket) else f"http://{place.host}:{port}{PATH}"
        serving = Serving(url=url, socket=os.fsdecode(own_socket), token_file=os.fsdecode(token_path))
        asyncio.run(serve(_guarded(server, rules), listener, lambda: on_ready(serving) if on_ready else None))
    finally:
        listener.close()
        if own_socket:
            remove_socket(own_socket, identity)


def _guarded(server: Server[Any], rules: Rules) -> Guard:
    """Return the server's application behind our guard; it looks at hosts and origins once more by itself."""
    security = TransportSecuritySettings(
        allowed_hosts=sorted(host.decode() for host in rules.hosts),
        allowed_origins=sorted(origin.decode() for origin in rules.origins),
    )
    # Without state, or with plain JSON as answers, a client of the older protocol could not be asked anything
    inner = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=False,
        stateless_http=False,
        max_request_body_size=MOST_BYTES,
        max_sessions=_MOST_CLIENTS,
        transport_security=security,
    )
    return Guard(inner, rules)
