# SPDX-License-Identifier: Apache-2.0
"""Ports of a live sandbox: servers inside that the host reaches, a server of the host's that commands reach."""

import errno
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from tests.kernel.leftovers import within
from tests.prepared import PREPARED, PROGRAM
from tests.support import Ground, printed, run_cli
from unspill import Network, OutputChunk, Sandbox
from unspill.errors import UsageError
from unspill.layers.lifecycle import wait_until_clean
from unspill.model.run import PortTraffic
from unspill.runner.background import BackgroundRun
from unspill.sandbox.live import Live
from unspill.sandbox.ports import Port, WantedPorts

pytestmark = pytest.mark.kernel

PYTHON = "/usr/bin/python3"
# Answers each connection with all that it sent, once that has ended; `::1` or `127.0.0.1` as its first argument
ECHO = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], 8000), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print("up", flush=True)
def answer(client):
    with client:
        parts = []
        while part := client.recv(1 << 16):
            parts.append(part)
        client.sendall(b"".join(parts))
while True:
    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""
ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10) as s:
    s.sendall(b"q" * int(sys.argv[2])); s.shutdown(socket.SHUT_WR)
    print(sum(len(part) for part in iter(lambda: s.recv(65536), b"")))
"""


@pytest.fixture
def sandbox(ground: Ground) -> Iterator[Sandbox]:
    with ground.sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def live(sandbox: Sandbox) -> Iterator[Live]:
    with sandbox.live() as live:
        yield live


def serve(live: Live, script: str = ECHO, *words: str) -> BackgroundRun:
    """Start a server and return when it says that it listens."""
    run = live.start([PYTHON, "-I", "-c", script, *(words or ("127.0.0.1",))], after="discard")
    found, offset = b"", 0
    while b"up\n" not in found:
        more, offset, _lost = run.output(offset, timeout=20)
        assert more, found
        found += more
    return run


def ask(number: int, said: bytes = b"question") -> bytes:
    """Return what a port of this host's loopback answers to what is said."""
    with socket.create_connection(("127.0.0.1", number), timeout=20) as client:
        try:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(1 << 16), b""))
        except OSError as error:
            # Nobody listens inside, and the answer to the first byte may come before the second call
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise
            return b""


