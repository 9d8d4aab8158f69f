# SPDX-License-Identifier: Apache-2.0
"""Archives put together block by block, because no tool makes the hostile ones.

Nothing here is checked or escaped: a header says what it is told to say, and its checksum is right unless it is given.
"""

import struct
import zlib
from typing import Final

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
POSIX: Final = b"ustar\x0000"
GNU: Final = b"ustar  \0"


def entry(
    name: bytes,
    content: bytes = b"",
    *,
    kind: bytes = b"0",
    target: bytes = b"",
    mode: int = 0o644,
    size: bytes | int | None = None,
    mtime: int = 0,
    magic: bytes = POSIX,
    checksum: int | None = None,
) -> bytes:
    """Return a header with its content, filled up to whole blocks."""
    length = len(content) if size is None else size
    fields = (
        name.ljust(100, b"\0")[:100],
        b"%07o\0" % mode,
        b"%07o\0" % 0,
        b"%07o\0" % 0,
        length if isinstance(length, bytes) else b"%011o\0" % length,
        b"%011o\0" % mtime,
        b" " * 8,
        kind,
        target.ljust(100, b"\0")[:100],
        magic,
        bytes(64),
        b"%07o\0" % 1,
        b"%07o\0" % 3,
        bytes(167),
    )
    header = b"".join(fields)
    total = sum(header) if checksum is None else checksum
    return header[:148] + b"%06o\0 " % total + header[156:] + padded(content)


def padded(content: bytes) -> bytes:
    """Return the content filled up to whole blocks."""
    return content + bytes(-len(content) % BLOCK)


def folder(name: bytes, mode: int = 0o755) -> bytes:
    """Return the entry of a directory."""
    return entry(name, kind=b"5", mode=mode)


def link(name: bytes, target: bytes) -> bytes:
    """Return the entry of a symbolic link."""
    return entry(name, kind=b"2", target=target)


def hard(name: bytes, target: bytes) -> bytes:
    """Return the entry of a hard link."""
    return entry(name, kind=b"1", target=target)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    """Return an extended header."""
    body = b"".join(record(key, value) for key, value in records)
    return entry(b"PaxHeaders/0", body, kind=kind)


def record(key: bytes, value: bytes) -> bytes:
    """Return one record, whose length counts its own digits too."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d" % length + rest


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    """Return GNU tar's header of a long name, or with `K` of a long target."""
    return entry(b"././@LongLink", name + b"\0", kind=kind, magic=GNU)


def base256(number: int) -> bytes:
    """Return a size as GNU tar writes large and negative ones."""
    if number < 0:
        return number.to_bytes(12, "big", signed=True)
    return b"\x80" + number.to_bytes(11, "big")


def gzip_member(content: bytes, *, wrong_checksum: bool = False) -> bytes:
    """Return one gzip member."""
    deflate = zlib.compressobj(wbits=31)
    made = deflate.compress(content) + deflate.flush()
    return made[:-8] + bytes(4) + made[-4:] if wrong_checksum else made


def xz_with_dictionary(xz: bytes, code: int) -> bytes:
    """Return an xz stream that asks for another dictionary: 40 is 4 GiB, each even step less half of it."""
    begin = 12
    size = (xz[begin] + 1) * 4
    block = bytearray(xz[begin : begin + size - 4])
    assert block[1:4] == b"\x00\x21\x01", "one filter, LZMA2, without the sizes"
    block[4] = code
    return xz[:begin] + bytes(block) + struct.pack("<I", zlib.crc32(block)) + xz[begin + size :]


def zstd_with_window(content: bytes, window_log: int) -> bytes:
    """Return a zstd frame of stored blocks that asks for a window of that many bits."""
    parts = [b"\x28\xb5\x2f\xfd", b"\x00", bytes([(window_log - 10) << 3])]
    most = 100 << 10
    for begin in range(0, len(content), most):
        piece = content[begin : begin + most]
        is_last = begin + most >= len(content)
        parts += [(len(piece) << 3 | is_last).to_bytes(3, "little"), piece]
    return b"".join(parts)
