# SPDX-License-Identifier: Apache-2.0
"""What a hostile client can't do to the proxy: exceed its budget, wear it out, hold it up, or make it grow."""

import os
import resource
import socket
import threading
import time

import pytest

from tests.unit.network.hellos import real_hello
from tests.unit.network.scene import Names, Scene, echo, read_all, scene, server, wait_until
from unspill.model.run import Budget
from unspill.network.proxy import DENIALS_KEPT, ProxyLimits

pytestmark = pytest.mark.kernel

HURRIED = ProxyLimits(opening_s=0.4, resolve_s=0.4, connect_s=0.4, half_closed_s=0.4, lingering_s=0.4)
HELD = 500


def flood(connection: socket.socket) -> None:
    connection.recv(1)
    while True:
        connection.sendall(bytes(65536))


def swallow(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def opened(stage: Scene, authority: str) -> socket.socket:
    client, status = stage.tunnel(authority)
    assert status.startswith(b"HTTP/1.1 200"), status
    return client


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("bound", [1, 1000, 100_000, 3_000_000])
def test_no_more_bytes_come_in_than_the_budget_has(bound: int) -> None:
    with (
        server(flood) as port,
        scene(["example.org:9"], servers={9: port}, budget=Budget(down=bound)) as stage,
        opened(stage, "example.org:9") as client,
    ):
        client.sendall(b"!")
        assert len(read_all(client)) == bound
        assert stage.status("example.org:9").startswith(b"HTTP/1.1 403 Byte budget used up")
    assert [(item.down, item.verdict) for item in stage.proxy.connections()] == [(bound, "cut")]
    assert [denial.rule for denial in stage.proxy.denials()] == ["budget"]


@pytest.mark.parametrize("bound", [1, 1000, 100_000, 3_000_000])
def test_no_more_bytes_go_out_than_the_budget_has(bound: int) -> None:
    received: list[int] = []

    def count(connection: socket.socket) -> None:
        total = 0
        try:
            while chunk := connection.recv(65536):
                total += len(chunk)
        finally:
            received.append(total)

    with (
        server(count) as port,
        scene(["example.org:9"], servers={9: port}, budget=Budget(up=bound)) as stage,
        opened(stage, "example.org:9") as client,
    ):
        with pytest.raises(OSError):
            client.sendall(bytes(64 << 20))
        wait_until(lambda: bool(received))
    assert received[0] <= bound
    assert stage.proxy.connections()[0].up <= bound


def test_the_budget_is_for_all_connections_together() -> None:
    with server(flood) as port, scene(["example.org:9"], servers={9: port}, budget=Budget(down=500_000)) as stage:
        clients = [opened(stage, "example.org:9") for _ in range(5)]
        totals: list[int] = []
        threads = [threading.Thread(target=lambda c=c: totals.append(len(read_all(c)))) for c in clients]
        for client, thread in zip(clients, threads, strict=True):
            client.sendall(b"!")
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()
    assert sum(totals) == 500_000


def test_without_a_budget_far_more_gets_through() -> None:
    with (
        server(flood) as port,
        scene(["example.org:9"], servers={9: port}) as stage,
        opened(stage, "example.org:9") as client,
    ):
        client.sendall(b"!")
        total = 0
        while total < 20_000_000:
            total += len(client.recv(1 << 20))


def test_a_request_that_is_larger_than_the_budget_is_not_sent_at_all() -> None:
    arrived: list[bytes] = []
    with (
        server(lambda connection: arrived.append(connection.recv(100))) as port,
        scene(["example.org"], servers={80: port}, budget=Budget(up=20)) as stage,
    ):
        stage.exchange(b"GET http://example.org/ HTTP/1.1\r\n\r\n")
        wait_until(lambda: bool(arrived))
    assert arrived == [b""]


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"G",
        b"GET http://example.org/ HTTP/1.1\r\nX: ",
        b"\x05",
        b"\x05\x01\x00",
        b"\x05\x01\x00\x05\x01\x00\x03\x0bexa",
    ],
)
def test_a_client_that_does_not_say_what_it_wants_is_closed_in_time(first: bytes) -> None:
    with scene(["example.org"], limits=HURRIED) as stage, stage.client() as client:
        client.sendall(first)
        started = time.monotonic()
        read_all(client)
        assert time.monotonic() - started < 3
    assert stage.names.asked == []


def drip(client: socket.socket, seconds: float) -> None:
    """Send a byte at a time until the other side closes."""
    client.settimeout(0.02)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            client.sendall(b"G")
            if not client.recv(1):
                return
        except TimeoutError:
            continue
        except ConnectionError:
            return
    raise AssertionError("it was never closed")


def test_a_client_that_sends_a_byte_at_a_time_is_closed_in_time() -> None:
    with scene(["example.org"], limits=HURRIED) as stage, stage.client() as client:
        drip(client, 3)


@pytest.mark.parametrize(
    "first",
    [b"", b"\x16\x03\x01\x02\x00\x01", real_hello("example.org")[:50]],
    ids=["nothing", "a header", "the beginning of one"],
)
def test_a_tunnel_without_a_first_message_is_closed_in_time(first: bytes) -> None:
    with (
        server(swallow) as port,
        scene(["example.org"], servers={443: port}, limits=HURRIED) as stage,
        opened(stage, "example.org:443") as client,
    ):
        client.sendall(first)
        started = time.monotonic()
        read_all(client)
        assert time.monotonic() - started < 3
    assert [item.verdict for item in stage.proxy.connections()] == ["cut"]


