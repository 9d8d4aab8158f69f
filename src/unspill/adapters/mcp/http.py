# SPDX-License-Identifier: Apache-2.0
"""Serve MCP over HTTP to programs of the same person on the same machine.

The SDK's own application, on a unix socket or a loopback port. A guard before it asks for the token first, then refuses
what the SDK would let through; the SDK checks Host and Origin. Whatever a client may do here it may do by stdio too.
When the server is told to end, all that runs for its clients is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hmac
import logging
import os
import secrets
import signal
import socket
import stat
import struct
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from uvicorn.protocols.http.h11_impl import H11Protocol

from unspill.adapters.files import places_of
from unspill.errors import UsageError
from unspill.host.dirfd import write_whole
from unspill.model.plan import Bind, Overlay
from unspill.plan.view import is_shown
from unspill.policy.paths import contains, show
from unspill.record import Record
from unspill.store.db import make_parents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from unspill.model.plan import Plan
    from unspill.sandbox.sandbox import Sandbox

PATH = "/mcp"
MOST_HEADERS = 64
MOST_HEADER_BYTES = 16 * 1024
MOST_BYTES = 4 * 1024 * 1024
BODY_WAIT_S = 30.0
# Connections that have not sent all headers of a request yet, and how long one may take for that
MOST_SILENT = 64
HEADERS_WAIT_S = 10.0

_MOST_CLIENTS = 256
_MOST_WAITING = 1024
# What the kernel takes of a path, without the byte that ends it
_LONGEST_PATH = 107
_LOOPBACK = {"127.0.0.1": socket.AF_INET, "[::1]": socket.AF_INET6}
_WHERE = "Use `unix:PATH`, `127.0.0.1:PORT` or `[::1]:PORT`; for other machines, forward the socket by ssh."
_CREDENTIALS = struct.Struct("3i")
# 32 random bytes are 43 letters
_SHORTEST_TOKEN, _LONGEST_TOKEN = 32, 512
_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=")
# Of two the next reader may take the other. The status with which a second one is refused
_AT_MOST_ONCE = {b"host": 421, b"origin": 403, b"content-type": 415, b"content-length": 400, b"transfer-encoding": 400}


class Serving(Record):
    """Where a server is reached, on which socket if it is a unix one, and which file has the token."""

    url: str
    socket: str
    token_file: str


def serve_http(
    server: Server[Any],
    address: str,
    *,
    token_file: str | bytes,
    origins: Sequence[str] = (),
    sandboxes: Sequence[Sandbox] = (),
    on_ready: Callable[[Serving], None] | None = None,
) -> None:
    """Serve until the process is told to end by SIGINT, SIGTERM or SIGHUP.

    Args:
        server: What is served.
        address: `unix:PATH`, `127.0.0.1:PORT` or `[::1]:PORT`; port 0 is any that is free.
        token_file: Where the token lies; it is made if it is missing.
        origins: What a client may give as its `Origin`; no page in a browser gets a permission by it.
        sandboxes: Whose commands must see neither the token nor the socket.
        on_ready: Called once, when clients can connect.

    Raises:
        UsageError: the address, the file or an origin can't be used.
    """
    place, token_path = parse_address(address), os.path.abspath(os.fsencode(token_file))
    allowed = [check_origin(origin) for origin in origins]
    for path in filter(None, (token_path, place.path)):
        check_unseen(path, sandboxes)
    token = load_token(token_path)
    for sandbox in sandboxes:
        # Several clients may share it, and none may find what another left
        sandbox.end_reuse()
    listener = listen(place)
    identity = identity_of(place.path) if place.path else None
    try:
        port = 0 if place.path else listener.getsockname()[1]
        hosts = allowed_hosts(place, port)
        serving = Serving(
            url=f"http://{hosts[0]}{PATH}", socket=os.fsdecode(place.path), token_file=os.fsdecode(token_path)
        )
        application = Guard(_application(server, hosts, allowed), token)
        asyncio.run(_serve(application, listener, lambda: on_ready(serving) if on_ready else None))
    finally:
        listener.close()
        if place.path:
            remove_socket(place.path, identity)


def _application(server: Server[Any], hosts: list[str], origins: list[str]) -> ASGIApp:
    # Its warnings quote headers as they came, which may be anything for a terminal
    logging.getLogger("mcp.server.transport_security").setLevel(logging.ERROR)
    # Without state, or with plain JSON as answers, a client of the older protocol could not be asked anything
    return server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=False,
        stateless_http=False,
        max_request_body_size=MOST_BYTES,
        max_sessions=_MOST_CLIENTS,
        transport_security=TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins),
    )


async def _serve(application: ASGIApp, listener: socket.socket, ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        application,
        http=Door,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level=logging.ERROR,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Holds only for headers that come in several pieces; the guard measures the others
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        # As many are taken in one turn of the loop, before any of them can be sent away
        backlog=MOST_SILENT,
        timeout_graceful_shutdown=1,
    )
    await _Server(config, ready).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """One that leaves signals to us: its own way ends the process before what runs is dead and recorded."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            # The rest waits in the kernel meanwhile, where nobody else's connection is lost for it
            listener.listen(_MOST_WAITING)
        if self.started:
            self._ready()

    def _stop(self) -> None:
        # That requests are cut short now is no failure to be told of
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.should_exit = True


