# SPDX-License-Identifier: Apache-2.0
"""What a request to the HTTP server must show: who asks, by which name, from where, and for what.

The token comes first, then what a browser that was led astray would get wrong, then the form of the body. Pure, and
stricter than HTTP: where two readers could differ about a request, it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unspill.errors import UsageError
from unspill.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Scope

    from unspill.adapters.mcp.bearer import Token

PATH = "/mcp"
METHODS = ("POST", "GET", "DELETE")
MOST_HEADERS = 64
MOST_HEADER_BYTES = 16 * 1024
MOST_BYTES = 4 * 1024 * 1024
BODY_WAIT_S = 30.0


class Rules(Record):
    """What a request must show: the token, one of these hosts, and no origin but these."""

    token: Token
    hosts: frozenset[bytes]
    origins: frozenset[bytes] = frozenset()
    most_bytes: int = MOST_BYTES
    body_wait_s: float = BODY_WAIT_S


class Refused(Exception):
    """A request that goes no further."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def parse_origin(text: str) -> bytes:
    """Return an origin as a client gives it.

    Raises:
        UsageError: it is none, or stands for several.
    """
    scheme, separator, host = text.partition("://")
    is_plain = text.isascii() and all(sign.isalnum() or sign in ".-:[]" for sign in host)
    if not (separator and scheme.isalnum() and host and is_plain):
        remedy = "Give it as a client does: http://app.example.org:8080, without a path and without `*`."
        raise UsageError(f"this is no origin: {text!a:.80}", remedy=remedy)
    return text.encode()


def check_request(scope: Scope, rules: Rules) -> None:
    """Look at all of a request but its body.

    Raises:
        Refused: with the status to answer.
    """
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in scope["headers"])
    if len(scope["headers"]) > MOST_HEADERS or size > MOST_HEADER_BYTES:
        raise Refused(431)
    scheme, _, given = _only(scope, b"authorization", 401).partition(b" ")
    if not (scheme.lower() == b"bearer" and rules.token.is_given(given.strip(b" "))):
        raise Refused(401)
    if _only(scope, b"host", 421) not in rules.hosts:
        raise Refused(421)
    if any(origin not in rules.origins for origin in _values(scope, b"origin")):
        raise Refused(403)
    # Not `path`, in which a server has undone escapes
    if scope["raw_path"] != PATH.encode():
        raise Refused(404)
    if scope["method"] not in METHODS:
        raise Refused(405)
    _check_form(scope, rules)


def _check_form(scope: Scope, rules: Rules) -> None:
    """Look at what the headers say of the body."""
    lengths = list(_values(scope, b"content-length"))
    is_chunked = any(True for _ in _values(scope, b"transfer-encoding"))
    if len(lengths) + is_chunked > 1 or not all(length.isdigit() for length in lengths):
        raise Refused(400)
    if scope["method"] != "POST":
        if is_chunked or any(int(length) for length in lengths):
            raise Refused(400)
        return
    kind, _, rest = _only(scope, b"content-type", 415).lower().partition(b";")
    is_plain = not any(True for _ in _values(scope, b"content-encoding"))
    if kind.strip() != b"application/json" or rest.strip() not in (b"", b"charset=utf-8") or not is_plain:
        raise Refused(415)
    if any(int(length) > rules.most_bytes for length in lengths):
        raise Refused(413)


def _values(scope: Scope, name: bytes) -> Iterator[bytes]:
    return (value for found, value in scope["headers"] if found == name)


def _only(scope: Scope, name: bytes, status: int) -> bytes:
    """Return a header that must be there once: of two, the next reader may take the other."""
    values = list(_values(scope, name))
    if len(values) != 1:
        raise Refused(status)
    return values[0]
