# SPDX-License-Identifier: Apache-2.0
"""What a hostile command tries with a real proxy: to be led elsewhere, to say more than one thing, to take too much.

Every address that nobody may reach has a server that the caller itself does reach: that is the control arm.
"""

import json
import random
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.internet import Internet, internet
from tests.kernel.internet_program import (
    FORBIDDEN,
    LITERAL,
    METADATA,
    NAMES,
    NAMESERVER,
    PRIVATE,
    PUBLIC4,
    PUBLIC6,
    REBOUND,
    REBOUND_INWARD,
)
from tests.kernel.leftovers import within
from tests.kernel.test_proxy_bounds import JUDGED, RULES, made_up
from tests.unit.network.host_vectors import VECTORS, asking
from unspill import RunResult

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]

# Names of the allowed domain that lead to where nobody may go
LED_ASTRAY = [
    name
    for name in NAMES
    if name.endswith(".example.org")
    and name.split(".")[0].rstrip("6")
    in ("private", "mixed", "metadata", "azure", "alibaba", "nat64", "mapped", "loopback", "any", "own")
]
LITERALS = ["169.254.169.254", "10.1.2.3", "127.0.0.1", "0.0.0.0", "[::1]", "[fd00:ec2::254]", "[::ffff:10.1.2.3]",
            "[64:ff9b::a9fe:a9fe]", "168.63.129.16", "100.100.100.200", "50.0.0.2", "[2a00:50::2]"]  # fmt: skip

# A client that speaks to the proxy itself, byte by byte; the lines are conversations, the answers are printed
TALK = textwrap.dedent("""
    import json, socket, ssl, sys
    for sent, then in json.load(open(sys.argv[1])):
        with socket.create_connection(("127.0.0.1", 62080), timeout=10) as proxy:
            heard = b""
            try:
                proxy.sendall(sent.encode("latin-1"))
                heard = proxy.recv(65536)
                if then:
                    proxy.sendall(then.encode("latin-1"))
                    proxy.shutdown(socket.SHUT_WR)
                while chunk := proxy.recv(65536):
                    heard += chunk
            except OSError as error:
                heard += repr(error).encode()
            print(heard.decode("latin-1").split("\\r\\n")[0])
""")


# Sends what is in a file, one connection each
FUZZ = textwrap.dedent("""
    import socket, sys
    with open(sys.argv[1], "rb") as file:
        while size := file.read(4):
            with socket.create_connection(("127.0.0.1", 62080), timeout=15) as proxy:
                try:
                    proxy.sendall(file.read(int.from_bytes(size)))
                    proxy.shutdown(socket.SHUT_WR)
                    while proxy.recv(65536):
                        pass
                except OSError:
                    continue
""")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    """An internet, and a project with a client of our own in it."""
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        (made.project / "talk.py").write_text(TALK)
        (made.project / "fuzz.py").write_text(FUZZ)
        yield made


@pytest.fixture(autouse=True)
def nothing_met(net: Internet) -> None:
    """Forget what earlier tests did."""
    net.met()
    net.asked()


def talk(net: Internet, *conversations: tuple[str, str], hosts: tuple[str, ...], **options: Any) -> RunResult:
    (net.project / "said.json").write_text(json.dumps(conversations))
    return net.run("python3 talk.py said.json", *hosts, **options)


def get_each(urls: list[str]) -> str:
    return (
        "\n".join(f"curl -sS -m 5 --noproxy '' -o /dev/null -w '%{{http_code}}\\n' '{url}'" for url in urls) + "\ntrue"
    )


def rules(result: RunResult) -> dict[str, str]:
    return {denial.host: denial.rule for denial in result.denials}


@pytest.mark.parametrize("address", FORBIDDEN)
def test_the_caller_itself_reaches_what_no_command_may(address: str, net: Internet) -> None:
    assert net.reach(address)
    # The kernel accepts a connection before the server writes it down: not into the book of the next test
    assert within(5, lambda: bool(net.met()))