class Door(H11Protocol):
    """A connection. Another user's is closed at once, one that stays silent after a while, the oldest first if many do.

    So nobody who lacks the token can use up what clients need: who got past the first request has shown it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let a connection in, or close it."""
        super().connection_made(transport)
        if not _is_own(transport.get_extra_info("socket")):
            transport.abort()
            return
        self.loop.call_later(HEADERS_WAIT_S, self._leave_if_silent)
        # One that was told to go is among the connections until the loop comes round
        others = [one for one in self.connections if isinstance(one, Door) and not one.transport.is_closing()]
        for one in sorted((one for one in others if one.is_silent), key=lambda one: one.since)[:-MOST_SILENT]:
            one.transport.abort()

    @property
    def is_silent(self) -> bool:
        """Whether not even the headers of one request have come yet."""
        return getattr(self, "cycle", None) is None

    def _leave_if_silent(self) -> None:
        if self.is_silent:
            self.transport.abort()


def _is_own(connected: Any) -> bool:
    """Tell whether the other end of a unix socket is of the same user; of a port nobody can tell."""
    if connected.family != socket.AF_UNIX:
        return True
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(peer)[1] == os.geteuid())


class _Refused(Exception):
    """A request that goes no further, with the status to answer."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Guard:
    """Stands before the SDK's application. A refusal gives no permission to any page, and ends the connection."""

    def __init__(self, inner: ASGIApp, token: Token, *, body_wait_s: float = BODY_WAIT_S) -> None:
        self._inner = inner
        self._token = token
        self._body_wait_s = body_wait_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it. Nothing of a body is read before its request has been judged."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        try:
            _check_headers(scope, self._token)
            body = await self._read_body(receive)
        except _Refused as refused:
            await _refuse(refused.status, send)
            return
        if body is None:
            return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._inner(scope, replay, send)

    async def _read_body(self, receive: Receive) -> bytes | None:
        """Return the whole body, None where the client has gone. The SDK waits for ever, and fails aloud if it goes."""
        body, is_whole = bytearray(), False
        try:
            async with asyncio.timeout(self._body_wait_s):
                while not is_whole:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > MOST_BYTES:
                        raise _Refused(413)
                    is_whole = not message.get("more_body", False)
        except TimeoutError:
            raise _Refused(408) from None
        return bytes(body)


