# SPDX-License-Identifier: Apache-2.0
"""Stands before all else of the HTTP server: nothing is read of a body before its request has been judged.

A refusal says no more than its number, gives no permission to any page, and ends the connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unspill.adapters.mcp.judging import METHODS, Refused, Rules, check_request

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_WORDS = {
    400: b"This request can't be understood.\n",
    401: b"The token is needed that lies in the file which the server names.\n",
    403: b"Not from this origin.\n",
    404: b"There is nothing here.\n",
    405: b"Not by this method.\n",
    408: b"The body took too long.\n",
    413: b"The body is too large.\n",
    415: b"Only application/json is read.\n",
    421: b"This is not that host.\n",
    431: b"Too many headers.\n",
}


class Guard:
    """An ASGI application around another one."""

    def __init__(self, inner: ASGIApp, rules: Rules) -> None:
        self._inner = inner
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            check_request(scope, self._rules)
            body = await _read_body(scope, receive, self._rules)
        except Refused as refused:
            await _answer(refused.status, send)
            return
        if body is None:
            return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._inner(scope, replay, send)


async def _read_body(scope: Scope, receive: Receive, rules: Rules) -> bytes | None:
    """Return the whole body, None where the client has gone."""
    if scope["method"] != "POST":
        return b""
    body = bytearray()
    try:
        async with asyncio.timeout(rules.body_wait_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                body += message.get("body", b"")
                if len(body) > rules.most_bytes:
                    raise Refused(413)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408) from None


async def _answer(status: int, send: Send) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(_WORDS[status])),
        (b"cache-control", b"no-store"),
        # What follows on this connection could be anybody's idea of where the body ends
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 405:
        headers.append((b"allow", ", ".join(METHODS).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": _WORDS[status]})
