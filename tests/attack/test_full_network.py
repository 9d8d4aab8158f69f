# SPDX-License-Identifier: Apache-2.0
"""A command with full IP networking by pasta looks for a way to the host and its neighbours.

The internet is the test's own; each control is the same probe in a run from which one defence was taken away.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from tests.kernel.internet import Internet, internet
from tests.kernel.internet_program import HOST4, HOST6, METADATA, METADATA6, NAT64, PRIVATE
from unspill.model.full_network import BEYOND

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.timeout(300)]

PROBE: Final = """
import json, socket

def reaches(address, interface):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as client:
        client.settimeout(3)
        if interface: client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface)
        try:
            client.connect((address, 80))
            client.sendall(b"GET /hello HTTP/1.0\\r\\n\\r\\n")
            return "hello" in client.makefile().read()
        except OSError:
            return False

print(json.dumps([reaches(address, interface) for address, interface in WAYS]))
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    """An internet and a caller in it."""
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        yield made


def reached(net: Internet, ways: list[tuple[str, bytes]], *taken: str) -> list[bool]:
    """Try addresses, by an interface where one is named, in a run without the defences that are taken away."""
    (net.project / "probe.py").write_text(PROBE.replace("WAYS", repr(ways)))
    done = net.program("tests.kernel.pasta_caller", net.bwrap.decode(), "reach", *taken)
    assert done.returncode == 0, done.stderr
    told: list[bool] = json.loads(done.stdout)
    return told


def test_d10_the_gateway_of_pasta_does_not_lead_to_the_loopback_of_the_host(net: Internet) -> None:
    """Connect to the address of pasta's gateway, behind which it shows the host's own loopback by default.
    Control: without `--no-map-gw` and without the closed networks the server on the host answers."""
    ways = [(BEYOND[4], b"")]
    assert reached(net, ways) == [False]
    assert reached(net, ways, "filter", "no-map-gw") == [True]


def test_d10_neither_the_host_nor_its_neighbours_nor_metadata_are_reached(net: Internet) -> None:
    """Connect to the host's own addresses, a private one, the metadata services and an address of NAT64.
    Control: without the closed networks all of them answer."""
    ways = [(address, b"") for address in (HOST4, HOST6, PRIVATE, METADATA, METADATA6, NAT64)]
    assert not any(reached(net, ways))
    # Where the machine is busy, one of six connections may take longer than the caller waits
    assert any(all(reached(net, ways, "filter")) for _ in range(3))


def test_d10_a_socket_that_is_bound_to_the_interface_gets_no_further(net: Internet) -> None:
    """Bind a socket to the interface, so that it takes no notice of the routes of its own namespace.
    Control: where the networks are closed by routes of the sandbox itself a private address answers."""
    ways = [(PRIVATE, b"net0")]
    assert reached(net, ways) == [False]
    assert reached(net, ways, "between") == [True]
