# SPDX-License-Identifier: Apache-2.0
"""The one parser of requests: CONNECT, absolute-form, and origin-form within a tunnel to a web server.

What two parsers could read differently is refused, not repaired. A request is passed on as it was understood, never as
it was written: Host, framing and Connection are ours.
"""

from __future__ import annotations

from unspill.model.record import Record
from unspill.network.refusal import PHRASES
from unspill.policy.hosts import Destination, Refused, parse_authority

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.egress import DenialRule

    Field = tuple[bytes, bytes]

HEAD_BYTES = 32 * 1024
_FIELDS = 128
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROLS = bytes(c for c in range(32) if c != 9) + b"\x7f"
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")
_HOP = frozenset(
    b"connection proxy-connection keep-alive proxy-authorization proxy-authenticate te trailer transfer-encoding "
    b"upgrade http2-settings host content-length".split()
)
_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))


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
        hop = _HOP.union(*([option.strip() for option in value.split(b",")] for value in named))
        lines = [b"%s %s %s" % (self.method, self.path, self.version)]
        lines.append(b"Host: " + self.destination.authority.encode("ascii"))
        lines += [b"%s: %s" % (name, value) for name, value in self.fields if name.lower() not in hop]
        if self.length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.length or any(name.lower() == b"content-length" for name, _ in self.fields):
            lines.append(b"Content-Length: %d" % self.length)
        lines.append(b"Connection: close")
        return b"\r\n".join([*lines, b"", b""])


def find_end(received: bytes) -> int:
    """Return where the head ends, 0 as long as it has not ended.

    Raises:
        Refused: It is too long, or has line ends that not everybody sees.
    """
    end = received.find(b"\r\n\r\n", 0, HEAD_BYTES)
    head = received[: end + 4] if end >= 0 else received[:HEAD_BYTES]
    crlf = head.count(b"\r\n")
    if head.count(b"\n") != crlf or head.count(b"\r") - head.endswith(b"\r") != crlf or b"\0" in head:
        raise Refused("request", "a line ends with CR LF and nothing else")
    if end < 0 and len(received) >= HEAD_BYTES:
        raise Refused("request", "the head of the request is too long")
    return end + 4 if end >= 0 else 0


def parse_head(head: bytes, *, within: Destination | None = None) -> Head:
    """Return a request from its head, which ends with an empty line.

    Args:
        head: What `find_end` has delimited.
        within: The tunnel in which it was sent; then it must be in origin-form and for that host.

    Raises:
        Refused: It is malformed, ambiguous, or asks for another host than it is sent to.
    """
    first, *lines = head[:-4].split(b"\r\n")
    method, path, destination, version = _request_line(first, within)
    if len(lines) > _FIELDS:
        raise Refused("request", "it has too many fields")
    fields = tuple(_field(line) for line in lines)
    _check_host(fields, destination, is_tunnel=method == b"CONNECT")
    length = _framing(fields, version)
    if method == b"CONNECT" and length != 0:
        raise Refused("request", "a CONNECT has no body")
    return Head(method=method, destination=destination, path=path, version=version, fields=fields, length=length)


def _request_line(line: bytes, within: Destination | None) -> tuple[bytes, bytes, Destination, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] not in _VERSIONS:
        raise Refused("request", "the request line is not METHOD TARGET HTTP/1.1")
    method, target, version = parts
    if not method or method.translate(None, _TOKEN) or not target or any(not 33 <= c <= 126 for c in target):
        raise Refused("request", "the request line has other characters than it may have")
    if b"#" in target:
        raise Refused("request", "a target has no fragment")
    if within is not None:
        if method == b"CONNECT" or not (target.startswith(b"/") or (method == b"OPTIONS" and target == b"*")):
            raise Refused("request", "a tunnel to a web server is for that server only")
        return method, target, within, version
    if method == b"CONNECT":
        return method, target, parse_authority(target), version
    path, destination = _absolute(method, target)
    return method, path, destination, version


def _absolute(method: bytes, target: bytes) -> tuple[bytes, Destination]:
    if target[:7].lower() != b"http://":
        raise Refused("request", "a proxy is asked for http://host/path, or by CONNECT")
    rest = target[7:]
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    path = rest[end:]
    if not path.startswith(b"/"):
        path = b"*" if method == b"OPTIONS" and not path else b"/" + path
    return path, parse_authority(rest[:end], port=80)


def _field(line: bytes) -> Field:
    name, colon, value = line.partition(b":")
    if not colon or not name or name.translate(None, _TOKEN):
        # Covers continuation lines and space before the colon, which some servers read and some do not
        raise Refused("request", "a field is NAME: VALUE on one line")
    value = value.strip(b" \t")
    if len(value.translate(None, _CONTROLS)) != len(value):
        raise Refused("request", "a field has control characters")
    if b"_" in name and name.lower().replace(b"_", b"-") in _FRAMING:
        raise Refused("request", "a field looks like one that frames the request")
    return name, value


def _all(fields: tuple[Field, ...], wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name.lower() == wanted]


def _check_host(fields: tuple[Field, ...], destination: Destination, *, is_tunnel: bool) -> None:
    hosts = _all(fields, b"host")
    if len(hosts) > 1:
        raise Refused("request", "it has more than one Host")
    if not hosts:
        return  # ours is added; the host that was checked is the only one there is
    # Some clients leave the port out of the Host of a CONNECT
    default = destination.port if is_tunnel else 80
    if parse_authority(hosts[0], port=default) != destination:
        raise Refused("request", "its Host is another one")


def _framing(fields: tuple[Field, ...], version: bytes) -> int | None:
    lengths, codings = _all(fields, b"content-length"), _all(fields, b"transfer-encoding")
    if codings:
        if lengths or len(codings) > 1 or codings[0].lower() != b"chunked" or version != b"HTTP/1.1":
            raise Refused("request", "the length of its body is not clear")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not 1 <= len(lengths[0]) <= 15 or not lengths[0].isdigit():
        raise Refused("request", "the length of its body is not clear")
    return int(lengths[0])


def answer(status: int, phrase: str, text: str) -> bytes:
    """Return an answer of ours, after which the connection ends."""
    body = f"unspill: {text}\n".encode("ascii", "backslashreplace")
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nProxy-Agent: unspill\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


def answer_to_denial(rule: DenialRule, text: str) -> bytes:
    """Return the answer to a request that was refused."""
    status = 400 if rule in ("form", "request") else 403
    return answer(status, PHRASES[rule], text)
