# SPDX-License-Identifier: Apache-2.0
"""A client in a process of its own, which begins a run that lasts, to be killed meanwhile: `PROJECT word=WORD`.

The word is what the run's processes are found by, so it is no argument of this one by itself.
"""

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.prepared import PROGRAM


async def main(project: str, named: str) -> None:
    """Start a server and wait for a run that does not end."""
    word = named.removeprefix("word=")
    server = StdioServerParameters(command=PROGRAM, args=["mcp", "--project", project], env={**os.environ})
    async with Client(stdio_client(server)) as client:
        await client.call_tool("run", {"command": f"setsid sleep {word} & sleep {word}"})


asyncio.run(main(*sys.argv[1:]))
