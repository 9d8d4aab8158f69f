# SPDX-License-Identifier: Apache-2.0
"""Literal addresses are read and written as the C library does, but for what it reads besides."""

import ipaddress
import random
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.network.host_vectors import FAMILIES
from unspill.policy.hosts import (
    Destination,
    Refused,
    address_text,
    find_literal,
    pack_address,
    parse_authority,
    why_forbidden,
)

PIECES = [b":", b"::", b".", b"0", b"00", b"1", b"12", b"255", b"256", b"fFfF", b"10000", b"g", b"%1"]
ODD = [b"%lo", b"[", b"]", b" ", b"\0", b"\n", b"/", b"-", b"+", b"_", b"0x", b"0177", b"\xb2", "\uff11".encode()]
GROUPS = [0, 0, 0, 1, 0xFFFF, 0xAB]
LITERALS, ALL_LITERALS = 20_000, 200_000


def packed_by_libc(family: int, raw: bytes) -> bytes:
    try:
        return socket.inet_pton(family, raw.decode("ascii"))
    except (OSError, ValueError):
        return b""


@given(st.lists(st.sampled_from(PIECES), max_size=16).map(b"".join))
@example(b"1:2:3:4:5:6:7::")
@example(b"::1:2:3:4:5:6:7:8")
@example(b"1::2::3")
@example(b"::ffff:1.2.3.4")
@example(b"1.2.3.4::")
@example(b"1:2:3:4:5:6:7:1.2.3.4")
def test_what_is_between_brackets_is_read_as_the_c_library_does(raw: bytes) -> None:
    assert find_literal(b"[" + raw + b"]") == packed_by_libc(socket.AF_INET6, raw)


@given(st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join))
@example(b"1.2.3.4")
@example(b"01.2.3.4")
def test_four_numbers_are_read_as_the_c_library_does(raw: bytes) -> None:
    assert find_literal(raw) == packed_by_libc(socket.AF_INET, raw)


@given(st.lists(st.sampled_from(GROUPS), min_size=8, max_size=8))
def test_an_address_is_written_as_the_c_library_does(groups: list[int]) -> None:
    packed = b"".join(group.to_bytes(2) for group in groups)
    assert address_text(packed) == socket.inet_ntop(socket.AF_INET6, packed)
    assert find_literal(f"[{address_text(packed)}]".encode()) == packed
    assert address_text(packed[:4]) == socket.inet_ntop(socket.AF_INET, packed[:4])


def made_up(chance: random.Random) -> bytes:
    """Return an address, or what looks like one: whole, of pieces, or with one piece replaced."""
    kind = chance.choice(("four", "numbers", "six", "groups", "pieces", "bytes"))
    packed = bytes(chance.choice((0, 0, 255, chance.randrange(256))) for _ in range(16))
    numbers = (str(chance.choice((0, 1, 127, 255, chance.randrange(400)))) for _ in range(chance.choice((3, 4, 4, 5))))
    raw = {
        "four": lambda: socket.inet_ntop(socket.AF_INET, packed[:4]).encode(),
        "numbers": lambda: ".".join(numbers).encode(),
        "six": lambda: socket.inet_ntop(socket.AF_INET6, packed).encode(),
        "groups": lambda: packed.hex(":", 2).upper().encode(),
        "pieces": lambda: b"".join(chance.choice(PIECES) for _ in range(chance.randrange(16))),
        "bytes": lambda: packed[: chance.choice((4, 16, chance.randrange(17)))],
    }[kind]()
    if chance.random() < 0.4:
        at = chance.randrange(len(raw) + 1)
        raw = raw[:at] + chance.choice(PIECES + ODD) + raw[at + chance.randrange(2) :]
    return raw


