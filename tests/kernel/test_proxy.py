# SPDX-License-Identifier: Apache-2.0
"""The egress proxy on real sockets, with real programs: what gets through it and where it connects to."""

import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.network.hellos import real_hello
from tests.unit.network.host_vectors import VECTORS, asking
from tests.unit.network.scene import (
    PUBLIC,
    Names,
    Scene,
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
from unspill.network.proxy import open_connection
from unspill.network.resolve import Endpoint
from unspill.plan.environ import NODE_SCRIPT, proxy_variables
from unspill.policy.hosts import HostRules, pack_address

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


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["168.63.129.16"],
        ["100.100.100.200"],
        ["192.0.0.192"],
        ["::1"],
        ["::ffff:169.254.169.254"],
        ["64:ff9b::a9fe:a9fe"],
        ["fd00:ec2::254"],
        ["2002:7f00:1::"],
        ["fe80::1%eth0"],
        [PUBLIC, "10.0.0.1"],
        ["10.0.0.1", PUBLIC],
        ["2606:4700::1", "::1"],
        [PUBLIC] * 30 + ["127.0.0.1"],
        ["23.23.23.23"],
    ],
)
def test_a_name_with_an_answer_that_is_not_public_is_not_connected_to(answers: list[str]) -> None:
    names = Names({"example.org": answers})
    with scene(["example.org"], names=names, own=frozenset((pack_address("23.23.23.23"),))) as stage:
        assert stage.status("example.org:443").startswith(b"HTTP/1.1 403 Address not allowed")
    assert stage.doorman.asked == []
    assert [denial.rule for denial in stage.proxy.denials()] == ["address"]


def test_a_name_that_changes_between_check_and_use_is_asked_once_only(web: Web) -> None:
    class Rebinding(Names):
        def __call__(self, host: str) -> list[str]:
            self.asked.append(host)
            return [PUBLIC] if len(self.asked) % 2 else ["127.0.0.1"]

    with scene(["example.org"], names=Rebinding(), servers={80: web.port}) as stage:
        first, second = stage.exchange(GET), stage.exchange(GET)
    assert first.endswith(b"hello")
    assert second.startswith(b"HTTP/1.1 403 Address")
    assert stage.doorman.asked == [(PUBLIC, 80)]
    assert len(stage.names.asked) == 2


def test_a_named_endpoint_is_the_only_way_to_loopback(web: Web) -> None:
    names = Names(others=["127.0.0.1"])
    endpoint = Endpoint(address=pack_address("127.0.0.1"), port=web.port)
    request = b"GET http://example.org:%d/ HTTP/1.1\r\n\r\n" % web.port
    rules = [f"example.org:{web.port}"]
    with scene(rules, names=names, connect=open_connection) as stage:
        assert stage.exchange(request).startswith(b"HTTP/1.1 403 Address not allowed")
    with scene(rules, names=names, connect=open_connection, endpoints=frozenset((endpoint,))) as stage:
        assert stage.exchange(request).endswith(b"hello")
    assert len(web.seen) == 1


def test_no_odd_form_of_a_host_passes_in_any_language() -> None:
    rules = HostRules(public=True, public_ports=(80, 443, 8080))
    with scene(rules, names=Names(others=["127.0.0.1"])) as stage:
        for sent in (sent for host in VECTORS for sent in asking(host)):
            with stage.client() as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                read_all(client)
    # One form ends with a port, and is a plain host before it
    assert set(stage.names.asked) <= {"example.org"}
    assert stage.doorman.asked == []


def test_an_address_in_clear_is_allowed_only_by_name_or_for_a_granted_network() -> None:
    for rules, expected in (
        (HostRules(public=True), b"HTTP/1.1 200"),
        (["93.184.215.14"], b"HTTP/1.1 200"),
        (["example.org"], b"HTTP/1.1 403"),
    ):
        with server(echo) as port, scene(rules, servers={443: port}) as stage:
            client, status = stage.tunnel("93.184.215.14:443")
            client.close()
            assert status.startswith(expected)
            assert stage.names.asked == []


@pytest.mark.parametrize("authority", ["127.0.0.1:80", "[::1]:80", "169.254.169.254:80", "[::ffff:10.0.0.1]:443"])
def test_a_granted_network_does_not_reach_what_is_not_public(authority: str) -> None:
    with scene(HostRules(public=True)) as stage:
        assert stage.status(authority).startswith(b"HTTP/1.1 403 Address not allowed")
    assert stage.doorman.asked == []


URLLIB = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode(), end='')"
JAVA = """
public class Get {
    public static void main(String[] args) throws Exception {
        System.out.write(new java.net.URL(args[0]).openStream().readAllBytes());
        System.out.flush();
    }
}
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the servers serve: a file and a repository."""
    top = tmp_path_factory.mktemp("files")
    (top / "hello").write_text("hello\n")
    work = top / "work"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", os.fspath(work)]
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / "file").write_text("content\n")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", work, top / "repo.git"], check=True)
    subprocess.run(["git", "-C", top / "repo.git", "update-server-info"], check=True)
    return top


