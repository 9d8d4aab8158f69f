# SPDX-License-Identifier: Apache-2.0
"""SOCKS5: what is understood of it, and that names in it are held to the same grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.network.host_vectors import VECTORS
from unspill.network.protocols import (
    SOCKS_CHOSEN,
    SOCKS_NO_METHOD,
    ProxyRequest,
    SocksOpening,
    SocksUnsupported,
    opening_for,
    parse_socks_request,
    socks_greeting_bytes,
    socks_reply,
)
from unspill.policy.hosts import Destination
from unspill.policy.refusal import Refused

GREETING = b"\x05\x01\x00"


def request(host: bytes, port: int = 443, *, kind: int = 3, command: int = 1, reserved: int = 0) -> bytes:
    address = bytes((len(host),)) + host if kind == 3 else host
    return bytes((5, command, reserved, kind)) + address + port.to_bytes(2)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (request(b"Example.org"), Destination(host="example.org", port=443)),
        (request(bytes((9, 8, 7, 6)), 80, kind=1), Destination(host="9.8.7.6", port=80, address=b"\x09\x08\x07\x06")),
        (request(bytes(15) + b"\1", kind=4), Destination(host="::1", port=443, address=bytes(15) + b"\1")),
    ],
)  # fmt: skip
def test_a_destination_is_a_name_or_an_address(raw: bytes, expected: Destination) -> None:
    assert parse_socks_request(raw) == (expected, len(raw))
    assert parse_socks_request(raw + b"more") == (expected, len(raw))
    assert all(parse_socks_request(raw[:length]) is None for length in range(len(raw)))


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (request(b"example.org", command=2), 7),
        (request(b"example.org", command=3), 7),
        (request(b"example.org", command=0), 7),
        (request(b"abcd", kind=2), 8),
        (request(b"abcd", kind=0), 8),
        (request(b"example.org", reserved=1), 1),
        (b"\x04\x01\x00\x03\x01a\x00\x50", 1),
    ],
)
def test_what_is_not_supported_has_its_own_code(raw: bytes, code: int) -> None:
    with pytest.raises(SocksUnsupported) as caught:
        parse_socks_request(raw)
    assert caught.value.code == code


def test_no_odd_form_of_a_host_is_a_destination() -> None:
    passed = []
    for host in VECTORS:
        try:
            passed.append(parse_socks_request(request(host[:255])))
        except Refused:
            continue
    assert passed == []


@pytest.mark.parametrize("host", [b"127.0.0.1", b"93.184.215.14", b"[2606:4700::1]"])
def test_an_address_that_is_sent_as_a_name_is_refused(host: bytes) -> None:
    with pytest.raises(Refused):
        parse_socks_request(request(host))


def test_port_0_is_refused() -> None:
    with pytest.raises(Refused):
        parse_socks_request(request(b"example.org", 0))


@pytest.mark.parametrize("methods", [b"", b"\x01", b"\x02", b"\x01\x02\xff"])
def test_a_client_that_insists_on_authentication_is_refused(methods: bytes) -> None:
    with pytest.raises(SocksUnsupported):
        socks_greeting_bytes(b"\x05" + bytes((len(methods),)) + methods)
    opening = SocksOpening()
    with pytest.raises(SocksUnsupported) as caught:
        opening.feed(b"\x05" + bytes((len(methods),)) + methods)
    assert opening.denied(caught.value, "") == SOCKS_NO_METHOD


@given(st.lists(st.integers(1, 10), max_size=20))
def test_an_opening_is_the_same_however_it_arrives(cuts: list[int]) -> None:
    opening = opening_for(5)
    sent, asked, said = GREETING + request(b"example.org") + b"hello", None, b""
    for cut in [*cuts, len(sent)]:
        piece, sent = sent[:cut], sent[cut:]
        if asked is not None:
            asked = asked.replace(rest=asked.rest + piece)
        elif piece:
            asked = opening.feed(piece)
            said, opening.reply = said + opening.reply, b""
    assert asked == ProxyRequest(destination=Destination(host="example.org", port=443), rest=b"hello")
    assert said == SOCKS_CHOSEN


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_incomplete_or_a_checked_destination(raw: bytes) -> None:
    try:
        found = parse_socks_request(b"\x05\x01\x00" + raw)
    except Refused:
        return
    assert found is None or found[1] <= len(raw) + 3


def test_a_reply_has_the_length_that_every_client_expects() -> None:
    assert [len(socks_reply(code)) for code in range(9)] == [10] * 9