def test_an_open_tunnel_may_be_silent_for_long() -> None:
    with (
        server(echo) as port,
        scene(["example.org"], servers={443: port}, limits=HURRIED) as stage,
        opened(stage, "example.org:443") as client,
    ):
        hello = real_hello("example.org")
        client.sendall(hello)
        time.sleep(1.2)
        client.sendall(b"later")
        received = b""
        while len(received) < len(hello) + 5:
            received += client.recv(65536)
    assert received == hello + b"later"


def test_a_resolver_that_hangs_holds_up_its_own_clients_only() -> None:
    release = threading.Event()

    class Slow(Names):
        def __call__(self, host: str) -> list[str]:
            if host.startswith("slow"):
                release.wait(10)
            return ["93.184.215.14"]

    with server(echo) as port, scene(["*.example.org:9"], servers={9: port}, names=Slow(), limits=HURRIED) as stage:
        slow = stage.client()
        slow.sendall(b"CONNECT slow.example.org:9 HTTP/1.1\r\n\r\n")
        for _ in range(20):
            opened(stage, "fast.example.org:9").close()
        assert read_all(slow).startswith(b"HTTP/1.1 502 ")
        slow.close()
        release.set()


def test_a_server_that_does_not_answer_is_given_up() -> None:
    # A listener whose queue is full: further connections stay unanswered
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        with scene(["example.org:9"], servers={9: full.getsockname()[1]}, limits=HURRIED) as stage:
            assert stage.status("example.org:9").startswith(b"HTTP/1.1 502 ")
        for client in waiting:
            client.close()


def test_closing_ends_every_connection_and_leaves_no_descriptor() -> None:
    with server(flood) as port:
        before = descriptors()
        clients = []
        with scene(["example.org:9"], servers={9: port}) as stage:
            clients = [opened(stage, "example.org:9") for _ in range(20)]
            for client in clients:
                client.sendall(b"!")
            time.sleep(0.2)
            started = time.monotonic()
            stage.proxy.close()
            assert time.monotonic() - started < 1
        for client in clients:
            read_all(client)
            client.close()
        wait_until(lambda: descriptors() <= before + 1)
    assert {item.verdict for item in stage.proxy.connections()} == {"cut"}


def test_a_proxy_that_was_never_started_can_be_closed() -> None:
    from unspill.network.proxy import Proxy
    from unspill.policy.hosts import HostRules

    before = descriptors()
    proxy = Proxy(socket.create_server(("127.0.0.1", 0)).detach(), HostRules())
    proxy.close()
    assert descriptors() == before


def test_denials_are_kept_in_bounded_number() -> None:
    with scene(["example.org"]) as stage:
        for number in range(DENIALS_KEPT + 100):
            stage.status(f"h{number}.example.com:443")
        assert len(stage.proxy.denials()) == DENIALS_KEPT
        assert stage.proxy.left_out == 100


def test_a_client_that_does_not_read_stops_its_server_and_not_the_proxy() -> None:
    sent = [0]

    def pour(connection: socket.socket) -> None:
        while True:
            sent[0] += connection.send(bytes(65536))

    with server(pour) as port, scene(["example.org:9"], servers={9: port}) as stage:
        stuck = [opened(stage, "example.org:9") for _ in range(30)]
        time.sleep(1)
        before = sent[0]
        time.sleep(0.5)
        assert sent[0] - before < 30 * (1 << 20)
        spent = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - spent < 0.25
        opened(stage, "example.org:9").close()
        for client in stuck:
            client.close()


@pytest.fixture
def many_descriptors() -> None:
    """Room for both ends of all connections in this one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))


@pytest.mark.usefixtures("many_descriptors")
def test_500_connections_are_held_at_once_and_all_of_them_work() -> None:
    with server(echo) as port, scene(["example.org:9"], servers={9: port}) as stage:
        clients = [opened(stage, "example.org:9") for _ in range(HELD)]
        assert [item.verdict for item in stage.proxy.connections()] == ["open"] * HELD
        for number, client in enumerate(clients):
            client.sendall(b"%04d" % number)
        for number, client in enumerate(clients):
            assert client.recv(4) == b"%04d" % number
        for client in clients:
            client.close()
        wait_until(lambda: all(item.verdict == "allowed" for item in stage.proxy.connections()))


def test_clients_beyond_the_bound_wait_for_their_turn() -> None:
    with server(echo) as port, scene(["example.org:9"], servers={9: port}, limits=ProxyLimits(most_clients=3)) as stage:
        clients = [opened(stage, "example.org:9") for _ in range(3)]
        late = stage.client()
        late.sendall(b"CONNECT example.org:9 HTTP/1.1\r\n\r\n")
        late.settimeout(0.5)
        with pytest.raises(TimeoutError):
            late.recv(1)
        clients.pop().close()
        late.settimeout(5)
        assert late.recv(12) == b"HTTP/1.1 200"
        for client in (late, *clients):
            client.close()


@pytest.mark.usefixtures("many_descriptors")
def test_without_descriptors_the_proxy_waits_and_recovers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with server(echo) as port, scene(["example.org:9"], servers={9: port}) as stage:
        opened(stage, "example.org:9").close()
        client = stage.client()
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors(), hard))
        try:
            client.sendall(b"CONNECT example.org:9 HTTP/1.1\r\n\r\n")
            spent = time.process_time()
            time.sleep(0.6)
            assert time.process_time() - spent < 0.3
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        read = client.recv(12)
        client.close()
        assert read in (b"HTTP/1.1 200", b"HTTP/1.1 502")
        opened(stage, "example.org:9").close()
