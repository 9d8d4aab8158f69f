# SPDX-License-Identifier: Apache-2.0
"""Public addresses: a table of forbidden ones, and the registries' tables as an independent opinion."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.policy.hosts import why_forbidden

FORBIDDEN = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.254
168.63.129.16 169.254.0.1 169.254.0.23 169.254.169.123 169.254.169.254 169.254.170.2 169.254.42.42 172.16.0.1
172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.80.8.124 192.88.99.1 192.168.0.1 192.168.255.255 198.18.0.1
198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::169.254.169.254 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::ffff:0:7f00:1
64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::808:808 64:ff9b:1::a00:1 64:ff9b:2::1 100::1 2001::1
2001:0:7f00:1::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::1 2002:a9fe:a9fe::1 2620:4f:8000::1
2a00:1450:4001::5efe:a00:1 2a00:1450:4001:1:200:5efe:7f00:1 3ffe::1 3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254
fd20:ce::254 fd00:42::42 fdff::1 fe80::1 fe80::a9fe:a9fe fec0::1 ff02::1 ff0e::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
""".split()
PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 93.184.215.14 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 151.101.1.1
168.63.129.15 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.1 192.167.255.255 192.169.0.0 198.17.255.255
198.20.0.0 223.255.255.255 2001:4860:4860::8888 2600::1 2606:4700:4700::1111 2620:fe::fe 2a00:1450:4001:800::200e
2001:200::1 2003::1 3fff:1000::1
""".split()

# What no address may be sent to, said by those who know: the IANA registries, and the clouds.
REGISTRIES = [
    ipaddress.ip_network(text)
    for text in """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.2.0/24 192.31.196.0/24 192.52.193.0/24
    192.80.8.124/32 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15
    198.51.100.0/24 203.0.113.0/24 224.0.0.0/3
    ::/3 4000::/2 8000::/1 2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3ffe::/16 3fff::/20
    """.split()
]


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def is_forbidden(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    in_registry = any(address.version == network.version and address in network for network in REGISTRIES)
    is_isatap = address.version == 6 and address.packed[8:12].hex() in ("00005efe", "02005efe")
    return in_registry or is_isatap


def test_there_are_at_least_60_forbidden_addresses() -> None:
    assert len(set(map(packed, FORBIDDEN))) >= 60


@pytest.mark.parametrize("text", FORBIDDEN)
def test_a_special_address_is_forbidden_with_a_reason(text: str) -> None:
    assert why_forbidden(packed(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_not_forbidden(text: str) -> None:
    assert why_forbidden(packed(text)) == ""


def test_the_standard_library_calls_many_of_them_global() -> None:
    wrong = [text for text in FORBIDDEN if ipaddress.ip_address(text).is_global]
    assert {"168.63.129.16", "64:ff9b::a9fe:a9fe", "2a00:1450:4001::5efe:a00:1"} <= set(wrong)


@given(st.ip_addresses())
def test_any_address_is_forbidden_if_and_only_if_the_registries_say_so(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert bool(why_forbidden(address.packed)) is is_forbidden(address)


@given(st.sampled_from(REGISTRIES), st.integers(-2, 2), st.booleans())
def test_the_edges_of_every_range_are_exact(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network, offset: int, is_end: bool
) -> None:
    edge = int(network.broadcast_address if is_end else network.network_address) + offset
    if not 0 <= edge < 2**network.max_prefixlen:
        return
    address = ipaddress.ip_address(edge.to_bytes(network.max_prefixlen // 8))
    assert bool(why_forbidden(address.packed)) is is_forbidden(address)


def test_the_hosts_own_public_address_is_forbidden() -> None:
    own = frozenset((packed("93.184.215.14"), packed("2606:4700::1")))
    assert why_forbidden(packed("93.184.215.14"), own) == "the host's own"
    assert why_forbidden(packed("2606:4700::1"), own) == "the host's own"
    assert why_forbidden(packed("93.184.215.15"), own) == ""


@pytest.mark.parametrize("raw", [b"", b"\x08", b"\x08\x08\x08", b"\x08" * 5, b"\x26" * 15, b"\x26" * 17])
def test_bytes_of_another_length_are_no_address(raw: bytes) -> None:
    assert why_forbidden(raw)
