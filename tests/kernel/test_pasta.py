# SPDX-License-Identifier: Apache-2.0
"""Full IP networking by way of a real pasta: public addresses are reached by any protocol, nothing else is.

The internet is the test's own. What can't be reached is reached when the one defence against it is taken away.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernel.internet import Internet, internet
from tests.kernel.internet_program import (
    CARRIER,
    FORBIDDEN,
    HOST4,
    HOST6,
    METADATA,
    METADATA6,
    METADATA_OTHER,
    NAMESERVER,
    NAT64,
    OTHER4,
    PRIVATE,
    PUBLIC4,
    PUBLIC6,
)
from unspill.model.full_network import BETWEEN, BEYOND, RESOLVER

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]

PUBLIC = (PUBLIC4, PUBLIC6, OTHER4, NAMESERVER)
LINK = (BETWEEN[4], BETWEEN[6], BEYOND[4], BEYOND[6], RESOLVER[4], RESOLVER[6])
CLOSED = (*FORBIDDEN, *LINK)
# Every way that a program without privileges has to connect: plainly, or past its own routes
PROBE = """
import json, socket
from concurrent.futures import ThreadPoolExecutor

def hello(way):
    address, bound = way
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as client:
        client.settimeout(5)
        if bound:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"net0")
        try:
            client.connect((address, 80))
            client.sendall(b"GET /hello HTTP/1.0\\r\\n\\r\\n")
            return "hello" in client.makefile().read()
        except OSError:
            return False

ways = [(address, bound) for address in ADDRESSES for bound in (False, True)]
with ThreadPoolExecutor(len(ways)) as pool:
    reached = dict(zip(ways, pool.map(hello, ways)))
print(json.dumps({address: [reached[address, False], reached[address, True]] for address in ADDRESSES}))
"""
ADD_ADDRESS = """
import socket, struct
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, 1) + struct.pack("=HH4B", 8, 2, 10, 1, 2, 3)
link.send(struct.pack("=IHHII", 16 + len(body), 20, 0x605, 1, 0) + body)
print(-struct.unpack_from("=i", link.recv(4096), 16)[0])
"""
ASK = """
import socket, sys
ask = bytes.fromhex("123401000001000000000000076578616d706c65036f72670000010001")
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(5)
client.sendto(ask, (sys.argv[1], 53))
print(socket.inet_ntoa(client.recv(512)[-4:]))
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    """An internet and a caller in it."""
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        yield made


def call(net: Internet, duty: str, *taken: str) -> Any:
    done = net.program("tests.kernel.pasta_caller", net.bwrap.decode(), duty, *taken)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def probe(net: Internet, addresses: tuple[str, ...], *taken: str) -> dict[str, list[bool]]:
    """Return for each address whether it was reached, plainly and by a socket that is bound to the interface."""
    (net.project / "probe.py").write_text(PROBE.replace("ADDRESSES", repr(addresses)))
    reached = call(net, "reach", *taken)
    assert isinstance(reached, dict)
    return reached


def output(net: Internet, command: str) -> str:
    (net.project / "script").write_text("".join(f"export {name}='{value}'\n" for name, value in net.trust().items()))
    with (net.project / "script").open("a") as script:
        script.write(command)
    return str(call(net, "output"))


def test_public_servers_are_reached_by_tcp_under_both_versions_of_ip(net: Internet) -> None:
    assert probe(net, PUBLIC) == {address: [True, True] for address in PUBLIC}


def test_a_public_server_is_reached_by_udp(net: Internet) -> None:
    (net.project / "ask.py").write_text(ASK)
    assert output(net, f"python3 ask.py {NAMESERVER}") == f"{PUBLIC4}\n"


def test_names_are_resolved_by_the_resolver_of_the_host_at_an_address_of_the_link(net: Internet) -> None:
    net.asked()
    assert "hello" in output(net, "curl -sSf https://example.org/hello")
    assert net.asked() == ["example.org"]
    assert output(net, "cat /etc/resolv.conf") == f"nameserver {RESOLVER[4]}\n"


def test_tools_that_know_no_proxy_work(net: Internet) -> None:
    assert output(net, "git clone -q https://example.org/repo.git copy && cat copy/file") == "content\n"
    assert "proxy" not in output(net, "env").lower()


def test_neither_this_host_nor_a_private_address_nor_our_own_link_is_reached(net: Internet) -> None:
    net.met()
    assert probe(net, CLOSED) == {address: [False, False] for address in CLOSED}
    assert net.met() == []


def test_without_the_closed_networks_all_of_them_are_reached(net: Internet) -> None:
    reached = (PRIVATE, METADATA, METADATA6, NAT64, METADATA_OTHER, CARRIER, HOST4, HOST6)
    found = probe(net, reached, "filter")
    assert found == {address: [True, True] for address in reached}


def test_without_the_closed_networks_pasta_still_leads_nobody_to_the_loopback_of_the_host(net: Internet) -> None:
    assert probe(net, LINK, "filter") == {address: [False, False] for address in LINK}


def test_without_either_the_gateway_of_pasta_is_the_loopback_of_the_host(net: Internet) -> None:
    assert probe(net, (BEYOND[4],), "filter", "no-map-gw") == {BEYOND[4]: [True, True]}


def test_routes_of_the_sandbox_itself_would_not_hold_who_binds_to_the_interface(net: Internet) -> None:
    assert probe(net, (PRIVATE,), "between") == {PRIVATE: [False, True]}


def test_the_command_can_not_change_its_interface(net: Internet) -> None:
    (net.project / "add.py").write_text(ADD_ADDRESS)
    assert output(net, "python3 add.py") == "1\n"
    control = ["unshare", "-Urn", sys.executable, str(net.project / "add.py")]
    assert subprocess.run(control, capture_output=True, text=True, check=True).stdout == "0\n"


def test_pasta_ends_with_the_run(net: Internet) -> None:
    assert call(net, "live") == [[1], 0]


def test_a_killed_spawner_leaves_no_pasta(net: Internet) -> None:
    said, watched, alive = call(net, "kill")
    assert "killed" in said
    assert (watched, alive) == (1, 0)


def test_a_pasta_that_gives_up_is_a_run_that_never_started(net: Internet) -> None:
    outcome, printed, alive = call(net, "fail")
    assert "NeverStarted" in outcome
    assert "pasta gave up" in outcome
    assert (printed, alive) == ("", 0)


def test_no_datagram_gets_to_a_private_address(net: Internet) -> None:
    (net.project / "ask.py").write_text(ASK)
    assert "No route to host" in output(net, f"python3 ask.py {PRIVATE} 2>&1 || true")