def _check_headers(scope: Scope, token: Token) -> None:
    """Look at all of a request but its body: the token first, then what the SDK would read otherwise than we do."""
    names = [name for name, _value in scope["headers"]]
    headers: dict[bytes, bytes] = dict(scope["headers"])
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in scope["headers"])
    if len(names) > MOST_HEADERS or size > MOST_HEADER_BYTES:
        raise _Refused(431)
    scheme, _, shown = headers.get(b"authorization", b"").partition(b" ")
    is_bearer = names.count(b"authorization") == 1 and scheme.lower() == b"bearer"
    if not is_bearer or not token.is_given(shown.strip(b" ")):
        raise _Refused(401)
    for name, status in _AT_MOST_ONCE.items():
        if names.count(name) > 1:
            raise _Refused(status)
    # It takes an empty origin for none
    if headers.get(b"origin") == b"":
        raise _Refused(403)
    # Not `path`, in which escapes are undone
    if scope["raw_path"] != PATH.encode():
        raise _Refused(404)
    length, is_chunked = int(headers.get(b"content-length", b"0")), b"transfer-encoding" in headers
    if (is_chunked and b"content-length" in headers) or (scope["method"] != "POST" and (length or is_chunked)):
        raise _Refused(400)
    # It reads every type that begins like that of JSON
    kind, _, rest = headers.get(b"content-type", b"").lower().partition(b";")
    is_json = kind.strip() == b"application/json" and rest.strip() in (b"", b"charset=utf-8")
    if scope["method"] == "POST" and (not is_json or b"content-encoding" in headers):
        raise _Refused(415)
    if length > MOST_BYTES:
        raise _Refused(413)


async def _refuse(status: int, send: Send) -> None:
    text = f"{HTTPStatus(status).phrase}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
    # What follows on this connection could be anybody's idea of where the body ends
    headers += [(b"cache-control", b"no-store"), (b"connection", b"close")]
    headers += [(b"www-authenticate", b"Bearer")] if status == HTTPStatus.UNAUTHORIZED else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


class Token:
    """What a client must show. It has no text form, so that no message or traceback ever has it."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def is_given(self, shown: bytes) -> bool:
        """Tell whether this is it, in a time that does not depend on where the two differ."""
        return hmac.compare_digest(shown, self._value)


def load_token(path: bytes) -> Token:
    """Return the token in a file, which is made with a new one if it is missing.

    It is never an argument of a program, which others could see in `ps`, never a variable and never logged.

    Raises:
        UsageError: somebody else owns the file or can read it, or what it holds is no token.
    """
    try:
        if not os.path.lexists(path):
            _make_token(path)
        return _read_token(path)
    except OSError as error:
        raise _bad_token(path, f"can't be read or made: {error.strerror}") from error


def _read_token(path: bytes) -> Token:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        content = os.read(fd, _LONGEST_TOKEN + 1) if stat.S_ISREG(found.st_mode) else b""
    finally:
        os.close(fd)
    if not stat.S_ISREG(found.st_mode):
        raise _bad_token(path, "is not a file")
    if found.st_uid != os.geteuid():
        raise _bad_token(path, f"belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        raise _bad_token(path, "can be read by other users", f"Run: chmod 600 {show(path)}")
    token = content.strip()
    if not _SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN or not _LETTERS.issuperset(token):
        raise _bad_token(path, f"holds no token of at least {_SHORTEST_TOKEN} letters and digits")
    return Token(token)


def _make_token(path: bytes) -> None:
    """Make the file whole: two servers that start at once agree on one token, and a crash leaves no empty file."""
    make_parents(path)
    # Not the number of this process: in a container it is the same at each start, and a draft may have been left
    draft = b"%b.%b" % (path, secrets.token_hex(8).encode())
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_whole(fd, secrets.token_urlsafe(32).encode() + b"\n")
        os.fsync(fd)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(fd)
        os.unlink(draft)


def _bad_token(path: bytes, why: str, remedy: str = "") -> UsageError:
    remedy = remedy or "Name another file, or remove it: unspill makes one with a new token."
    return UsageError(f"the token file {show(path)} {why}", remedy=remedy)


class Place(Record):
    """Where to listen: the absolute path of a unix socket, or a port of a loopback address; 0 is any that is free."""

    path: bytes = b""
    host: str = ""
    port: int = 0


def parse_address(text: str) -> Place:
    """Return what an address means.

    Raises:
        UsageError: it is none, or one that others can reach.
    """
    if text.startswith("unix:") and text != "unix:":
        return Place(path=os.path.abspath(os.fsencode(text.removeprefix("unix:"))))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise UsageError(f"this is no address to listen on: {text!a:.80}", remedy=_WHERE)
    if host == "localhost":
        raise UsageError(f"a name may mean several addresses: {text!a:.80}", remedy=_WHERE)
    if host not in _LOOPBACK:
        raise UsageError(f"an MCP server is not offered to other machines: {text!a:.80}", remedy=_WHERE)
    return Place(host=host, port=int(port))


def allowed_hosts(place: Place, port: int) -> list[str]:
    """Return the values of the header `Host` that mean this server, the one for its address first."""
    if place.path:
        return ["localhost"]
    names = [place.host, "localhost"]
    return [f"{name}:{port}" for name in names] + (names if port == 80 else [])


def check_origin(text: str) -> str:
    """Return an origin as a client gives it.

    Raises:
        UsageError: it is none, or stands for several.
    """
    scheme, separator, host = text.partition("://")
    is_plain = text.isascii() and all(sign.isalnum() or sign in ".-:[]" for sign in host)
    if not (separator and scheme.isalnum() and host and is_plain):
        remedy = "Give it as a client does: http://app.example.org:8080, without a path and without `*`."
        raise UsageError(f"this is no origin: {text!a:.80}", remedy=remedy)
    return text


def listen(place: Place) -> socket.socket:
    """Return a socket that listens there.

    Raises:
        UsageError: the place is taken, or others could reach a unix socket there.
    """
    made = socket.socket(socket.AF_UNIX if place.path else _LOOPBACK[place.host], socket.SOCK_STREAM)
    try:
        if place.path:
            _bind_unix(made, place.path)
        else:
            # Only against connections that are still closing; two that listen are refused as ever
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((place.host.strip("[]"), place.port))
        made.listen(128)
    except BaseException as error:
        made.close()
        if not isinstance(error, OSError):
            raise
        where = show(place.path) if place.path else f"{place.host}:{place.port}"
        remedy = "Choose another place, or stop what listens there."
        raise UsageError(f"can't listen on {where}: {error.strerror}", remedy=remedy) from error
    return made


def _bind_unix(made: socket.socket, path: bytes) -> None:
    if len(path) > _LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    make_parents(path)
    with _locked_directory(path) as found:
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            remedy = "Choose a directory of yours that nobody else can enter, such as one made by: mkdir -m 700 DIR"
            raise UsageError(f"other users can enter {show(os.path.dirname(path))}", remedy=remedy)
        _remove_dead(path)
        made.bind(path)
        os.chmod(path, 0o600)


@contextlib.contextmanager
def _locked_directory(path: bytes) -> Iterator[os.stat_result]:
    """Lock the directory of a socket: of two servers that start at once, one finds the other's socket."""
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield os.fstat(fd)
    finally:
        os.close(fd)


