# SPDX-License-Identifier: Apache-2.0
"""The wire over standard streams: long lines, a client that reads late, streams that are no pipes, stray words."""

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.agents.mcp_world import PROGRAM, Bare
from tests.support import Ground

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

ABOUT = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def line(method: str, params: dict[str, Any], number: int) -> bytes:
    said = {"jsonrpc": "2.0", "id": number, "method": method, "params": params | {"_meta": ABOUT}}
    return json.dumps(said).encode() + b"\n"


def test_a_line_of_many_megabytes_arrives_whole(ground: Ground) -> None:
    server = Bare(ground)
    content = "x" * (8 << 20)
    server.send("tools/call", {"name": "write", "arguments": {"path": "big", "content": content}}, 2)
    assert server.receive()["id"] == 2
    server.send("tools/call", {"name": "run", "arguments": {"command": "wc -c", "stdin": content}}, 3)
    assert "8388608" in server.receive()["result"]["content"][0]["text"]
    server.end()


def test_a_client_that_reads_late_gets_everything(ground: Ground) -> None:
    server = Bare(ground)
    for number in range(2, 42):
        server.send("tools/list", {}, number)
    server.run("echo still here", 42)
    time.sleep(1)
    found = [server.receive() for _ in range(41)]
    assert {message["id"] for message in found} == set(range(2, 43))
    assert all("result" in message for message in found)
    assert server.end() == b""


def test_bytes_that_are_no_text_are_an_error_and_the_next_line_is_read(ground: Ground) -> None:
    server = Bare(ground)
    assert server.process.stdin is not None
    server.process.stdin.write(b'\xff\xfe{"\x00\n\n')
    server.run("echo fine", 2)
    while (message := server.receive()).get("id") != 2:
        assert "result" not in message
    assert "fine" in message["result"]["content"][0]["text"]
    server.end()


def test_a_socket_is_a_wire_too(ground: Ground) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = [PROGRAM, "mcp", "--project", os.fspath(ground.project)]
        server = subprocess.Popen(words, stdin=theirs.fileno(), stdout=theirs.fileno())
        theirs.close()
        ours.sendall(line("tools/call", {"name": "run", "arguments": {"command": "echo by socket"}}, 1))
        with ours.makefile() as said:
            assert "by socket" in said.readline()
        ours.shutdown(socket.SHUT_WR)
        assert server.wait(timeout=20) == 0


def test_what_is_no_pipe_is_served_as_well(ground: Ground) -> None:
    asked = ground.top / "asked"
    asked.write_bytes(line("server/discover", {}, 1))
    with asked.open("rb") as said:
        done = subprocess.run(
            [PROGRAM, "mcp", "--project", ground.project], stdin=said, capture_output=True, timeout=40, check=False
        )
    assert json.loads(done.stdout)["id"] == 1
    assert done.returncode == 0


def test_what_the_server_itself_prints_misses_the_wire(ground: Ground) -> None:
    program = (
        "import os, sys\n"
        "from unspill import Sandbox\n"
        "from unspill.adapters.mcp import server\n"
        "made = server.make_server(Sandbox(sys.argv[1]))\n"
        "import unspill.adapters.mcp.resources as projects\n"
        "tools = projects.Projects.tools\n"
        "def noisy(self):\n"
        "    print('printed', flush=True)\n"
        "    os.write(1, b'written\\n')\n"
        "    return tools(self)\n"
        "projects.Projects.tools = noisy\n"
        "server.serve_stdio(made)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, ground.project],
        input=line("tools/list", {}, 1),
        capture_output=True,
        timeout=40,
        check=False,
    )
    assert [json.loads(one)["id"] for one in done.stdout.splitlines()] == [1]
    assert b"printed\nwritten\n" in done.stderr
