# SPDX-License-Identifier: Apache-2.0
"""What stands between a client and its server until it is clear what the client says.

A gate is fed what the client sends and returns what may be passed on. Once `is_open` bytes go by unseen; once `is_shut`
nothing goes by any more; while `is_waiting` the client has to hurry.
"""

from __future__ import annotations

from unspill.network.body import Body
from unspill.network.http import Head, answer_to_denial, find_end, parse_head
from unspill.network.sni import ALERT, parse_hello
from unspill.policy.hosts import Destination, Refused, parse_host

_TLS = 0x16


class HelloGate:
    """Opens when TLS asks for the host of the tunnel.

    With `is_required` nothing but TLS goes through: that is port 443. On a port that a person named there may be
    something else than TLS.
    """

    is_shut = False

    def __init__(self, destination: Destination, *, is_required: bool) -> None:
        self.is_open = False
        self.is_waiting = is_required
        self._destination = destination
        self._is_required = is_required
        self._received = b""

    def feed(self, received: bytes) -> bytes:
        """Hold back what is received until it is a whole ClientHello, then return all of it.

        Raises:
            Refused: It asks for another server, or hides for which.
        """
        self._received += received
        if self._received[0] != _TLS and not self._is_required:
            self.is_open = True
            return self._received
        self.is_waiting = True
        hello = parse_hello(self._received)
        if hello is None:
            return b""
        if hello.is_encrypted:
            raise Refused("server name", "an encrypted ClientHello may ask for any server")
        self._check(hello.name)
        self.is_open, self.is_waiting = True, False
        return self._received

    def _check(self, name: bytes) -> None:
        if self._destination.address:
            if name:
                raise Refused("server name", "it asks for a name, but the tunnel is to an address")
        elif not name:
            raise Refused("server name", "it asks for no name")
        elif _normal(name) != self._destination.host:
            raise Refused("server name", "it asks for another host than the tunnel is to")

    def answer(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial."""
        return ALERT if self._received[:1] == bytes((_TLS,)) else b""


def _normal(name: bytes) -> str:
    try:
        return parse_host(name)
    except Refused:
        raise Refused("server name", "it asks for something that is not a host name") from None


class BodyGate:
    """Passes on one request whose head has been read, and nothing behind it."""

    is_open = False
    is_waiting = False

    def __init__(self, head: Head) -> None:
        self._body = Body(head.length)

    @property
    def is_shut(self) -> bool:
        """Tell whether the request is complete."""
        return self._body.is_over

    def feed(self, received: bytes) -> bytes:
        """Return what belongs to the body.

        Raises:
            Refused: Its chunks are malformed.
        """
        return self._body.feed(received)

    def answer(self, refused: Refused, text: str) -> bytes:
        """Return nothing: the server may be answering already."""
        return b""


class RequestGate:
    """Passes on one request within a tunnel to a web server, if it is for that server."""

    is_open = False

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._received = b""
        self._body: BodyGate | None = None

    @property
    def is_waiting(self) -> bool:
        """Tell whether the head of the request has not arrived."""
        return self._body is None

    @property
    def is_shut(self) -> bool:
        """Tell whether the request is complete."""
        return self._body is not None and self._body.is_shut

    def feed(self, received: bytes) -> bytes:
        """Hold back what is received until it is a whole head, then return the request as it was understood.

        Raises:
            Refused: It is malformed, or for another host.
        """
        if self._body is not None:
            return self._body.feed(received)
        self._received += received
        end = find_end(self._received)
        if not end:
            return b""
        head = parse_head(self._received[:end], within=self._destination)
        self._body = BodyGate(head)
        return head.passed_on() + self._body.feed(self._received[end:])

    def answer(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial."""
        return answer_to_denial(refused.rule, text) if self._body is None else b""
