# SPDX-License-Identifier: Apache-2.0
"""The life of a proxy: it begins and ends with its run, belongs to it alone, and leaves nothing in its caller."""

import time
from collections.abc import Iterator

import pytest

from tests.kernel.internet import Internet, internet
from tests.unit.network.scene import wait_until
from unspill import Exited, TimedOut

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]

HELLO = "curl -sSf https://example.org/hello"
# Opens connections through the proxy and holds them: how many of them were granted is printed
HOLD = """
import select, socket, sys, time
wanted, seconds = int(sys.argv[1]), float(sys.argv[2])
held = []
for _ in range(wanted):
    client = socket.create_connection(("127.0.0.1", 62080), timeout=10)
    client.sendall(b"CONNECT example.org:443 HTTP/1.1\\r\\n\\r\\n")
    held.append(client)
time.sleep(seconds)
granted = [c for c in held if select.select([c], [], [], 0)[0] and c.recv(99).startswith(b"HTTP/1.1 200")]
print(len(granted))
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    """An internet whose caller has run something before."""
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        (made.project / "hold.py").write_text(HOLD)
        made.run(HELLO, "example.org")
        yield made


def test_nothing_of_a_proxy_is_left_in_its_caller(net: Internet) -> None:
    before = net.ask("count")
    for command in (HELLO, "curl -sSf https://evil.org/", "true", "exit 3", "/nonexistent", "python3 hold.py 20 0"):
        net.run(command, "example.org")
    net.run(["/nonexistent"], "example.org")
    net.run("sleep 60", "example.org", timeout=0.3)
    wait_until(lambda: net.ask("count") == before)


@pytest.mark.bwrap
def test_a_run_that_never_started_leaves_no_proxy(net: Internet) -> None:
    before = net.ask("count")
    with pytest.raises(Exception, match="nowhere"):
        net.run("true", "example.org", working_dir="nowhere")
    wait_until(lambda: net.ask("count") == before)


@pytest.mark.bwrap
def test_connections_of_a_run_that_is_out_of_time_end_with_it(net: Internet) -> None:
    result = net.run("python3 hold.py 5 60", "example.org", timeout=4.0)
    assert result.outcome == TimedOut(after_s=4.0)
    assert [made.host for made in result.connections] == ["example.org"] * 5
    assert all(made.ended_ns for made in result.connections)


def test_a_cancelled_run_leaves_no_proxy(net: Internet) -> None:
    before = net.ask("count")
    for seconds in (0.0, 0.02, 0.05, 0.2):
        assert net.ask("run_and_cancel", "python3 hold.py 5 60", net.settings("example.org"), seconds)
    wait_until(lambda: net.ask("count") == before)


def test_each_sandbox_has_a_proxy_of_its_own(net: Internet) -> None:
    hosts = ("example.org", "www.example.org", "pip.example.org", "npm.example.org")
    script = "\n".join(f"curl -sS -o /dev/null -w '%{{http_code}} ' https://{host}/hello" for host in hosts) + "\ntrue"
    results = net.ask("run_all", [net.job(script, host) for host in hosts])
    for host, result in zip(hosts, results, strict=True):
        assert result.outcome == Exited(code=0)
        assert [made.host for made in result.connections] == [host], result.text()
        assert sorted(denial.host for denial in result.denials) == sorted(set(hosts) - {host})


@pytest.mark.bwrap
def test_nobody_else_reaches_the_proxy_of_a_run(net: Internet) -> None:
    """The caller's own loopback has no such port, and a sandbox without hosts has no listener on its own."""
    jobs = [
        net.job("sleep 2", "example.org"),
        net.job("sleep 0.5; curl -sS -x http://127.0.0.1:62080 https://example.org/hello"),
    ]
    with_proxy, without = net.ask("run_all", jobs)
    assert with_proxy.ok
    assert b"Failed to connect to 127.0.0.1 port 62080" in without.stderr.kept()
    assert (with_proxy.connections, with_proxy.denials) == ((), ())
    assert not net.reach("127.0.0.1", 62080)


def test_a_caller_with_few_descriptors_serves_fewer_at_once_and_goes_on(net: Internet) -> None:
    free = net.ask("count")[1]
    net.ask("limit", free + 100)
    try:
        spent = net.ask("used")
        begun = time.monotonic()
        result = net.run("python3 hold.py 200 4; curl -sSf https://example.org/hello", "example.org")
        spent = net.ask("used") - spent
    finally:
        net.ask("limit", 1024)
    first, last = result.stdout.kept().split()
    assert 4 <= int(first) < 50, result.text()
    assert last == b"hello"
    assert spent < (time.monotonic() - begun) / 2, "the proxy must not spin"


def test_a_caller_without_descriptors_fails_and_says_so(net: Internet) -> None:
    before = net.ask("count")
    failures = set()
    for room in range(2, 26):
        net.ask("limit", before[1] + room)
        try:
            result = net.run("true", "example.org")
            failures.add(type(result.outcome).__name__)
        except Exception as error:
            failures.add(type(error).__name__)
        finally:
            net.ask("limit", 1024)
    said = {"SandboxUnavailable", "NeverStarted", "Exited", "OSError", "StoreUnavailable", "RootfsError"}
    assert failures <= said, failures
    wait_until(lambda: net.ask("count") == before)
    assert net.run(HELLO, "example.org").ok


def test_a_server_that_does_not_answer_holds_nobody_up(net: Internet) -> None:
    silent = "curl -sS -m 2 https://silent.example.org/"
    result = net.run(f"{silent} & {HELLO}; wait", "*.example.org", "example.org")
    assert b"hello\n" in result.stdout.kept(), result.text()
    assert {(made.host, made.verdict) for made in result.connections} == {
        ("example.org", "allowed"), ("silent.example.org", "failed"),
    }  # fmt: skip