@pytest.mark.bwrap
def test_names_that_lead_to_forbidden_addresses_are_refused(net: Internet) -> None:
    result = net.run(get_each([f"http://{name}/hello" for name in LED_ASTRAY]), "*.example.org")
    assert rules(result) == dict.fromkeys(LED_ASTRAY, "address"), result.text()
    assert all("Its address is not public (" in denial.remedy for denial in result.denials)
    assert set(result.stdout.kept().split()) == {b"403"}
    assert (result.connections, net.met()) == ((), [])
    assert set(net.asked()) == set(LED_ASTRAY)


def test_a_host_that_is_named_as_private_may_have_a_private_address_and_nothing_else(net: Internet) -> None:
    named = {"private_hosts": ("*.example.org", "mirror.lan", "nexus", "trap.lan", PRIVATE)}
    good = ["private.example.org", "mixed.example.org", "mirror.lan", "nexus", PRIVATE]
    bad = [name for name in (*LED_ASTRAY, "trap.lan") if name not in good]
    result = net.run(get_each([f"http://{name}/hello" for name in (*good, *bad)]), bounds=named)
    assert rules(result) == dict.fromkeys(bad, "address"), result.text()
    assert result.stdout.kept().split() == [b"200"] * len(good) + [b"403"] * len(bad)
    # The control arm: without the setting none of them is reached
    assert {address for address, _port in net.met()} == {PRIVATE, PUBLIC4}
    result = net.run(get_each([f"http://{name}/hello" for name in good]), "*.example.org")
    assert set(rules(result).values()) == {"address", "form"}
    assert all("`private_hosts`" in denial.remedy for denial in result.denials)
    assert (set(result.stdout.kept().split()), net.met()) == ({b"403", b"400"}, [])


def test_a_private_name_that_is_rebound_to_this_machine_is_refused(net: Internet) -> None:
    get = get_each([f"http://{REBOUND_INWARD}/hello"])
    first, second = (net.run(get, bounds={"private_hosts": (REBOUND_INWARD,)}) for _ in range(2))
    assert (first.stdout.kept(), second.stdout.kept()) == (b"200\n", b"403\n")
    assert rules(second) == {REBOUND_INWARD: "address"}
    assert [address for address, _port in net.met()] == [PRIVATE]


@pytest.mark.bwrap
def test_forbidden_addresses_are_refused_even_if_they_are_on_the_list(net: Internet) -> None:
    result = net.run(get_each([f"http://{address}/hello" for address in LITERALS]), *LITERALS)
    assert rules(result) == {address.strip("[]"): "address" for address in LITERALS}, result.text()
    assert (result.connections, net.met(), net.asked()) == ((), [], [])


def test_a_name_that_is_rebound_after_its_first_answer_is_refused(net: Internet) -> None:
    result = net.run(get_each([f"http://{REBOUND}/hello"] * 3), "*.example.org")
    assert result.stdout.kept().split() == [b"200", b"403", b"403"], result.text()
    assert [(made.address, made.verdict) for made in result.connections] == [(PUBLIC4, "allowed")]
    assert rules(result) == {REBOUND: "address"}
    assert {address for address, _ in net.met()} == {PUBLIC4}


@pytest.mark.bwrap
def test_there_is_no_name_service_inside(net: Internet) -> None:
    ask = (
        "getent ahosts example.org; "
        f"python3 -c 'import socket; socket.socket(2, 2).sendto(bytes(20), (\"{NAMESERVER}\", 53))' 2>&1 | tail -1; "
        f"python3 -c 'import socket; socket.create_connection((\"{PUBLIC4}\", 80), 3)' 2>&1 | tail -1; "
        "ls /sys/class/net 2>/dev/null; cat /proc/net/route | wc -l"
    )
    result = net.run(ask, "example.org")
    unreachable = b"OSError: [Errno 101] Network is unreachable\n"
    assert result.stdout.kept() == 2 * unreachable + b"1\n", result.text()
    assert (net.met(), net.asked()) == ([], [])


