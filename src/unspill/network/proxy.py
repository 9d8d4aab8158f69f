# SPDX-License-Identifier: Apache-2.0
"""The egress proxy of one sandbox: HTTP, CONNECT and SOCKS5 on one listening socket.

The socket was made by somebody else inside the sandbox's network namespace; whoever can reach it is that sandbox.
Connections are made from the namespace of the thread that serves, so it must be one that has a network.

    proxy = Proxy(listener, parse_rules(["example.org"]), own=addresses_of_this_host)
    proxy.start()
    ...
    proxy.close()
    proxy.connections(), proxy.denials()
"""

from __future__ import annotations

from _socket import SOCK_STREAM, socket
from _thread import allocate_lock, start_new_thread

from unspill.errors import SandboxUnavailable
from unspill.model.egress import Budget
from unspill.network.loop import Loop, Patience, open_connection
from unspill.network.resolve import AddressRules, system_resolver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.egress import Connection, Denial
    from unspill.network.ledger import Sink
    from unspill.network.loop import Connect
    from unspill.network.questions import Ask
    from unspill.network.resolve import Endpoint, Resolver
    from unspill.policy.hosts import HostRules

_CLOSING_S = 5.0


class Proxy:
    """Serves one sandbox in one thread of its own, from `start` to `close`."""

    def __init__(
        self,
        listener: int,
        rules: HostRules,
        *,
        budget: Budget = Budget(),  # noqa: B008 - frozen
        own: frozenset[bytes] = frozenset(),
        endpoints: frozenset[Endpoint] = frozenset(),
        patience: Patience = Patience(),  # noqa: B008 - frozen
        resolver: Resolver = system_resolver,
        connect: Connect = open_connection,
        sink: Sink | None = None,
        ask: Ask | None = None,
    ) -> None:
        """Take over a listening socket; nothing is accepted before `start`.

        Args:
            listener: The descriptor of a listening stream socket, closed by `close`.
            rules: Which hosts and ports are allowed.
            budget: How many bytes may go out and come in altogether.
            own: The packed addresses of this machine, all of them refused.
            endpoints: Exact addresses and ports that may be reached although they are not public.
            patience: How long is waited for what.
            resolver: Turns a checked name into addresses; may block.
            connect: Begins a connection to a checked address; must not block.
            sink: Is told of every denial, and of every connection when it has ended; must not block.
            ask: Is asked, in a thread, for a rule that would allow what none does; may block.

        Raises:
            SandboxUnavailable: There are no descriptors left; the listener is closed.
        """
        accepting = socket(fileno=listener)
        addresses = AddressRules(own=own, endpoints=endpoints)
        try:
            if accepting.type != SOCK_STREAM:
                raise SandboxUnavailable("the proxy was given something else than a stream socket")
            accepting.setblocking(False)
            self._loop = Loop(accepting, rules, addresses, budget, patience, resolver, connect, sink, ask)
        except OSError as error:
            accepting.close()
            raise SandboxUnavailable(f"the proxy can't be started: {error.strerror}") from None
        except SandboxUnavailable:
            accepting.close()
            raise
        self._ended = allocate_lock()  # held while the thread is alive
        self._has_started = False

    def start(self) -> None:
        """Begin to serve.

        Raises:
            SandboxUnavailable: There can't be another thread.
        """
        self._ended.acquire()
        try:
            start_new_thread(self._serve, ())
        except RuntimeError:
            self._ended.release()
            raise SandboxUnavailable("the proxy can't be started: no more threads for this user") from None
        self._has_started = True

    def close(self) -> None:
        """End all connections and wait until that is done, 5 s at most. May be called twice."""
        self._loop.stop()
        if not self._has_started:
            self._has_started = True
            self._loop.run()
        elif self._ended.acquire(timeout=_CLOSING_S):
            self._ended.release()

    def connections(self) -> tuple[Connection, ...]:
        """Return every connection that was made or tried, also those that go on."""
        return self._loop.ledger.connections()

    def denials(self) -> tuple[Denial, ...]:
        """Return what was refused, each host, port and rule once."""
        return self._loop.ledger.denials()

    def waited_s(self) -> float:
        """Return how long somebody has been asked so far."""
        return 0.0 if self._loop.questions is None else self._loop.questions.waited_s()

    @property
    def left_out(self) -> int:
        """How many connections and denials were too many to be kept."""
        return self._loop.ledger.left_out

    @property
    def faults(self) -> tuple[BaseException, ...]:
        """The first defects of ours that ended a connection: none, unless there is one to report."""
        return tuple(self._loop.faults)

    def _serve(self) -> None:
        try:
            self._loop.run()
        finally:
            self._ended.release()
