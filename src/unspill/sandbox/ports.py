# SPDX-License-Identifier: Apache-2.0
"""Ports of a live sandbox: `live.publish(8000)` for a server inside, `live.expose(11434)` for one of the host's.

A sandbox has no port that reaches out of it. One is opened by whoever calls these, or types `-p` or `--expose`: that is
the grant, and the audit has it before anything is served. No tool of an agent has an argument for it. A published port
is on the host's loopback alone, an exposed one leads to that one port of the host's loopback alone.
"""

from __future__ import annotations

import errno
import os

from unspill.errors import HostError, SandboxUnavailable, UsageError
from unspill.model.run import PortTraffic, Traffic
from unspill.network.forward import (
    Forwarder,
    HostDialler,
    Route,
    check_peer,
    listen_on_host,
    take_listener,
    take_stream,
)
from unspill.permissions.audit import Audit, as_text
from unspill.record import Record
from unspill.runner.live import hear_descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import SocketType, socket
    from typing import Self

    from unspill.runner.live import LiveSandbox
    from unspill.sandbox.project import Project


_MOST_PORTS = 64
_LAST_PORT = 65_535
_FIRST_FREE = 1024
_LEAVE_OUT = "Leave out the ports."


class WantedPorts(Record):
    """The ports that one run is to have: published ones, each inside and on the host (0: any); and exposed ones.

    `on_open` is told of each when it is open.
    """

    publish: tuple[tuple[int, int], ...] = ()
    expose: tuple[int, ...] = ()
    on_open: Callable[[Port], None] | None = None


