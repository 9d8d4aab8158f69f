# SPDX-License-Identifier: Apache-2.0
"""How addresses are read and written, and which of them are public: our own table, decided on packed bytes.

Python's `is_global` calls NAT64, IPv4-compatible, multicast and a cloud's metadata address global, and its answer
depends on the version of Python. Of IPv6 only 2000::/3 is ever public, so an unknown form is refused.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv6Address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_V4 = """
0.0.0.0/8         this network
10.0.0.0/8        private
100.100.100.200/32 metadata service
100.64.0.0/10     shared by carriers
127.0.0.0/8       loopback
168.63.129.16/32  metadata service
169.254.0.0/16    link-local, metadata service
172.16.0.0/12     private
192.0.0.192/32    metadata service
192.0.0.0/24      protocol assignments
192.0.2.0/24      documentation
192.31.196.0/24   special purpose
192.52.193.0/24   special purpose
192.80.8.124/32   metadata service
192.88.99.0/24    6to4 relay
192.168.0.0/16    private
192.175.48.0/24   special purpose
198.18.0.0/15     benchmarking
198.51.100.0/24   documentation
203.0.113.0/24    documentation
224.0.0.0/4       multicast
240.0.0.0/4       reserved, broadcast
"""

_V6 = """
::/128            unspecified
::1/128           loopback
::ffff:0:0/96     IPv4-mapped
::ffff:0:0:0/96   IPv4-translated
::/96             IPv4-compatible
64:ff9b::/96      NAT64
64:ff9b:1::/48    NAT64
100::/64          discard
2001::/32         Teredo
2001:2::/48       benchmarking
2001:10::/28      ORCHID
2001:20::/28      ORCHID
2001::/23         protocol assignments
2001:db8::/32     documentation
2002::/16         6to4
2620:4f:8000::/48 special purpose
3ffe::/16         6bone, given back
3fff::/20         documentation
5f00::/16         segment routing
fc00::/7          private, metadata service
fe80::/10         link-local
fec0::/10         site-local
ff00::/8          multicast
"""

# Python also reads zones, and may read more in another version
_CHARACTERS = frozenset("0123456789abcdefABCDEF.:")
_MAPPED, _COMPATIBLE = bytes(10) + b"\xff\xff", bytes(12)
# An interface identifier of ISATAP carries an IPv4 address, to which a host with such a tunnel would send.
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


def pack_address(text: str) -> bytes:
    """Return the packed bytes of an IPv4 or IPv6 address, nothing if it is neither.

    IPv4 is four plain decimal numbers: `127.1`, `0x7f.1` and `0177.0.0.1` are no addresses. IPv6 has no zone.
    """
    if not _CHARACTERS.issuperset(text):
        return b""
    try:
        return (IPv6Address if ":" in text else IPv4Address)(text).packed
    except AddressValueError:
        return b""


def find_literal(raw: bytes) -> bytes:
    """Return the packed bytes of a literal IPv4 or bracketed IPv6 address, nothing if it is neither."""
    is_bracketed = raw[:1] == b"[" and raw[-1:] == b"]"
    if is_bracketed != (b":" in raw):
        return b""
    # As text: Python takes bytes for an address that is packed already, so `a.de` would be 97.46.100.101
    return pack_address((raw[1:-1] if is_bracketed else raw).decode("latin-1"))


def address_text(packed: bytes) -> str:
    """Return a packed address in its canonical form."""
    if len(packed) == 4:
        return str(IPv4Address(packed))
    # Python writes the IPv4 address in these by its version, or never
    if packed[:12] == _MAPPED:
        return f"::ffff:{IPv4Address(packed[12:])}"
    if packed[:12] == _COMPATIBLE and any(packed[12:14]):
        return f"::{IPv4Address(packed[12:])}"
    return str(IPv6Address(packed))


def bracketed(host: str) -> str:
    """Return a name or an address as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def _table(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return prefix, shift and reason of each line: an address is in it if it is the prefix once shifted."""
    rows = []
    for line in text.strip().splitlines():
        network, why = line.split(maxsplit=1)
        prefix, _, bits = network.partition("/")
        packed = pack_address(prefix)
        shift = len(packed) * 8 - int(bits)
        rows.append((int.from_bytes(packed) >> shift, shift, why))
    return tuple(rows)


_TABLES = {4: _table(_V4), 16: _table(_V6)}


def why_forbidden(packed: bytes, own: Iterable[bytes] = ()) -> str:
    """Return why nothing may be sent to an address, the empty text if it is public.

    Args:
        packed: 4 or 16 bytes.
        own: Packed addresses of this machine: public ones lead to its own services all the same.
    """
    if len(packed) not in _TABLES:
        return "not an address"
    if packed in own:
        return "the host's own"
    number = int.from_bytes(packed)
    for prefix, shift, why in _TABLES[len(packed)]:
        if number >> shift == prefix:
            return why
    if len(packed) == 16:
        return _why_not_global_unicast(packed)
    return ""


def _why_not_global_unicast(packed: bytes) -> str:
    if packed[0] >> 5 != 0b001:
        return "not global unicast"
    if packed[8:12] in _ISATAP:
        return "ISATAP"
    return ""
