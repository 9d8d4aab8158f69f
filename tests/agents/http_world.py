# SPDX-License-Identifier: Apache-2.0
"""HTTP servers in processes of their own, and a client that writes bytes as they are, however wrong they may be.

What is served has one tool, `touch`, that leaves a mark: an attack that gets through is seen by what it did.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support import Ground

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
ALLOWED_ORIGIN: Final = "http://app.example.org:8080"
PATIENCE_S: Final = 20.0

SERVER: Final = """
import gc
gc.disable()  # it takes a fifth of the start
import json, sys
from mcp.server import MCPServer
gc.freeze()
gc.enable()

given = json.loads(sys.argv[1])
server = MCPServer("small")


@server.tool()
def touch(text: str) -> str:
    with open(given["mark"], "a") as file:
        file.write(text)
    return "touched"


def tell(url, socket=""):
    print(json.dumps({"url": url, "socket": socket}), flush=True)


if given["guarded"]:
    from unspill.adapters.mcp import http

    for name, value in given["bounds"].items():
        setattr(http, name, value)
    http.serve_http(
        server._lowlevel_server,
        given["address"],
        token_file=given["token_file"],
        origins=given["origins"],
        on_ready=lambda serving: tell(serving.url, serving.socket),
    )
else:
    # As a server is that nobody thought about, or that leaves all checks to the SDK
    import asyncio
    import socket as sockets

    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    listener = sockets.create_server(("127.0.0.1", 0))
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=given["checked"],
        allowed_hosts=["127.0.0.1:*"],
        allowed_origins=given["origins"],
    )
    config = uvicorn.Config(server.streamable_http_app(transport_security=security), log_level="critical")
    tell(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
"""


@dataclass(frozen=True)
class Reply:
    """What came back; `status` is 0 where nothing did. `more` is what followed on the same connection."""

    status: int
    headers: dict[str, str]
    body: bytes
    more: bytes = b""


@dataclass(frozen=True)
class Served:
    """A server that runs, and what it takes to be its client."""

    process: "subprocess.Popen[bytes]"
    url: str
    socket_path: str
    token: str
    mark: Path
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2].partition("/")[0]) if not self.socket_path else 0

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").partition("/")[0]

    @property
    def marks(self) -> str:
        """What the tool was made to leave."""
        return self.mark.read_text() if self.mark.exists() else ""

    def connect(self) -> socket.socket:
        """Return a new connection."""
        if self.socket_path:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(PATIENCE_S)
            made.connect(self.socket_path)
            return made
        host = self.host.rpartition(":")[0].strip("[]")
        return socket.create_connection((host, self.port), timeout=PATIENCE_S)

    def send(self, content: bytes) -> Reply:
        """Send bytes, and read until the server has nothing more to say."""
        with self.connect() as made:
            return exchange(made, content)

    def ask(self, **parts: Any) -> Reply:
        """Send a request that is right but for these parts."""
        return self.send(self.request(**parts))

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of a request that is right."""
        return [
            ("Host", self.host),
            ("Authorization", f"Bearer {self.token}"),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", MODERN),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", "touch"),
        ]

    def request(
        self,
        *,
        method: str = "POST",
        target: str = "/mcp",
        version: str = "HTTP/1.1",
        change: dict[str, str | None] | None = None,
        add: tuple[tuple[str, str], ...] = (),
        body: bytes | None = None,
        length: bool = True,
    ) -> bytes:
        """Return the bytes of a call of the tool. `change` replaces or takes away headers, `add` adds some."""
        changed = change or {}
        headers = [(name, changed.get(name, value)) for name, value in self.headers()]
        kept = [(name, value) for name, value in headers if value is not None]
        kept += [(name, value) for name, value in changed.items() if value is not None and name not in dict(headers)]
        content = call_of_touch() if body is None else body
        if length and method == "POST":
            kept.append(("Content-Length", str(len(content))))
        lines = [f"{method} {target} {version}", *(f"{name}: {value}" for name, value in (*kept, *add)), "", ""]
        return "\r\n".join(lines).encode("latin-1") + (content if method == "POST" else b"")


def call_of_touch(text: str = "x") -> bytes:
    """Return a whole call of the newer protocol: one request, no greeting before it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "touch", "arguments": {"text": text}, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def initialize() -> bytes:
    """Return the first message of the older protocol."""
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()


def exchange(made: socket.socket, content: bytes, *, patience_s: float = PATIENCE_S) -> Reply:
    """Send bytes over a connection and return the reply, as far as there is one."""
    made.settimeout(patience_s)
    # It may be refused before all was sent; what was said of it may still be there
    with suppress(OSError):
        made.sendall(content)
    received = b""
    while not _is_whole(received):
        try:
            piece = made.recv(65536)
        except OSError:
            break
        if not piece:
            break
        received += piece
    return parse(received)


def parse(received: bytes) -> Reply:
    """Return a reply, and what follows it."""
    head, _, rest = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) < 2:
        return Reply(0, {}, received)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    size = int(headers.get("content-length", len(rest)))
    return Reply(int(words[1]), headers, rest[:size], rest[size:])


def _is_whole(received: bytes) -> bool:
    head, separator, rest = received.partition(b"\r\n\r\n")
    if not separator:
        return False
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return rest.endswith(b"0\r\n\r\n")
    for line in lower.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(rest) >= int(line.partition(b":")[2])
    return False


@contextmanager
def serving(
    directory: Path,
    address: str = "127.0.0.1:0",
    *,
    guarded: bool = True,
    checked: bool = False,
    token: str = "",
    bounds: dict[str, float] | None = None,
) -> Iterator[Served]:
    """Run a server until the block is left; one that is not guarded may be `checked` by the SDK alone."""
    directory.mkdir(mode=0o700, exist_ok=True)
    token_file, mark, log = directory / "token", directory / "mark", directory / "log"
    if token:
        token_file.touch(mode=0o600)
        token_file.write_text(token)
    given = {
        "address": address,
        "guarded": guarded,
        "checked": checked,
        "mark": os.fspath(mark),
        "token_file": os.fspath(token_file),
        "origins": [ALLOWED_ORIGIN],
        "bounds": bounds or {},
    }
    with log.open("wb") as errors:
        words = [sys.executable, "-c", SERVER, json.dumps(given)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        told = json.loads(line)
        known = token_file.read_text().strip() if guarded else "none"
        yield Served(process, told["url"], told["socket"], known, mark, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def by_http(ground: Ground, log: Path, *options: str, address: str = "127.0.0.1:0") -> Iterator[Served]:
    """Run `unspill mcp --http` over a project as a person would; `mark` is the file that has the token."""
    program = os.fspath(Path(sys.executable).with_name("unspill"))
    words = [program, "mcp", "--project", os.fspath(ground.project), "--http", address, "--json", *options]
    with log.open("wb") as errors:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        told = json.loads(line)
        token_file = Path(told["token_file"])
        yield Served(process, told["url"], told["socket"], token_file.read_text().strip(), token_file, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        process.stdout.close()


def until(condition: Any, patience_s: float = PATIENCE_S) -> bool:
    """Wait for something to become true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())
