# SPDX-License-Identifier: Apache-2.0
"""Programs that are asked for one run after another by a line on their input, and answer with a line.

One is the MCP server, spoken to by hand in both eras of its protocol: a whole client would cost more than what is
measured. The other uses the library alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

_LIBRARY = """
import sys
from unspill import Sandbox
with Sandbox(sys.argv[1]) as sandbox:
    for line in sys.stdin:
        print(sandbox.run("true").exit_code, flush=True)
"""


class Caller:
    """A program at work, from the beginning to the end of a `with`."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def __enter__(self) -> Self:
        self._program = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.greet()
        return self

    def __exit__(self, *_rest: object) -> None:
        self._program.communicate(timeout=30)

    def greet(self) -> None:
        """Do what comes before the first call."""

    def call(self) -> None:
        """Have `true` run once."""
        raise NotImplementedError

    def exchange(self, line: bytes) -> bytes:
        """Send a line and return the one that answers it."""
        self.send(line)
        assert self._program.stdout is not None
        return self._program.stdout.readline()

    def send(self, line: bytes) -> None:
        """Send a line."""
        assert self._program.stdin is not None
        self._program.stdin.write(line + b"\n")
        self._program.stdin.flush()


class WorkerCaller(Caller):
    """The library, in a program of its own."""

    def __init__(self, project: Path) -> None:
        super().__init__([sys.executable, "-c", _LIBRARY, str(project)])

    def call(self) -> None:
        assert self.exchange(b"") == b"0\n"


class McpCaller(Caller):
    """The MCP server, by a client that knows just enough of the protocol."""

    def __init__(self, project: Path, era: str) -> None:
        program = Path(sys.executable).with_name("unspill")
        super().__init__([str(program), "mcp", "--project", str(project)])
        self._era = era
        self._number = 0

    def greet(self) -> None:
        if self._era < "2026":
            client = {"name": "benchmark", "version": "1"}
            self._ask("initialize", {"protocolVersion": self._era, "capabilities": {}, "clientInfo": client})
            self.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        else:
            self._ask("server/discover", {})

    def call(self) -> None:
        result = self._ask("tools/call", {"name": "run", "arguments": {"command": "true"}})
        assert result["structuredContent"]["exit_code"] == 0, result

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        if self._era >= "2026":
            said = "io.modelcontextprotocol/"
            client = {"name": "benchmark", "version": "1"}
            about = {"protocolVersion": self._era, "clientInfo": client, "clientCapabilities": {}}
            params = params | {"_meta": {said + name: value for name, value in about.items()}}
        asked = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        answer = json.loads(self.exchange(json.dumps(asked).encode()))
        assert answer["id"] == self._number, answer
        return answer["result"]
