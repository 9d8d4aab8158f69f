# SPDX-License-Identifier: Apache-2.0
"""What a hostile client can't do to the proxy: wear it out, make it grow, mislead it, or ask a person too often."""

import ipaddress
import os
import random
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from tests.figures import record_figure
from tests.unit.network.hellos import real_hello
from tests.unit.network.host_vectors import VECTORS
from tests.unit.network.scene import Names, Scene, echo, read_all, scene, server, wait_until
from tests.unit.network.test_protocols import AMBIGUOUS
from unspill.layers.lifecycle import wait_until_clean
from unspill.model.run import Budget
from unspill.network import relay
from unspill.network.proxy import DENIALS_KEPT, ProxyLimits, Questions
from unspill.policy.hosts import Destination, pack_address, parse_rules

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
    wait_until_clean()
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
        # A client of a scene waits for less than the proxy does by default
        read_all(client)
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
        drip(client, 10)


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
        read_all(client)
    assert [item.verdict for item in stage.proxy.connections()] == ["cut"]


def test_an_open_tunnel_may_be_silent_for_long() -> None:
    with (
        server(echo) as port,
        scene(["example.org"], servers={443: port}, limits=HURRIED) as stage,
        stage.client() as client,
    ):
        hello = real_hello("example.org")
        # Together: on a busy machine the second of two messages may come too late
        client.sendall(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n" + hello)
        received = b""
        while not received.endswith(hello):
            received += client.recv(65536)
        time.sleep(1.2)
        client.sendall(b"later")
        while not received.endswith(b"later"):
            received += client.recv(65536)
    assert received == b"HTTP/1.1 200 Connection established\r\n\r\n" + hello + b"later"


@pytest.mark.parametrize("count", range(12))
@pytest.mark.parametrize("has_gate", [False, True])
def test_a_flow_whose_source_has_ended_always_ends(count: int, has_gate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the round in which it sees the end: one that waits for neither side is never looked at again."""
    monkeypatch.setattr(relay, "_PIPE_BYTES", 1)
    monkeypatch.setattr(relay, "_COPY_BYTES", 1)
    (client, source), (sink, reader) = socket.socketpair(), socket.socketpair()
    pipes = relay.PipePool()
    gate = relay.HelloGate(Destination(host="example.org", port=443), is_required=True) if has_gate else None
    flow = relay.Flow(source, sink, relay.Meter("up_bytes", None), pipes, gate=gate)
    with client, source, sink, reader:
        for side in (source, sink):
            side.setblocking(False)
        client.sendall(real_hello("example.org")[:count])
        client.close()
        flow.pump()
        while flow.wants_source or flow.wants_sink:
            flow.pump()
        assert flow.is_over
        assert read_all(reader) == (b"" if has_gate else real_hello("example.org")[:count])
    pipes.close()


LEAVING = {
    "after a whole request": b"GET http://example.org/ HTTP/1.1\r\n\r\n",
    "after more than its request": b"GET http://example.org/ HTTP/1.1\r\n\r\nGET http://example.org/ HTTP/1.1\r\n\r\n",
    "in a tunnel": b"CONNECT example.org:9 HTTP/1.1\r\n\r\n!",
}


def meet_and_leave(stage: Scene, sent: bytes) -> None:
    with stage.client() as client:
        client.sendall(sent)
        received = b""
        while not received.endswith(b"ok"):
            received += client.recv(100)


@pytest.mark.parametrize("how", LEAVING)
def test_a_silent_server_does_not_keep_the_places_of_clients_that_have_left(how: str) -> None:
    """It answers, and closes nothing. Control: where a proxy is too patient with it, there is no place for others."""
    is_over = threading.Event()

    def keep_silent(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"ok")
        is_over.wait(20)

    for left_s in (0.2, 60.0):
        limits = ProxyLimits(most_clients=3, left_s=left_s)
        rules = ["example.org", "example.org:9"]
        with server(keep_silent) as port, scene(rules, servers={80: port, 9: port}, limits=limits) as stage:
            for _ in range(3):
                meet_and_leave(stage, LEAVING[how])
            if left_s < 1:
                meet_and_leave(stage, LEAVING[how])
                continue
            with stage.client() as late:
                late.sendall(LEAVING[how])
                late.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    late.recv(1)
    is_over.set()


def test_a_client_that_has_closed_its_side_is_given_what_the_server_says_later() -> None:
    may_answer = threading.Event()

    def answer_late(connection: socket.socket) -> None:
        swallow(connection)
        for _ in range(3):
            assert may_answer.wait(10)
            connection.sendall(b"later")

    with (
        server(answer_late) as port,
        scene(["example.org:9"], servers={9: port}) as stage,
        opened(stage, "example.org:9") as client,
    ):
        client.sendall(b"!")
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: any(one._has_left for one in tuple(stage.proxy._loop._clients)))
        may_answer.set()
        assert read_all(client) == b"later" * 3
    assert [item.verdict for item in stage.proxy.connections()] == ["allowed"]


def test_a_resolver_that_hangs_holds_up_its_own_clients_only() -> None:
    release = threading.Event()

    class Slow(Names):
        def __call__(self, host: str) -> list[str]:
            if host.startswith("slow"):
                release.wait(10)
            return ["93.184.215.14"]

    # The others have to be answered in this time as well, on a busy machine too
    limits = HURRIED.replace(resolve_s=2.0)
    with server(echo) as port, scene(["*.example.org:9"], servers={9: port}, names=Slow(), limits=limits) as stage:
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
                assert client.recv(1)
            stage.proxy.close()
            # It has not given up waiting for its thread
            assert stage.proxy._thread is not None
            assert not stage.proxy._thread.is_alive()
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
        before = -1

        def stands_still() -> bool:
            nonlocal before
            was, before = before, sent[0]
            time.sleep(0.2)
            return was == sent[0]

        wait_until(stands_still)
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


class Person:
    """Answers when told to; remembers what was asked."""

    def __init__(self, answer: Callable[[str], str] = lambda host: "") -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self._answer = answer

    def __call__(self, host: str) -> str:
        self.asked.append(host)
        assert self.may_answer.wait(20)
        return self._answer(host)


def willing(answer: Callable[[str], str] = lambda host: "") -> Person:
    person = Person(answer)
    person.may_answer.set()
    return person


def statuses(stage: Scene, *authorities: str) -> list[bytes]:
    """Ask for tunnels at the same time and return the status lines, each in its place."""
    found = [b""] * len(authorities)

    def get(number: int) -> None:
        found[number] = stage.status(authorities[number])

    threads = [threading.Thread(target=get, args=(number,)) for number in range(len(authorities))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_host_that_no_rule_covers_is_asked_for_and_reached_when_it_is_allowed() -> None:
    person = willing()
    with server(echo) as port, scene([], servers={443: port}, ask=person) as stage:
        client, status = stage.tunnel("example.org:443")
        client.close()
    assert status == b"HTTP/1.1 200 Connection established"
    assert person.asked == ["example.org"]
    assert stage.names.asked == ["example.org"]
    assert stage.proxy.denials() == ()


def test_without_somebody_to_ask_the_same_host_is_refused() -> None:
    with server(echo) as port, scene([], servers={443: port}) as stage:
        assert stage.status("example.org:443").startswith(b"HTTP/1.1 403 Host not allowed")
    assert stage.names.asked == []


def test_no_name_is_looked_up_before_it_is_allowed() -> None:
    person = Person(lambda host: "it was not allowed")
    with scene([], ask=person) as stage:
        thread = threading.Thread(target=stage.status, args=("secret.example.org:443",))
        thread.start()
        wait_until(lambda: bool(person.asked))
        time.sleep(0.1)
        assert (stage.names.asked, stage.doorman.asked) == ([], [])
        person.may_answer.set()
        thread.join()
    assert (stage.names.asked, stage.doorman.asked) == ([], [])


def test_a_refusal_is_told_with_its_reason_and_is_not_asked_about_again() -> None:
    person = willing(lambda host: "it was not allowed (no)")
    with scene([], ask=person) as stage:
        for _ in range(5):
            answer = stage.exchange(b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 403 Host not allowed")
            assert b"it was not allowed (no)" in answer
    assert person.asked == ["example.org"]
    assert [(denial.host, denial.rule) for denial in stage.proxy.denials()] == [("example.org", "host")]


def test_what_was_allowed_holds_for_both_ports_of_the_web_and_no_other() -> None:
    person = willing(lambda host: "no" if ":" in host else "")
    with server(echo) as port, scene([], servers={80: port, 443: port, 22: port}, ask=person) as stage:
        assert stage.status("example.org:443").startswith(b"HTTP/1.1 200")
        assert stage.status("example.org:80").startswith(b"HTTP/1.1 200")
        assert stage.status("example.org:22").startswith(b"HTTP/1.1 403")
        assert stage.status("www.example.org:443").startswith(b"HTTP/1.1 200")
    assert person.asked == ["example.org", "example.org:22", "www.example.org"]


def test_many_clients_of_one_host_wait_for_one_question() -> None:
    person = Person()
    with server(echo) as port, scene([], servers={443: port}, ask=person) as stage:
        threading.Timer(0.3, person.may_answer.set).start()
        found = statuses(stage, *["example.org:443"] * 20)
    assert {status[:12] for status in found} == {b"HTTP/1.1 200"}
    assert person.asked == ["example.org"]


def test_while_somebody_thinks_all_others_go_on() -> None:
    person = Person()
    with server(echo) as port, scene(["example.net"], servers={443: port}, ask=person) as stage:
        waiting = threading.Thread(target=stage.status, args=("example.org:443",))
        waiting.start()
        wait_until(lambda: bool(person.asked))
        assert stage.status("example.net:443").startswith(b"HTTP/1.1 200")
        assert waiting.is_alive()
        person.may_answer.set()
        waiting.join()


@pytest.mark.parametrize(
    "authority", ["127.0.0.1:443", "169.254.169.254:80", "[::1]:80", "10.0.0.1:443", "localhost:80"]
)
def test_nobody_is_asked_about_what_nothing_allows(authority: str) -> None:
    person = willing()
    with server(echo) as port, scene([], servers={443: port, 80: port}, ask=person) as stage:
        assert stage.status(authority).startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
    assert (person.asked, stage.doorman.asked) == ([], [])


def test_an_allowed_name_with_a_private_address_is_refused_all_the_same() -> None:
    person = willing()
    with scene([], ask=person, names=Names({"inward.example.org": ["10.0.0.1"]})) as stage:
        assert stage.status("inward.example.org:443").startswith(b"HTTP/1.1 403 Address not allowed")
    assert (person.asked, stage.doorman.asked) == (["inward.example.org"], [])


def test_at_most_eight_questions_wait_at_once() -> None:
    person = Person()
    with server(echo) as port, scene([], servers={443: port}, ask=person) as stage:
        wanted = [f"host{number}.example.org:443" for number in range(30)]

        def answer_when_all_have_asked() -> None:
            wait_until(lambda: len(stage.proxy.denials()) == 22)
            person.may_answer.set()

        answering = threading.Thread(target=answer_when_all_have_asked)
        answering.start()
        found = statuses(stage, *wanted)
        answering.join()
    assert len(person.asked) == 8
    assert sorted(status[:12] for status in found) == [b"HTTP/1.1 200"] * 8 + [b"HTTP/1.1 403"] * 22


def test_a_question_that_fails_is_a_refusal() -> None:
    def broken(host: str) -> str:
        raise RuntimeError("not for a command to read")

    with scene([], ask=broken) as stage:
        answer = stage.exchange(b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n")
    assert b"the question failed: RuntimeError" in answer
    assert b"not for a command" not in answer


def test_a_proxy_closes_at_once_although_somebody_still_thinks() -> None:
    person = Person()
    with scene([], ask=person) as stage:
        client = stage.client()
        client.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        wait_until(lambda: bool(person.asked))
        stage.proxy.close()
        assert not person.may_answer.is_set()
        assert stage.proxy._thread is not None
        assert not stage.proxy._thread.is_alive()
        assert client.recv(100) == b""
        client.close()
    person.may_answer.set()
    assert stage.names.asked == []


def test_the_time_of_questions_that_overlap_counts_once() -> None:
    person = Person()
    questions = Questions(person, lambda: None)
    assert questions.waited_s() == 0.0
    begun = time.monotonic()
    for name in ("a.example.org", "b.example.org"):
        questions.put(object(), Destination(host=name, port=443))
    time.sleep(0.3)
    assert 0.25 < questions.waited_s() <= time.monotonic() - begun
    person.may_answer.set()
    answered: list[object] = []
    wait_until(lambda: len(answered.extend(questions.answers()) or answered) == 2)  # type: ignore[func-returns-value]
    total = questions.waited_s()
    assert total <= time.monotonic() - begun
    time.sleep(0.2)
    assert questions.waited_s() == total


@pytest.mark.parametrize("words", [b"", b"more"])
def test_the_time_of_a_client_that_has_gone_does_not_count(words: bytes) -> None:
    person = Person()
    with scene([], ask=person) as stage:
        client = stage.client()
        client.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        wait_until(lambda: bool(person.asked))
        client.sendall(words)
        if words:
            wait_until(lambda: any(one._is_talking for one in tuple(stage.proxy._loop._clients)))
        client.close()
        wait_until(lambda: stage.proxy._loop.questions is not None and stage.proxy._loop.questions._since is None)
        total = stage.proxy.waited_s()
        time.sleep(0.3)
        assert stage.proxy.waited_s() == total
        person.may_answer.set()
    assert stage.names.asked == []


def test_a_client_that_goes_on_talking_while_it_waits_is_heard_in_the_end() -> None:
    person = Person()
    with server(echo) as port, scene([], servers={9: port}, ask=person) as stage, stage.client() as client:
        client.sendall(b"CONNECT example.org:9 HTTP/1.1\r\nHost: example.org:9\r\n\r\n")
        wait_until(lambda: bool(person.asked))
        client.sendall(b"early words")
        time.sleep(0.2)
        assert stage.proxy.waited_s() > 0.1
        person.may_answer.set()
        received = b""
        while b"early words" not in received:
            received += client.recv(100)
    assert received == b"HTTP/1.1 200 Connection established\r\n\r\nearly words"


def test_no_more_time_is_given_back_than_one_persons_patience() -> None:
    questions = Questions(Person(), lambda: None, most_s=0.2)
    questions.put(object(), Destination(host="example.org", port=443))
    time.sleep(0.4)
    assert questions.waited_s() == 0.2


RULES = ["example.org", "*.example.net", "api.example.com:8443", "45.45.45.45"]
JUDGED = re.compile(
    r"example\.org:(80|443)|([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+example\.net:(80|443)|api\.example\.com:8443"
)
OWN = "46.46.46.46"
BAD = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00:ec2::254", "64:ff9b::7f00:1", "::ffff:10.0.0.1", OWN]
SPECIAL = [ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "224.0.0.0/3")]

HOSTS = [b"example.org", b"EXAMPLE.ORG.", b"a.example.net", b"b.c.example.net", b"api.example.com", b"evil.org",
         b"evilexample.org", b"example.net", b"bad.example.net", b"mixed.example.net", b"own.example.net",
         b"45.45.45.45", b"127.0.0.1", b"[::1]", b"localhost", b"10.0.0.1", b"0x7f.1", b"2130706433"]  # fmt: skip
PORTS = [b"443", b"80", b"8443", b"22", b"0443", b"65536", b"", b"443 ", b"https"]
PIECES = [b"\0", b"%00", b"@", b".", b"..", b"-", b":", b"/", b"\\", b"#", b"?", b" ", b"\t", b"\r\n", b"\n",
          b"[", b"]", b"_", b"\xe3\x80\x82", b"\xef\xbc\x8e", b"xn--", b"example.org", b"evil.org", b"127.0.0.1",
          b"\xff", b"*", b",", b";"]  # fmt: skip
FIELDS = [b"Host: example.org", b"Host: evil.org", b"Content-Length: 5", b"Content-Length: 0", b"X: y", b" folded",
          b"Transfer-Encoding: chunked", b"Connection: close", b"X : y", b"Proxy-Connection: keep-alive", b"",
          b"Upgrade: h2c", b"Host: a.example.net:443", b"GET / HTTP/1.1"]  # fmt: skip


class Addressed(Names):
    """Gives every name an address of its own; some names have a bad one, alone or among good ones."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: dict[str, str] = {}
        self.kind: dict[str, bool] = {}

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        number = len(self.asked)
        good = f"50.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        answers = [good, f"2a00:{number >> 16:x}:{number & 0xFFFF:x}::1"]
        first = host.partition(".")[0]
        if first in ("bad", "mixed", "own"):
            answers = {"bad": [], "mixed": answers, "own": [OWN]}[first] + [BAD[number % len(BAD)]]
        for answer in answers:
            self.owner[answer] = host
        self.kind[host] = first not in ("bad", "mixed", "own")
        return answers


def mutate(chance: random.Random, raw: bytes) -> bytes:
    """Return it with nothing, one or a few things wrong."""
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 4))):
        at = chance.randrange(len(raw) + 1)
        match chance.randrange(4):
            case 0:
                raw = raw[:at] + chance.choice(PIECES) + raw[at:]
            case 1:
                raw = raw[:at] + raw[at + chance.randrange(1, 4) :]
            case 2:
                raw = raw[:at] + chance.randbytes(1) + raw[at + 1 :]
            case _:
                raw = raw.swapcase() if chance.random() < 0.5 else raw[at:] + raw[:at]
    return raw