def test_many_made_up_literals_are_read_as_the_c_library_does(full: bool) -> None:
    chance = random.Random(14)
    count = ALL_LITERALS if full else LITERALS
    accepted = 0
    for raw in (made_up(chance) for _ in range(count // 2)):
        four, six = packed_by_libc(socket.AF_INET, raw), packed_by_libc(socket.AF_INET6, raw)
        assert (find_literal(raw), find_literal(b"[%b]" % raw)) == (four, six), raw
        assert pack_address(raw.decode("latin-1")) == (four or six), raw
        accepted += bool(four or six)
    assert 0.3 < accepted / (count // 2) < 0.7


@pytest.mark.parametrize("raw", [b"", b"[]", b"[", b"]", b"::1", b"[::1%eth0]", b"127.1", b"0x7f.0.0.1", b"1.2.3.4."])
def test_other_forms_are_no_literals(raw: bytes) -> None:
    assert find_literal(raw) == b""


@pytest.mark.parametrize("family", FAMILIES)
def test_no_odd_form_is_a_literal(family: str) -> None:
    assert [host for host in FAMILIES[family] if find_literal(host)] == []
    for host in FAMILIES[family]:
        with pytest.raises(Refused):
            parse_authority(host + b":443")


# Every spelling that is an address, and the one that it is compared and recorded by
SPELLINGS = {
    b"127.0.0.1": "127.0.0.1",
    b"0.0.0.0": "0.0.0.0",
    b"255.255.255.255": "255.255.255.255",
    b"169.254.169.254": "169.254.169.254",
    b"[::]": "::",
    b"[::1]": "::1",
    b"[::0001]": "::1",
    b"[0:0:0:0:0:0:0:1]": "::1",
    b"[0000:0000:0000:0000:0000:0000:0000:0001]": "::1",
    b"[::0.0.0.1]": "::1",
    b"[::127.0.0.1]": "::127.0.0.1",
    b"[::7f00:1]": "::127.0.0.1",
    b"[::1:0]": "::0.1.0.0",
    b"[::ffff:127.0.0.1]": "::ffff:127.0.0.1",
    b"[::FFFF:7F00:1]": "::ffff:127.0.0.1",
    b"[0:0:0:0:0:ffff:127.0.0.1]": "::ffff:127.0.0.1",
    b"[::ffff:0.0.0.0]": "::ffff:0.0.0.0",
    b"[::ffff:0:127.0.0.1]": "::ffff:0:7f00:1",
    b"[64:ff9b::169.254.169.254]": "64:ff9b::a9fe:a9fe",
    b"[FE80::A9FE:A9FE]": "fe80::a9fe:a9fe",
    b"[fd00:ec2::254]": "fd00:ec2::254",
    b"[2002:7f00:1::]": "2002:7f00:1::",
    b"[1:2:3:4:5:6:7::]": "1:2:3:4:5:6:7:0",
    b"[::2:3:4:5:6:7:8]": "0:2:3:4:5:6:7:8",
    b"[2001:db8:0:0:1:0:0:1]": "2001:db8::1:0:0:1",
}


@pytest.mark.parametrize("raw", SPELLINGS, ids=bytes.decode)
def test_every_spelling_of_an_address_is_that_address_and_is_checked_as_such(raw: bytes) -> None:
    text = SPELLINGS[raw]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    assert parse_authority(raw + b":443") == Destination(host=text, port=443, address=packed)
    assert pack_address(text) == packed
    assert why_forbidden(packed)


@pytest.mark.parametrize("name", [b"a.de", b"www1.example.org"])
def test_a_name_of_4_or_16_bytes_is_a_name_although_python_reads_it_as_a_packed_address(name: bytes) -> None:
    assert ipaddress.ip_address(name).packed == name
    assert find_literal(name) == b""
    assert parse_authority(name + b":443") == Destination(host=name.decode(), port=443)


@pytest.mark.parametrize("text", ["fe80::1%eth0", "::1%lo", "::1%1", "2001:4860:4860::8888%x"])
def test_an_address_with_a_zone_is_none_although_python_reads_it(text: str) -> None:
    assert ipaddress.ip_address(text)
    assert pack_address(text) == b""
    assert find_literal(f"[{text}]".encode()) == b""
