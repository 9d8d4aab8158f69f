# SPDX-License-Identifier: Apache-2.0
"""Ports of a live sandbox: for each connection to one side, a connection to the other, and the bytes between them.

    published   a client on the host ── listener of ours ──▶ link ──▶ connection that the door made inside
    exposed     a client inside ── listener that the door made inside ──▶ link ──▶ connection of ours on the host

One thread serves all ports with one epoll, and waits for none of the ends. Where a connection leads is fixed with its
port: nothing that comes through decides it. Descriptors that come from inside are checked to be what they should be.
A link holds no more than its two flows do, there are only so many, and what is more is refused and counted.
"""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import suppress
from socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    SHUT_RDWR,
    SO_ACCEPTCONN,
    SO_DOMAIN,
    SO_ERROR,
    SO_PROTOCOL,
    SO_REUSEADDR,
    SO_TYPE,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    socket,
)
from threading import Event, Lock, Thread

from unspill.errors import SandboxUnavailable
from unspill.network.relay import Meter, PipePool, Relay, connections_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import SocketType
    from typing import Protocol

    class Dialler(Protocol):
        """Makes connections to the other side of a port. Every method may raise an OSError.

        `begin` returns what to wait for: the connection itself, or, if `is_passed`, a socket that it comes on, which
        `take` takes it from. `check` refuses one that is not to where it should be.
        """

        is_passed: bool

        def begin(self, *, is_ipv6: bool) -> SocketType: ...
        def take(self, answer: SocketType) -> socket: ...
        def check(self, made: socket) -> None: ...


LOOPBACK, LOOPBACK_6 = "127.0.0.1", "::1"
MOST_LINKS = 256
_BACKLOG = 128
_ACCEPTED_AT_ONCE = 64
_EVENTS_AT_ONCE = 256
_TICK_S = 0.25
# How long a connection may take to be made, and how long one of which an end has closed may be silent at the bound
_DIALLING_S, _LEFT_S = 5.0, 120.0
# What is left to be read at the end of a sandbox is waited for so long
_DRAINING_S = 2.0
_MOST_FAULTS = 10
_NO_THREAD = "Run it without ports, or end other programs."