def made_up(chance: random.Random) -> bytes:
    """Return what a hostile client might send."""
    host = chance.choice(VECTORS) if chance.random() < 0.2 else mutate(chance, chance.choice(HOSTS))
    port = chance.choice(PORTS[:3]) if chance.random() < 0.8 else chance.choice(PORTS)
    fields = b"\r\n".join(chance.choice(FIELDS) for _ in range(chance.choice((0, 0, 1, 1, 2, 4))))
    fields = fields + b"\r\n" if fields else b""
    match chance.randrange(8):
        case 0 | 1:
            sent = b"CONNECT %s:%s HTTP/1.1\r\n%s\r\n" % (host, port, fields)
        case 2 | 3:
            sent = b"GET http://%s:%s/ HTTP/1.1\r\n%s\r\n" % (host, port, fields)
        case 4:
            sent = b"POST http://%s/ HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (host, host, fields)
        case 5 | 6:
            number = int(port) if port.isdigit() and int(port) < 65536 else 443
            cut = host[:255]
            sent = b"\x05\x01\x00\x05\x01\x00\x03" + bytes((len(cut),)) + cut + number.to_bytes(2)
        case _:
            sent = chance.choice(list(AMBIGUOUS.values())) if chance.random() < 0.5 else chance.randbytes(60)
    return mutate(chance, sent) if chance.random() < 0.3 else sent


