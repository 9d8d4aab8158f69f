# SPDX-License-Identifier: Apache-2.0
"""The grammar of hosts: what is a name, what is a literal address, and that nothing else is either."""

import ipaddress
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.network.host_vectors import FAMILIES, VECTORS
from unspill.network.protocols import printable
from unspill.policy.hosts import SPECIAL, Destination, Refused, find_literal, parse_authority, parse_host, parse_port

LABEL = rb"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
NAME = re.compile(rb"(?:" + LABEL + rb"\.)+([a-z]{1,63}|xn--" + rb"[a-z0-9-]{0,58}[a-z0-9])")
ODD = st.sampled_from(
    [b"a", b"Z", b"0", b"7f", b"0x", b"-", b".", b"xn--", b"\0", b"%", b"@", b"[", b":", b"\xe3\x80\x82", b"_", b"org"]
)


def is_name(raw: bytes) -> bool:
    """Decide the grammar by a regular expression, as an oracle."""
    name = raw.lower().removesuffix(b".")
    matched = NAME.fullmatch(name)
    return bool(matched and len(name) <= 253 and matched[2].decode() not in SPECIAL and b"xn--" not in name.split(b"."))


def is_refused(raw: bytes) -> bool:
    try:
        parse_host(raw)
    except Refused:
        return True
    return False


def test_there_are_at_least_200_odd_forms_and_none_twice() -> None:
    assert len(VECTORS) >= 200
    assert len(VECTORS) == len(set(VECTORS))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_odd_form_is_a_name(family: str) -> None:
    assert [host for host in FAMILIES[family] if not is_refused(host)] == []


def test_many_odd_forms_are_addresses_for_the_resolver_that_nobody_guards() -> None:
    reached = []
    for host in VECTORS:
        try:
            text = host.split(b"\0")[0].decode()
            found = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            continue
        address = ipaddress.ip_address(str(found[0][4][0]).partition("%")[0])
        if not address.is_global:
            reached.append(host)
    assert len(reached) >= 60


def test_a_nul_ends_a_name_for_getaddrinfo() -> None:
    found = socket.getaddrinfo("127.0.0.1\0.example.org", None, type=socket.SOCK_STREAM)
    assert {str(address[0]) for *_, address in found} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"example.org", "example.org"),
        (b"EXAMPLE.Org", "example.org"),
        (b"example.org.", "example.org"),
        (b"a-b.c--d.example.org", "a-b.c--d.example.org"),
        (b"r3---sn-a.example.org", "r3---sn-a.example.org"),
        (b"1.example.org", "1.example.org"),
        (b"0x7f.example.org", "0x7f.example.org"),
        (b"xn--bcher-kva.example", "xn--bcher-kva.example"),
        (b"example.xn--p1ai", "example.xn--p1ai"),
        (b"a" * 63 + b".org", "a" * 63 + ".org"),
        (b"a." * 124 + b"a.org", "a." * 124 + "a.org"),
    ],
)
def test_a_name_is_lower_case_and_without_its_trailing_dot(raw: bytes, name: str) -> None:
    assert parse_host(raw) == name


@given(st.lists(ODD, min_size=1, max_size=12).map(b"".join))
def test_the_grammar_is_that_of_a_regular_expression(raw: bytes) -> None:
    assert is_refused(raw) is not is_name(raw)


@given(st.binary(max_size=40))
def test_no_bytes_are_a_name_unless_a_regular_expression_says_so(raw: bytes) -> None:
    assert is_refused(raw) is not is_name(raw)


@given(st.ip_addresses())
def test_the_written_form_of_an_address_is_a_literal_and_never_a_name(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    text = str(address).encode() if address.version == 4 else f"[{address}]".encode()
    assert find_literal(text) == address.packed
    assert is_refused(text)
    assert parse_authority(text + b":443") == Destination(
        host=socket.inet_ntop(socket.AF_INET if address.version == 4 else socket.AF_INET6, address.packed),
        port=443,
        address=address.packed,
    )


@pytest.mark.parametrize(
    "raw",
    [b"0", b"00080", b"080", b"65536", b"99999", b"-1", b"+80", b" 80", b"8_0", b"", b"80a", "\uff18\uff10".encode()],
)
def test_a_port_is_a_plain_number_from_1_to_65535(raw: bytes) -> None:
    with pytest.raises(Refused):
        parse_port(raw)


@pytest.mark.parametrize(
    "raw", [b"example.org", b"example.org:", b":443", b"", b"[2001:db8::1]", b"example.org:443:443"]
)
def test_an_authority_without_a_port_is_refused_where_there_is_no_default(raw: bytes) -> None:
    with pytest.raises(Refused):
        parse_authority(raw)


def test_a_default_port_is_for_a_missing_one_only() -> None:
    assert parse_authority(b"example.org", port=80) == Destination(host="example.org", port=80)
    with pytest.raises(Refused):
        parse_authority(b"example.org:", port=80)


@given(st.binary(max_size=400))
def test_what_is_shown_of_a_host_is_short_printable_ascii(raw: bytes) -> None:
    text = printable(raw)
    assert text.isascii()
    assert text.isprintable() or not text
    assert len(text) <= 4 * 260 + 3