class Port:
    """An open port. `inside` is its number in the sandbox, `number` that on the host. Close it, or its sandbox does."""

    def __init__(self, ports: Ports, route: Route, inside: int, number: int) -> None:
        self._ports = ports
        self.route = route
        self.inside = inside
        self.number = number
        # The sandbox that it listens in, by how many were built before
        self.built = 0
        self._told = PortTraffic(is_published=route.is_published, inside=inside, host=number)

    @property
    def is_published(self) -> bool:
        """Whether it leads into the sandbox, not out of it."""
        return self.route.is_published

    @property
    def traffic(self) -> PortTraffic:
        """What went through it so far."""
        route = self.route
        return PortTraffic(
            is_published=route.is_published,
            inside=self.inside,
            host=self.number,
            connections=route.connections,
            up=route.up,
            down=route.down,
            refused=route.refused,
            failed=route.failed,
        )

    def take_news(self) -> PortTraffic:
        """Return what went through it since this was asked for the last time."""
        now, before, self._told = self.traffic, self._told, self.traffic
        return now.replace(
            connections=now.connections - before.connections,
            up=now.up - before.up,
            down=now.down - before.down,
            refused=now.refused - before.refused,
            failed=now.failed - before.failed,
        )

    def close(self) -> None:
        """End it, and every connection through it."""
        self._ports.drop(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()


class DoorDialler:
    """Connects to one port inside a live sandbox, by its door."""

    is_passed = True

    def __init__(self, live: LiveSandbox, port: int) -> None:
        self._live = live
        self._port = port

    def begin(self, *, is_ipv6: bool) -> SocketType:
        """Ask the door."""
        try:
            return self._live.ask_connection(self._port, is_ipv6=is_ipv6)
        except SandboxUnavailable as error:
            raise OSError(errno.ECONNREFUSED, error.message) from None

    def take(self, answer: SocketType) -> socket:
        """Take what the door passes, if it is what was asked for."""
        return take_stream(hear_descriptor(answer))

    def check(self, made: socket) -> None:
        """Refuse one that leads elsewhere."""
        check_peer(made, self._port)


class Ports:
    """The open ports of one live sandbox. Threads may share it."""

    def __init__(self, project: Project, live: LiveSandbox) -> None:
        """Prepare; nothing is open yet.

        Raises:
            UsageError: the policy allows none.
        """
        check_ports(project)
        self._project = project
        self._live = live
        self._forwarder = Forwarder()
        self._open: list[Port] = []
        live.ports = self

    def publish(self, inside: int, host: int = 0) -> Port:
        """Have a port of the host's loopback lead to one inside; `host` is its number, 0 for the same or a free one.

        Raises:
            UsageError: there is no such port, or it is in use.
            StoreError: it can't be recorded; nothing is open then.
        """
        self._check(inside, host or inside)
        listener = _listen(host) if host else _listen_near(inside)
        try:
            number = listener.getsockname()[1]
            self._record("published", inside, number)
        except BaseException:
            listener.close()
            raise
        route = Route(DoorDialler(self._live, inside), is_published=True)
        return self._add(Port(self, route, inside, number), listener)

    def expose(self, host: int) -> Port:
        """Have a port inside lead to the same port of the host's loopback.

        Raises:
            UsageError: there is no such port, or it is in use inside.
            StoreError: it can't be recorded; nothing is open then.
        """
        self._check(host, host)
        if host < _FIRST_FREE:
            raise UsageError(
                f"port {host} can't be opened inside: ports below {_FIRST_FREE} are root's",
                remedy="Have the host's server listen on a higher port.",
            )
        if any(not port.is_published and port.inside == host for port in self._open):
            raise UsageError(f"port {host} is exposed already", remedy="Use it, or close it first.")
        self._record("exposed", host, host)
        return self._add(Port(self, Route(HostDialler(host), is_published=False), host, host), None)

    def _check(self, *numbers: int) -> None:
        for number in numbers:
            if not 0 < number <= _LAST_PORT:
                raise UsageError(f"not a port: {number}", remedy=f"Ports are numbers from 1 to {_LAST_PORT}.")
        if len(self._open) >= _MOST_PORTS:
            raise UsageError(f"a sandbox has at most {_MOST_PORTS} ports", remedy="Close some first.")

    def _record(self, what: str, inside: int, host: int) -> None:
        event = {
            "kind": "port",
            "what": what,
            "inside": inside,
            "host": host,
            "project": as_text(self._project.path),
            "sandbox": self._project.row.id,
        }
        Audit(self._project.store.state + b"/audit", session=self._project.store.session).append(event)

    def _add(self, port: Port, listener: socket | None) -> Port:
        self._open.append(port)
        if listener is not None:
            self._forwarder.listen(port.route, listener)
        try:
            self._live.open_ports()
        except BaseException:
            self.drop(port)
            raise
        return port

    def enter(self, built: int, listen: Callable[[int], int]) -> None:
        """Begin to serve, and have exposed ports listen in a sandbox that was built.

        Raises:
            UsageError: one is in use there.
        """
        # Not before: the process that starts the sandbox may have to be forked from this one
        self._forwarder.start()
        for port in self._open:
            if not port.is_published and port.built != built:
                self._forwarder.listen(port.route, _listen_inside(port.inside, listen))
                port.built = built

    def leave(self) -> None:
        """Let go of what listened in a sandbox that has ended."""
        for port in self._open:
            if not port.is_published:
                self._forwarder.unlisten(port.route)
                port.built = 0

    def known(self) -> frozenset[int]:
        """Return the ports inside that are open one way or the other."""
        return frozenset(port.inside for port in self._open)

    def drop(self, port: Port) -> None:
        """End a port."""
        if port in self._open:
            self._open.remove(port)
        self._forwarder.drop(port.route)

    def settle(self, traffic: Traffic | None) -> Traffic | None:
        """Add what went through the ports since the last time to the record of who ran meanwhile; all of it has ended.

        What was sent and not read yet is waited for.
        """
        self._forwarder.settle()
        found = (port.take_news() for port in self._open)
        used = tuple(news for news in found if news.connections or news.refused or news.failed)
        faults, self._forwarder.faults = tuple(self._forwarder.faults), []
        if not used and not faults:
            return traffic
        traffic = traffic or Traffic()
        return traffic.replace(ports=used, faults=(*traffic.faults, *faults))

    def close(self) -> None:
        """End every port."""
        self._forwarder.close()
        for port in self._open:
            if port.route.listener is not None:
                port.route.listener.close()
        self._open.clear()


def check_ports(project: Project, *, has_network: bool = False) -> None:
    """Refuse ports where there can be none; `has_network`: the network is wanted too.

    Raises:
        HostError: there are no live sandboxes here.
        UsageError: the policy allows none, or the command has the host's own ports.
    """
    if not project.means.has_live:
        raise HostError(
            "Ports need a live sandbox, which is not possible here.",
            remedy="Leave out the ports; `unspill doctor` shows what is missing.",
        )
    policy = project.means.policy
    if policy.profile == "strict":
        raise UsageError(
            '`profile = "strict"` allows no ports', remedy='Set `profile = "default"`, or leave out the ports.'
        )
    if has_network and policy.network.mode == "host":
        raise UsageError('with `network.mode = "host"` the command has this machine\'s own ports', remedy=_LEAVE_OUT)


def open_wanted(project: Project, live: LiveSandbox, wanted: WantedPorts) -> Ports:
    """Open the ports that one run is to have, or none of them."""
    ports = Ports(project, live)
    try:
        opened = [ports.publish(*pair) for pair in wanted.publish] + [ports.expose(host) for host in wanted.expose]
        for port in opened:
            if wanted.on_open is not None:
                wanted.on_open(port)
    except BaseException:
        ports.close()
        raise
    return ports


def _listen_near(inside: int) -> socket:
    """Listen on the host's port of the same number, or where that is not free on another."""
    try:
        return listen_on_host(inside)
    except OSError:
        return _listen(0)


def _listen(host: int) -> socket:
    try:
        return listen_on_host(host)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {host} of this machine is in use", remedy="Choose another one, or none: then it is a free one."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise UsageError(f"only root may use port {host}", remedy=f"Choose one from {_FIRST_FREE} on.") from None
        raise SandboxUnavailable(
            f"port {host} of this machine can't be used: {error.strerror}", remedy=_LEAVE_OUT
        ) from error


def _listen_inside(port: int, listen: Callable[[int], int]) -> socket:
    try:
        return take_listener(listen(port), port)
    except OSError as error:
        why = "it is in use there" if error.errno == errno.EADDRINUSE else error.strerror or os.strerror(errno.EIO)
        raise UsageError(
            f"port {port} can't be opened inside: {why}", remedy="Stop the server there, or leave out this port."
        ) from error