def test_ports_that_nobody_named_are_refused(net: Internet) -> None:
    tunnels = [(f"CONNECT example.org:{port} HTTP/1.1\r\n\r\n", "") for port in (25, 22, 8443, 53, 62080)]
    result = talk(net, *tunnels, hosts=("example.org",))
    assert {(denial.port, denial.rule) for denial in result.denials} == {
        (port, "port") for port in (25, 22, 8443, 53, 62080)
    }
    assert (net.met(), net.asked()) == ([], [])
    named = net.run("curl -sSf https://example.org:8443/hello", "example.org:8443")
    assert named.stdout.kept() == b"hello\n", named.text()


SMUGGLED = {
    "another Host": "GET http://example.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n",
    "two Hosts": "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\nHost: evil.org\r\n\r\n",
    "length and chunks": "POST http://example.org/ HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two lengths": "POST http://example.org/ HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
    "a bare line feed": "GET http://example.org/ HTTP/1.1\nHost: evil.org\r\n\r\n",
    "a folded field": "GET http://example.org/ HTTP/1.1\r\nX: y\r\n Host: evil.org\r\n\r\n",
    "a NUL in the name": "CONNECT evil.org\0.example.org:443 HTTP/1.1\r\n\r\n",
    "somebody before an at sign": "CONNECT example.org@evil.org:443 HTTP/1.1\r\n\r\n",
    "a number for a name": "CONNECT 2852039166:80 HTTP/1.1\r\n\r\n",
    "a zone": "CONNECT [fe80::1%25out0]:80 HTTP/1.1\r\n\r\n",
    "a NUL in SOCKS": "\5\1\0\5\1\0\3\x14evil.org\0.example.org\x01\xbb",
}  # fmt: skip


@pytest.mark.parametrize("how", SMUGGLED)
def test_what_two_parsers_could_read_differently_is_refused(how: str, net: Internet) -> None:
    result = talk(net, (SMUGGLED[how], ""), hosts=("example.org",))
    (denial,) = result.denials
    assert denial.rule in ("form", "request"), denial
    assert (result.connections, net.met(), net.asked()) == ((), [], [])


def test_no_odd_form_of_a_host_passes_in_any_language(net: Internet) -> None:
    said = [(sent.decode("latin-1"), "") for host in VECTORS for sent in asking(host)]
    result = talk(net, *said, hosts=("example.org", "*.example.org"), network=True)
    assert result.ok
    assert len(result.stdout.kept().splitlines()) == len(said) > 1000
    # One form ends with a port, and is a plain host before it
    assert {made.host for made in result.connections} <= {"example.org"}
    assert {address for address, _ in net.met()} <= {PUBLIC4, PUBLIC6}
    assert set(net.asked()) <= {"example.org"}
    record_figure(
        "proxy: odd forms of hosts that pass",
        f"0 of {len(VECTORS)}",
        f"{len(said):,} requests in a real run with a granted network: CONNECT, absolute URIs, SOCKS5",
    )


@pytest.mark.timeout(1800)
def test_made_up_requests_reach_only_what_is_allowed(net: Internet, full: bool) -> None:
    count, seed = (100_000, random.randrange(1 << 32)) if full else (1_500, 4)
    chance = random.Random(seed)
    said = [made_up(chance) for _ in range(count)]
    (net.project / "said").write_bytes(b"".join(len(sent).to_bytes(4) + sent for sent in said))
    result = net.run("python3 fuzz.py said", *RULES, timeout=1500.0)
    assert not [warning for warning in result.warnings if "please report this" in warning]
    met = net.met()
    # It says something only if much was allowed as well
    assert len(met) > count / 50
    assert {address for address, _ in met} <= {PUBLIC4, PUBLIC6, LITERAL}, f"seed {seed}"
    assert {port for _, port in met} <= {80, 443, 8443}
    assert not set(net.asked()) & {"evil.org", "evilexample.org", "example.net", "localhost"}
    assert all(JUDGED.fullmatch(made.place) or made.host == LITERAL for made in result.connections)
    record_figure(
        "proxy: forbidden connections, in a real run",
        f"0 of {count:,}",
        f"made-up hosts and requests, {len(met):,} connections to real servers, seed {seed}",
    )


