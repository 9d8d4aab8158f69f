# SPDX-License-Identifier: Apache-2.0
"""A real web server on loopback that can also misbehave: stop early, be slow, lie, redirect, change its mind.

with Web() as web:
    web.pages["/a.tar"] = Page(content)                      # the same answer each time
    web.pages["/b.tar"] = [Page(content, stop_after=1000), Page(content)]   # the last one repeats
    web.directory = path                                     # every other path is a file below it
    fetch(web.address("/a.tar"), ...)
    assert web.asked[0].range == ""
"""

import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass
class Page:
    """One answer. `length` is what is claimed, if not the truth; after `stop_after` bytes the connection ends.

    After `stall_after` bytes the server waits until the client is gone; `pause` is between blocks of `block` bytes;
    `endless` sends without end.
    """

    content: bytes = b""
    status: int = 200
    location: str = ""
    etag: str = ""
    modified: float | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    length: int | None = None
    chunked: bool = False
    stop_after: int | None = None
    stall_after: int | None = None
    endless: bool = False
    pause: float = 0.0
    block: int = 1 << 16
    slow_headers: float = 0.0


@dataclass
class Asked:
    """One request: what it wanted, and how many bytes of content it was sent."""

    path: str
    range: str
    if_range: str
    host: str
    sent: int = 0
    status: int = 0


class Web:
    """A server in a thread of its own, from `with` to its end."""

    def __init__(self, *, certificate: Path | None = None) -> None:
        self.pages: dict[str, Page | list[Page]] = {}
        self.directory: Path | None = None
        self.asked: list[Asked] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.web = self
        self.scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def address(self, path: str = "/", *, host: str = "") -> str:
        """Return the address of a path."""
        return f"{self.scheme}://{host or ('localhost' if self.scheme == 'https' else '127.0.0.1')}:{self.port}{path}"

    def answer(self, asked: Asked) -> Page:
        """Choose the answer to a request, and remember the request."""
        with self._lock:
            self.asked.append(asked)
            page = self.pages.get(asked.path)
            if isinstance(page, list):
                return page.pop(0) if len(page) > 1 else page[0]
        return page or self._file(asked.path)

    def count(self, path: str) -> int:
        """Return how often a path was asked for."""
        return sum(asked.path == path for asked in self.asked)

    def _file(self, path: str) -> Page:
        if self.directory is not None and ".." not in path.split("/"):
            file = self.directory / path.lstrip("/")
            if file.is_file():
                return Page(file.read_bytes(), modified=file.stat().st_mtime)
        return Page(b"not here", status=404)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    # Handlers end by `ended`; joining them tells a test that leaves one hanging
    daemon_threads = False
    request_queue_size = 64
    web: Web

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that go away are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 20.0

    def do_GET(self) -> None:
        headers = self.headers
        asked = Asked(self.path, headers.get("Range", ""), headers.get("If-Range", ""), headers.get("Host", ""))
        page = self.server.web.answer(asked)
        start = self._start(page, asked)
        asked.status = page.status if start is None else 206
        self.close_connection = True
        try:
            self._send_head(page, asked.status, start)
            self._send_content(page, page.content[start or 0 :], asked)
        except (OSError, ValueError):
            pass

    def do_CONNECT(self) -> None:
        """Be a proxy for https: note the host, and connect it whatever it is called to the port that is asked for."""
        asked = Asked(self.path, "", "", self.headers.get("Host", ""))
        self.server.web.asked.append(asked)
        with socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2]))) as upstream:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pump, args=(upstream, self.connection))
            back.start()
            _pump(self.connection, upstream)
            back.join()
        self.close_connection = True

    def _start(self, page: Page, asked: Asked) -> int | None:
        if not page.ranges or page.status != 200 or not asked.range:
            return None
        if asked.if_range not in ("", page.etag or _date(page.modified)):
            return None
        return int(asked.range.removeprefix("bytes=").partition("-")[0])

    def _send_head(self, page: Page, status: int, start: int | None) -> None:
        for byte in b"HTTP/1.1 " if page.slow_headers else b"":
            self.wfile.write(bytes([byte]))
            if self.server.web.ended.wait(page.slow_headers):
                return
        self.send_response(status)
        headers = {"ETag": page.etag, "Last-Modified": _date(page.modified), "Location": page.location} | page.headers
        if page.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif not page.endless:
            headers["Content-Length"] = str(len(page.content) - (start or 0) if page.length is None else page.length)
        if start is not None:
            headers["Content-Range"] = f"bytes {start}-{len(page.content) - 1}/{len(page.content)}"
            headers |= {name: value for name, value in page.headers.items() if name == "Content-Range"}
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def _send_content(self, page: Page, content: bytes, asked: Asked) -> None:
        for block in self._blocks(page, content):
            limits = [limit for limit in (page.stop_after, page.stall_after) if limit is not None]
            last = min(limits, default=asked.sent + len(block) + 1)
            part = block[: last - asked.sent]
            # Counted before it is sent: a client that has all of it can ask for the count at once
            asked.sent += len(part)
            self._send(page, part)
            if asked.sent == page.stop_after:
                return
            if asked.sent == page.stall_after:
                self._wait_for_the_end()
                return
            if page.pause and self.server.web.ended.wait(page.pause):
                return
        if page.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _blocks(self, page: Page, content: bytes) -> Iterator[bytes]:
        while page.endless and not self.server.web.ended.is_set():
            yield bytes(page.block)
        for at in range(0, len(content), page.block):
            yield content[at : at + page.block]

    def _send(self, page: Page, block: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if page.chunked else block)
        self.wfile.flush()

    def _wait_for_the_end(self) -> None:
        self.connection.settimeout(0.05)
        while not self.server.web.ended.is_set():
            with suppress(TimeoutError):
                if not self.connection.recv(1):
                    return

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what was asked is in `Web.asked`."""


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(1 << 16):
            target.sendall(block)
        target.shutdown(socket.SHUT_WR)


def _date(modified: float | None) -> str:
    return "" if modified is None else formatdate(modified, usegmt=True)


def make_certificate(directory: Path) -> Path:
    """Write a key and a certificate of our own for localhost into one file."""
    path = directory / "localhost.pem"
    key, cert = directory / "key.pem", directory / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run(
        [*command, *subject, "-keyout", os.fspath(key), "-out", os.fspath(cert)], check=True, capture_output=True
    )
    path.write_bytes(key.read_bytes() + cert.read_bytes())
    return path


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server on loopback that is reached directly, whatever proxies the environment names."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with Web() as web:
        yield web


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost; whoever sets SSL_CERT_FILE to it trusts it."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def safe_web(web: Web, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server on loopback that speaks https, with a certificate that this process trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", os.fspath(certificate))
    with Web(certificate=certificate) as safe:
        yield safe
