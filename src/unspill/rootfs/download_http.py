# SPDX-License-Identifier: Apache-2.0
"""One request for one address: which addresses and redirects are allowed, and how long a server may take.

Certificates are always checked, the proxies of the environment are used, and a redirect never leads to another
scheme. Nothing here touches a file. Import it only where something is fetched: it loads the whole of http and ssl.
"""

from __future__ import annotations

import http.client
import io
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request

from unspill.errors import RootfsError, RootfsUnreachable
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from typing import Any

MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
# Chunks of one byte have six bytes around them: what a server may send in all, so that headers, chunks and trailers
# are bounded too
_WRAPPING = 8
_SPARE_BYTES = 1 << 20


class Interrupted(Exception):
    """A server failed in a way that may be over at the next attempt."""


class Patience(Record):
    """How long a server may take, in seconds, and how often it is asked.

    Nothing may arrive for `silence`; the headers may take `headers` in all; of the content at least `least_bytes` have
    to arrive in each `window`. `pause` is before the second attempt, and doubles.
    """

    silence: float = 30.0
    headers: float = 60.0
    window: float = 60.0
    least_bytes: int = 1 << 16
    attempts: int = 4
    pause: float = 0.5


class _PacedReader(io.RawIOBase):
    """Reads a socket, and ends with an error where the server is too slow or sends too much."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, patience: Patience, most_bytes: int) -> None:
        self._sock, self._raw, self._patience = sock, raw, patience
        self._left = most_bytes * _WRAPPING + _SPARE_BYTES
        self._ended = False
        self._least: float = float("inf")
        self._got, self._due = 0, time.monotonic() + patience.headers

    def expect_content(self) -> None:
        """Go over from the headers, which have one deadline, to the content, which has a least speed.

        Raises:
            ConnectionError: the server stopped within the headers, which http.client takes for their end.
        """
        if self._ended:
            raise ConnectionError("the server stopped within its headers")
        self._least, self._got, self._due = self._patience.least_bytes, 0, time.monotonic() + self._patience.window

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (now := time.monotonic()) > self._due:
            if self._got < self._least:
                raise TimeoutError("the server is too slow")
            self._got, self._due = 0, now + self._patience.window
        self._sock.settimeout(self._patience.silence)
        count: int = self._raw.readinto(buffer) or 0
        self._ended |= not count
        self._got += count
        self._left -= count
        if self._left < 0:
            raise ConnectionError("the server sends far more than it should")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, patience: Patience, most_bytes: int, **options: Any) -> None:
        super().__init__(sock, **options)
        raw = self.fp.detach()
        self._paced = _PacedReader(sock, raw, patience, most_bytes)
        self.fp = io.BufferedReader(self._paced)

    def begin(self) -> None:
        super().begin()
        self._paced.expect_content()


class _PacedHandler(urllib.request.AbstractHTTPHandler):
    """Speaks http and https, and nothing else: urllib's usual opener would read files and FTP as well."""

    def __init__(self, patience: Patience, most_bytes: int) -> None:
        super().__init__()
        self._patience, self._most_bytes = patience, most_bytes

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect_safely, request)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def _connect(self, host: str, **options: Any) -> http.client.HTTPConnection:
        return self._pace(http.client.HTTPConnection(host, **options))

    def _connect_safely(self, host: str, **options: Any) -> http.client.HTTPConnection:
        return self._pace(http.client.HTTPSConnection(host, context=ssl.create_default_context(), **options))

    def _pace(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        def respond(sock: socket.socket, **options: Any) -> _PacedResponse:
            return _PacedResponse(sock, self._patience, self._most_bytes, **options)

        connection.response_class = respond  # type: ignore[assignment]  # a class is asked for
        return connection


def check_address(address: str) -> str:
    """Return the scheme of an address that may be asked for.

    Raises:
        RootfsError: it is no http or https address, or has a password in it.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urllib.parse.urlsplit("")
    # urlsplit drops tabs and newlines without a word
    if not host or parts.scheme not in ("http", "https") or not address.isascii() or _has_blanks(address):
        raise RootfsError(
            f"{address[:200]!a} is no address that can be fetched", remedy="Give one that begins with https://"
        )
    if "@" in parts.netloc:
        raise RootfsError(
            "an address with a user name or a password in it is refused, as it would end up in records and messages",
            remedy="Fetch it yourself and give the path of the file, or use a mirror that asks for no password.",
        )
    return parts.scheme


def open_address(
    address: str, *, most_bytes: int, patience: Patience, headers: Mapping[str, str] | None = None
) -> http.client.HTTPResponse:
    """Ask for an address and return the response, after redirects within its scheme.

    Its status is 200; where `headers` ask for a range, also 206 or 416.

    Raises:
        Interrupted: it may work at the next attempt.
        RootfsUnreachable: it will not.
    """
    scheme = check_address(address)
    opener = urllib.request.OpenerDirector()
    opener.addheaders = [("User-Agent", "unspill"), ("Accept-Encoding", "identity")]
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(_PacedHandler(patience, most_bytes))
    place, headers = address, dict(headers or {})
    for _ in range(MOST_REDIRECTS + 1):
        response = _ask(opener, urllib.request.Request(place, headers=headers), patience)
        if response.status not in _REDIRECTS:
            return _accept(response, place, (200, 206, 416) if "Range" in headers else (200,))
        with response:
            place = _follow(place, response.headers.get("Location") or "", scheme)
    raise RootfsUnreachable(f"{address} leads to more than {MOST_REDIRECTS} redirects")


def _ask(opener: urllib.request.OpenerDirector, request: urllib.request.Request, patience: Patience) -> Any:
    try:
        return opener.open(request, timeout=patience.silence)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise RootfsUnreachable(
                f"{request.full_url}: the certificate is not trusted: {reason.verify_message}",
                remedy="Check the clock and the address; for a mirror with its own authority set SSL_CERT_FILE.",
            ) from None
        raise Interrupted(f"{request.full_url}: {describe(reason)}") from None


def _accept(response: http.client.HTTPResponse, place: str, expected: tuple[int, ...]) -> http.client.HTTPResponse:
    if response.status in expected:
        return response
    with response:
        message = f"{place}: the server answered {response.status} {ascii(response.reason[:100])[1:-1]}"
    if response.status >= 500 or response.status in (408, 425, 429):
        raise Interrupted(message)
    raise RootfsUnreachable(message)


def _follow(place: str, location: str, scheme: str) -> str:
    try:
        target = urllib.parse.urljoin(place, location)
        if location and check_address(target) == scheme:
            return target
    except (RootfsError, ValueError):
        pass
    raise RootfsUnreachable(
        f"{place} redirects to {location[:200]!a}, which is no {scheme} address without a password",
        remedy="If you trust the place that it leads to, give its address yourself.",
    )


def describe(error: object) -> str:
    """Return what an error of the network says; a server may have written it, so nothing steers a terminal."""
    return ascii(str(error)[:200] or type(error).__name__)[1:-1]


def _has_blanks(address: str) -> bool:
    return any(character <= " " or character == "\x7f" for character in address)
