# SPDX-License-Identifier: Apache-2.0
"""Clients of `unspill mcp`: the SDK's own, over real pipes to a real process, in both eras of the protocol."""

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams, ElicitResult, TextContent

from tests.prepared import PREPARED_SERVER, PROGRAM
from tests.support import Ground, processes_with

MODES = ("auto", "legacy")
"""What the SDK calls the eras: `auto` finds the one of 2026-07-28, `legacy` is the handshake."""


class Person:
    """Answers questions with what was laid ready, in this order; remembers what was asked."""

    def __init__(self, *answers: ElicitResult, after_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.asked: list[ElicitRequestFormParams] = []
        self.after_s = after_s
        self.at_once = self.most_at_once = 0

    async def __call__(self, _context: Any, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.asked.append(params)
        answer = self.answers.pop(0)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(self.after_s)
        self.at_once -= 1
        return answer

    @property
    def offered(self) -> list[list[str]]:
        """The labels of each question."""
        return [params.requested_schema["properties"]["answer"]["enum"] for params in self.asked]


def say(label: str) -> ElicitResult:
    """Return what a client sends when this label was chosen."""
    return ElicitResult(action="accept", content={"answer": label})


DECLINE = ElicitResult(action="decline")
CANCEL = ElicitResult(action="cancel")


def command_of(ground: Ground, *words: str) -> StdioServerParameters:
    """Return how a host starts the server."""
    named = "--project" in words or "--no-project" in words
    return StdioServerParameters(
        command=PROGRAM,
        args=["mcp", *([] if named else ("--project", os.fspath(ground.project))), *words],
        env={**os.environ, **PREPARED_SERVER},
        cwd=ground.project,
    )


@contextlib.asynccontextmanager
async def connected(
    ground: Ground, mode: str, *words: str, person: Any = None, **options: Any
) -> AsyncIterator[Client]:
    """Start a server and connect to it; what it says on standard error lies in `ground.top / "stderr"`."""
    with (ground.top / "stderr").open("a") as errors:
        transport = stdio_client(command_of(ground, *words), errlog=errors)
        async with Client(transport, mode=mode, elicitation_callback=person, **options) as client:
            yield client


def in_world(main: Callable[[], Awaitable[None]], *, within_s: float = 60.0) -> None:
    """Run the steps of a test; one that hangs fails."""

    async def bounded() -> None:
        await asyncio.wait_for(asyncio.ensure_future(main()), within_s)

    try:
        asyncio.run(bounded())
    except BaseExceptionGroup as error:
        # The SDK's task groups wrap what a test says, one around the other
        inner: BaseException = error
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        raise inner from None


def text_of(result: CallToolResult) -> str:
    """Return what a model reads."""
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def until(condition: Callable[[], object], *, within_s: float = 15.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)


async def until_started(word: str) -> None:
    """Wait until a process has a word as an argument; the shell that names it in a text does not count."""
    await until(lambda: processes_with(word))


async def until_gone(*words: str) -> None:
    """Wait until no process has any of these words as an argument."""
    await until(lambda: not any(map(processes_with, words)))


class Bare:
    """A server and one handshake with it by hand, so that its process is the test's own."""

    def __init__(self, ground: Ground, version: str = "2025-06-18", *words: str, errors: int | None = None) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, "mcp", "--project", ground.project, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        client: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        self.send("initialize", client, 1)
        assert self.receive()["id"] == 1
        self.send("notifications/initialized", {})

    def send(self, method: str, params: dict[str, Any], number: int | None = None) -> None:
        """Send one message."""
        said = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(said).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next message."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def run(self, command: str, number: int) -> None:
        """Call the tool `run`."""
        self.send("tools/call", {"name": "run", "arguments": {"command": command}}, number)

    def end(self) -> bytes:
        """Close its input; return what it wrote that nobody had read."""
        return self.process.communicate(timeout=20)[0]
