# SPDX-License-Identifier: Apache-2.0
"""`unspill mcp --http` as a person starts it: what its commands see of it, and what becomes of them when it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.agents.http_world import PATIENCE_S, Served, by_http, until
from tests.support import Ground, lasting, processes_with, run_cli

pytestmark = [pytest.mark.kernel, pytest.mark.agents]


def call_by_http(served: Served, command: str) -> bytes:
    """Return the bytes of a request to run a command."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "run", "arguments": {"command": command}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    return served.request(body=body, change={"Mcp-Name": "run"})


REACH: Final = """
import os, socket, sys
found = []
try: found.append(open(sys.argv[1]).read().strip())
except OSError: pass
try: socket.create_connection(("127.0.0.1", int(sys.argv[2])), 3).close(); found.append("connected")
except OSError: pass
print(found)
"""


def test_e2_a_command_gets_neither_the_token_of_its_own_server_nor_a_connection(ground: Ground, tmp_path: Path) -> None:
    """Read the token of the HTTP server that runs the command, and connect to it.

    Control: from outside, the same program gets both.
    """
    script = ground.write("reach.py", REACH)
    with by_http(ground, tmp_path / "log") as served:
        words = f"python3 -I reach.py {served.mark} {served.port}"
        reply = served.send(call_by_http(served, words))
        assert reply.status == 200
        assert b"Output:\\n[]" in reply.body
        assert served.token.encode() not in reply.body
        # Control: from outside, the same program finds both
        given = [sys.executable, "-I", os.fspath(script), os.fspath(served.mark), str(served.port)]
        done = subprocess.run(given, capture_output=True, text=True, check=True, timeout=30)
        assert done.stdout.strip() == str([served.token, "connected"])


def test_a_token_that_commands_could_read_stops_the_server(ground: Ground) -> None:
    seen = ground.project / "sub" / "token"
    for options in (("--http", "127.0.0.1:0", "--token-file", seen), ("--http", f"unix:{seen}")):
        done = run_cli("mcp", *options, cwd=ground.project)
        assert done.returncode == 2, done
        assert b"can see" in done.stderr
    assert not seen.exists()


def test_an_address_that_others_can_reach_stops_the_server(ground: Ground) -> None:
    done = run_cli("mcp", "--http", "0.0.0.0:8000", cwd=ground.project)
    assert done.returncode == 2, done
    assert b"127.0.0.1:PORT" in done.stderr
    assert not (ground.state / "mcp").exists()


def test_a_server_that_is_told_to_end_kills_what_runs_and_records_it(ground: Ground, tmp_path: Path) -> None:
    ground.configure('after = "hold"\n')
    word = lasting()
    with by_http(ground, tmp_path / "log") as served, served.connect() as made:
        made.sendall(call_by_http(served, f"sleep {word}"))
        assert until(lambda: processes_with(word))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE_S) == 0
        assert processes_with(word) == []
        assert "Traceback" not in served.log.read_text()
    [run] = ground.sandbox().runs()
    assert run.outcome is not None


def test_a_client_that_hangs_up_ends_its_command(ground: Ground, tmp_path: Path) -> None:
    word = lasting()
    with by_http(ground, tmp_path / "log") as served:
        with served.connect() as made:
            made.sendall(call_by_http(served, f"sleep {word}"))
            assert until(lambda: processes_with(word))
        assert until(lambda: not processes_with(word))
        assert b"Exit code: 0" in served.send(call_by_http(served, "true")).body
