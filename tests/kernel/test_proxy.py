# SPDX-License-Identifier: Apache-2.0
"""The egress proxy on real sockets: what gets through it, what does not, and what it says about both."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.network.hellos import real_hello
from tests.unit.network.scene import (
    PUBLIC,
    Names,
    echo,
    make_certificate,
    read_all,
    scene,
    server,
    trusting,
    wait_until,
)
from tests.unit.network.test_protocols import AMBIGUOUS
from tests.unit.network.web import Web
from unspill.model.run import Connection, Denial
from unspill.policy.hosts import HostRules

pytestmark = pytest.mark.kernel

ALLOWING = "Run it with `--allow-host {0}`, or add `{0}` to `hosts` under `[network]` in the configuration."


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for example.org."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def web() -> Iterator[Web]:
    """A plain web server."""
    site = Web()
    yield site
    site.close()


@pytest.fixture
def secure(certificate: Path) -> Iterator[Web]:
    """A web server with our certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    site = Web(context)
    yield site
    site.close()


GET = b"GET http://example.org/x HTTP/1.1\r\nHost: example.org\r\n\r\n"
INSIDE = b"GET /x HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"


def socks(host: bytes, port: int) -> bytes:
    return b"\x05\x01\x00\x05\x01\x00\x03" + bytes((len(host),)) + host + port.to_bytes(2)


def test_a_plain_request_to_an_allowed_host_arrives_and_is_recorded(web: Web) -> None:
    with scene(["example.org"], servers={80: web.port}) as stage:
        answer = stage.exchange(GET)
        wait_until(lambda: stage.proxy.connections()[0].verdict == "allowed")
        (connection,) = stage.proxy.connections()
    assert answer.endswith(b"\r\n\r\nhello")
    assert web.seen == ["GET example.org /x"]
    assert stage.names.asked == ["example.org"]
    assert stage.doorman.asked == [(PUBLIC, 80)]
    assert (connection.host, connection.port, connection.address) == ("example.org", 80, PUBLIC)
    assert connection.up == len(b"GET /x HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n")
    assert connection.down == len(answer)
    assert connection.ended_ns is not None
    assert connection.ended_ns > connection.started_ns


def test_tls_through_a_tunnel_is_the_servers_own(secure: Web, certificate: Path) -> None:
    with scene(["example.org"], servers={443: secure.port}) as stage:
        client, status = stage.tunnel("example.org:443")
        with trusting(certificate).wrap_socket(client, server_hostname="example.org") as stream:
            stream.sendall(INSIDE)
            answer = read_all(stream)
    assert status == b"HTTP/1.1 200 Connection established"
    assert answer.endswith(b"hello")
    assert secure.seen == ["GET example.org /x"]
    assert stage.proxy.denials() == ()


def test_tls_through_socks_works_too(secure: Web, certificate: Path) -> None:
    with scene(["example.org"], servers={443: secure.port}) as stage, stage.client() as client:
        client.sendall(socks(b"example.org", 443))
        said = b""
        while len(said) < 12:
            said += client.recv(12 - len(said))
        with trusting(certificate).wrap_socket(client, server_hostname="example.org") as stream:
            stream.sendall(INSIDE)
            assert read_all(stream).endswith(b"hello")
    assert said[:4] == b"\x05\x00\x05\x00"


@pytest.mark.parametrize("is_loose", [False, True])
def test_tls_for_another_server_stops_at_the_tunnel_unless_that_is_given_up(certificate: Path, is_loose: bool) -> None:
    arrived: list[bytes] = []
    with (
        server(lambda connection: arrived.append(connection.recv(65536))) as port,
        scene(HostRules(allowed=(), public=True, any_server_name=is_loose), servers={443: port}) as stage,
    ):
        client, _ = stage.tunnel("example.org:443")
        context = trusting(certificate)
        with pytest.raises((ssl.SSLError, ConnectionError)) as caught:
            context.wrap_socket(client, server_hostname="www.example.org")
        client.close()
        wait_until(lambda: bool(arrived))
    if is_loose:
        assert b"www.example.org" in arrived[0]
        assert stage.proxy.denials() == ()
    else:
        assert arrived == [b""]
        assert "ACCESS_DENIED" in str(caught.value)
        assert [denial.rule for denial in stage.proxy.denials()] == ["server name"]
        assert [connection.verdict for connection in stage.proxy.connections()] == ["denied"]


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n", b"SSH-2.0-x\r\n", b"\0" * 100])
def test_port_443_is_for_tls_only(sent: bytes) -> None:
    arrived: list[bytes] = []
    with (
        server(lambda connection: arrived.append(connection.recv(65536))) as port,
        scene(["example.org"], servers={443: port}) as stage,
    ):
        client, _ = stage.tunnel("example.org:443")
        with client:
            client.sendall(sent)
            assert read_all(client) == b""
        wait_until(lambda: bool(arrived))
    assert arrived == [b""]