@pytest.fixture(scope="module")
def servers(files: Path, certificate: Path) -> Iterator[dict[int, int]]:
    """Web servers of this process, by the port that they stand for."""
    plain = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=os.fspath(files)))
    secure = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=os.fspath(files)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    for site in (plain, secure):
        site.daemon_threads = True
        threading.Thread(target=site.serve_forever, args=(0.05,), daemon=True).start()
    yield {80: int(plain.server_address[1]), 443: int(secure.server_address[1])}
    for site in (plain, secure):
        site.shutdown()
        site.server_close()


def run(stage: Scene, certificate: Path, home: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    (home / "node.cjs").write_bytes(NODE_SCRIPT)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(home),
        "LANG": "C.UTF-8",
        "CURL_CA_BUNDLE": os.fspath(certificate),
        "GIT_SSL_CAINFO": os.fspath(certificate),
        "SSL_CERT_FILE": os.fspath(certificate),
        "GIT_TERMINAL_PROMPT": "0",
        "NODE_EXTRA_CA_CERTS": os.fspath(certificate),
        **proxy_variables(stage.port, node_script=os.fspath(home / "node.cjs")),
    }
    return subprocess.run(argv, env=environ, cwd=home, capture_output=True, text=True, timeout=50, check=False)


FETCH = """
fetch(process.argv[1]).then((answer) => {
  if (!answer.ok) throw new Error(answer.status);
  return answer.text();
}).then((text) => process.stdout.write(text)).catch((error) => { console.error(error); process.exit(1); });
"""
MODULES = """
const url = process.argv[1];
require(url.split(':')[0]).get(url, (answer) => {
  if (answer.statusCode !== 200) { console.error(answer.statusCode); process.exit(1); }
  answer.pipe(process.stdout);
}).on('error', (error) => { console.error(error); process.exit(1); });
"""
CLIENTS = {
    "curl": ("curl", "-sSf"),
    "node's fetch": ("node", "-e", FETCH),
    "node's modules": ("node", "-e", MODULES),
    "python": ("python3", "-c", URLLIB),
}


@pytest.mark.parametrize("url", ["http://example.org/hello", "https://example.org/hello"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_what_is_allowed_and_is_told_what_is_not(
    client: str, url: str, servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    with scene(["example.org"], servers=servers) as stage:
        found = run(stage, certificate, tmp_path, *CLIENTS[client], url)
        refused = run(stage, certificate, tmp_path, *CLIENTS[client], url.replace("example.org", "www.example.org"))
    assert (found.returncode, found.stdout) == (0, "hello\n"), found.stderr
    assert refused.returncode != 0
    assert "403" in refused.stderr
    assert [(denial.host, denial.rule) for denial in stage.proxy.denials()] == [("www.example.org", "host")]


@pytest.mark.parametrize("option", ["--socks5-hostname", "--proxytunnel"])
def test_curl_can_use_socks_and_tunnels_to_a_web_server(
    option: str, servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    with scene(["example.org"], servers=servers) as stage:
        how = (option, f"127.0.0.1:{stage.port}") if option.startswith("--socks") else (option,)
        for url in ("http://example.org/hello", "https://example.org/hello"):
            found = run(stage, certificate, tmp_path, "curl", "-sSf", *how, url)
            assert (found.returncode, found.stdout) == (0, "hello\n"), found.stderr


def test_curl_that_connects_to_one_host_and_asks_tls_for_another_is_refused(
    servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    fronting = ("--connect-to", "www.example.org:443:example.org:443", "https://www.example.org/hello")
    with scene(["example.org"], servers=servers) as stage:
        refused = run(stage, certificate, tmp_path, "curl", "-sSf", *fronting)
    assert refused.returncode != 0
    assert [denial.rule for denial in stage.proxy.denials()] == ["server name"]
    with scene(["example.org", "www.example.org"], servers=servers) as stage:
        allowed = run(stage, certificate, tmp_path, "curl", "-sSf", "https://www.example.org/hello")
    assert allowed.stdout == "hello\n"


def test_git_clones_over_https_from_an_allowed_host_only(
    servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    with scene(["example.org"], servers=servers) as stage:
        cloned = run(stage, certificate, tmp_path, "git", "clone", "-q", "https://example.org/repo.git", "copy")
        refused = run(stage, certificate, tmp_path, "git", "clone", "-q", "https://evil.org/repo.git", "other")
    assert cloned.returncode == 0, cloned.stderr
    assert (tmp_path / "copy" / "file").read_text() == "content\n"
    assert refused.returncode != 0
    assert "403" in refused.stderr


def test_the_jvm_takes_its_proxy_from_our_variable(servers: dict[int, int], certificate: Path, tmp_path: Path) -> None:
    (tmp_path / "Get.java").write_text(JAVA)
    with scene(["example.org"], servers=servers) as stage:
        found = run(stage, certificate, tmp_path, "java", "Get.java", "http://example.org/hello")
        refused = run(stage, certificate, tmp_path, "java", "Get.java", "http://evil.org/hello")
    assert found.stdout == "hello\n", found.stderr
    assert refused.returncode != 0
    assert "403" in refused.stderr


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_on_loopback_is_reached_directly(
    client: str, servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    with scene([]) as stage:
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{servers[80]}/hello"
            found = run(stage, certificate, tmp_path, *CLIENTS[client], url)
            assert (found.returncode, found.stdout) == (0, "hello\n"), found.stderr
    assert stage.proxy.denials() == ()
