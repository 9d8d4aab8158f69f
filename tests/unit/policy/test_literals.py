# SPDX-License-Identifier: Apache-2.0
"""Literal addresses are read and written as the C library does, but for what it reads besides."""

import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unspill.policy.literals import find_literal, written

PIECES = st.sampled_from([b":", b"::", b".", b"0", b"00", b"1", b"12", b"255", b"256", b"fFfF", b"10000", b"g", b"%1"])
GROUPS = st.sampled_from([0, 0, 0, 1, 0xFFFF, 0xAB])


def packed_by_libc(family: int, raw: bytes) -> bytes:
    try:
        return socket.inet_pton(family, raw.decode("ascii"))
    except (OSError, ValueError):
        return b""


@given(st.lists(PIECES, max_size=16).map(b"".join))
@example(b"1:2:3:4:5:6:7::")
@example(b"::1:2:3:4:5:6:7:8")
@example(b"1::2::3")
@example(b"::ffff:1.2.3.4")
@example(b"1.2.3.4::")
@example(b"1:2:3:4:5:6:7:1.2.3.4")
def test_what_is_between_brackets_is_read_as_the_c_library_does(raw: bytes) -> None:
    assert find_literal(b"[" + raw + b"]") == packed_by_libc(socket.AF_INET6, raw)


@given(st.lists(PIECES, max_size=9).map(b"".join))
@example(b"1.2.3.4")
@example(b"01.2.3.4")
def test_four_numbers_are_read_as_the_c_library_does(raw: bytes) -> None:
    assert find_literal(raw) == packed_by_libc(socket.AF_INET, raw)


@given(st.lists(GROUPS, min_size=8, max_size=8))
def test_an_address_is_written_as_the_c_library_does(groups: list[int]) -> None:
    packed = b"".join(group.to_bytes(2) for group in groups)
    assert written(packed) == socket.inet_ntop(socket.AF_INET6, packed)
    assert find_literal(f"[{written(packed)}]".encode()) == packed
    assert written(packed[:4]) == socket.inet_ntop(socket.AF_INET, packed[:4])


@pytest.mark.parametrize("raw", [b"", b"[]", b"[", b"]", b"::1", b"[::1%eth0]", b"127.1", b"0x7f.0.0.1", b"1.2.3.4."])
def test_other_forms_are_no_literals(raw: bytes) -> None:
    assert find_literal(raw) == b""
