# SPDX-License-Identifier: Apache-2.0
"""Read what a client of the proxy asks for, and write what it is answered: HTTP and SOCKS5 on one port, and TLS.

An opening is fed what the client sends until it is clear where it wants to go. The parsers are given all that was
received so far and return None, or 0, until that is enough.

What two parsers could read differently is refused, not repaired. A request is passed on as it was understood, never as
it was written: Host, framing and Connection are ours. Of TLS only the server name is read. A server that has several
names may still be asked for another one inside the encrypted stream; nobody outside can see that, so whoever allows a
host of a shared front end allows what it serves.
"""

from __future__ import annotations

from unspill.policy.hosts import AllowedHost, Destination, Refused, literal_destination, parse_authority, parse_host
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.run import DenialRule

    Field = tuple[bytes, bytes]

# HTTP
HEAD_BYTES = 32 * 1024
# Of the status line of an answer: constants, so that nothing of a command can be smuggled into it.
PHRASES: dict[DenialRule, str] = {
    "form": "Not a host name",
    "host": "Host not allowed",
    "port": "Port not allowed",
    "address": "Address not allowed",
    "server name": "Server name is not the host",
    "request": "Request not allowed",
    "budget": "Byte budget used up",
}
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")
_FIELDS = 128
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROLS = bytes(c for c in range(32) if c != 9) + b"\x7f"
_HOP_FIELDS = frozenset(
    b"connection proxy-connection keep-alive proxy-authorization proxy-authenticate te trailer transfer-encoding "
    b"upgrade http2-settings host content-length".split()
)
_FRAMING_FIELDS = frozenset((b"host", b"content-length", b"transfer-encoding"))
_CHUNK_SIZE_DIGITS = 15
_HEX = b"0123456789abcdefABCDEF"

# SOCKS5
SOCKS_CHOSEN = b"\x05\x00"
SOCKS_NO_METHOD = b"\x05\xff"
_SOCKS_VERSION = 5
_SOCKS_CONNECT = 1
_V4, _NAME, _V6 = 1, 3, 4
_GRANTED, _FAILED, _NOT_ALLOWED, _UNREACHABLE, _NO_COMMAND, _NO_ADDRESS_TYPE = 0, 1, 2, 4, 7, 8

# TLS
HELLO_BYTES = 32 * 1024
TLS_HANDSHAKE = 0x16
# A fatal alert "access denied": the client then says so instead of reporting a broken connection.
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x31"
_RECORD_BYTES = 1 << 14
# Clients use one or two; all are read again whenever more arrives, so a message of single bytes would keep us busy
_RECORDS = 16
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D
_HOST_NAME = 0

_PRINTABLE_BYTES = 260


class ProxyRequest(Record):
    """Where a client wants to go, and what it has sent behind that. `head` is a request that is not for a tunnel."""

    destination: Destination
    rest: bytes
    head: Head | None = None


def opening_for(first: int, local: Sequence[AllowedHost] = ()) -> HttpOpening | SocksOpening:
    """Return the opening of a client by its first byte, which is 5 for SOCKS and a letter for HTTP.

    `local` are the rules for names that only a private network has.
    """
    return SocksOpening(local) if first == _SOCKS_VERSION else HttpOpening(local)


