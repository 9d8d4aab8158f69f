# SPDX-License-Identifier: Apache-2.0
"""The proxy's thread: one epoll over all clients and servers; nothing in it ever waits for one of them.

It decides nothing about destinations, only who is to go on, who has waited too long and how many there may be.
"""

from __future__ import annotations

import os
import select
import time
from _socket import AF_INET, AF_INET6, AF_UNIX, IPPROTO_TCP, SOCK_STREAM, TCP_NODELAY, socket

from unspill.model.record import Record
from unspill.network.flow import Meter, Pipes
from unspill.network.ledger import Ledger
from unspill.network.link import Link
from unspill.network.questions import Questions
from unspill.network.resolve import Lookups
from unspill.policy.hosts import address_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.egress import Budget
    from unspill.network.ledger import Sink
    from unspill.network.questions import Ask
    from unspill.network.resolve import AddressRules, Resolver
    from unspill.policy.hosts import HostRules

    Connect = Callable[[bytes, int], socket]

_TICK_S = 0.25
_ACCEPTED = 64
_EVENTS = 512


class Patience(Record):
    """How long is waited for what, and how many clients there may be at once.

    `asking_s` is how much of the time that clients wait for a person is not counted as the command's.
    """

    opening_s: float = 20.0
    resolve_s: float = 20.0
    connect_s: float = 10.0
    half_closed_s: float = 30.0
    lingering_s: float = 2.0
    asking_s: float = 300.0
    at_once: int = 1024


def open_connection(address: bytes, port: int) -> socket:
    """Begin to connect to a packed address.

    Raises:
        OSError: It is not reachable at all.
    """
    server = socket(AF_INET if len(address) == 4 else AF_INET6, SOCK_STREAM)
    try:
        server.setblocking(False)
        server.connect((address_text(address), port))
    except BlockingIOError:
        return server
    except OSError:
        server.close()
        raise
    return server


class Loop:
    """All links of one proxy and what they share."""

    def __init__(
        self,
        listener: socket,
        rules: HostRules,
        addresses: AddressRules,
        budget: Budget,
        patience: Patience,
        resolver: Resolver,
        connect: Connect,
        sink: Sink | None,
        ask: Ask | None = None,
    ) -> None:
        self.rules, self.addresses, self.patience, self.connect = rules, addresses, patience, connect
        self.up, self.down = Meter("up_bytes", budget.up), Meter("down_bytes", budget.down)
        self.pipes = Pipes()
        self.ledger = Ledger(sink)
        self.now = self._swept = time.monotonic()
        self.faults: list[BaseException] = []
        self._listener = listener
        self._epoll = select.epoll()
        self.lookups = Lookups(resolver)
        self.questions = None if ask is None else Questions(ask, self.lookups.rouse, most_s=patience.asking_s)
        self._links: set[Link] = set()
        self._hurried: set[Link] = set()
        self._watched: dict[int, tuple[int, Link]] = {}
        self._is_accepting = False
        self._is_closing = False

    def run(self) -> None:
        """Serve until `stop`. Everything is closed when it returns."""
        try:
            self._epoll.register(self.lookups.wake, select.EPOLLIN)
            self._accept_again()
            while not self._is_closing:
                self._turn()
        finally:
            for link in list(self._links):
                self._guarded(link, link.conclude)
            self.lookups.close()
            self.pipes.close()
            self._epoll.close()
            self._listener.close()

    def stop(self) -> None:
        """Make `run` return soon; from any thread."""
        self._is_closing = True
        self.lookups.rouse()

    def check_budget(self) -> None:
        """Return if there is something left of both budgets.

        Raises:
            Refused: One of them is used up.
        """
        for meter in (self.up, self.down):
            if not meter.room(1):
                raise meter.refusal()

    def watch(self, link: Link, side: socket, *, reads: bool, writes: bool) -> None:
        """Have a link go on when a socket is ready. With neither, hang-ups are not reported either: they can wait."""
        descriptor = side.fileno()
        wanted = select.EPOLLIN * reads | select.EPOLLOUT * writes
        had = self._watched.get(descriptor, (0, link))[0]
        if wanted == had:
            return
        if not wanted:
            del self._watched[descriptor]
            self._epoll.unregister(descriptor)
            return
        self._watched[descriptor] = (wanted, link)
        if had:
            self._epoll.modify(descriptor, wanted)
        else:
            self._epoll.register(descriptor, wanted)

    def hurry(self, link: Link) -> None:
        """Watch the deadline of a link."""
        self._hurried.add(link)

    def forget(self, link: Link) -> None:
        """Let go of a link that is over."""
        self._links.discard(link)
        self._hurried.discard(link)
        self._accept_again()

    def _turn(self) -> None:
        is_short = not self._is_accepting and len(self._links) < self.patience.at_once
        events = self._epoll.poll(_TICK_S if self._hurried or is_short else None, _EVENTS)
        self.now = time.monotonic()
        for descriptor, _ in events:
            if descriptor == self._listener.fileno():
                self._accept()
            elif descriptor == self.lookups.wake:
                os.eventfd_read(descriptor)
                self._hear()
            elif descriptor in self._watched:
                link = self._watched[descriptor][1]
                self._guarded(link, link.step)
        if self.now - self._swept >= _TICK_S:
            self._sweep()

    def _sweep(self) -> None:
        self._swept = self.now
        for link in list(self._hurried):
            if link.deadline is None:
                self._hurried.discard(link)
            elif link.deadline <= self.now:
                self._guarded(link, link.time_out)
        self._accept_again()

    def _hear(self) -> None:
        for link, answers in self.lookups.answers():
            assert isinstance(link, Link)
            self._guarded(link, link.answered, answers)
        for links, rule, refused in () if self.questions is None else self.questions.answers():
            if refused is None:
                self.rules = self.rules.replace(allowed=(*self.rules.allowed, rule))
            for link in links:
                assert isinstance(link, Link)
                self._guarded(link, link.permitted, refused)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED):
            if len(self._links) >= self.patience.at_once:
                self._accept_no_more()
                return
            try:
                # The method of `_socket`; importing `socket` takes longer than everything else here
                descriptor, _ = self._listener._accept()  # type: ignore[attr-defined]
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                self._accept_no_more()  # no descriptors left: some come back with every link that ends
                return
            self._welcome(socket(self._listener.family, SOCK_STREAM, 0, fileno=descriptor))

    def _welcome(self, client: socket) -> None:
        try:
            client.setblocking(False)
            if client.family != AF_UNIX:
                client.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        except OSError:
            client.close()  # it has gone already
            return
        link = Link(self, client)
        self._links.add(link)
        self._hurried.add(link)
        self._guarded(link, link.step)

    def _accept_no_more(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._epoll.unregister(self._listener.fileno())

    def _accept_again(self) -> None:
        if not self._is_accepting and not self._is_closing and len(self._links) < self.patience.at_once:
            self._is_accepting = True
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def _guarded(self, link: Link, go_on: Callable[..., None], *given: object) -> None:
        """Keep a defect of ours in one link from ending all others."""
        try:
            go_on(*given)
        except Exception as fault:
            self.faults.append(fault)
            del self.faults[8:]
            link.end("failed")
