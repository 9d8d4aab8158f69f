# SPDX-License-Identifier: Apache-2.0
"""One client of the proxy, from its first byte to its end.

    opening -> [asking] -> resolving -> connecting -> relaying -> over
         \\__________\\___________\\____________\\__________\\-> lingering -> over  (denied, failed: the answer is read)

The decision is made once, on the parsed destination; what is connected to are the checked addresses and nothing else.
"""

from __future__ import annotations

from _socket import IPPROTO_TCP, MSG_PEEK, SHUT_WR, SO_ERROR, SOL_SOCKET, TCP_NODELAY

from unspill.model.egress import Denial
from unspill.network.opening import Asked, HttpOpening, opening_for
from unspill.network.relay import Relay, gate_for
from unspill.policy.hosts import Destination, Refused, address_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Sequence
    from typing import Literal

    from unspill.model.egress import Verdict
    from unspill.network.ledger import Entry
    from unspill.network.loop import Loop
    from unspill.network.opening import SocksOpening

    State = Literal["opening", "asking", "resolving", "connecting", "relaying", "lingering", "over"]

_READ = 16 * 1024
_LINGERED_BYTES = 1 << 20
_NOWHERE = Asked(destination=Destination(host="", port=0), rest=b"")


class Link:
    """A client, the server it is connected to, and what goes on between them."""

    def __init__(self, loop: Loop, client: Socket) -> None:
        self.state: State = "opening"
        self.deadline: float | None = loop.now + loop.patience.opening_s
        self._loop = loop
        self._client = client
        self._server: Socket | None = None
        self._relay: Relay | None = None
        self._opening: HttpOpening | SocksOpening = HttpOpening()
        self._has_begun = self._has_tried = False
        self._asked = _NOWHERE
        self._addresses: list[bytes] = []
        self._entry: Entry | None = None
        self._lingered = 0
        self._is_talking = False

    def step(self) -> None:
        """Go on as far as possible. Called when one of the sockets is ready, and first of all when it is new."""
        try:
            if self.state == "opening":
                self._open()
            elif self._relay is not None:
                self._go_on(self._relay)
            elif self._server is not None:
                self._connected(self._server)
            elif self.state == "lingering":
                self._linger()
            elif self.state == "asking":
                self._look_if_gone()
        except BlockingIOError:
            pass
        except Refused as refused:
            self._deny(refused)
        except OSError:
            self.end("allowed" if self._relay is not None else "failed")
        self._wait()

    def permitted(self, refused: Refused | None) -> None:
        """Go on with what somebody said who was asked."""
        if self.state != "asking":
            return  # the client has gone
        try:
            if refused is not None:
                raise refused
            self._reach(self._asked.destination)
        except Refused as denied:
            self._deny(denied)
        except OSError:
            self.end("failed")
        self._wait()

    def answered(self, answers: Sequence[str] | None) -> None:
        """Go on with what the resolver said."""
        if self.state != "resolving":
            return  # it was too late, and the client has been told so
        try:
            if answers:
                self._addresses = list(self._loop.addresses.check_answers(answers, self._asked.destination.port))
                self._connect_next()
            else:
                self._fail("there is no such host")
        except Refused as refused:
            self._deny(refused)
        self._wait()

    def time_out(self) -> None:
        """Give up waiting."""
        if self.state == "connecting" and self._addresses:
            self._connect_next()
        elif self.state in ("resolving", "connecting"):
            self._fail("it took too long")
        elif self._relay is not None:
            self.end("allowed" if self._relay.down.is_over else "cut")
        else:
            self.end("failed")
        self._wait()

    def conclude(self) -> None:
        """Close both sides because the run is over; a client that was done before has not been cut off."""
        if self._relay is None:
            self.end("failed")
            return
        relay = self._relay
        self.step()
        self.end("allowed" if relay.up.is_over else "cut")

    def end(self, verdict: Verdict) -> None:
        """Close both sides at once."""
        if self.state == "over":
            return
        if self.state == "asking" and self._loop.questions is not None:
            self._loop.questions.leave(self)
        self._drop_server(verdict)
        self.state, self.deadline = "over", None
        self._loop.watch(self, self._client, reads=False, writes=False)
        self._client.close()
        self._loop.forget(self)

    def _open(self) -> None:
        while self._asked is _NOWHERE:
            received = self._client.recv(_READ)
            if not received:
                self.end("failed")
                return
            if not self._has_begun:
                self._has_begun, self._opening = True, opening_for(received[0])
            asked = self._opening.feed(received)
            self._say(self._opening.reply)
            self._opening.reply = b""
            self._asked = asked or _NOWHERE
        self._decide(self._asked.destination)

    def _decide(self, destination: Destination) -> None:
        try:
            self._loop.rules.judge(destination)
        except Refused:
            # What nobody can allow is refused as that, and not asked for; no name is looked up before it is allowed
            if destination.address:
                self._loop.addresses.check(destination.address, destination.port)
            questions = self._loop.questions
            if questions is None:
                raise
            self._become("asking", None)
            questions.put(self, destination)
            return
        self._reach(destination)

    def _reach(self, destination: Destination) -> None:
        self._loop.check_budget()
        if destination.address:
            self._loop.addresses.check(destination.address, destination.port)
            self._addresses = [destination.address]
            self._connect_next()
        else:
            self._become("resolving", self._loop.patience.resolve_s)
            self._loop.lookups.ask(self, destination.host)

    def _look_if_gone(self) -> None:
        """End with a client that does not wait for the answer. One that goes on talking is read when it is there."""
        if self._client.recv(1, MSG_PEEK):
            self._is_talking = True
        else:
            self.end("failed")

    def _connect_next(self) -> None:
        self._drop_server("failed")
        while self._addresses:
            address = self._addresses.pop(0)
            self._entry = self._begin_entry(address_text(address))
            try:
                self._server = self._loop.connect(address, self._asked.destination.port)
            except OSError:
                self._drop_server("failed")
                continue
            self._become("connecting", self._loop.patience.connect_s)
            return
        self._fail("nobody answers there")

    def _connected(self, server: Socket) -> None:
        if server.getsockopt(SOL_SOCKET, SO_ERROR):
            self._connect_next()
            return
        try:
            server.getpeername()
        except OSError:
            return  # the event was for an earlier owner of the descriptor's number
        self._become("relaying", None)
        self._say(self._opening.granted())
        server.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        loop = self._loop
        gate = gate_for(self._asked, any_server_name=loop.rules.any_server_name)
        self._relay = Relay(self._client, server, gate, (loop.up, loop.down), loop.pipes)
        if self._entry is not None:
            self._entry.relay = self._relay
        self._relay.begin(self._asked)
        self._go_on(self._relay)

    def _go_on(self, relay: Relay) -> None:
        relay.pump()
        patience = self._loop.patience
        if relay.is_over:
            self.end("allowed")
        elif not relay.is_waiting and not relay.down.is_over:
            self.deadline = None
        elif self.deadline is None:
            # Where the server is gone, all that a client can still do is to close
            self._become("relaying", patience.opening_s if relay.is_waiting else patience.half_closed_s)

    def _deny(self, refused: Refused) -> None:
        host, port = self._asked.destination.host or self._opening.wanted(), self._asked.destination.port
        remedy = refused.remedy(host, port)
        denial = Denial(host=host, port=port, rule=refused.rule, remedy=remedy, reason=refused.because)
        self._loop.ledger.deny(denial)
        # Whoever was asked knows of it: the command, or who wrote it, need not be told how to have it otherwise
        text = f"{host}:{port} was refused: {refused.because}." + ("" if self.state == "asking" else f" {remedy}")
        if self.state == "relaying":
            words = self._relay.answer(refused, text) if self._relay is not None else b""
        else:
            words = self._opening.denied(refused, text)
        self._drop_server("cut" if refused.rule == "budget" else "denied")
        self._part(words)

    def _fail(self, because: str) -> None:
        destination = self._asked.destination
        if self.state == "resolving" and not self._has_tried:
            self._entry = self._begin_entry("")
        self._drop_server("failed")
        self._part(self._opening.failed(f"{destination.host}:{destination.port} was not reached: {because}."))

    def _part(self, words: bytes) -> None:
        """Say the last words. A socket that is closed with unread bytes resets the connection, and they are lost."""
        try:
            self._say(words)
            self._client.shutdown(SHUT_WR)
        except OSError:
            self.end("failed")
        else:
            self._become("lingering", self._loop.patience.lingering_s)

    def _linger(self) -> None:
        while received := self._client.recv(_READ):
            self._lingered += len(received)
            if self._lingered > _LINGERED_BYTES:
                break
        self.end("failed")

    def _say(self, words: bytes) -> None:
        # All we say fits into the empty buffer of a new socket; a client that has filled it is not worth waiting for
        try:
            if words and self._client.send(words) < len(words):
                raise ConnectionAbortedError
        except BlockingIOError:
            raise ConnectionAbortedError from None

    def _begin_entry(self, address: str) -> Entry:
        self._has_tried = True
        return self._loop.ledger.begin(self._asked.destination.host, self._asked.destination.port, address)

    def _become(self, state: State, seconds: float | None) -> None:
        self.state = state
        self.deadline = None if seconds is None else self._loop.now + seconds
        if seconds is not None:
            self._loop.hurry(self)

    def _drop_server(self, verdict: Verdict) -> None:
        if self._relay is not None:
            self._relay.close()
        if self._entry is not None:
            self._loop.ledger.end(self._entry, verdict)
        if self._server is not None:
            self._loop.watch(self, self._server, reads=False, writes=False)
            self._server.close()
        self._relay = self._entry = self._server = None

    def _wait(self) -> None:
        """Tell the loop what this link waits for now."""
        if self.state == "over":
            return
        is_asking = self.state == "asking" and not self._is_talking
        reads, writes = is_asking or self.state in ("opening", "lingering"), False
        if self._relay is not None:
            reads, writes = self._relay.up.wants_source, self._relay.down.wants_sink
        self._loop.watch(self, self._client, reads=reads, writes=writes)
        if self._server is not None:
            reads, writes = False, True
            if self._relay is not None:
                reads, writes = self._relay.down.wants_source, self._relay.up.wants_sink
            self._loop.watch(self, self._server, reads=reads, writes=writes)
