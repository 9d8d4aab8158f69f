# SPDX-License-Identifier: Apache-2.0
"""The table of forbidden addresses as networks says the same as the table asked address by address."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from unspill.model.full_network import BETWEEN, BEYOND, INSIDE, PUBLIC, RESOLVER
from unspill.policy.addresses import forbidden_networks, why_forbidden

CLOSED = [
    ipaddress.ip_network((packed, bits))
    for packed, bits in forbidden_networks()
]  # fmt: skip
PUBLIC_AT_MOST = [ipaddress.ip_network(f"{address}/{bits}") for address, bits in PUBLIC.values()]
# Interface identifiers that carry an IPv4 address can't be told by a prefix
ISATAP = ("ISATAP",)


def is_routed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Decide as the routes of the namespace between do."""
    return any(address in network for network in PUBLIC_AT_MOST) and not any(address in network for network in CLOSED)


def near_the_edges() -> st.SearchStrategy[bytes]:
    edges = [edge for network in CLOSED for edge in (network.network_address, network.broadcast_address)]
    packed = [edge.packed for edge in edges] + [
        (int(edge) + step).to_bytes(len(edge.packed))
        for edge in edges
        for step in (-1, 1)
        if 0 <= int(edge) + step < 1 << (8 * len(edge.packed))
    ]
    return st.sampled_from(packed)


@given(st.one_of(near_the_edges(), st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)))
def test_what_has_a_route_is_what_is_not_forbidden(packed: bytes) -> None:
    why = why_forbidden(packed)
    assert is_routed(ipaddress.ip_address(packed)) == (not why or why in ISATAP)


def test_the_addresses_of_our_own_link_hide_no_public_host() -> None:
    own = [text for table in (INSIDE, BETWEEN, BEYOND, RESOLVER) for text in table.values()]
    assert all(why_forbidden(ipaddress.ip_address(text).packed) for text in own)
