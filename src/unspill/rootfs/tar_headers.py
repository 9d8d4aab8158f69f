# SPDX-License-Identifier: Apache-2.0
"""The blocks and records of the tar format, read strictly: ustar, what GNU tar makes of it, and PAX records.

Where readers are known to disagree about a header (two sizes, signs, digits after the end of a number) it is refused:
an archive means one thing or nothing. Names are bytes; nothing here touches a file.
"""

from __future__ import annotations

from struct import Struct
from zlib import adler32

from unspill.errors import RootfsUnsafe, RootfsUnverified
from unspill.rootfs.tar_bounds import shown

BLOCK = 512
ZEROS = bytes(BLOCK)
FIELDS = Struct("100s8s16x12s12s8sc100s8s80x155s12x")
POSIX_MAGIC = b"ustar\0"
# Beyond it the 11 digits of a plain header are too few, so that PAX headers have a size of their own
LARGEST_PLAIN_SIZE = 8 << 30
LATEST_SECOND = (1 << 33) - 1
NANOSECONDS = 1_000_000_000
KNOWN_FIELDS = 1000
_KNOWN: dict[bytes, int] = {}
ATTRIBUTE_KEYS = (b"SCHILY.xattr.", b"LIBARCHIVE.xattr.", b"SCHILY.acl.", b"RHT.security.")


class Header:
    """One header block. A plain class, because there are tens of thousands of them."""

    __slots__ = ("kind", "mode", "mtime_ns", "name", "size", "target")

    def __init__(self, name: bytes, kind: bytes, mode: int, size: int, mtime_ns: int, target: bytes) -> None:
        self.name = name
        self.kind = kind
        self.mode = mode
        self.size = size
        self.mtime_ns = mtime_ns
        self.target = target


def parse_header(block: bytes) -> Header:
    """Read one block.

    Raises:
        RootfsUnverified: it is not a header, or a damaged one.
    """
    name, mode, size, mtime, checksum, kind, target, magic, prefix = FIELDS.unpack(block)
    # The low half of Adler-32 is 1 more than the sum of the bytes, below 65521: so it is for 256 bytes. The checksum
    # itself counts as eight spaces
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - (adler32(checksum) & 0xFFFF) + 255
    if checksum != b"%06o\0 " % total and total != _number(checksum):
        raise RootfsUnverified("the archive is damaged: the checksum of a header is wrong")
    name = name.partition(b"\0")[0]
    if prefix[0] and magic.startswith(POSIX_MAGIC):
        name = prefix.partition(b"\0")[0] + b"/" + name
    length = _number(size)
    if length < 0:
        raise RootfsUnverified(f"the archive is damaged: {shown(name)} has a negative size")
    seconds = min(max(_often(mtime), 0), LATEST_SECOND)
    target = target.partition(b"\0")[0] if target[0] else b""
    return Header(name, kind, _often(mode) & 0o7777, length, seconds * NANOSECONDS, target)


def _often(field: bytes) -> int:
    """Read a number of which an archive has only a few: modes, and times of what was made at once."""
    found = _KNOWN.get(field)
    if found is None:
        if len(_KNOWN) > KNOWN_FIELDS:
            _KNOWN.clear()
        found = _KNOWN[field] = _number(field)
    return found


def _number(field: bytes) -> int:
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.isdigit():
        try:
            return int(digits, 8)
        except ValueError:
            raise _no_number(field) from None
    if not digits and field[0] in b" \0":
        return 0
    # GNU tar's way to write large and negative numbers: the first byte marks it, the rest is binary
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        return int.from_bytes(field, "big", signed=True)
    raise _no_number(field)


def _no_number(field: bytes) -> RootfsUnverified:
    return RootfsUnverified(f"the archive is damaged: {shown(field)} is no number")


def parse_pax(body: bytes) -> dict[bytes, bytes]:
    """Read the records `LENGTH KEY=VALUE\\n` of an extended header; of two with one key the later holds.

    Raises:
        RootfsUnverified: they are not such records.
    """
    found: dict[bytes, bytes] = {}
    position = 0
    while position < len(body):
        digits, space, _ = body[position : position + 20].partition(b" ")
        if not space or not digits.isdigit():
            raise _bad_record()
        end = position + int(digits)
        record = body[position + len(digits) + 1 : end]
        key, equals, value = record.partition(b"=")
        if end > len(body) or not key or not equals or not record.endswith(b"\n"):
            raise _bad_record()
        found[key] = value[:-1]
        position = end
    return found


def _bad_record() -> RootfsUnverified:
    return RootfsUnverified("the archive is damaged: an extended header is not one")


def apply_pax(header: Header, records: dict[bytes, bytes]) -> int:
    """Let the records of an extended header hold for the header that follows; return how many are attributes.

    Raises:
        RootfsUnverified: a record is damaged.
        RootfsUnsafe: the entry is sparse, or has two sizes.
    """
    attributes = 0
    for key, value in records.items():
        if key == b"path":
            header.name = value
        elif key == b"linkpath":
            header.target = value
        elif key == b"size":
            _apply_size(header, value)
        elif key == b"mtime":
            header.mtime_ns = parse_mtime(value)
        elif key.startswith(b"GNU.sparse."):
            raise RootfsUnsafe(f"{shown(header.name)} is a sparse file")
        elif key.startswith(ATTRIBUTE_KEYS):
            attributes += 1
    return attributes


def _apply_size(header: Header, value: bytes) -> None:
    if not value.isdigit() or len(value) > 20:
        raise _bad_record()
    size = int(value)
    if size < LARGEST_PLAIN_SIZE and header.size not in (0, size):
        raise RootfsUnsafe(f"{shown(header.name)} has two sizes: {header.size} and {size}")
    header.size = size


def parse_mtime(value: bytes) -> int:
    """Read a decimal number of seconds as nanoseconds, within what file systems know.

    Raises:
        RootfsUnverified: it is not one.
    """
    whole, _, fraction = value.partition(b".")
    if not whole.removeprefix(b"-").isdigit() or not (fraction or b"0").isdigit() or len(value) > 100:
        raise _bad_record()
    if whole.startswith(b"-"):
        return 0
    return min(int(whole), LATEST_SECOND) * NANOSECONDS + int(fraction[:9].ljust(9, b"0"))