def listen_on_host(port: int) -> socket:
    """Return a socket that listens on a port of this host's loopback, 0 for a free one; nobody accepts yet.

    Raises:
        OSError: the port is in use, or only root may have it.
    """
    sock = socket(AF_INET, SOCK_STREAM)
    try:
        sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        sock.bind((LOOPBACK, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def take_stream(fd: int) -> socket:
    """Return a descriptor from inside as a socket, if it is a TCP socket; anything else is closed.

    Raises:
        OSError: it is something else.
    """
    try:
        sock = socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    family, kind, protocol = (sock.getsockopt(SOL_SOCKET, option) for option in (SO_DOMAIN, SO_TYPE, SO_PROTOCOL))
    if family not in (AF_INET, AF_INET6) or kind != SOCK_STREAM or protocol != IPPROTO_TCP:
        sock.close()
        raise OSError(errno.EPROTOTYPE, "what came from inside is not a TCP socket")
    sock.setblocking(False)
    return sock


def take_listener(fd: int, port: int) -> socket:
    """Return a descriptor from inside as a socket that listens on a port of the loopback there.

    Raises:
        OSError: it is something else.
    """
    sock = take_stream(fd)
    if not sock.getsockopt(SOL_SOCKET, SO_ACCEPTCONN) or sock.getsockname() != (LOOPBACK, port):
        sock.close()
        raise OSError(errno.EPROTOTYPE, "what came from inside does not listen on the port")
    return sock


def check_peer(made: socket, port: int) -> None:
    """Refuse a connection that does not lead to a port of a loopback.

    Raises:
        OSError: it leads elsewhere, or nowhere.
    """
    if made.getpeername()[:2] not in ((LOOPBACK, port), (LOOPBACK_6, port)):
        raise OSError(errno.EPROTOTYPE, "the connection from inside does not lead to the port")


class HostDialler:
    """Connects to one port of this host's loopback."""

    is_passed = False

    def __init__(self, port: int) -> None:
        self._port = port

    def begin(self, *, is_ipv6: bool) -> SocketType:
        """Begin to connect."""
        sock = socket(AF_INET6 if is_ipv6 else AF_INET, SOCK_STREAM)
        sock.setblocking(False)
        problem = sock.connect_ex((LOOPBACK_6 if is_ipv6 else LOOPBACK, self._port))
        if problem not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(problem, os.strerror(problem))
        return sock

    def take(self, answer: SocketType) -> socket:
        """Nothing is passed here."""
        raise NotImplementedError

    def check(self, made: socket) -> None:
        """Refuse a connection to itself: where nobody listens, the kernel may choose the same port for both ends."""
        check_peer(made, self._port)
        if made.getsockname() == made.getpeername():
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


class Route:
    """One port: who makes its connections, and what went through it. Counted by the thread that serves it."""

    def __init__(self, dialler: Dialler, *, is_published: bool) -> None:
        self.dialler = dialler
        self.is_published = is_published
        # What goes to who was dialled, and what comes from there
        self.forth, self.back = Meter("", None), Meter("", None)
        self.connections = self.refused = self.failed = 0
        self.listener: socket | None = None

    @property
    def up(self) -> int:
        """How many bytes left the sandbox."""
        return self.back.used if self.is_published else self.forth.used

    @property
    def down(self) -> int:
        """How many bytes entered the sandbox."""
        return self.forth.used if self.is_published else self.back.used


class Link:
    """One connection that came to a port, and the one that is made for it."""

    def __init__(self, route: Route, client: socket) -> None:
        self.route = route
        self.client = client
        self.server: socket | None = None
        self.relay: Relay | None = None
        self.since = time.monotonic()
        self.watched: dict[int, int] = {}
        self._answer: SocketType | None = None
        self._is_ipv6 = False

    @property
    def is_drained(self) -> bool:
        """Whether all that was sent from inside has arrived."""
        if self.relay is None:
            return self.route.is_published
        return (self.relay.down if self.route.is_published else self.relay.up).is_over

    def is_left(self, now: float) -> bool:
        """Tell whether one end has closed, and nothing was moved for long."""
        is_half = self.relay is not None and (self.relay.up.is_over or self.relay.down.is_over)
        return is_half and now - self.since > _LEFT_S

    def dial(self) -> None:
        """Begin to make the other connection; by IPv4, and where that fails by IPv6."""
        try:
            self._dial()
        except OSError:
            self._dial_again()

    def _dial(self) -> None:
        begun = self.route.dialler.begin(is_ipv6=self._is_ipv6)
        if self.route.dialler.is_passed:
            self._answer = begun
        else:
            assert isinstance(begun, socket)
            self.server = begun

    def _dial_again(self) -> None:
        self._close_dialled()
        if self._is_ipv6:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._is_ipv6 = True
        self._dial()

    def go_on(self, pipes: PipePool) -> None:
        """Do what can be done without waiting.

        Raises:
            OSError: it can't be made, or is broken.
        """
        if self.relay is not None:
            moved = self.relay.up.moved + self.relay.down.moved
            self.relay.pump()
            if self.relay.up.moved + self.relay.down.moved != moved:
                self.since = time.monotonic()
            return
        try:
            if self._answer is not None:
                self.server = self.route.dialler.take(self._answer)
                self._answer.close()
                self._answer = None
                return
            assert self.server is not None
            problem = self.server.getsockopt(SOL_SOCKET, SO_ERROR)
            if problem:
                raise OSError(problem, os.strerror(problem))
            self.route.dialler.check(self.server)
        except OSError:
            self._dial_again()
            return
        self._begin(self.server, pipes)

    def _begin(self, server: socket, pipes: PipePool) -> None:
        for side in (self.client, server):
            side.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self.relay = Relay(self.client, server, None, (self.route.forth, self.route.back), pipes)
        self.route.connections += 1
        self.relay.pump()

    def wanted(self) -> dict[int, int]:
        """Return what to wait for, by descriptor."""
        if self._answer is not None:
            return {self._answer.fileno(): select.EPOLLIN}
        assert self.server is not None
        if self.relay is None:
            return {self.server.fileno(): select.EPOLLOUT}
        up, down = self.relay.up, self.relay.down
        return {
            self.client.fileno(): select.EPOLLIN * up.wants_source | select.EPOLLOUT * down.wants_sink,
            self.server.fileno(): select.EPOLLIN * down.wants_source | select.EPOLLOUT * up.wants_sink,
        }

    def close(self) -> None:
        """Give up what has not arrived."""
        if self.relay is not None:
            self.relay.close()
        self._close_dialled()
        self.client.close()

    def _close_dialled(self) -> None:
        for sock in (self._answer, self.server):
            if sock is not None:
                sock.close()
        self._answer = self.server = None


class Forwarder:
    """Serves the ports of one sandbox, in a thread that is started by `start`. Threads may share it."""

    def __init__(self, most: int = MOST_LINKS) -> None:
        self._most = most
        self._pipes = PipePool()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._links: set[Link] = set()
        self._dialling: set[Link] = set()
        self._listening: dict[int, Route] = {}
        self._watched: dict[int, Link] = {}
        # Ports that wait for a free descriptor
        self._paused: list[Route] = []
        self._settling: tuple[float, Event] | None = None
        self._lock = Lock()  # protects the fields below
        self._orders: list[Callable[[], None]] = []
        self._thread: Thread | None = None
        self._is_closing = self._is_over = False
        # The first defects of ours, to be told
        self.faults: list[str] = []

    def start(self) -> None:
        """Begin to serve, if that was not begun."""
        with self._lock:
            if self._thread is not None or self._is_over:
                return
            self._most = connections_at_once(self._most)
            thread = Thread(target=self._serve, name="unspill-ports", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise SandboxUnavailable(f"the ports can't be served: {error}", remedy=_NO_THREAD) from None
            self._thread = thread

    def listen(self, route: Route, listener: socket) -> None:
        """Serve a port on this socket from now on."""
        listener.setblocking(False)
        route.listener = listener
        self._order(lambda: self._watch_listener(route, listener))

    def unlisten(self, route: Route) -> None:
        """Accept nothing any more; what was accepted goes on. Does not wait."""
        listener, route.listener = route.listener, None
        if listener is None:
            return
        # Ends a wait in `accept` too: who passed it from inside may have made it wait
        with suppress(OSError):
            listener.shutdown(SHUT_RDWR)
        self._order(lambda: self._unwatch_listener(listener))

    def drop(self, route: Route) -> None:
        """End a port and all that goes through it; return when that is done."""
        self.unlisten(route)
        done = Event()
        self._order(lambda: self._drop(route, done))
        done.wait()

    def settle(self) -> None:
        """Return when what was sent from inside has arrived, or nobody takes it; then all connections are ended.

        To be called when nothing is alive inside.
        """
        done = Event()
        self._order(lambda: self._settle(done))
        done.wait()

    def close(self) -> None:
        """End everything."""
        self._is_closing = True
        with self._lock:
            thread, is_over = self._thread, self._is_over
            if thread is not None and not is_over:
                os.eventfd_write(self._wake, 1)
        if thread is not None:
            thread.join()
        elif not is_over:
            self._end()

    def _order(self, order: Callable[[], None]) -> None:
        """Have the thread do something; where there is none, it is done at once."""
        with self._lock:
            is_posted = self._thread is not None and not self._is_over
            if is_posted:
                self._orders.append(order)
                os.eventfd_write(self._wake, 1)
        if not is_posted:
            order()

    def _serve(self) -> None:
        try:
            self._epoll.register(self._wake, select.EPOLLIN)
            while not self._is_closing:
                self._serve_once()
        except BaseException as error:
            self._note(error)
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            orders, self._orders = self._orders, []
        for link in list(self._links):
            self._forget(link)
        for route in self._listening.values():
            if route.listener is not None:
                route.listener.close()
        self._listening.clear()
        if self._settling is not None:
            self._settling[1].set()
        self._pipes.close()
        self._epoll.close()
        os.close(self._wake)
        for order in orders:
            order()

    def _serve_once(self) -> None:
        is_ticking = self._paused or self._settling or self._dialling
        for fd, _events in self._epoll.poll(_TICK_S if is_ticking else None, _EVENTS_AT_ONCE):
            if fd == self._wake:
                os.eventfd_read(self._wake)
            elif fd in self._listening:
                self._accept(self._listening[fd])
            elif fd in self._watched:
                self._go_on(self._watched[fd])
        with self._lock:
            orders, self._orders = self._orders, []
        for order in orders:
            order()
        if self._paused or self._settling or self._dialling:
            self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        for link in [link for link in self._dialling if now - link.since > _DIALLING_S]:
            link.route.failed += 1
            self._forget(link)
        paused, self._paused = self._paused, []
        for route in paused:
            if route.listener is not None:
                self._watch_listener(route, route.listener)
        if self._settling is not None and (now > self._settling[0] or all(link.is_drained for link in self._links)):
            for link in list(self._links):
                self._forget(link)
            self._settling[1].set()
            self._settling = None

    def _accept(self, route: Route) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if route.listener is None:
                return
            try:
                client = route.listener.accept()[0]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                self._unwatch_listener(route.listener, is_closed=False)
                # No descriptor or memory is left; a socket that was shut down says EINVAL
                if error.errno != errno.EINVAL:
                    self._paused.append(route)
                return
            self._take(route, client)

    def _take(self, route: Route, client: socket) -> None:
        if len(self._links) >= self._most:
            now = time.monotonic()
            for left in [link for link in self._links if link.is_left(now)]:
                self._forget(left)
        if len(self._links) >= self._most:
            route.refused += 1
            client.close()
            return
        client.setblocking(False)
        link = Link(route, client)
        self._links.add(link)
        self._dialling.add(link)
        self._guard(link, link.dial)

    def _go_on(self, link: Link) -> None:
        self._guard(link, lambda: link.go_on(self._pipes))

    def _guard(self, link: Link, do: Callable[[], None]) -> None:
        """Do something for a link; whatever goes wrong ends this link alone."""
        if link.relay is None:
            # One descriptor may be closed meanwhile, and its number be another's
            self._watch(link, {})
        try:
            do()
        except OSError:
            if link.relay is None:
                link.route.failed += 1
            self._forget(link)
            return
        except Exception as error:
            self._note(error)
            self._forget(link)
            return
        if link.relay is not None:
            self._dialling.discard(link)
        if link.relay is not None and link.relay.is_over:
            self._forget(link)
        else:
            self._watch(link, {fd: events for fd, events in link.wanted().items() if events})

    def _watch(self, link: Link, wanted: dict[int, int]) -> None:
        for fd in link.watched.keys() - wanted.keys():
            del self._watched[fd]
            self._epoll.unregister(fd)
        for fd, events in wanted.items():
            if fd not in link.watched:
                self._watched[fd] = link
                self._epoll.register(fd, events)
            elif link.watched[fd] != events:
                self._epoll.modify(fd, events)
        link.watched = wanted

    def _forget(self, link: Link) -> None:
        self._watch(link, {})
        self._links.discard(link)
        self._dialling.discard(link)
        link.close()

    def _watch_listener(self, route: Route, listener: socket) -> None:
        if self._is_over:
            listener.close()
        elif route.listener is listener:
            self._listening[listener.fileno()] = route
            self._epoll.register(listener.fileno(), select.EPOLLIN)

    def _unwatch_listener(self, listener: socket, *, is_closed: bool = True) -> None:
        if self._listening.pop(listener.fileno(), None) is not None:
            self._epoll.unregister(listener.fileno())
        if is_closed:
            listener.close()

    def _drop(self, route: Route, done: Event) -> None:
        for link in [link for link in self._links if link.route is route]:
            self._forget(link)
        done.set()

    def _settle(self, done: Event) -> None:
        for route in list(self._listening.values()):
            if not route.is_published:
                self._accept(route)
        if self._thread is None or self._is_over or not self._links:
            done.set()
        else:
            self._settling = (time.monotonic() + _DRAINING_S, done)

    def _note(self, error: BaseException) -> None:
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(f"a port dropped a connection; please report this: {error!r}")