class HttpOpening:
    """A CONNECT, or a request for http://host/path."""

    reply = b""

    def __init__(self, local: Sequence[AllowedHost] = ()) -> None:
        self._local = local
        self._received = b""
        self._is_tunnel = False

    def feed(self, received: bytes) -> ProxyRequest | None:
        """Return where the client wants to go, None as long as that is not clear.

        Raises:
            Refused: The request is malformed.
        """
        self._received += received
        end = find_head_end(self._received)
        if not end:
            return None
        head = parse_head(self._received[:end], local=self._local)
        self._is_tunnel = head.is_tunnel
        rest = self._received[end:]
        return ProxyRequest(destination=head.destination, rest=rest, head=None if head.is_tunnel else head)

    def granted(self) -> bytes:
        """Return what tells the client that its tunnel is there."""
        return _ESTABLISHED if self._is_tunnel else b""

    def denied(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial."""
        return denial_answer(refused.rule, text)

    def failed(self, text: str) -> bytes:
        """Return what tells the client that the server can't be reached."""
        return _http_answer(502, "Server not reached", text)

    def wanted(self) -> str:
        """Return the target of a request that was not understood, for the record."""
        words = self._received.split(b"\n", 1)[0].split(b" ")
        return printable(words[1].strip() if len(words) > 1 else words[0].strip())


class SocksOpening:
    """A greeting, our choice of no authentication, and a request to connect."""

    def __init__(self, local: Sequence[AllowedHost] = ()) -> None:
        self._local = local
        self.reply = b""
        self._received = b""
        self._has_greeted = False

    def feed(self, received: bytes) -> ProxyRequest | None:
        """Return where the client wants to go, None as long as that is not clear; `reply` is to be sent meanwhile.

        Raises:
            Refused: The request is malformed, or not supported.
        """
        self._received += received
        if not self._has_greeted:
            length = socks_greeting_bytes(self._received)
            if length is None:
                return None
            self._has_greeted, self._received, self.reply = True, self._received[length:], SOCKS_CHOSEN
        found = parse_socks_request(self._received, self._local)
        return found and ProxyRequest(destination=found[0], rest=self._received[found[1] :])

    def granted(self) -> bytes:
        """Return what tells the client that its tunnel is there."""
        return socks_reply(_GRANTED)

    def denied(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial; SOCKS has no words for the reason."""
        if not self._has_greeted:
            return SOCKS_NO_METHOD
        code = refused.code if isinstance(refused, SocksUnsupported) else _NOT_ALLOWED
        return self.reply + socks_reply(code)  # both messages of an eager client are answered

    def failed(self, text: str) -> bytes:
        """Return what tells the client that the server can't be reached."""
        return socks_reply(_UNREACHABLE)

    def wanted(self) -> str:
        """Return the name in a request that was not understood, for the record."""
        return printable(_socks_name(self._received)) if self._has_greeted else ""


class Head(Record):
    """The head of one request. `length` is that of the body, None if it is chunked."""

    method: bytes
    destination: Destination
    path: bytes
    version: bytes
    fields: tuple[Field, ...]
    length: int | None

    @property
    def is_tunnel(self) -> bool:
        """Tell whether it asks for a tunnel."""
        return self.method == b"CONNECT"

    def passed_on(self) -> bytes:
        """Return what is sent to the server: one request, after which the connection ends."""
        named = [value.lower() for name, value in self.fields if name.lower() == b"connection"]
        hop = _HOP_FIELDS.union(*([option.strip() for option in value.split(b",")] for value in named))
        lines = [b"%s %s %s" % (self.method, self.path, self.version)]
        lines.append(b"Host: " + self.destination.authority.encode("ascii"))
        lines += [b"%s: %s" % (name, value) for name, value in self.fields if name.lower() not in hop]
        if self.length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.length or any(name.lower() == b"content-length" for name, _ in self.fields):
            lines.append(b"Content-Length: %d" % self.length)
        lines.append(b"Connection: close")
        return b"\r\n".join([*lines, b"", b""])


def find_head_end(received: bytes) -> int:
    """Return where the head ends, 0 as long as it has not ended.

    Raises:
        Refused: It is too long, or has line ends that not everybody sees.
    """
    end = received.find(b"\r\n\r\n", 0, HEAD_BYTES)
    head = received[: end + 4] if end >= 0 else received[:HEAD_BYTES]
    crlf = head.count(b"\r\n")
    if head.count(b"\n") != crlf or head.count(b"\r") - head.endswith(b"\r") != crlf or b"\0" in head:
        raise Refused("request", "a line must end with CR LF")
    if end < 0 and len(received) >= HEAD_BYTES:
        raise Refused("request", "the head of the request is too long")
    return end + 4 if end >= 0 else 0


def parse_head(head: bytes, *, within: Destination | None = None, local: Sequence[AllowedHost] = ()) -> Head:
    """Return a request from its head, which ends with an empty line.

    Args:
        head: What `find_head_end` has delimited.
        within: The tunnel in which it was sent; then it must be in origin-form and for that host.
        local: The rules for names that only a private network has.

    Raises:
        Refused: It is malformed, ambiguous, or asks for another host than it is sent to.
    """
    first, *lines = head[:-4].split(b"\r\n")
    method, path, destination, version = _parse_request_line(first, within, local)
    if len(lines) > _FIELDS:
        raise Refused("request", "it has too many fields")
    fields = tuple(_parse_field(line) for line in lines)
    _check_host(fields, destination, is_tunnel=method == b"CONNECT")
    length = _body_length(fields, version)
    if method == b"CONNECT" and length != 0:
        raise Refused("request", "a CONNECT has no body")
    return Head(method=method, destination=destination, path=path, version=version, fields=fields, length=length)


class Body:
    """Passes on exactly one body. `is_over` once it is complete.

    What a client sends after that is not passed on, so a second request can't ride along with the first.
    """

    def __init__(self, length: int | None) -> None:
        self.is_over = length == 0
        self._left = length or 0
        self._is_chunked = length is None
        self._line = b""  # a size line, or the line end behind a chunk, as far as it has arrived
        self._awaits_line_end = False
        self._is_last = False

    def feed(self, received: bytes) -> bytes:
        """Return what of it belongs to the body.

        Raises:
            Refused: The chunks are malformed.
        """
        if not self._is_chunked:
            taken = received[: self._left]
            self._left -= len(taken)
            self.is_over = not self._left
            return taken
        at = 0
        while at < len(received) and not self.is_over:
            at += self._feed_chunk(received, at)
        return received[:at]

    def _feed_chunk(self, received: bytes, at: int) -> int:
        if self._left:
            taken = min(self._left, len(received) - at)
            self._left -= taken
            self._awaits_line_end = not self._left
            return taken
        self._line += received[at : at + 1]
        if self._awaits_line_end:
            self._read_line_end()
        else:
            self._read_size()
        return 1

    def _read_line_end(self) -> None:
        if not b"\r\n".startswith(self._line):
            raise Refused("request", "a chunk is longer than it says")
        if self._line == b"\r\n":
            self._line, self._awaits_line_end, self.is_over = b"", False, self._is_last

    def _read_size(self) -> None:
        digits = self._line.removesuffix(b"\r\n").removesuffix(b"\r")
        # Extensions and trailers are part of chunks, but no two servers read them alike
        if len(digits) > _CHUNK_SIZE_DIGITS or digits.translate(None, _HEX) or (not digits and self._line):
            raise Refused("request", "the size of a chunk is malformed")
        if self._line.endswith(b"\r\n"):
            self._line, self._left = b"", int(digits, 16)
            self._is_last = self._awaits_line_end = not self._left


def denial_answer(rule: DenialRule, text: str) -> bytes:
    """Return the answer to a request that was refused."""
    status = 400 if rule in ("form", "request") else 403
    return _http_answer(status, PHRASES[rule], text)


class Hello(Record):
    """What a client's first message says: the name in clear, and whether another one may be hidden in it."""

    name: bytes
    is_encrypted: bool


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
        at, part = _tls_record(received, at)
        message += part
        if message[:1] not in (b"", b"\x01"):
            raise Refused("server name", "the first TLS message is not a ClientHello")
        size = int.from_bytes(message[1:4]) if len(message) >= 4 else 0
        if max(size, len(message)) > HELLO_BYTES:
            raise Refused("server name", "the first TLS message is too long")
        if size and len(message) > 4 + size:
            raise Refused("server name", "the first TLS message is longer than it says")
        if size and len(message) == 4 + size:
            return _read_hello(_Cursor(message[4:]))
    return None


class SocksUnsupported(Refused):
    """Something that SOCKS has and we do not: the reply has a code of its own."""

    def __init__(self, code: int, because: str) -> None:
        super().__init__("request", because)
        self.code = code


def socks_greeting_bytes(received: bytes) -> int | None:
    """Return the length of the greeting.

    Raises:
        SocksUnsupported: The client insists on authentication, or speaks another version.
    """
    if received[0] != _SOCKS_VERSION:
        raise SocksUnsupported(_FAILED, "only version 5 of SOCKS is supported")
    if len(received) < 2 or len(received) < 2 + received[1]:
        return None
    if 0 not in received[2 : 2 + received[1]]:
        raise SocksUnsupported(_FAILED, "only SOCKS without authentication is supported")
    return 2 + received[1]


def parse_socks_request(received: bytes, local: Sequence[AllowedHost] = ()) -> tuple[Destination, int] | None:
    """Return the destination and the length of a request.

    Raises:
        Refused: The name is malformed.
        SocksUnsupported: It is not a CONNECT, or the address is of another kind.
    """
    if len(received) < 5:
        return None
    version, command, reserved, kind, size = received[:5]
    if version != _SOCKS_VERSION or reserved:
        raise SocksUnsupported(_FAILED, "the SOCKS request is malformed")
    if command != _SOCKS_CONNECT:
        raise SocksUnsupported(_NO_COMMAND, "SOCKS is supported for outgoing TCP connections only")
    start, length = {_V4: (4, 4), _V6: (4, 16), _NAME: (5, size)}.get(kind, (0, 0))
    if not start:
        raise SocksUnsupported(_NO_ADDRESS_TYPE, "the SOCKS request has an unknown kind of address")
    end = start + length + 2
    if len(received) < end:
        return None
    address, port = received[start : end - 2], int.from_bytes(received[end - 2 : end])
    if not port:
        raise Refused("form", "a port is a number from 1 to 65535")
    if kind == _NAME:
        return Destination(host=parse_host(address, local=local), port=port), end
    return literal_destination(address, port), end


def socks_reply(code: int) -> bytes:
    """Return the reply to a request. The address in it means nothing to anybody."""
    return bytes((_SOCKS_VERSION, code, 0, _V4, 0, 0, 0, 0, 0, 0))


def printable(raw: bytes) -> str:
    """Return bytes that the command sent as one word of printable ASCII, cut to a length that a person reads.

    Without a space in it, so that no name can be a sentence among ours.
    """
    text = raw[:_PRINTABLE_BYTES].decode("ascii", "backslashreplace")
    safe = "".join(c if c.isprintable() and c != " " else f"\\x{ord(c):02x}" for c in text)
    return safe if len(raw) <= _PRINTABLE_BYTES else f"{safe}..."


def _parse_request_line(
    line: bytes, within: Destination | None, local: Sequence[AllowedHost]
) -> tuple[bytes, bytes, Destination, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] not in _VERSIONS:
        raise Refused("request", "the request line is not METHOD TARGET HTTP/1.1")
    method, target, version = parts
    if not method or method.translate(None, _TOKEN) or not target or any(not 33 <= c <= 126 for c in target):
        raise Refused("request", "the request line has invalid characters")
    if b"#" in target:
        raise Refused("request", "a target has no fragment")
    if within is not None:
        if method == b"CONNECT" or not (target.startswith(b"/") or (method == b"OPTIONS" and target == b"*")):
            raise Refused("request", "a tunnel to a web server carries requests to that server only")
        return method, target, within, version
    if method == b"CONNECT":
        return method, target, parse_authority(target, local=local), version
    path, destination = _absolute_form(method, target, local)
    return method, path, destination, version


def _absolute_form(method: bytes, target: bytes, local: Sequence[AllowedHost]) -> tuple[bytes, Destination]:
    if target[:7].lower() != b"http://":
        raise Refused("request", "a proxy takes http://host/path or CONNECT")
    rest = target[7:]
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    path = rest[end:]
    if not path.startswith(b"/"):
        path = b"*" if method == b"OPTIONS" and not path else b"/" + path
    return path, parse_authority(rest[:end], port=80, local=local)


def _parse_field(line: bytes) -> Field:
    name, colon, value = line.partition(b":")
    if not colon or not name or name.translate(None, _TOKEN):
        # Covers continuation lines and space before the colon, which some servers read and some do not
        raise Refused("request", "a field is NAME: VALUE on one line")
    value = value.strip(b" \t")
    if len(value.translate(None, _CONTROLS)) != len(value):
        raise Refused("request", "a field has control characters")
    if b"_" in name and name.lower().replace(b"_", b"-") in _FRAMING_FIELDS:
        raise Refused("request", "a field looks like one that sets the length of the request")
    return name, value


def _values_of(fields: tuple[Field, ...], wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name.lower() == wanted]


def _check_host(fields: tuple[Field, ...], destination: Destination, *, is_tunnel: bool) -> None:
    hosts = _values_of(fields, b"host")
    if len(hosts) > 1:
        raise Refused("request", "it has more than one Host")
    if not hosts:
        return  # ours is added; the host that was checked is the only one there is
    # Some clients leave the port out of the Host of a CONNECT
    default = destination.port if is_tunnel else 80
    own = (AllowedHost(host=destination.host),)
    if parse_authority(hosts[0], port=default, local=own) != destination:
        raise Refused("request", "its Host is a different one")


def _body_length(fields: tuple[Field, ...], version: bytes) -> int | None:
    lengths, codings = _values_of(fields, b"content-length"), _values_of(fields, b"transfer-encoding")
    if codings:
        if lengths or len(codings) > 1 or codings[0].lower() != b"chunked" or version != b"HTTP/1.1":
            raise Refused("request", "the length of its body is unclear")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not 1 <= len(lengths[0]) <= 15 or not lengths[0].isdigit():
        raise Refused("request", "the length of its body is unclear")
    return int(lengths[0])


def _http_answer(status: int, phrase: str, text: str) -> bytes:
    """Return an answer of ours, after which the connection ends."""
    body = f"unspill: {text}\n".encode("ascii", "backslashreplace")
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nProxy-Agent: unspill\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


def _tls_record(received: bytes, at: int) -> tuple[int, bytes]:
    """Return where a record ends, and the part of the message in it as far as it has arrived."""
    header = received[at : at + 5]
    if header[0] != TLS_HANDSHAKE or header[1:2] not in (b"", b"\x03"):
        raise Refused("server name", "it is not TLS")
    length = int.from_bytes(header[3:5]) if len(header) == 5 else 0
    if len(header) == 5 and not 0 < length <= _RECORD_BYTES:
        raise Refused("server name", "a TLS record is malformed")
    end = at + 5 + length
    return end, received[at + 5 : end]


def _read_hello(body: _Cursor) -> Hello:
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


def _socks_name(received: bytes) -> bytes:
    """Return the name in a request, however malformed it is, for the record of a denial."""
    return received[5 : 5 + received[4]] if len(received) > 5 and received[3] == _NAME else b""
