# SPDX-License-Identifier: Apache-2.0
"""The SDK's own client over real HTTP, by a port and by a unix socket, in both eras: all that it can do by stdio."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.agents.http_world import Served, by_http
from tests.agents.mcp_world import DECLINE, MODES, Person, in_world, say, text_of, until_gone, until_started
from tests.support import Ground, lasting

pytestmark = [pytest.mark.kernel, pytest.mark.agents]
TOOLS = ["run", "changes", "diff", "undo", "read", "write", "list", "edit"]


@contextlib.asynccontextmanager
async def connected(served: Served, mode: str, *, token: str = "", person: Any = None) -> AsyncIterator[Client]:
    """Connect as a program does that was told where the server is, and knows the token."""
    transport = httpx2.AsyncHTTPTransport(uds=served.socket_path) if served.socket_path else None
    headers = {"Authorization": f"Bearer {token or served.token}"}
    async with httpx2.AsyncClient(headers=headers, transport=transport, timeout=30, trust_env=False) as http:
        streams = streamable_http_client(served.url, http_client=http)
        async with Client(streams, mode=mode, elicitation_callback=person) as client:
            yield client


@pytest.mark.parametrize(("place", "mode"), [("port", "auto"), ("socket", "legacy")])
def test_tools_and_resources_work_and_a_person_is_asked(ground: Ground, tmp_path: Path, place: str, mode: str) -> None:
    address = "127.0.0.1:0" if place == "port" else f"unix:{tmp_path}/run/mcp.sock"
    person = Person(DECLINE, say("Allow"))

    async def steps() -> None:
        async with connected(served, mode, person=person) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
            assert text_of(await client.call_tool("run", {"command": "echo well > file; cat file"})).endswith("well\n")
            assert "well" in text_of(await client.call_tool("read", {"path": "file"}))
            result = await client.read_resource("unspill://runs/1/stdout")
            assert getattr(result.contents[0], "text", "") == "well\n"
            assert (await client.call_tool("run", {"command": "touch one", "network": True})).is_error
            assert not (await client.call_tool("run", {"command": "touch two", "network": True})).is_error

    with by_http(ground, tmp_path / "log", address=address) as served:
        in_world(steps)
    assert len(person.asked) == 2
    assert not (ground.project / "one").exists()
    assert (ground.project / "two").exists()


@pytest.mark.parametrize("mode", MODES)
def test_progress_comes_while_a_command_runs_and_cancelling_kills_it(ground: Ground, tmp_path: Path, mode: str) -> None:
    word = lasting()
    heard: list[str | None] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async def steps() -> None:
        async with connected(served, mode) as client, connected(served, mode) as other:
            command = {"command": f"echo first; sleep {word}"}
            call = asyncio.create_task(client.call_tool("run", command, progress_callback=listen))
            await until_started(word)
            # Another client does not wait for it
            assert not (await other.call_tool("changes")).is_error
            while not heard:
                await asyncio.sleep(0.02)
            call.cancel()
            await until_gone(word)
            assert text_of(await client.call_tool("run", {"command": "echo well"})).endswith("Output:\nwell\n")

    async def without_token() -> None:
        async with connected(served, mode, token="x" * 43) as client:
            await client.list_tools()

    with by_http(ground, tmp_path / "log") as served:
        in_world(steps)
        with pytest.raises(Exception, match=r"401|[Uu]nauthorized|error"):
            in_world(without_token)
    assert "first" in str(heard[0])
