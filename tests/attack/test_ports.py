# SPDX-License-Identifier: Apache-2.0
"""Ports of a live sandbox as a way to the host: by what a door passes, by numbers, by readers that never read."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena
from unspill.errors import UsageError
from unspill.host.dirfd import make_pair
from unspill.host.door import PASSED, frame
from unspill.network import forward
from unspill.sandbox import ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unspill.sandbox.live import Live
    from unspill.sandbox.ports import Port

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 8000), backlog=4096)
print("up", flush=True)
clients = []
while True: clients.append(server.accept()[0])
"""
KNOCK = """
import socket, sys
s = socket.socket(); s.settimeout(5)
sys.exit(s.connect_ex(("127.0.0.1", int(sys.argv[1]))) != 0)
"""


@pytest.fixture
def live(arena: Arena) -> Iterator[Live]:
    with arena.ground.sandbox() as sandbox, sandbox.live() as live:
        yield live


@pytest.fixture
def service() -> Iterator[socket.socket]:
    """A service on the host's loopback that no port was opened for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1)
        yield server


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def knocks(live: Live, port: int) -> bool:
    return live.run(["/usr/bin/python3", "-I", "-c", KNOCK, str(port)], after="discard").ok


def touched(port: Port) -> bool:
    """Connect to a published port; tell when a connection was made for it, or not."""
    before = port.traffic.failed
    with socket.create_connection(("127.0.0.1", port.number), timeout=20):
        until(lambda: port.traffic.connections or port.traffic.failed > before)
    return bool(port.traffic.connections)


@pytest.mark.parametrize("what", ["other port", "not connected", "unix", "udp", "file"])
def test_a15_a_forged_door_can_not_have_another_descriptor_used(
    live: Live, service: socket.socket, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Pass a published port something else than the connection that was asked for: to a service of the host, a Unix
    socket, a file.

    Control: without the check, the connection to another service is used.
    """
    made: dict[str, Callable[[], socket.socket]] = {
        "other port": lambda: socket.create_connection(service.getsockname()),
        "not connected": socket.socket,
        "unix": lambda: socket.socket(socket.AF_UNIX),
        "udp": lambda: socket.socket(type=socket.SOCK_DGRAM),
    }

    def forged(_port: int, **_version: bool) -> object:
        ours, theirs = make_pair()
        fd = made[what]().detach() if what in made else os.open("/dev/null", os.O_RDONLY)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))
        theirs.sendmsg([frame(PASSED)], [rights])
        os.close(fd)
        theirs.close()
        return ours

    assert live.run("true").ok
    port = live.publish(8000)
    monkeypatch.setattr(live._live, "ask_connection", forged)
    assert not touched(port)
    if what == "other port":
        monkeypatch.setattr(ports, "check_peer", lambda *_rest: None)
        assert touched(port)


def test_a15_no_port_is_reachable_without_a_grant(live: Live, service: socket.socket) -> None:
    """Connect to a service of the host's loopback from a live sandbox in which no port, or another, is exposed.

    Control: once its port is exposed, the same connection is made.
    """
    port = service.getsockname()[1]
    assert not knocks(live, port)
    with socket.create_server(("127.0.0.1", 0)) as other:
        live.expose(other.getsockname()[1])
        assert not knocks(live, port)
    with pytest.raises(TimeoutError):
        service.accept()
    live.expose(port)
    assert knocks(live, port)
    service.accept()[0].close()


def test_a15_a_server_inside_is_not_reachable_without_a_grant(live: Live) -> None:
    """Listen on all addresses of a live sandbox, and connect to that port of the host.

    Control: once the port is published, that connection reaches the server.
    """
    run = live.start(["/usr/bin/python3", "-I", "-c", SERVER.replace("127.0.0.1", "0.0.0.0")], after="discard")
    assert b"up" in run.output(0, timeout=20)[0]
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", 8000))
    assert touched(live.publish(8000))


def test_a15_strict_has_no_ports(arena: Arena) -> None:
    """Open a port of a sandbox with the profile `strict`.

    Control: with the default profile it is opened.
    """
    with arena.ground.sandbox("s", profile="strict") as strict, strict.live() as live:
        with pytest.raises(UsageError, match="allows no ports"):
            live.publish(8000)
        with pytest.raises(UsageError, match="allows no ports"):
            live.expose(8000)
    with arena.ground.sandbox("d") as usual, usual.live() as live:
        live.publish(8000).close()


def test_b2_connections_and_unread_bytes_are_bounded(live: Live, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """Open more connections through a port than there may be, and send to a server that never reads.

    Control: below the bound every connection is made.
    """
    monkeypatch.setattr(forward, "MOST_LINKS", 16)
    monkeypatch.setattr(forward.Forwarder.__init__, "__defaults__", (16,))
    run = live.start(["/usr/bin/python3", "-I", "-c", SERVER], after="discard")
    assert b"up" in run.output(0, timeout=20)[0]
    port = live.publish(8000)
    count = 2000 if full else 200
    clients = []
    try:
        for number in range(count):
            clients.append(socket.create_connection(("127.0.0.1", port.number), timeout=20))
            if number == 15:
                until(lambda: port.traffic.connections == 16)
        until(lambda: port.traffic.refused == count - 16)
        assert port.traffic.connections == 16
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sender = clients[0]
        sender.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < 64 << 20:
                sent += sender.send(bytes(1 << 20))
        # Full buffers of the kernel and one of ours, not what is sent
        assert sent < 64 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
    finally:
        for client in clients:
            client.close()