def _remove_dead(path: bytes) -> None:
    """Remove a socket that nobody listens on any more, and nothing else."""
    if os.path.lexists(path) and stat.S_ISSOCK(os.lstat(path).st_mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(path) == errno.ECONNREFUSED:
                os.unlink(path)


def identity_of(path: bytes) -> tuple[int, int] | None:
    """Return which socket lies at a path, None if there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def remove_socket(path: bytes, identity: tuple[int, int] | None) -> None:
    """Remove a socket, unless another server has taken its place: that one's clients would not find it any more."""
    with contextlib.suppress(OSError), _locked_directory(path):
        if identity is not None and identity_of(path) == identity:
            os.unlink(path)


def check_unseen(path: bytes, sandboxes: Iterable[Sandbox]) -> None:
    """Make sure that no command of these sandboxes sees what is at a path, or can put something there.

    With the token and a way to the server, a command would be its client and could answer its own questions.

    Raises:
        UsageError: one could.
    """
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for sandbox in sandboxes:
        plan = sandbox.plan(["true"])
        roots = places_of(sandbox).roots
        if is_shown(plan.mounts, real) or any(contains(shown, real) for shown in (*roots, *_moved(plan))):
            remedy = "Choose a place outside of the project and of all that its commands can read."
            raise UsageError(f"commands in the sandbox can see {show(path)}", remedy=remedy)


def _moved(plan: Plan) -> Iterator[bytes]:
    """Yield what of the host is shown elsewhere than where it is."""
    for operation in plan.mounts:
        if isinstance(operation, Bind) and operation.source != operation.dest:
            yield operation.source
        elif isinstance(operation, Overlay) and operation.lowers[-1] != operation.dest:
            yield operation.lowers[-1]
