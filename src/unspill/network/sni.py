# SPDX-License-Identifier: Apache-2.0
"""For which server a TLS client asks: the server name in its first message, which may be split over records.

Read, never changed. A server that has several names may still be asked for another one inside the encrypted stream;
nobody outside can see that, so whoever allows a host of a shared front end allows what it serves.
"""

from __future__ import annotations

from unspill.model.record import Record
from unspill.policy.hosts import Refused

HELLO_BYTES = 32 * 1024
# A fatal alert "access denied": the client then says so instead of reporting a broken connection.
ALERT = b"\x15\x03\x03\x00\x02\x02\x31"

_HANDSHAKE = 22
_RECORD_BYTES = 1 << 14
# Clients use one or two; all are read again whenever more arrives, so a message of single bytes would keep us busy
_RECORDS = 16
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D
_HOST_NAME = 0


class Hello(Record):
    """What a client's first message says: the name in clear, and whether another one may be hidden in it."""

    name: bytes
    is_encrypted: bool


class _Cursor:
    """Reads a message from its beginning and refuses to read beyond its end."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.message):
            raise Refused("server name", "the first TLS message is malformed")
        taken, self.at = self.message[self.at : end], end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))

    @property
    def is_over(self) -> bool:
        return self.at == len(self.message)


def parse_hello(received: bytes) -> Hello | None:
    """Return what the client asks for, None as long as its message is not whole.

    Raises:
        Refused: It is not TLS, malformed, or larger than any client's.
    """
    message, at, records = b"", 0, 0
    while at < len(received):
        records += 1
        if records > _RECORDS:
            raise Refused("server name", "the first TLS message is in too many parts")
        at, part = _record(received, at)
        message += part
        if message[:1] not in (b"", b"\x01"):
            raise Refused("server name", "the first TLS message is not a ClientHello")
        size = int.from_bytes(message[1:4]) if len(message) >= 4 else 0
        if max(size, len(message)) > HELLO_BYTES:
            raise Refused("server name", "the first TLS message is too long")
        if size and len(message) > 4 + size:
            raise Refused("server name", "the first TLS message is longer than it says")
        if size and len(message) == 4 + size:
            return _read(_Cursor(message[4:]))
    return None


def _record(received: bytes, at: int) -> tuple[int, bytes]:
    """Return where a record ends, and the part of the message in it as far as it has arrived."""
    header = received[at : at + 5]
    if header[0] != _HANDSHAKE or header[1:2] not in (b"", b"\x03"):
        raise Refused("server name", "it is not TLS")
    length = int.from_bytes(header[3:5]) if len(header) == 5 else 0
    if len(header) == 5 and not 0 < length <= _RECORD_BYTES:
        raise Refused("server name", "a TLS record is malformed")
    end = at + 5 + length
    return end, received[at + 5 : end]


def _read(body: _Cursor) -> Hello:
    body.take(2 + 32)
    body.vector(1)
    body.vector(2)
    body.vector(1)
    found: dict[int, bytes] = {}
    extensions = _Cursor(b"" if body.is_over else body.vector(2))
    while not extensions.is_over:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind in found:
            raise Refused("server name", "the first TLS message is malformed")
        found[kind] = content
    if not body.is_over:
        raise Refused("server name", "the first TLS message is malformed")
    name = _server_name(found[_SERVER_NAME]) if _SERVER_NAME in found else b""
    return Hello(name=name, is_encrypted=_ENCRYPTED_HELLO in found)


def _server_name(content: bytes) -> bytes:
    extension = _Cursor(content)
    names = _Cursor(extension.vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != _HOST_NAME or not name or not names.is_over or not extension.is_over:
        raise Refused("server name", "TLS must ask for exactly one name")
    return name
