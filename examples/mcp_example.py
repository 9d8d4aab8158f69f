# SPDX-License-Identifier: Apache-2.0
"""A client of `unspill mcp`: it starts the server, calls tools, and passes the server's questions on to the person.

python3 examples/mcp_example.py PROJECT
"""

import asyncio
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult, TextContent

ASKS = {"command": "echo never; curl example.org", "network": True}


async def ask(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """Show the question; only the person answers, never the model."""
    assert isinstance(params, ElicitRequestFormParams)
    answer = input(f"{params.message}\n{params.requested_schema['properties']['answer']['enum']}? ")
    return ElicitResult(action="accept", content={"answer": answer})


async def main(project: str) -> None:
    server = StdioServerParameters(command="unspill", args=["mcp", "--project", project], env={**os.environ})
    async with Client(stdio_client(server), elicitation_callback=ask) as client:
        print("tools:", *(tool.name for tool in (await client.list_tools()).tools))
        for name, given in (("run", {"command": "echo hello > greeting; cat greeting"}), ("undo", {}), ("run", ASKS)):
            for part in (await client.call_tool(name, given)).content:
                print(f"{name}: {part.text}" if isinstance(part, TextContent) else part)


asyncio.run(main(sys.argv[1]))
