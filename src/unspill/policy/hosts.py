# SPDX-License-Identifier: Apache-2.0
"""The grammar of hosts: letters, digits, hyphens and dots, or a literal address; everything else is refused.

It comes before anything else is done with a name. Resolvers read more than names: an embedded NUL ends the name for
getaddrinfo, full-width and circled digits become digits, `0x7f.1`, `017700000001` and `2130706433` are addresses.
"""

from __future__ import annotations

from unspill.policy.addresses import address_text, bracketed, find_literal
from unspill.policy.refusal import Refused
from unspill.record import Record

_NAME_BYTES = 253
_LABEL_BYTES = 63
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_LDH = _LETTERS + _DIGITS + b"-"

# Never delegated in the public name space: what answers for them is this machine or its neighbours.
SPECIAL = frozenset(
    "alt arpa corp home internal intranet invalid lan local localdomain localhost onion private".split()
)


class Destination(Record):
    """Where a connection shall go: a checked name, or a literal address, then with its packed bytes."""

    host: str
    port: int
    address: bytes = b""

    @property
    def authority(self) -> str:
        """Return it as it stands in a Host field."""
        host = bracketed(self.host)
        return host if self.port == 80 else f"{host}:{self.port}"


def parse_host(raw: bytes) -> str:
    """Return a host name in lower case, without its trailing dot.

    Raises:
        Refused: It is not a full name of the public name space.
    """
    name = raw.lower()
    name = name[:-1] if name.endswith(b".") else name
    labels = name.split(b".")
    if not 1 <= len(name) <= _NAME_BYTES:
        raise Refused("form", "a name has 1 to 253 characters")
    if not all(_is_label(label) for label in labels):
        raise Refused("form", "a label has 1 to 63 letters, digits and inner hyphens")
    if len(labels) < 2:
        raise Refused("form", "a single label is not a public name")
    if labels[-1].translate(None, _LETTERS) and not labels[-1].startswith(b"xn--"):
        raise Refused("form", "the last label must not have digits")
    if labels[-1].decode("ascii") in SPECIAL:
        raise Refused("form", "the last label is not of the public name space")
    return name.decode("ascii")


def _is_label(label: bytes) -> bool:
    return (
        1 <= len(label) <= _LABEL_BYTES
        and not label.translate(None, _LDH)
        and label[:1] != b"-"
        and label[-1:] != b"-"
        and label != b"xn--"
    )


def parse_port(raw: bytes) -> int:
    """Return a port number.

    Raises:
        Refused: It is not 1 to 65535 in plain decimal.
    """
    if not 1 <= len(raw) <= 5 or raw.translate(None, _DIGITS) or raw[:1] == b"0" or int(raw) > 65535:
        raise Refused("form", "a port is a number from 1 to 65535")
    return int(raw)


def literal(packed: bytes, port: int) -> Destination:
    """Return the destination of a packed address."""
    return Destination(host=address_text(packed), port=port, address=packed)


def parse_authority(raw: bytes, *, port: int | None = None) -> Destination:
    """Return the destination of `host:port`, or of `host` where there is a default port.

    Raises:
        Refused: The host or the port is malformed, or the port is missing.
    """
    host, colon, number = raw, b"", b""
    if raw[-1:] != b"]":
        host, colon, number = raw.rpartition(b":")
        if not colon:
            host = raw
    if not colon and port is None:
        raise Refused("form", "the port is missing")
    at = parse_port(number) if colon else port
    assert at is not None
    packed = find_literal(host)
    return literal(packed, at) if packed else Destination(host=parse_host(host), port=at)