def send(stage: Scene, sent: bytes) -> None:
    with stage.client() as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
        except OSError:
            return


def is_public(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return (
        found.is_global and not any(found.version == net.version and found in net for net in SPECIAL) and address != OWN
    )


@pytest.mark.timeout(1800)
def test_no_made_up_request_reaches_what_an_independent_judge_forbids(full: bool) -> None:
    count, seed = (100_000, random.randrange(1 << 32)) if full else (4_000, 4)
    chance = random.Random(seed)
    names = Addressed()
    with scene(parse_rules(RULES), names=names, own=frozenset((pack_address(OWN),))) as stage:
        for _ in range(count):
            send(stage, made_up(chance))
    forbidden = []
    for address, port in stage.doorman.asked:
        host = names.owner.get(address, address)
        is_allowed = JUDGED.fullmatch(f"{host}:{port}") or (address == "45.45.45.45" and port in (80, 443))
        if not (is_allowed and is_public(address) and names.kind.get(host, True)):
            forbidden.append((host, address, port))
    assert forbidden == [], f"seed {seed}"
    assert [
        host for host in names.asked if not re.match(r"(.+\.example\.net|example\.org|api\.example\.com)$", host)
    ] == []
    # The judge is worth something only if much was allowed as well
    assert len(stage.doorman.asked) > count / 20
    record_figure(
        "proxy: forbidden connections",
        f"0 of {count:,}",
        f"made-up hosts and requests, {len(stage.doorman.asked):,} connections allowed, seed {seed}",
    )


def test_the_judge_finds_what_a_careless_proxy_would_connect_to() -> None:
    names = Addressed()
    with scene(parse_rules([*RULES, "evil.org"]), names=names) as stage:
        send(stage, b"CONNECT evil.org:443 HTTP/1.1\r\n\r\n")
        send(stage, b"CONNECT own.example.net:443 HTTP/1.1\r\n\r\n")
    hosts = [names.owner[address] for address, _ in stage.doorman.asked]
    assert "evil.org" in hosts
    assert not JUDGED.fullmatch("evil.org:443")
    assert [is_public(address) for address in BAD] == [False] * len(BAD)
