# SPDX-License-Identifier: Apache-2.0
"""Move bytes both ways between a client of the proxy and its server, and check what the client says first.

A Flow is one direction, as fast as the slower end. The kernel moves its bytes through a pipe (splice), a third of the
work of copying them in and out. Pipes are few and shared: a flow has one only while its sink is full. What a gate has
to read, and what finds no pipe, is copied.

A gate stands between client and server until it is clear what the client says. It is fed what the client sends and
returns what may be passed on. Once `is_open` bytes go by unread; once `is_shut` nothing goes by any more; while
`is_waiting` the client has to hurry.
"""

from __future__ import annotations

import fcntl
import os
import resource
from socket import MSG_PEEK, SHUT_WR

from unspill.network.protocols import (
    TLS_ALERT,
    TLS_HANDSHAKE,
    Body,
    Head,
    denial_answer,
    find_head_end,
    parse_head,
    parse_hello,
)
from unspill.policy.hosts import AllowedHost, Destination, Refused, parse_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import TypeAlias

    from unspill.network.protocols import ProxyRequest

    Gate: TypeAlias = "HelloGate | RequestGate | BodyGate"

_PIPES = 16
_PIPE_BYTES = 1 << 20
_COPY_BYTES = 64 * 1024
_ROUNDS = 8
# What a command opens may not take the last descriptors: this process has to go on, and whoever it belongs to
_LEFT_ALONE = 64
_FEWEST = 4
_SPLICE_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class Relay:
    """Two flows. `is_over` when nothing can go either way any more."""

    def __init__(
        self, client: socket, server: socket, gate: Gate | None, meters: tuple[Meter, Meter], pipes: PipePool
    ) -> None:
        self.gate = gate
        self.up = Flow(client, server, meters[0], pipes, gate=gate)
        self.down = Flow(server, client, meters[1], pipes)

    def begin(self, request: ProxyRequest) -> None:
        """Take what the client has sent together with its request.

        Raises:
            Refused: The gate says no, or the budget is used up.
        """
        if request.head is not None:
            self.up.insert(request.head.passed_on())
        self.up.accept(request.rest)

    def pump(self) -> None:
        """Move what can be moved now.

        Raises:
            Refused: The gate says no, or the budget is used up.
            OSError: One of the ends is broken.
        """
        self.up.pump()
        self.down.pump()

    @property
    def is_over(self) -> bool:
        """Tell whether both directions have ended, or the one request was answered."""
        return self.down.is_over and (self.up.is_over or isinstance(self.gate, BodyGate | RequestGate))

    @property
    def is_waiting(self) -> bool:
        """Tell whether the client still has to say what it wants."""
        return self.gate is not None and self.gate.is_waiting and not self.up.is_over

    def answer(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial in a language that it understands at this point."""
        if self.gate is None or self.down.moved:
            return b""
        return self.gate.answer(refused, text)

    def close(self) -> None:
        """Give up what has not arrived."""
        self.up.close()
        self.down.close()


def connections_at_once(most: int) -> int:
    """Return how many connections there is room for, up to a bound; each takes two descriptors."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return most
    free = soft - len(os.listdir("/proc/self/fd")) - _LEFT_ALONE
    return min(max(free // 2, _FEWEST), most)


def gate_for(request: ProxyRequest, *, any_server_name: bool) -> Gate | None:
    """Return what has to be read of what a client sends to its server, None if nothing."""
    if request.head is not None:
        return BodyGate(request.head)
    if request.destination.port == 80:
        return RequestGate(request.destination)
    if any_server_name:
        return None
    return HelloGate(request.destination, is_required=request.destination.port == 443)


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
        if self._received[0] != TLS_HANDSHAKE and not self._is_required:
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
        elif _normal_host(name, self._destination) != self._destination.host:
            raise Refused("server name", "it asks for a host other than the tunnel's")

    def answer(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial."""
        return TLS_ALERT if self._received[:1] == bytes((TLS_HANDSHAKE,)) else b""


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
        end = find_head_end(self._received)
        if not end:
            return b""
        head = parse_head(self._received[:end], within=self._destination)
        self._body = BodyGate(head)
        return head.passed_on() + self._body.feed(self._received[end:])

    def answer(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial."""
        return denial_answer(refused.rule, text) if self._body is None else b""


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


class Flow:
    """One direction. `wants_source` and `wants_sink` say what it waits for; `is_over` when all has arrived."""

    def __init__(
        self, source: socket, sink: socket, meter: Meter, pipes: PipePool, *, gate: Gate | None = None
    ) -> None:
        self.gate = gate
        self.moved = 0
        self.is_over = False
        self._source, self._sink = source, sink
        self._meter, self._pipes = meter, pipes
        self._pipe: tuple[int, int] | None = None
        self._piped = 0
        self._copied = b""
        self._has_ended = False

    @property
    def has_backlog(self) -> bool:
        """Tell whether something waits for the sink."""
        return bool(self._piped or self._copied)

    @property
    def wants_source(self) -> bool:
        """Tell whether it can go on when the source has bytes."""
        return not (self._has_ended or self.has_backlog)

    @property
    def wants_sink(self) -> bool:
        """Tell whether it can go on when the sink takes bytes."""
        return self.has_backlog

    def pump(self) -> None:
        """Move what can be moved now.

        Raises:
            Refused: The gate says no, or the budget is used up.
            OSError: One of the ends is broken.
        """
        try:
            self._drain()
            for _ in range(_ROUNDS):
                if not self._has_ended:
                    self._fill()
                    self._drain()
                # Looked for in every round: whoever has ended is not waited for, so nobody would look later
                if self._has_ended:
                    self._finish()
                    return
        except BlockingIOError:
            return
        finally:
            if not self._piped:
                self.close()

    def insert(self, words: bytes) -> None:
        """Put something of ours before all that comes from the source.

        Raises:
            Refused: The budget is used up.
        """
        if self._meter.room(len(words)) < len(words):
            raise self._meter.refusal()
        self._copied += words
        self._count(len(words))

    def accept(self, chunk: bytes) -> None:
        """Take something that the source has sent, or nothing.

        Raises:
            Refused: The gate says no, or the budget is used up.
        """
        if chunk:
            self.insert(chunk if self.gate is None or self.gate.is_open else self.gate.feed(chunk))
        self._has_ended = self.gate is not None and self.gate.is_shut

    def close(self) -> None:
        """Give up what has not arrived."""
        if self._pipe is not None:
            self._pipes.give_back(self._pipe, is_empty=not self._piped)
            self._pipe = None

    def _finish(self) -> None:
        if not self.is_over:
            self.is_over = True
            # After one complete request the server still has to answer, and some give up on a half-closed connection
            if self.gate is None or not self.gate.is_shut:
                self._sink.shutdown(SHUT_WR)

    def _fill(self) -> None:
        if self.gate is not None and not self.gate.is_open:
            chunk = self._source.recv(_COPY_BYTES)
            if chunk:
                self.accept(chunk)
            else:
                self._has_ended = True
            return
        room = self._meter.room(_PIPE_BYTES)
        if not room:
            self._has_ended = not self._source.recv(1, MSG_PEEK)
            if not self._has_ended:
                raise self._meter.refusal()
            return
        if self._pipe is None:
            self._pipe = self._pipes.take()
        moved = self._splice_in(room) if self._pipe is not None else self._copy_in(min(room, _COPY_BYTES))
        self._count(moved)
        self._has_ended = not moved

    def _count(self, moved: int) -> None:
        self.moved += moved
        self._meter.used += moved

    def _splice_in(self, room: int) -> int:
        assert self._pipe is not None
        self._piped = os.splice(self._source.fileno(), self._pipe[1], room, flags=_SPLICE_FLAGS)
        return self._piped

    def _copy_in(self, room: int) -> int:
        self._copied = self._source.recv(room)
        return len(self._copied)

    def _drain(self) -> None:
        while self._copied:
            self._copied = self._copied[self._sink.send(self._copied) :]
        while self._piped:
            assert self._pipe is not None
            self._piped -= os.splice(self._pipe[0], self._sink.fileno(), self._piped, flags=_SPLICE_FLAGS)


class Meter:
    """Counts the bytes of all flows of one direction, up to a bound that has its name in the configuration."""

    def __init__(self, name: str, bound: int | None) -> None:
        self.name = name
        self.bound = bound
        self.used = 0

    def room(self, wanted: int) -> int:
        """Return how many of the wanted bytes may still pass."""
        return wanted if self.bound is None else min(wanted, self.bound - self.used)

    def refusal(self) -> Refused:
        """Return what says that nothing more may pass."""
        return Refused("budget", f"`{self.name} = {self.bound}` is used up")


class PipePool:
    """At most 16 pipes, all of them empty when they are here."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []
        self._made = 0

    def take(self) -> tuple[int, int] | None:
        """Return an empty pipe, None if there can't be another."""
        if self._free:
            return self._free.pop()
        if self._made >= _PIPES:
            return None
        try:
            pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        self._made += 1
        try:
            fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            return pipe  # the user has used up the pages for large pipes; a small one works as well
        return pipe

    def give_back(self, pipe: tuple[int, int], *, is_empty: bool) -> None:
        """Take a pipe back. One that is not empty is closed: its bytes belong to somebody."""
        if is_empty:
            self._free.append(pipe)
        else:
            self._close(pipe)

    def close(self) -> None:
        """Close those that are here."""
        while self._free:
            self._close(self._free.pop())

    def _close(self, pipe: tuple[int, int]) -> None:
        self._made -= 1
        os.close(pipe[0])
        os.close(pipe[1])


def _normal_host(name: bytes, destination: Destination) -> str:
    try:
        return parse_host(name, local=(AllowedHost(host=destination.host),))
    except Refused:
        raise Refused("server name", "it asks for something that is not a host name") from None
