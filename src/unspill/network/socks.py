# SPDX-License-Identifier: Apache-2.0
"""SOCKS version 5, as much as is needed: no authentication, CONNECT, names and literal addresses.

Parsers are given all that was received so far and return None until it is enough.
"""

from __future__ import annotations

from unspill.policy.hosts import Destination, Refused, literal_destination, parse_host

VERSION = 5
CHOSEN = b"\x05\x00"
NO_METHOD = b"\x05\xff"
GRANTED, FAILED, NOT_ALLOWED, UNREACHABLE, NO_COMMAND, NO_ADDRESS_TYPE = 0, 1, 2, 4, 7, 8

_V4, _NAME, _V6 = 1, 3, 4
_CONNECT = 1


class Unsupported(Refused):
    """Something that SOCKS has and we do not: the reply has a code of its own."""

    def __init__(self, code: int, because: str) -> None:
        super().__init__("request", because)
        self.code = code


def greeting_bytes(received: bytes) -> int | None:
    """Return the length of the greeting.

    Raises:
        Unsupported: The client insists on authentication, or speaks another version.
    """
    if received[0] != VERSION:
        raise Unsupported(FAILED, "SOCKS is spoken in version 5 only")
    if len(received) < 2 or len(received) < 2 + received[1]:
        return None
    if 0 not in received[2 : 2 + received[1]]:
        raise Unsupported(FAILED, "SOCKS is spoken without authentication only")
    return 2 + received[1]


def parse_request(received: bytes) -> tuple[Destination, int] | None:
    """Return the destination and the length of a request.

    Raises:
        Refused: The name is malformed.
        Unsupported: It is not a CONNECT, or the address is of another kind.
    """
    if len(received) < 5:
        return None
    version, command, reserved, kind, size = received[:5]
    if version != VERSION or reserved:
        raise Unsupported(FAILED, "the SOCKS request is malformed")
    if command != _CONNECT:
        raise Unsupported(NO_COMMAND, "SOCKS is for outgoing TCP connections only")
    start, length = {_V4: (4, 4), _V6: (4, 16), _NAME: (5, size)}.get(kind, (0, 0))
    if not start:
        raise Unsupported(NO_ADDRESS_TYPE, "the SOCKS request has an unknown kind of address")
    end = start + length + 2
    if len(received) < end:
        return None
    address, port = received[start : end - 2], int.from_bytes(received[end - 2 : end])
    if not port:
        raise Refused("form", "a port is a number from 1 to 65535")
    if kind == _NAME:
        return Destination(host=parse_host(address), port=port), end
    return literal_destination(address, port), end


def asked_name(received: bytes) -> bytes:
    """Return the name in a request, however malformed it is, for the record of a denial."""
    return received[5 : 5 + received[4]] if len(received) > 5 and received[3] == _NAME else b""


def reply(code: int) -> bytes:
    """Return the reply to a request. The address in it means nothing to anybody."""
    return bytes((VERSION, code, 0, _V4, 0, 0, 0, 0, 0, 0))
