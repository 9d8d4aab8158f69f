# SPDX-License-Identifier: Apache-2.0
"""Header blocks and extended headers are read as Python's own module reads them, or refused."""

import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.attack.tar_crafting import base256, entry, record
from unspill.errors import RootfsUnsafe, RootfsUnverified
from unspill.rootfs.tar import Header, apply_pax, parse_header, parse_pax

DIGITS = st.text("01234567 \0", min_size=11, max_size=11).map(lambda text: text.encode() + b"\0")
FIELDS = st.one_of(
    DIGITS,
    st.binary(min_size=12, max_size=12),
    st.integers(0, 1 << 80).map(base256),
    st.integers(-(1 << 80), -1).map(base256),
)


def size_by_python(field: bytes) -> int | None:
    try:
        # It takes any first byte of a binary number, signs, underscores and `0o`; where it is stricter we have to be
        return int(tarfile.nti(field))  # type: ignore[attr-defined]
    except tarfile.TarError:
        return None


@given(FIELDS)
@example(b"-0000000001\0")
@example(b"+0000000001\0")
@example(b"0_000000001\0")
@example(b"0o000000001\0")
@example(b"00000000008\0")
@example(b"   1234  \0\0\0")
@example(bytes(12))
def test_a_number_is_what_others_read_or_none(field: bytes) -> None:
    try:
        size = parse_header(entry(b"f", size=field)[:512]).size
    except RootfsUnverified:
        return
    assert size == size_by_python(field)
    assert size >= 0


@pytest.mark.parametrize(
    "field", [b"-0000000001\0", b"+0000000001\0", b"0_000000001\0", b"0o000000001\0", b"0x1\0" * 3]
)
def test_a_number_that_readers_disagree_about_is_refused(field: bytes) -> None:
    with pytest.raises(RootfsUnverified):
        parse_header(entry(b"f", size=field)[:512])


@given(st.binary(min_size=512, max_size=512))
@example(b"\xff" * 512)
@example(b"\x01" * 512)
def test_a_block_is_a_header_only_with_the_right_checksum(noise: bytes) -> None:
    numbers = entry(b"f")[100:148]
    block = noise[:100] + numbers + bytes(8) + noise[156:]
    right = tarfile.calc_chksums(block)[0]  # type: ignore[attr-defined]
    parse_header(block[:148] + b"%06o\0 " % right + block[156:])
    parse_header(block[:148] + b"%07o\0" % right + block[156:])
    for wrong in (right + 1, right - 1, 0, (right + 65521) % (1 << 18)):
        with pytest.raises(RootfsUnverified):
            parse_header(block[:148] + b"%06o\0 " % wrong + block[156:])


def test_a_prefix_belongs_to_the_name_only_where_the_format_has_one() -> None:
    def name_with(magic: bytes) -> bytes:
        block = bytearray(entry(b"name", magic=magic)[:512])
        block[345:351] = b"prefix"
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return parse_header(bytes(block)).name

    names = [name_with(magic) for magic in (b"ustar\x0000", b"ustar\0\0\0", b"ustar  \0", bytes(8))]
    assert names == [b"prefix/name", b"prefix/name", b"name", b"name"]


@given(st.dictionaries(st.binary(min_size=1).filter(lambda key: b"=" not in key), st.binary(), max_size=5))
def test_extended_headers_hold_any_bytes(records: dict[bytes, bytes]) -> None:
    assert parse_pax(b"".join(record(key, value) for key, value in records.items())) == records


def test_of_two_records_with_one_key_the_later_holds() -> None:
    assert parse_pax(record(b"path", b"a") + record(b"path", b"b")) == {b"path": b"b"}


@pytest.mark.parametrize(
    "body",
    [
        b"\0",
        b"x",
        b"5",
        b"0 a=b\n",
        b"6 a=b\n6 a=b",
        b"7 a=b\n",
        b"5 ab\n",
        b"5 =b\n",
        b"-6 a=b\n",
        b"99 a=b\n",
        b"3 \n",
    ],
)
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(RootfsUnverified):
        parse_pax(body)


def plain_header(size: int = 0) -> Header:
    return Header(b"f", b"0", 0o644, size, 0, b"")


def test_a_size_beyond_what_a_plain_header_holds_is_taken_from_the_record() -> None:
    header = plain_header(0o77777777777)
    apply_pax(header, {b"size": b"%d" % (9 << 30)})
    assert header.size == 9 << 30


@pytest.mark.parametrize(("size", "written"), [(512, b"0"), (1, b"2"), (0o77777777777, b"5")])
def test_two_sizes_are_refused(size: int, written: bytes) -> None:
    with pytest.raises(RootfsUnsafe, match="two sizes"):
        apply_pax(plain_header(size), {b"size": written})


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"0x10", b" 1", b"1" * 21])
def test_a_size_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(RootfsUnverified):
        apply_pax(plain_header(), {b"size": value})


@pytest.mark.parametrize("value", [b"", b"x", b"1.5.5", b"1e9", b"--1", b"1.-5", b".5"])
def test_a_time_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(RootfsUnverified):
        apply_pax(plain_header(), {b"mtime": value})
