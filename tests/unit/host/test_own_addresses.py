# SPDX-License-Identifier: Apache-2.0
"""The kernel's lists of this host's addresses: read whole, or not at all."""

import socket
import subprocess
from pathlib import Path

import pytest

from unspill.host import places as module
from unspill.host.places import own_addresses, parse_fib_trie, parse_if_inet6

TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 50.0.0.0/24 2 0 2
        |-- 50.0.0.0
           /24 link UNICAST
        |-- 50.0.0.2
           /32 host LOCAL
        |-- 50.0.0.255
           /32 link BROADCAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
"""
INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
2a000050000000000000000000000002 02 40 00 80     out0
fe800000000000000000000000000001 02 40 20 80     out0
"""


def test_local_addresses_are_found_among_routes_and_broadcasts() -> None:
    assert parse_fib_trie(TRIE) == [bytes((50, 0, 0, 2)), bytes((127, 0, 0, 1))]


def test_addresses_of_every_interface_are_found() -> None:
    assert parse_if_inet6(INET6) == [
        socket.inet_pton(socket.AF_INET6, text) for text in ("::1", "2a00:50::2", "fe80::1")
    ]


@pytest.mark.parametrize("text", ["", "Main:\n", "  |-- \n /32 host LOCAL\n"])
def test_a_list_without_addresses_is_empty(text: str) -> None:
    assert parse_fib_trie(text) == []


@pytest.mark.parametrize("text", ["|-- 1.2.3.4000\n   /32 host LOCAL\n", "|-- name\n   /32 host LOCAL\n"])
def test_a_list_that_is_none_of_the_kernels_is_not_guessed_at(text: str) -> None:
    with pytest.raises(ValueError, match=r"int\(\)|range"):
        parse_fib_trie(text)


def test_this_hosts_own_addresses_are_all_there() -> None:
    shown = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    texts = [line.split()[3].partition("/")[0] for line in shown.splitlines()]
    packed = {socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in texts}
    assert packed <= own_addresses()
    assert bytes((127, 0, 0, 1)) in own_addresses()


def test_a_kernel_without_ipv6_has_no_such_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fib_trie").write_text(TRIE)
    monkeypatch.setattr(module, "_IPV4", str(tmp_path / "fib_trie"))
    monkeypatch.setattr(module, "_IPV6", str(tmp_path / "if_inet6"))
    assert own_addresses() == {bytes((50, 0, 0, 2)), bytes((127, 0, 0, 1))}


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_list_that_can_not_be_read_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IPV4", str(tmp_path / name))
    with pytest.raises(OSError, match=r"Is a directory|No such file"):
        own_addresses()


def test_the_lists_are_those_of_the_threads_own_namespace() -> None:
    """A thread may have left the namespace of its process, and the proxy's is started by it."""
    assert all(path.startswith("/proc/thread-self/net/") for path in (module._IPV4, module._IPV6))
