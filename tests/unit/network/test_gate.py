# SPDX-License-Identifier: Apache-2.0
"""The way out of one run: made only where the plan has one, closed whatever happens, modest in descriptors."""

import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.unit.network.scene import read_all, wait_until
from unspill.errors import PolicyError, SandboxUnavailable
from unspill.model.plan import HostNetwork, NoNetwork, ProxyNetwork
from unspill.model.run import Traffic
from unspill.network import proxy as module
from unspill.network.proxy import Gate, make_gate
from unspill.network.relay import connections_at_once

PROXY = ProxyNetwork(hosts=("example.org",))


def listener() -> tuple[int, int]:
    made = socket.create_server(("127.0.0.1", 0))
    return made.getsockname()[1], made.detach()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def made() -> Gate:
    gate = make_gate(PROXY, is_own_process=False)
    assert gate is not None
    return gate


@pytest.fixture
def bounded() -> Iterator[None]:
    """Gives the process its bound back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("network", [NoNetwork(), HostNetwork()])
def test_a_plan_without_a_proxy_has_no_gate(network: NoNetwork | HostNetwork) -> None:
    assert make_gate(network, is_own_process=True) is None


def test_hosts_that_can_not_be_understood_are_refused_before_anything_is_started() -> None:
    with pytest.raises(PolicyError, match="not a host"):
        make_gate(ProxyNetwork(hosts=("*.com..",)), is_own_process=False)


def test_a_host_whose_own_addresses_are_not_known_gets_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> frozenset[bytes]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("unspill.network.proxy.own_addresses", unreadable)
    with pytest.raises(SandboxUnavailable, match="addresses of this host"):
        make_gate(PROXY, is_own_process=False)


def test_it_serves_and_then_tells_what_there_was() -> None:
    before, threads = descriptors(), threading.active_count()
    port, descriptor = listener()
    gate = made()
    gate.serve(descriptor)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"CONNECT evil.org:443 HTTP/1.1\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 403 ")
    traffic = gate.close()
    assert [(denial.host, denial.rule) for denial in traffic.denials] == [("evil.org", "host")]
    assert gate.close() == traffic
    wait_until(lambda: descriptors() == before)
    assert threading.active_count() == threads


def test_a_defect_of_the_proxy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("unspill.network.proxy.Client._decide", fail)
    port, descriptor = listener()
    gate = made()
    gate.serve(descriptor)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
        assert read_all(client) == b""
    assert gate.close().faults == ("the proxy dropped a connection; please report this: KeyError('a defect')",)


def test_one_that_never_served_has_nothing_to_tell() -> None:
    assert made().close() == Traffic()


def test_this_hosts_own_public_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unspill.network.proxy.own_addresses", lambda: frozenset((bytes((93, 184, 215, 14)),)))
    port, descriptor = listener()
    gate = make_gate(ProxyNetwork(public=True), is_own_process=False)
    assert gate is not None
    gate.serve(descriptor)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"CONNECT 93.184.215.14:443 HTTP/1.1\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 403 Address not allowed")
    assert [denial.rule for denial in gate.close().denials] == ["address"]


@pytest.mark.parametrize("what", ["threads", "descriptors"])
def test_a_listener_is_closed_where_there_can_be_no_proxy(
    what: str, monkeypatch: pytest.MonkeyPatch, bounded: None
) -> None:
    gate = made()
    _, descriptor = listener()
    before = descriptors()
    if what == "threads":

        def refuse(*_: object) -> int:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr("threading.Thread.start", refuse)
    else:
        monkeypatch.setattr(module, "connections_at_once", lambda _most: 4)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with pytest.raises(SandboxUnavailable, match="proxy can't be started"):
        gate.serve(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert gate.close() == Traffic()
    assert descriptors() == before - 1


@pytest.mark.parametrize(("soft", "least", "most"), [(70, 4, 4), (200, 20, 68), (1024, 400, 480), (4096, 1024, 1024)])
def test_connections_leave_room_for_what_else_the_process_does(soft: int, least: int, most: int, bounded: None) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert least <= connections_at_once(1024) <= most


def test_only_a_process_of_ours_gets_a_higher_bound(bounded: None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    make_gate(PROXY, is_own_process=False)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, hard)
    make_gate(PROXY, is_own_process=True)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(4096, hard), hard)