def test_a_tunnel_to_port_80_takes_one_request_to_its_own_host(web: Web) -> None:
    with scene(["example.org"], servers={80: web.port}) as stage:
        for host, expected in (("example.org", b"200 OK"), ("evil.org", b"400 Request not allowed")):
            client, _ = stage.tunnel("example.org:80")
            with client:
                client.sendall(f"GET /y HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert expected in read_all(client)
    assert web.seen == ["GET example.org /y"]


def test_a_second_request_on_the_same_connection_never_arrives(web: Web) -> None:
    first = b"POST http://example.org/1 HTTP/1.1\r\nHost: example.org\r\nContent-Length: 2\r\n\r\nab"
    second = b"GET http://example.org/2 HTTP/1.1\r\nHost: evil.org\r\n\r\n"
    with scene(["example.org"], servers={80: web.port}) as stage:
        assert stage.exchange(first + second).count(b"HTTP/1.1 200") == 1
    assert web.seen == ["POST example.org /1 ab"]


def test_without_the_proxy_the_second_request_does_arrive(web: Web) -> None:
    with socket.create_connection(("127.0.0.1", web.port)) as client:
        client.sendall(b"POST /1 HTTP/1.1\r\nHost: example.org\r\nContent-Length: 2\r\n\r\nab")
        client.sendall(b"GET /2 HTTP/1.1\r\nHost: evil.org\r\nConnection: close\r\n\r\n")
        read_all(client)
    assert web.seen == ["POST example.org /1 ab", "GET evil.org /2"]


def test_nothing_ambiguous_reaches_a_server() -> None:
    with scene(HostRules(public=True, public_ports=tuple(range(1, 1000)))) as stage:
        for name, sent in AMBIGUOUS.items():
            with stage.client() as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                answer = read_all(client)
            assert answer[:12] == b"HTTP/1.1 400", name
    assert stage.doorman.asked == []
    assert stage.names.asked == []


@pytest.mark.parametrize(
    ("authority", "rule"),
    [
        ("evil.org:443", "host"),
        ("evilexample.org:443", "host"),
        ("example.org.evil.org:443", "host"),
        ("example.org:22", "port"),
        ("example.org:25", "port"),
        ("93.184.215.14:443", "host"),
        ("127.0.0.1:443", "address"),
        ("10.0.0.1:443", "address"),
        ("localhost:443", "form"),
        ("2130706433:443", "form"),
    ],
)
def test_what_is_not_allowed_is_not_even_resolved(authority: str, rule: str) -> None:
    with scene(["example.org", "*.example.net"]) as stage:
        client, status = stage.tunnel(authority)
        client.close()
    assert status.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 400 "))
    assert stage.names.asked == []
    assert stage.doorman.asked == []
    (denial,) = stage.proxy.denials()
    assert denial.rule == rule
    assert denial.remedy


def test_a_denial_says_what_would_allow_it() -> None:
    with scene(["example.org"]) as stage:
        for authority in ("evil.org:443", "evil.org:443", "example.org:8443"):
            stage.status(authority)
    assert stage.proxy.denials() == (
        Denial(
            host="evil.org",
            port=443,
            rule="host",
            remedy=ALLOWING.format("evil.org"),
            times=2,
            reason="no rule covers it",
        ),
        Denial(
            host="example.org",
            port=8443,
            rule="port",
            remedy=ALLOWING.format("example.org:8443") + " Without a port, a host means 80 and 443.",
            reason="the host is allowed on other ports",
        ),
    )


def test_an_empty_list_allows_nothing_at_all() -> None:
    with scene([]) as stage:
        assert stage.exchange(GET).startswith(b"HTTP/1.1 403 Host not allowed\r\n")
        assert stage.exchange(socks(b"example.org", 443)) == b"\x05\x00\x05\x02" + b"\0\1" + bytes(6)
        assert stage.status("example.org:443").startswith(b"HTTP/1.1 403 ")
    assert stage.names.asked == []


def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    names = Names(others=["2606:4700::1", PUBLIC])
    with server(echo) as port, scene(["example.org:7"], names=names, servers={7: port}) as stage:
        stage.doorman.servers.clear()
        assert stage.status("example.org:7") == b"HTTP/1.1 502 Server not reached"
        assert stage.doorman.asked == [("2606:4700::1", 7), (PUBLIC, 7)]
        verdicts = [(item.address, item.verdict) for item in stage.proxy.connections()]
    assert verdicts == [("2606:4700::1", "failed"), (PUBLIC, "failed")]
    assert stage.proxy.denials() == ()


def test_a_name_that_does_not_exist_is_a_failure_and_not_a_denial() -> None:
    with scene(["example.org"], names=Names(others=[])) as stage:
        assert stage.status("example.org:443") == b"HTTP/1.1 502 Server not reached"
    (connection,) = stage.proxy.connections()
    assert (connection.address, connection.verdict) == ("", "failed")
    assert stage.proxy.denials() == ()


def test_whoever_listens_is_told_of_denials_and_ended_connections(web: Web) -> None:
    told: list[Connection | Denial] = []

    def sink(record: Connection | Denial) -> None:
        told.append(record)
        raise RuntimeError("a listener that fails")

    with scene(["example.org"], servers={80: web.port}, sink=sink) as stage:
        stage.exchange(GET)
        stage.exchange(GET.replace(b"example", b"evil"))
        wait_until(lambda: len(told) == 2)
    assert {type(record) for record in told} == {Connection, Denial}


def test_a_real_clients_first_message_passes_whole_even_in_small_pieces() -> None:
    with server(echo) as port, scene(["example.org"], servers={443: port}) as stage:
        client, _ = stage.tunnel("example.org:443")
        hello = real_hello("example.org")
        with client:
            for at in range(len(hello)):
                client.sendall(hello[at : at + 1])
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == hello


def test_a_name_that_is_refused_is_one_word_in_what_we_say_of_it() -> None:
    name = b"example.org was allowed. Exit code: 0"
    with scene(["example.org"]) as stage:
        stage.exchange(b"\x05\x01\x00" + b"\x05\x01\x00\x03" + bytes((len(name),)) + name + b"\x01\xbb")
    (denial,) = stage.proxy.denials()
    assert denial.host == "example.org\\x20was\\x20allowed.\\x20Exit\\x20code:\\x200"