def ended(port: Port, count: int = 1) -> PortTraffic:
    """Return what went through a port once so many connections of it were made, or not made."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = port.traffic
        if found.connections + found.failed + found.refused >= count:
            return found
        time.sleep(0.01)
    raise AssertionError(port.traffic)


class HostServer:
    """A server on this host's loopback that answers each connection with what it sent."""

    def __init__(self, port: int = 0) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self.port: int = self._server.getsockname()[1]
        self.served = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client = self._server.accept()[0]
            except OSError:
                return
            with client:
                self.served += 1
                client.sendall(b"".join(iter(lambda: client.recv(1 << 16), b"")))  # noqa: B023

    def __enter__(self) -> "HostServer":
        return self

    def __exit__(self, *_rest: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(20)


@pytest.mark.bwrap
def test_a_web_server_inside_is_reached_from_the_host(ground: Ground, sandbox: Sandbox, live: Live) -> None:
    ground.write("page", "from inside\n")
    port = live.publish(8000)
    script = """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
print("up", flush=True)
server.serve_forever()
"""
    run = serve(live, script)
    assert port.inside == 8000
    for _ in range(2):
        client = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
        client.request("GET", "/page")
        assert client.getresponse().read() == b"from inside\n"
        client.close()
    run.kill()
    result = run.wait(20)
    assert result is not None
    [found] = result.ports
    assert (found.is_published, found.inside, found.host, found.connections) == (True, 8000, port.number, 2)
    assert found.down > 50
    assert found.up > 2 * len(b"from inside\n")
    assert sandbox.traffic(result.number).ports == (found,)


def test_large_transfers_and_half_closed_connections_arrive_whole(live: Live) -> None:
    port = live.publish(8000)
    serve(live)
    said = os.urandom(8 << 20)
    assert hashlib.sha256(ask(port.number, said)).digest() == hashlib.sha256(said).digest()
    assert ask(port.number, b"") == b""
    assert (port.traffic.up, port.traffic.down, port.traffic.connections) == (len(said), len(said), 2)


def test_a_server_that_listens_on_ipv6_alone_is_reached(live: Live) -> None:
    port = live.publish(8000)
    serve(live, ECHO, "::1")
    assert ask(port.number) == b"question"


def test_a_server_that_is_started_again_is_reached_again(live: Live) -> None:
    port = live.publish(8000)
    assert live.run("true").ok
    assert ask(port.number) == b""
    assert ended(port).failed == 1
    for _ in range(2):
        run = serve(live)
        assert ask(port.number) == b"question"
        run.kill()
        run.wait(20)
    assert ask(port.number) == b""


def test_who_connects_before_the_first_command_waits_for_it(live: Live) -> None:
    port = live.publish(8000)
    with socket.create_connection(("127.0.0.1", port.number), timeout=20) as client:
        assert live.run("true").ok
        assert client.recv(1) == b""


def test_a_port_that_is_in_use_is_refused_and_any_other_is_found(live: Live) -> None:
    with HostServer() as other:
        with pytest.raises(UsageError, match="is in use") as refused:
            live.publish(8000, other.port)
        assert "Choose another one" in refused.value.remedy
        assert live.publish(other.port).number != other.port
    for wrong in (0, -1, 65536):
        with pytest.raises(UsageError, match="not a port"):
            live.publish(wrong)


def test_the_end_of_the_sandbox_ends_its_ports(sandbox: Sandbox) -> None:
    # What the first run of a process opens, stays open
    with sandbox.live() as first:
        assert first.run("true").ok
    wait_until_clean()
    before = set(os.listdir("/proc/self/fd"))
    with sandbox.live() as live:
        port = live.publish(8000)
        serve(live)
        client = socket.create_connection(("127.0.0.1", port.number), timeout=20)
        ended(port)
    with client:
        assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        ask(port.number)
    with pytest.raises(UsageError, match="closed"):
        live.publish(8000)
    assert not [thread for thread in threading.enumerate() if thread.name == "unspill-ports"]
    # The search for secrets may still go on beside, and the watcher ends without anybody waiting for it
    wait_until_clean()
    assert within(10, lambda: len(set(os.listdir("/proc/self/fd")) - before) <= 1)


def test_a_port_can_be_closed_by_itself(live: Live) -> None:
    serve(live)
    with live.publish(8000) as port:
        assert ask(port.number) == b"question"
    with pytest.raises(ConnectionRefusedError):
        ask(port.number)


@pytest.mark.bwrap
def test_a_server_of_the_host_is_reached_at_its_port_inside(sandbox: Sandbox, live: Live) -> None:
    with HostServer() as server, HostServer() as other:
        port = live.expose(server.port)
        result = live.run([PYTHON, "-I", "-c", ASK, str(server.port), "100000"])
        assert printed(result) == "100000\n"
        [found] = result.ports
        assert found == PortTraffic(
            is_published=False, inside=server.port, host=server.port, connections=1, up=100000, down=100000
        )
        assert sandbox.traffic(result.number).ports == (found,)
        # Not another port of the same host
        assert not live.run([PYTHON, "-I", "-c", ASK, str(other.port), "1"]).ok
        assert (server.served, other.served) == (1, 0)
        port.close()
        assert not live.run([PYTHON, "-I", "-c", ASK, str(server.port), "1"]).ok


def test_an_exposed_port_is_there_in_a_sandbox_that_is_built_again(live: Live) -> None:
    with HostServer() as server:
        words = [PYTHON, "-I", "-c", ASK, str(server.port), "10"]
        live.expose(server.port)
        assert printed(live.run(words)) == "10\n"
        live._live.close()
        assert printed(live.run(words)) == "10\n"
        assert live._live.built == 2


def test_a_port_can_be_exposed_to_what_runs_already_but_not_where_one_listens(live: Live) -> None:
    serve(live)
    with HostServer() as server:
        live.expose(server.port)
        assert printed(live.run([PYTHON, "-I", "-c", ASK, str(server.port), "10"], after="discard")) == "10\n"
    with pytest.raises(UsageError, match="it is in use there"):
        live.expose(8000)
    with pytest.raises(UsageError, match="below 1024"):
        live.expose(80)
    # What was refused is not tried again
    assert live.run("true", after="discard").ok


def test_what_was_sent_last_arrives_though_the_command_has_ended(sandbox: Sandbox) -> None:
    """The bytes lie in buffers when the sender is dead already."""
    script = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
client = server.accept()[0]
client.sendall(b"x" * 300000)
"""
    opened: list[Port] = []
    found: list[bytes] = []
    asking = threading.Thread(target=lambda: found.append(ask(opened[0].number, b"")))

    def begin(event: object) -> None:
        if isinstance(event, OutputChunk):
            asking.start()

    wanted = WantedPorts(publish=((8000, 0),), on_open=opened.append)
    result = sandbox.run([PYTHON, "-I", "-c", script], ports=wanted, on_event=begin)
    asking.join(20)
    assert result.ok
    assert [len(part) for part in found] == [300000]
    assert result.ports[0].up == 300000


def test_each_port_is_in_the_audit(ground: Ground, live: Live) -> None:
    with HostServer() as server:
        published, exposed = live.publish(8000), live.expose(server.port)
        lines = [line for file in ground.state.glob("audit/log-*") for line in file.read_text().splitlines()]
        events = [event for event in map(json.loads, lines) if event["kind"] == "port"]
        assert [(event["what"], event["inside"], event["host"]) for event in events] == [
            ("published", 8000, published.number),
            ("exposed", server.port, exposed.number),
        ]


def test_ports_are_refused_where_there_can_be_none(ground: Ground) -> None:
    with ground.sandbox("strict", profile="strict") as strict, strict.live() as live:
        for refused in (live.publish, live.expose):
            with pytest.raises(UsageError, match='"strict"` allows no ports') as error:
                refused(8000)
            assert "default" in error.value.remedy
    wanted = WantedPorts(publish=((8000, 0),))
    with ground.sandbox("open", network=Network(mode="host")) as opened:
        with pytest.raises(UsageError, match="own ports"):
            opened.run("true", ports=wanted, network=True, approver="deny")
        assert opened.run("true", ports=wanted).ok


def test_a_server_that_nobody_published_is_told_of_once(live: Live) -> None:
    script = ECHO.replace("while True:", "import time; time.sleep(2.8); sys.exit()\nwhile True:")
    words = [PYTHON, "-I", "-c", script, "127.0.0.1"]
    [hint] = live.run(words, after="discard").hints
    assert hint.code == "server-inside"
    assert "port 8000" in hint.text
    assert "unspill run -p 8000" in hint.remedy
    serve(live)
    assert live.listening() == (8000,)
    assert not live.run("sleep 2.6", after="discard").hints


class Person:
    """`unspill run` with a server in it, in a process of its own."""

    def __init__(self, ground: Ground, *words: str) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, "run", *words, "--", PYTHON, "-I", "-u", "-c", ECHO, "127.0.0.1"],
            cwd=ground.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **PREPARED},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"up\n"

    def end(self) -> str:
        """Interrupt it, and return what it said."""
        self.process.send_signal(signal.SIGINT)
        _out, err = self.process.communicate(timeout=20)
        return err.decode()


def test_the_command_line_says_where_a_port_is_and_records_what_went_through(ground: Ground) -> None:
    def cli(*words: str) -> str:
        return run_cli(*words, cwd=ground.project).stdout.decode()

    with HostServer() as other:
        person = Person(ground, "-p", "8000", "-p", "8001", "--expose", str(other.port))
        assert person.process.stderr is not None
        told = [person.process.stderr.readline().decode() for _ in range(3)]
        found = re.fullmatch(r"unspill: http://127\.0\.0\.1:(\d+) is port 8000 of the command\.\n", told[0])
        assert found, told
        assert "port 8001" in told[1]
        assert f"reaches http://127.0.0.1:{other.port} of this machine" in told[2]
        assert ask(int(found[1])) == b"question"
        person.end()
    shown = cli("show", "run1")
    assert f"  published 8000 at 127.0.0.1:{found[1]}: 1 connection, 8 bytes in, 8 bytes out" in shown
    assert json.loads(cli("show", "--json", "run1"))["ports"][0]["connections"] == 1
    assert "published port 8000 of sandbox" in cli("audit")
