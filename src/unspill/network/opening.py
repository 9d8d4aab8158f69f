# SPDX-License-Identifier: Apache-2.0
"""How a client of the proxy says where it wants to go, and how it is answered: HTTP or SOCKS, on the same port.

An opening is fed what the client sends until it has been understood; what it answers is bytes for the client.
"""

from __future__ import annotations

from unspill.model.record import Record
from unspill.network import socks
from unspill.network.http import Head, answer, answer_to_denial, find_end, parse_head
from unspill.network.refusal import shown
from unspill.policy.hosts import Destination, Refused

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Asked(Record):
    """Where a client wants to go, and what it has sent behind that. `head` is a request that is not for a tunnel."""

    destination: Destination
    rest: bytes
    head: Head | None = None


def opening_for(first: int) -> HttpOpening | SocksOpening:
    """Return the opening of a client by its first byte, which is 5 for SOCKS and a letter for HTTP."""
    return SocksOpening() if first == socks.VERSION else HttpOpening()


class HttpOpening:
    """A CONNECT, or a request for http://host/path."""

    reply = b""

    def __init__(self) -> None:
        self._received = b""
        self._is_tunnel = False

    def feed(self, received: bytes) -> Asked | None:
        """Return where the client wants to go, None as long as that is not clear.

        Raises:
            Refused: The request is malformed.
        """
        self._received += received
        end = find_end(self._received)
        if not end:
            return None
        head = parse_head(self._received[:end])
        self._is_tunnel = head.is_tunnel
        rest = self._received[end:]
        return Asked(destination=head.destination, rest=rest, head=None if head.is_tunnel else head)

    def granted(self) -> bytes:
        """Return what tells the client that its tunnel is there."""
        return _ESTABLISHED if self._is_tunnel else b""

    def denied(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial."""
        return answer_to_denial(refused.rule, text)

    def failed(self, text: str) -> bytes:
        """Return what tells the client that the server can't be reached."""
        return answer(502, "Server not reached", text)

    def wanted(self) -> str:
        """Return the target of a request that was not understood, for the record."""
        words = self._received.split(b"\n", 1)[0].split(b" ")
        return shown(words[1].strip() if len(words) > 1 else words[0].strip())


class SocksOpening:
    """A greeting, our choice of no authentication, and a request to connect."""

    def __init__(self) -> None:
        self.reply = b""
        self._received = b""
        self._has_greeted = False

    def feed(self, received: bytes) -> Asked | None:
        """Return where the client wants to go, None as long as that is not clear; `reply` is to be sent meanwhile.

        Raises:
            Refused: The request is malformed, or not supported.
        """
        self._received += received
        if not self._has_greeted:
            length = socks.greeting_bytes(self._received)
            if length is None:
                return None
            self._has_greeted, self._received, self.reply = True, self._received[length:], socks.CHOSEN
        found = socks.parse_request(self._received)
        return found and Asked(destination=found[0], rest=self._received[found[1] :])

    def granted(self) -> bytes:
        """Return what tells the client that its tunnel is there."""
        return socks.reply(socks.GRANTED)

    def denied(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial; SOCKS has no words for the reason."""
        if not self._has_greeted:
            return socks.NO_METHOD
        code = refused.code if isinstance(refused, socks.Unsupported) else socks.NOT_ALLOWED
        return self.reply + socks.reply(code)  # both messages of an eager client are answered

    def failed(self, text: str) -> bytes:
        """Return what tells the client that the server can't be reached."""
        return socks.reply(socks.UNREACHABLE)

    def wanted(self) -> str:
        """Return the name in a request that was not understood, for the record."""
        return shown(socks.asked_name(self._received)) if self._has_greeted else ""
