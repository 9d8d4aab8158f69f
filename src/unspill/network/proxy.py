# SPDX-License-Identifier: Apache-2.0
"""The egress proxy of one sandbox: HTTP, CONNECT and SOCKS5 on one listening socket.

The listener was made inside the sandbox's network namespace, so only that sandbox can reach it. The proxy connects
from the namespace of its own thread, which must have a network. A `Gate` is the proxy of one run, from the listener
that the spawner made to the record of what went out.

    proxy = Proxy(listener, parse_rules(["example.org"]), own=addresses_of_this_host)
    proxy.start()
    ...
    proxy.close()
    proxy.connections(), proxy.denials()

One thread serves all clients with one epoll and never waits for any of them. Each client goes through these states:

    opening -> [asking] -> resolving -> connecting -> relaying -> over
         \\__________\\___________\\____________\\__________\\-> lingering -> over  (denied, failed: the answer is read)

The proxy decides once, on the parsed destination, and connects to the checked addresses and nothing else.
"""

from __future__ import annotations

import os
import resource
import select
import time
from socket import (
    AF_INET,
    AF_INET6,
    AF_UNIX,
    IPPROTO_TCP,
    MSG_PEEK,
    SHUT_WR,
    SO_ERROR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    socket,
)
from threading import Lock, Thread

from unspill.errors import SandboxUnavailable
from unspill.host.places import own_addresses
from unspill.model.plan import ProxyNetwork
from unspill.model.run import Budget, Connection, Denial, Traffic
from unspill.network.protocols import HttpOpening, ProxyRequest, opening_for
from unspill.network.relay import (
    Meter,
    PipePool,
    Relay,
    connections_at_once,
    gate_for,
)
from unspill.network.resolve import AddressRules, Lookups, system_resolver
from unspill.policy.hosts import (
    WEB_PORTS,
    AllowedHost,
    Destination,
    Refused,
    address_text,
    parse_allowed,
    parse_rules,
)
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from unspill.model.plan import NetworkPlan
    from unspill.model.run import DenialRule, Verdict
    from unspill.network.protocols import SocksOpening
    from unspill.network.resolve import Endpoint, Resolver
    from unspill.policy.hosts import HostRules

    State = Literal["opening", "asking", "resolving", "connecting", "relaying", "lingering", "over"]

    Sink = Callable[[Connection | Denial], None]

    # Returns nothing where it was allowed, else one clause that says why not
    Ask = Callable[[str], str]

    Connect = Callable[[bytes, int], socket]


# The command decides how many connections and denials there are, so both lists have an end
CONNECTIONS_KEPT = 10_000
DENIALS_KEPT = 1_000

_CLOSING_S = 5.0
_TICK_S = 0.25
_EVENTS_AT_ONCE = 512
_ACCEPTED_AT_ONCE = 64
_READ_BYTES = 16 * 1024
_LINGERED_BYTES = 1 << 20
_QUESTIONS_AT_ONCE = 8
_MOST_REFUSED = 256

_NOWHERE = ProxyRequest(destination=Destination(host="", port=0), rest=b"")

_DESCRIPTORS = 4096
# Others wait until some have ended
_MOST = 1024


