# SPDX-License-Identifier: Apache-2.0
"""Turn a host name into the addresses that the proxy may connect to: resolved once, every answer checked.

One private answer refuses the whole name: a name that answers both ways is how rebinding looks. getaddrinfo blocks
and can't be interrupted, so a few threads that come and go ask it; the proxy's own thread never does.
"""

from __future__ import annotations

import os
from socket import AF_UNSPEC, SOCK_STREAM, getaddrinfo
from threading import Lock, Thread

from unspill.policy.hosts import Refused, is_private_use, pack_address, why_forbidden
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.policy.hosts import AllowedHost

    Resolver = Callable[[str], Sequence[str]]

_THREADS = 8
_TRIED = 6


class Endpoint(Record):
    """One exact address and port that may be reached although the address is not public."""

    address: bytes
    port: int


class AddressRules(Record):
    """What is asked of every address: public, and not this machine's `own`, unless it is an `endpoint`.

    A host that a `private` rule covers may have an address of a private network as well.
    """

    own: frozenset[bytes] = frozenset()
    endpoints: frozenset[Endpoint] = frozenset()
    private: tuple[AllowedHost, ...] = ()

    def check(self, packed: bytes, port: int, host: str = "") -> None:
        """Return if an address may be connected to for a host, which may be the address itself.

        Raises:
            Refused: It is not public.
        """
        if self.endpoints and Endpoint(address=packed, port=port) in self.endpoints:
            return
        if why := why_forbidden(packed, self.own):
            is_private = is_private_use(why)
            if is_private and any(rule.covers_host(host) and rule.covers_port(port) for rule in self.private):
                return
            raise Refused("address", f"its address is not public ({why})", is_private=is_private)

    def check_answers(self, answers: Sequence[str], port: int, host: str = "") -> tuple[bytes, ...]:
        """Return the packed addresses to try, in the order of the answers.

        Raises:
            Refused: One of them is not public.
        """
        packed = [pack_address(answer) for answer in answers]
        for address in packed:
            self.check(address, port, host)
        return tuple(dict.fromkeys(packed))[:_TRIED]


def system_resolver(host: str) -> list[str]:
    """Ask this machine's resolver.

    Raises:
        OSError: There is no such name, or nobody answers.
    """
    # As bytes: a str would be encoded by IDNA, which maps characters. The grammar has left nothing to map.
    found = getaddrinfo(host.encode("ascii"), None, AF_UNSPEC, SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in found]


class Lookups:
    """Questions to a resolver, asked by at most 8 threads; `wake` becomes readable when there are answers."""

    def __init__(self, resolver: Resolver) -> None:
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._resolver = resolver
        self._lock = Lock()  # protects the fields below, and `wake` from being closed before it is written
        self._asked: list[tuple[object, str]] = []
        self._answered: list[tuple[object, Sequence[str] | None]] = []
        self._threads = 0
        self._closed = False

    def ask(self, who: object, host: str) -> None:
        """Have a name resolved; `answers` gives the result together with `who`."""
        with self._lock:
            self._asked.append((who, host))
            if self._threads >= _THREADS:
                return
            self._threads += 1
        try:
            Thread(target=self._work, daemon=True).start()
        except RuntimeError:
            # No more threads for this user: whoever is at work takes it, and the time-out tells if nobody is
            with self._lock:
                self._threads -= 1

    def answers(self) -> list[tuple[object, Sequence[str] | None]]:
        """Return what was answered since the last time; None stands for no such name."""
        with self._lock:
            answered, self._answered = self._answered, []
        return answered

    def notify(self) -> None:
        """Make `wake` readable."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.wake, 1)

    def close(self) -> None:
        """Forget all questions. A thread that waits for a resolver ends when that gives up."""
        with self._lock:
            self._closed = True
            self._asked.clear()
            os.close(self.wake)

    def _work(self) -> None:
        while question := self._next():
            who, host = question
            answer: Sequence[str] | None
            try:
                answer = self._resolver(host)
            except (OSError, UnicodeError):
                answer = None
            with self._lock:
                self._answered.append((who, answer))
            self.notify()

    def _next(self) -> tuple[object, str] | None:
        with self._lock:
            if self._asked:
                return self._asked.pop(0)
            self._threads -= 1
            return None
