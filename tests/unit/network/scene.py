# SPDX-License-Identifier: Apache-2.0
"""A proxy on loopback, servers behind it, and a doorman who knows which connections were made.

Names resolve to public addresses that are never contacted: the doorman writes down where the proxy wanted to go and
leads it to a server of this process, or nowhere.
"""

import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unspill.network.proxy import Proxy, open_connection
from unspill.policy.hosts import HostRules, parse_rules

PUBLIC = "93.184.215.14"
LOOPBACK = bytes((127, 0, 0, 1))
PATIENT_S = 10.0


class Doorman:
    """The proxy's way out: remembers every connection, and leads those to a known port to a server here."""

    def __init__(self, servers: dict[int, int] | None = None) -> None:
        self.servers = servers or {}
        self.asked: list[tuple[str, int]] = []

    def __call__(self, address: bytes, port: int) -> Any:
        family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
        self.asked.append((socket.inet_ntop(family, address), port))
        if port not in self.servers:
            raise ConnectionRefusedError
        return open_connection(LOOPBACK, self.servers[port])


class Names:
    """A resolver with a table; remembers what it was asked."""

    def __init__(self, table: dict[str, Sequence[str]] | None = None, *, others: Sequence[str] = (PUBLIC,)) -> None:
        self.table = table or {}
        self.others = others
        self.asked: list[str] = []

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        return self.table.get(host, self.others)


class Scene:
    """One proxy, its doorman and its names."""

    def __init__(self, port: int, proxy: Proxy, doorman: Doorman, names: Names) -> None:
        self.port = port
        self.proxy = proxy
        self.doorman = doorman
        self.names = names

    def client(self) -> socket.socket:
        """Return a connection to the proxy."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENT_S)

    def exchange(self, sent: bytes) -> bytes:
        """Send bytes and return all that comes back until the proxy closes."""
        with self.client() as client:
            client.sendall(sent)
            return read_all(client)

    def tunnel(self, authority: str) -> tuple[socket.socket, bytes]:
        """Ask for a tunnel; return the connection and the status line."""
        client = self.client()
        client.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = client.recv(1)
            if not chunk:
                break
            head += chunk
        return client, head.split(b"\r\n")[0]

    def status(self, authority: str) -> bytes:
        """Ask for a tunnel and give it up; return the status line."""
        client, status = self.tunnel(authority)
        client.close()
        return status


@contextmanager
def scene(
    rules: HostRules | Sequence[str],
    *,
    servers: dict[int, int] | None = None,
    names: Names | None = None,
    **settings: Any,
) -> Iterator[Scene]:
    """Start a proxy; `servers` leads ports to ports of this process. No defect of the proxy goes unseen."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listener.getsockname()[1]
    doorman, names = Doorman(servers), names or Names()
    chosen = rules if isinstance(rules, HostRules) else parse_rules(rules)
    proxy = Proxy(listener.detach(), chosen, **{"connect": doorman, "resolver": names, **settings})
    proxy.start()
    try:
        yield Scene(port, proxy, doorman, names)
    finally:
        proxy.close()
    assert proxy.faults == ()


def read_all(client: socket.socket) -> bytes:
    """Return what arrives until the other side closes or breaks the connection."""
    received = b""
    try:
        while chunk := client.recv(65536):
            received += chunk
    except ConnectionError:
        return received
    return received


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve every connection in a thread; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def handle(connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(PATIENT_S)
                serve(connection)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def echo(connection: socket.socket) -> None:
    """Send back whatever arrives."""
    while chunk := connection.recv(65536):
        connection.sendall(chunk)


def make_certificate(directory: Path) -> Path:
    """Write a key and a certificate of our own for example.org into one file."""
    path = directory / "example.pem"
    subject = ["-subj", "/CN=example.org", "-addext", "subjectAltName=DNS:example.org,DNS:*.example.org"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    out = ["-keyout", os.fspath(directory / "key.pem"), "-out", os.fspath(directory / "cert.pem")]
    subprocess.run([*command, *subject, "-days", "2", *out], check=True, capture_output=True)
    path.write_bytes((directory / "key.pem").read_bytes() + (directory / "cert.pem").read_bytes())
    return path


def trusting(certificate: Path) -> ssl.SSLContext:
    """Return a client's settings that trust our certificate and nothing else."""
    return ssl.create_default_context(cafile=certificate)


def wait_until(holds: Callable[[], bool], *, seconds: float = PATIENT_S) -> None:
    """Wait for a condition, and fail if it does not come true."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)