class ProxyLimits(Record):
    """How long the proxy waits for what, and how many clients it serves at once.

    `asking_s` is how much of the time that clients wait for a person is not counted as the command's; `left_s` how long
    a server may be silent to a client that has closed its side, and may be gone for good.
    """

    opening_s: float = 20.0
    resolve_s: float = 20.0
    connect_s: float = 10.0
    half_closed_s: float = 30.0
    left_s: float = 120.0
    lingering_s: float = 2.0
    asking_s: float = 300.0
    most_clients: int = 1024


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
        limits: ProxyLimits = ProxyLimits(),  # noqa: B008 - frozen
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
            limits: How long it waits for what, and how many clients there may be at once.
            resolver: Turns a checked name into addresses; may block.
            connect: Begins a connection to a checked address; must not block.
            sink: Is told of every denial, and of every connection when it has ended; must not block.
            ask: Is asked, in a thread, for a rule that would allow what none does; may block.

        Raises:
            SandboxUnavailable: There are no descriptors left; the listener is closed.
        """
        accepting = socket(fileno=listener)
        addresses = AddressRules(own=own, endpoints=endpoints, private=rules.private)
        try:
            if accepting.type != SOCK_STREAM:
                raise SandboxUnavailable("the proxy needs a stream socket")
            accepting.setblocking(False)
            self._loop = Loop(accepting, rules, addresses, budget, limits, resolver, connect, sink, ask)
        except OSError as error:
            accepting.close()
            raise SandboxUnavailable(f"the proxy can't be started: {error.strerror}") from None
        except SandboxUnavailable:
            accepting.close()
            raise
        self._thread: Thread | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begin to serve.

        Raises:
            SandboxUnavailable: There can't be another thread.
        """
        thread = Thread(target=self._loop.run, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            raise SandboxUnavailable("the proxy can't be started: this user can't start more threads") from None
        self._thread = thread

    def close(self) -> None:
        """End all connections and wait until that is done, 5 s at most. May be called twice."""
        self._loop.stop()
        if self._thread is not None:
            self._thread.join(_CLOSING_S)
        elif not self._is_closed:
            self._is_closed = True
            self._loop.run()

    def connections(self) -> tuple[Connection, ...]:
        """Return every connection that was made or tried, also those that go on."""
        return self._loop.log.connections()

    def denials(self) -> tuple[Denial, ...]:
        """Return what was refused, each host, port and rule once."""
        return self._loop.log.denials()

    def waited_s(self) -> float:
        """Return how long somebody has been asked so far."""
        return 0.0 if self._loop.questions is None else self._loop.questions.waited_s()

    @property
    def left_out(self) -> int:
        """How many connections and denials were too many to be kept."""
        return self._loop.log.left_out

    @property
    def faults(self) -> tuple[BaseException, ...]:
        """The first defects of ours that ended a connection: none, unless there is one to report."""
        return tuple(self._loop.faults)


class Loop:
    """All clients of one proxy and what they share.

    It decides nothing about destinations, only who goes on, who has waited too long and how many there may be.
    """

    def __init__(
        self,
        listener: socket,
        rules: HostRules,
        addresses: AddressRules,
        budget: Budget,
        limits: ProxyLimits,
        resolver: Resolver,
        connect: Connect,
        sink: Sink | None,
        ask: Ask | None = None,
    ) -> None:
        self.rules, self.addresses, self.limits, self.connect = rules, addresses, limits, connect
        self.up, self.down = Meter("up_bytes", budget.up), Meter("down_bytes", budget.down)
        self.pipes = PipePool()
        self.log = TrafficLog(sink)
        self.now = self._swept = time.monotonic()
        self.faults: list[BaseException] = []
        self._listener = listener
        self._epoll = select.epoll()
        self.lookups = Lookups(resolver)
        self.questions = None if ask is None else Questions(ask, self.lookups.notify, most_s=limits.asking_s)
        self._clients: set[Client] = set()
        self._with_deadline: set[Client] = set()
        self._watched: dict[int, tuple[int, Client]] = {}
        self._is_accepting = False
        self._is_closing = False

    def run(self) -> None:
        """Serve until `stop`. Everything is closed when it returns."""
        try:
            self._epoll.register(self.lookups.wake, select.EPOLLIN)
            self._resume_accepting()
            while not self._is_closing:
                self._serve_once()
        finally:
            for client in list(self._clients):
                self._guard(client, client.finish)
            self.lookups.close()
            self.pipes.close()
            self._epoll.close()
            self._listener.close()

    def stop(self) -> None:
        """Make `run` return soon; from any thread."""
        self._is_closing = True
        self.lookups.notify()

    def check_budget(self) -> None:
        """Return if there is something left of both budgets.

        Raises:
            Refused: One of them is used up.
        """
        for meter in (self.up, self.down):
            if not meter.room(1):
                raise meter.refusal()

    def watch(self, client: Client, side: socket, *, reads: bool, writes: bool, leaving: bool = False) -> None:
        """Have a client go on when a socket is ready, or when its other end closes, if that is wanted.

        With none of these, hang-ups are not reported either: they can wait.
        """
        descriptor = side.fileno()
        wanted = select.EPOLLIN * reads | select.EPOLLOUT * writes | select.EPOLLRDHUP * leaving
        had = self._watched.get(descriptor, (0, client))[0]
        if wanted == had:
            return
        if not wanted:
            del self._watched[descriptor]
            self._epoll.unregister(descriptor)
            return
        self._watched[descriptor] = (wanted, client)
        if had:
            self._epoll.modify(descriptor, wanted)
        else:
            self._epoll.register(descriptor, wanted)

    def watch_deadline(self, client: Client) -> None:
        """Watch the deadline of a client."""
        self._with_deadline.add(client)

    def remove(self, client: Client) -> None:
        """Let go of a client that is over."""
        self._clients.discard(client)
        self._with_deadline.discard(client)
        self._resume_accepting()

    def _serve_once(self) -> None:
        is_short = not self._is_accepting and len(self._clients) < self.limits.most_clients
        events = self._epoll.poll(_TICK_S if self._with_deadline or is_short else None, _EVENTS_AT_ONCE)
        self.now = time.monotonic()
        for descriptor, _ in events:
            if descriptor == self._listener.fileno():
                self._accept()
            elif descriptor == self.lookups.wake:
                os.eventfd_read(descriptor)
                self._take_answers()
            elif descriptor in self._watched:
                client = self._watched[descriptor][1]
                self._guard(client, client.step)
        if self.now - self._swept >= _TICK_S:
            self._sweep()

    def _sweep(self) -> None:
        self._swept = self.now
        for client in list(self._with_deadline):
            if client.deadline is None:
                self._with_deadline.discard(client)
            elif client.deadline <= self.now:
                self._guard(client, client.on_timeout)
        self._resume_accepting()

    def _take_answers(self) -> None:
        for client, answers in self.lookups.answers():
            assert isinstance(client, Client)
            self._guard(client, client.on_addresses, answers)
        for clients, rule, refused in () if self.questions is None else self.questions.answers():
            if refused is None:
                self.rules = self.rules.replace(allowed=(*self.rules.allowed, rule))
            for client in clients:
                assert isinstance(client, Client)
                self._guard(client, client.on_permission, refused)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if len(self._clients) >= self.limits.most_clients:
                self._stop_accepting()
                return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                self._stop_accepting()  # no descriptors left: some come back with every client that ends
                return
            self._add_client(accepted)

    def _add_client(self, accepted: socket) -> None:
        try:
            accepted.setblocking(False)
            if accepted.family != AF_UNIX:
                accepted.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        except OSError:
            accepted.close()  # it has gone already
            return
        client = Client(self, accepted)
        self._clients.add(client)
        self._with_deadline.add(client)
        self._guard(client, client.step)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._epoll.unregister(self._listener.fileno())

    def _resume_accepting(self) -> None:
        if not self._is_accepting and not self._is_closing and len(self._clients) < self.limits.most_clients:
            self._is_accepting = True
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def _guard(self, client: Client, go_on: Callable[..., None], *given: object) -> None:
        """Keep a defect of ours in one client from ending all others."""
        try:
            go_on(*given)
        except Exception as fault:
            self.faults.append(fault)
            del self.faults[8:]
            client.end("failed")


class Client:
    """A client, the server it is connected to, and what goes on between them."""

    def __init__(self, loop: Loop, accepted: socket) -> None:
        self.state: State = "opening"
        self.deadline: float | None = loop.now + loop.limits.opening_s
        self._loop = loop
        self._socket = accepted
        self._server: socket | None = None
        self._relay: Relay | None = None
        self._opening: HttpOpening | SocksOpening = HttpOpening()
        self._has_begun = self._has_tried = False
        self._request = _NOWHERE
        self._addresses: list[bytes] = []
        self._logged: OpenConnection | None = None
        self._lingered = 0
        self._is_talking = self._has_left = False

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
                self._check_gone()
        except BlockingIOError:
            pass
        except Refused as refused:
            self._deny(refused)
        except OSError:
            self.end("allowed" if self._relay is not None else "failed")
        self._wait()

    def on_permission(self, refused: Refused | None) -> None:
        """Go on with what somebody said who was asked."""
        if self.state != "asking":
            return  # the client has gone
        try:
            if refused is not None:
                raise refused
            self._reach(self._request.destination)
        except Refused as denied:
            self._deny(denied)
        except OSError:
            self.end("failed")
        self._wait()

    def on_addresses(self, answers: Sequence[str] | None) -> None:
        """Go on with what the resolver said."""
        if self.state != "resolving":
            return  # it was too late, and the client has been told so
        try:
            if answers:
                host, port = self._request.destination.host, self._request.destination.port
                self._addresses = list(self._loop.addresses.check_answers(answers, port, host))
                self._connect_next()
            else:
                self._fail("the host does not exist")
        except Refused as refused:
            self._deny(refused)
        self._wait()

    def on_timeout(self) -> None:
        """Give up waiting."""
        if self.state == "connecting" and self._addresses:
            self._connect_next()
        elif self.state in ("resolving", "connecting"):
            self._fail("it took too long")
        elif self._relay is not None:
            self.end("allowed" if self._relay.down.is_over or self._has_left else "cut")
        else:
            self.end("failed")
        self._wait()

    def finish(self) -> None:
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
        self._loop.watch(self, self._socket, reads=False, writes=False)
        self._socket.close()
        self._loop.remove(self)

    def _open(self) -> None:
        while self._request is _NOWHERE:
            received = self._socket.recv(_READ_BYTES)
            if not received:
                self.end("failed")
                return
            if not self._has_begun:
                self._has_begun, self._opening = True, opening_for(received[0], self._loop.rules.private)
            request = self._opening.feed(received)
            self._send(self._opening.reply)
            self._opening.reply = b""
            self._request = request or _NOWHERE
        self._decide(self._request.destination)

    def _decide(self, destination: Destination) -> None:
        try:
            self._loop.rules.judge(destination)
        except Refused:
            # What nobody can allow is refused as that, and not asked for; no name is looked up before it is allowed
            if destination.address:
                self._loop.addresses.check(destination.address, destination.port, destination.host)
            questions = self._loop.questions
            if questions is None:
                raise
            self._enter("asking", None)
            questions.put(self, destination)
            return
        self._reach(destination)

    def _reach(self, destination: Destination) -> None:
        self._loop.check_budget()
        if destination.address:
            self._loop.addresses.check(destination.address, destination.port, destination.host)
            self._addresses = [destination.address]
            self._connect_next()
        else:
            self._enter("resolving", self._loop.limits.resolve_s)
            self._loop.lookups.ask(self, destination.host)

    def _check_gone(self) -> None:
        """End with a client that does not wait for the answer. One that goes on talking is read when it is there."""
        if is_closed_by_peer(self._socket) or not self._socket.recv(1, MSG_PEEK):
            self.end("failed")
        else:
            self._is_talking = True

    def _connect_next(self) -> None:
        self._drop_server("failed")
        while self._addresses:
            address = self._addresses.pop(0)
            self._logged = self._log_connection(address_text(address))
            try:
                self._server = self._loop.connect(address, self._request.destination.port)
            except OSError:
                self._drop_server("failed")
                continue
            self._enter("connecting", self._loop.limits.connect_s)
            return
        self._fail("no server answers there")

    def _connected(self, server: socket) -> None:
        if server.getsockopt(SOL_SOCKET, SO_ERROR):
            self._connect_next()
            return
        try:
            server.getpeername()
        except OSError:
            return  # the event was for an earlier owner of the descriptor's number
        self._enter("relaying", None)
        self._send(self._opening.granted())
        server.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        loop = self._loop
        gate = gate_for(self._request, any_server_name=loop.rules.any_server_name)
        self._relay = Relay(self._socket, server, gate, (loop.up, loop.down), loop.pipes)
        if self._logged is not None:
            self._logged.relay = self._relay
        self._relay.begin(self._request)
        self._go_on(self._relay)

    def _go_on(self, relay: Relay) -> None:
        before = relay.down.moved
        relay.pump()
        limits = self._loop.limits
        had_left, self._has_left = self._has_left, relay.up.is_over and is_closed_by_peer(self._socket)
        if relay.is_over:
            self.end("allowed")
        elif relay.is_waiting or relay.down.is_over:
            if self.deadline is None:
                # Where the server is gone, all that a client can still do is to close
                self._enter("relaying", limits.opening_s if relay.is_waiting else limits.half_closed_s)
        elif not self._has_left:
            self.deadline = None
        elif not had_left or relay.down.moved > before:
            # A silent server could hold every place here with clients that have long been gone
            self._enter("relaying", limits.left_s)

    def _deny(self, refused: Refused) -> None:
        host, port = self._request.destination.host or self._opening.wanted(), self._request.destination.port
        remedy = refused.remedy(host, port)
        denial = Denial(host=host, port=port, rule=refused.rule, remedy=remedy, reason=refused.because)
        self._loop.log.deny(denial)
        # Whoever was asked knows of it: the command, or who wrote it, need not be told how to have it otherwise
        text = f"{host}:{port} was refused: {refused.because}." + ("" if self.state == "asking" else f" {remedy}")
        if self.state == "relaying":
            reply = self._relay.answer(refused, text) if self._relay is not None else b""
        else:
            reply = self._opening.denied(refused, text)
        self._drop_server("cut" if refused.rule == "budget" else "denied")
        self._send_last(reply)

    def _fail(self, because: str) -> None:
        destination = self._request.destination
        if self.state == "resolving" and not self._has_tried:
            self._logged = self._log_connection("")
        self._drop_server("failed")
        self._send_last(self._opening.failed(f"{destination.host}:{destination.port} was not reached: {because}."))

    def _send_last(self, reply: bytes) -> None:
        """Send a last reply, then read on: closing a socket with unread bytes resets it, and the reply is lost."""
        try:
            self._send(reply)
            self._socket.shutdown(SHUT_WR)
        except OSError:
            self.end("failed")
        else:
            self._enter("lingering", self._loop.limits.lingering_s)

    def _linger(self) -> None:
        while received := self._socket.recv(_READ_BYTES):
            self._lingered += len(received)
            if self._lingered > _LINGERED_BYTES:
                break
        self.end("failed")

    def _send(self, reply: bytes) -> None:
        # All we say fits into the empty buffer of a new socket; a client that has filled it is not worth waiting for
        try:
            if reply and self._socket.send(reply) < len(reply):
                raise ConnectionAbortedError
        except BlockingIOError:
            raise ConnectionAbortedError from None

    def _log_connection(self, address: str) -> OpenConnection:
        self._has_tried = True
        return self._loop.log.begin(self._request.destination.host, self._request.destination.port, address)

    def _enter(self, state: State, seconds: float | None) -> None:
        self.state = state
        self.deadline = None if seconds is None else self._loop.now + seconds
        if seconds is not None:
            self._loop.watch_deadline(self)

    def _drop_server(self, verdict: Verdict) -> None:
        if self._relay is not None:
            self._relay.close()
        if self._logged is not None:
            self._loop.log.end(self._logged, verdict)
        if self._server is not None:
            self._loop.watch(self, self._server, reads=False, writes=False)
            self._server.close()
        self._relay = self._logged = self._server = None

    def _wait(self) -> None:
        """Tell the loop what this client waits for now."""
        if self.state == "over":
            return
        is_asking = self.state == "asking" and not self._is_talking
        reads, writes = is_asking or self.state in ("opening", "lingering"), False
        leaving = self._is_talking and self.state == "asking"
        if self._relay is not None:
            reads, writes = self._relay.up.wants_source, self._relay.down.wants_sink
            leaving = self._relay.up.is_over and not self._has_left
        self._loop.watch(self, self._socket, reads=reads, writes=writes, leaving=leaving)
        if self._server is not None:
            reads, writes = False, True
            if self._relay is not None:
                reads, writes = self._relay.down.wants_source, self._relay.up.wants_sink
            self._loop.watch(self, self._server, reads=reads, writes=writes)


class Questions:
    """Destinations that no rule covers, put to somebody while their clients wait for the answer.

    Each is asked once at a time, by a thread of its own that may wait for minutes; the proxy's thread never does. What
    was refused is not asked again in the same run, however often a client tries. Time is given back to the command only
    while a client waits, and never more than `most_s` in all: a question is no way to run for ever. `notify` makes the
    loop look at `answers`.
    """

    def __init__(self, ask: Ask, notify: Callable[[], None], *, most_s: float = 300.0) -> None:
        self._ask = ask
        self._notify = notify
        self._most_s = most_s
        self._lock = Lock()  # protects the fields below
        self._waiting: dict[str, list[object]] = {}
        self._answered: list[tuple[str, str]] = []
        self._refused: dict[str, str] = {}
        self._since: float | None = None
        self._waited_s = 0.0

    def put(self, who: object, destination: Destination) -> None:
        """Have a destination asked for; `answers` gives the result together with `who`.

        Raises:
            Refused: It was refused before, or too much is being asked already.
        """
        rule = _rule_for(destination).text
        with self._lock:
            if rule in self._refused:
                raise Refused("host", self._refused[rule])
            if rule in self._waiting:
                self._waiting[rule].append(who)
                self._update_clock()
                return
            if len(self._waiting) >= _QUESTIONS_AT_ONCE:
                raise Refused("host", f"{_QUESTIONS_AT_ONCE} questions about hosts are already open")
            if len(self._refused) >= _MOST_REFUSED:
                raise Refused("host", f"{_MOST_REFUSED} hosts were refused already, so unspill asks no more")
            self._waiting[rule] = [who]
            self._update_clock()
        try:
            Thread(target=self._work, args=(rule,), daemon=True).start()
        except RuntimeError:
            with self._lock:
                del self._waiting[rule]
                self._update_clock()
            raise Refused("host", "unspill can't ask: this user can't start more threads") from None

    def leave(self, who: object) -> None:
        """Let go of a client that does not wait any more."""
        with self._lock:
            for waiting in self._waiting.values():
                if who in waiting:
                    waiting.remove(who)
            self._update_clock()

    def answers(self) -> list[tuple[list[object], AllowedHost, Refused | None]]:
        """Return what was answered since the last time: who waited, the rule, and why it was refused if it was."""
        with self._lock:
            answered, self._answered = self._answered, []
            waited = [(self._waiting.pop(rule), rule, why) for rule, why in answered]
            self._update_clock()
        return [(who, parse_allowed(rule), Refused("host", why) if why else None) for who, rule, why in waited]

    def waited_s(self) -> float:
        """Return how long clients have waited for somebody so far, up to the most; from any thread."""
        with self._lock:
            under_way_s = 0.0 if self._since is None else time.monotonic() - self._since
            return min(self._most_s, self._waited_s + under_way_s)

    def _work(self, rule: str) -> None:
        try:
            why = self._ask(rule)
        except Exception as error:
            why = f"the question failed: {type(error).__name__}"
        with self._lock:
            if why:
                self._refused[rule] = why
            self._answered.append((rule, why))
        self._notify()

    def _update_clock(self) -> None:
        """Begin or end to count, by whether anybody waits."""
        now = time.monotonic()
        if self._since is not None:
            self._waited_s += now - self._since
        self._since = now if any(self._waiting.values()) else None


class TrafficLog:
    """Connections and denials of one proxy, in bounded number; `sink` is told of each when it is decided or over.

    Written by the proxy's thread, read by any.
    """

    def __init__(self, sink: Sink | None = None) -> None:
        self.left_out = 0
        self._sink = sink
        self._lock = Lock()  # protects the fields below
        self._open: set[OpenConnection] = set()
        self._ended: list[Connection] = []
        self._denials: dict[tuple[str, int, DenialRule], Denial] = {}

    def begin(self, host: str, port: int, address: str) -> OpenConnection:
        """Enter a connection that is about to be made."""
        connection = OpenConnection(host, port, address)
        with self._lock:
            self._open.add(connection)
        return connection

    def end(self, connection: OpenConnection, verdict: Verdict) -> None:
        """Close the record of a connection."""
        connection.verdict, connection.ended_ns = verdict, time.time_ns()
        record = connection.record()
        with self._lock:
            self._open.discard(connection)
            if len(self._ended) < CONNECTIONS_KEPT:
                self._ended.append(record)
            else:
                self.left_out += 1
        self._tell(record)

    def deny(self, denial: Denial) -> None:
        """Enter a denial. The same one again only counts."""
        key = (denial.host, denial.port, denial.rule)
        with self._lock:
            known = self._denials.get(key)
            if known is None and len(self._denials) >= DENIALS_KEPT:
                self.left_out += 1
                return
            self._denials[key] = known.replace(times=known.times + 1) if known else denial
        if known is None:
            self._tell(denial)

    def connections(self) -> tuple[Connection, ...]:
        """Return all connections in the order of their beginning."""
        with self._lock:
            found = [*self._ended, *(connection.record() for connection in self._open)]
        return tuple(sorted(found, key=lambda connection: connection.started_ns))

    def denials(self) -> tuple[Denial, ...]:
        """Return what was denied, each once, in the order of its first time."""
        with self._lock:
            return tuple(self._denials.values())

    def _tell(self, record: Connection | Denial) -> None:
        if self._sink is None:
            return
        try:
            self._sink(record)
        except Exception:
            # Whoever listens must not be able to stop the proxy; the records are kept all the same
            return


class OpenConnection:
    """One connection while it goes on."""

    def __init__(self, host: str, port: int, address: str) -> None:
        self.host = host
        self.port = port
        self.address = address
        self.relay: Relay | None = None
        self.started_ns = time.time_ns()
        self.ended_ns: int | None = None
        self.verdict: Verdict = "open"

    def record(self) -> Connection:
        """Return it as it is now."""
        return Connection(
            host=self.host,
            port=self.port,
            address=self.address,
            up=self.relay.up.moved if self.relay else 0,
            down=self.relay.down.moved if self.relay else 0,
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            verdict=self.verdict,
        )


def is_closed_by_peer(side: socket) -> bool:
    """Tell whether the other end has closed its side, whatever it had sent before and nobody has read."""
    poll = select.poll()
    poll.register(side.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _rule_for(destination: Destination) -> AllowedHost:
    """Return the narrowest rule that covers a destination: both ports of the web are one."""
    port = None if destination.port in WEB_PORTS else destination.port
    return AllowedHost(host=destination.host, port=port)


class Gate:
    """The proxy of one run, which begins to serve when the listener is there."""

    def __init__(
        self,
        network: ProxyNetwork,
        rules: HostRules,
        own: frozenset[bytes],
        endpoints: frozenset[Endpoint] = frozenset(),
        ask: Ask | None = None,
    ) -> None:
        self._network = network
        self._rules = rules
        self._own = own
        self._endpoints = endpoints
        self._ask = ask
        self._proxy: Proxy | None = None

    def serve(self, listener: int) -> None:
        """Take the listening socket and serve it from now on.

        Raises:
            SandboxUnavailable: there can't be another thread, or there are no descriptors left.
        """
        budget = Budget(up=self._network.up_bytes, down=self._network.down_bytes)
        limits = ProxyLimits(most_clients=connections_at_once(_MOST), asking_s=self._network.asking_s)
        self._proxy = Proxy(
            listener,
            self._rules,
            budget=budget,
            own=self._own,
            endpoints=self._endpoints,
            limits=limits,
            ask=self._ask,
        )
        self._proxy.start()

    def waited_s(self) -> float:
        """Return how long the command has waited for somebody's answer so far."""
        return 0.0 if self._proxy is None else self._proxy.waited_s()

    def close(self) -> Traffic:
        """End what goes on and return what there was; may be called twice."""
        if self._proxy is None:
            return Traffic()
        self._proxy.close()
        return Traffic(
            connections=self._proxy.connections(),
            denials=self._proxy.denials(),
            left_out=self._proxy.left_out,
            faults=tuple(f"the proxy dropped a connection; please report this: {f!r}" for f in self._proxy.faults),
        )


def make_gate(
    network: NetworkPlan,
    *,
    is_own_process: bool,
    endpoints: frozenset[Endpoint] = frozenset(),
    ask: Ask | None = None,
) -> Gate | None:
    """Return the way out that a plan asks for, None where there is none of ours.

    Args:
        network: What the plan says.
        is_own_process: Nobody else has descriptors in this process, so their bound may be raised.
        endpoints: Exact addresses and ports that may be reached although they are not public.
        ask: Is asked, while the command waits, for what no rule covers.

    Raises:
        PolicyError: a host can't be understood.
        SandboxUnavailable: this host's own addresses are not known, so they can't be kept out of reach.
    """
    if not isinstance(network, ProxyNetwork):
        return None
    rules = parse_rules(network.hosts, public=network.public, private=network.private_hosts)
    try:
        own = own_addresses()
    except (OSError, ValueError) as error:
        raise SandboxUnavailable(
            f"the addresses of this host can't be read: {error}", remedy="Mount /proc, or run without a network."
        ) from None
    if is_own_process:
        _allow_descriptors()
    return Gate(network, rules, own, endpoints, ask)


def _allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
