# SPDX-License-Identifier: Apache-2.0
"""Where the egress proxy connects to: checked addresses only, whatever a name says or a request is spelled like."""

import socket
from collections.abc import Iterator

import pytest

from tests.unit.network.host_vectors import VECTORS, asking
from tests.unit.network.scene import PUBLIC, Names, echo, read_all, scene, server
from tests.unit.network.web import Web
from unspill.network.proxy import open_connection
from unspill.network.resolve import Endpoint
from unspill.policy.hosts import HostRules, pack_address

pytestmark = pytest.mark.kernel

GET = b"GET http://example.org/x HTTP/1.1\r\nHost: example.org\r\n\r\n"


@pytest.fixture
def web() -> Iterator[Web]:
    """A plain web server."""
    site = Web()
    yield site
    site.close()


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