def test_a_second_request_does_not_ride_along_with_the_first(net: Internet) -> None:
    second = "GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n"
    result = talk(net, ("GET http://example.org/hello HTTP/1.1\r\n\r\n" + second, ""), hosts=("example.org",))
    assert result.stdout.kept().startswith(b"HTTP/1.1 200 ")
    assert [made.host for made in result.connections] == ["example.org"]
    assert {port for _, port in net.met()} == {80}


@pytest.mark.parametrize("tunnel", ["CONNECT example.org:80 HTTP/1.1\r\n\r\n", "\5\1\0\5\1\0\3\x0bexample.org\0\x50"])
def test_a_connect_is_not_relayed_through_a_tunnel(tunnel: str, net: Internet) -> None:
    result = talk(net, (tunnel, "CONNECT evil.org:443 HTTP/1.1\r\n\r\n"), hosts=("example.org",))
    assert [(denial.host, denial.rule) for denial in result.denials] == [("example.org", "request")], result.text()
    assert [(made.verdict, made.up) for made in result.connections] == [("denied", 0)]


def test_tls_that_asks_for_another_server_is_refused(net: Internet) -> None:
    fronting = "curl -sSf --connect-to evil.org:443:example.org:443 -k https://evil.org/hello"
    result = net.run(fronting, "example.org")
    assert not result.ok
    assert rules(result) == {"example.org": "server name"}
    assert [(made.host, made.verdict, made.up) for made in result.connections] == [("example.org", "denied", 0)]
    control = net.run("curl -sSf -k https://evil.org/hello", "evil.org")
    assert control.stdout.kept() == b"hello\n"


def test_port_443_is_for_tls_only(net: Internet) -> None:
    tunnel = "CONNECT example.org:443 HTTP/1.1\r\n\r\n"
    result = talk(net, (tunnel, "SSH-2.0-client\r\n"), (tunnel, "GET / HTTP/1.1\r\n\r\n"), hosts=("example.org",))
    assert rules(result) == {"example.org": "server name"}
    assert {(made.verdict, made.up) for made in result.connections} == {("denied", 0)}


@pytest.mark.parametrize("bound", ["up_bytes", "down_bytes"])
def test_a_run_has_a_budget_of_bytes(bound: str, net: Internet) -> None:
    (net.project / "large").write_bytes(bytes(1_000_000))
    command = {
        "up_bytes": "curl -sS -m 20 -T large -X POST http://example.org/",
        "down_bytes": "curl -sS -m 20 -o got http://example.org/bytes/1000000; wc -c <got",
    }[bound]
    result = net.run(command, "example.org", bounds={bound: 200_000})
    assert rules(result) == {"example.org": "budget"}, result.text()
    assert result.denials[0].remedy == (
        f"`{bound} = 200000` is used up. Raise it under `[network]` in the configuration."
    )
    (made,) = result.connections
    assert made.verdict == "cut"
    assert getattr(made, bound.removesuffix("_bytes")) <= 200_000
    again = net.run(f"{command}; {command}; {command}", "example.org", bounds={bound: 200_000})
    assert sum(getattr(made, bound.removesuffix("_bytes")) for made in again.connections) <= 200_000
    assert again.denials[0].times == 3, again.text()
    free = net.run(command, "example.org")
    assert free.denials == (), free.text()


@pytest.mark.bwrap
def test_a_granted_network_reaches_any_public_host_and_nothing_else(net: Internet) -> None:
    urls = ["https://evil.org/hello -k", "http://93.184.215.14/hello", f"http://{PRIVATE}/", f"http://{METADATA}/",
            "http://private.example.org/", "http://example.org:25/", "http://printer.local/"]  # fmt: skip
    script = "\n".join(f"curl -sS -m 5 -o /dev/null -w '%{{http_code}}\\n' {url}" for url in urls) + "\ntrue"
    result = net.run(script, network=True)
    assert {made.host for made in result.connections} == {"evil.org", "93.184.215.14"}, result.text()
    assert rules(result) == {
        PRIVATE: "address", METADATA: "address", "private.example.org": "address", "example.org": "port",
        "http://printer.local/": "form",
    }  # fmt: skip
    assert {address for address, _ in net.met()} == {PUBLIC4, "93.184.215.66"}
