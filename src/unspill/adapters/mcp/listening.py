# SPDX-License-Identifier: Apache-2.0
"""Where the HTTP server listens: a unix socket that only its owner reaches, or a port of a loopback address.

Every other address is refused. A command can't reach the first, and without the token nobody gets past the second.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat

from unspill.errors import UsageError
from unspill.model.record import Record
from unspill.policy.paths import show
from unspill.store.state import make_parents

# What the kernel takes of a path, without the byte that ends it
_LONGEST = 107
_LOOPBACK = {"127.0.0.1": socket.AF_INET, "[::1]": socket.AF_INET6}
_REMEDY = "Use `unix:PATH`, `127.0.0.1:PORT` or `[::1]:PORT`; for other machines, forward the socket by ssh."


class Loopback(Record):
    """A port of this machine itself; 0 lets the kernel choose one."""

    host: str
    port: int


class UnixSocket(Record):
    """A socket at an absolute path."""

    path: bytes


def parse_address(text: str) -> Loopback | UnixSocket:
    """Return what an address means.

    Raises:
        UsageError: it is none, or one that others can reach.
    """
    if text.startswith("unix:") and text != "unix:":
        return UnixSocket(path=os.path.abspath(os.fsencode(text.removeprefix("unix:"))))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise UsageError(f"this is no address to listen on: {text!a:.80}", remedy=_REMEDY)
    if host == "localhost":
        raise UsageError(f"a name may mean several addresses: {text!a:.80}", remedy=_REMEDY)
    if host not in _LOOPBACK:
        raise UsageError(f"an MCP server is not offered to other machines: {text!a:.80}", remedy=_REMEDY)
    return Loopback(host=host, port=int(port))


def listen(address: Loopback | UnixSocket) -> socket.socket:
    """Return a socket that listens there.

    Raises:
        UsageError: the place is taken, or others could reach a unix socket there.
    """
    try:
        return _listen_unix(address.path) if isinstance(address, UnixSocket) else _listen_port(address)
    except OSError as error:
        place = show(address.path) if isinstance(address, UnixSocket) else f"{address.host}:{address.port}"
        remedy = "Choose another place, or stop what listens there."
        raise UsageError(f"can't listen on {place}: {error.strerror}", remedy=remedy) from error


def allowed_hosts(address: Loopback | UnixSocket, port: int) -> frozenset[bytes]:
    """Return the values of the header `Host` that mean this server."""
    if isinstance(address, UnixSocket):
        return frozenset({b"localhost"})
    names = (address.host.encode(), b"localhost")
    return frozenset(b"%b:%d" % (name, port) for name in names) | (frozenset(names) if port == 80 else frozenset())


def _listen_port(address: Loopback) -> socket.socket:
    made = socket.socket(_LOOPBACK[address.host], socket.SOCK_STREAM)
    try:
        # Only against connections that are still closing; two that listen are refused as ever
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host.strip("[]"), address.port))
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def _listen_unix(path: bytes) -> socket.socket:
    if len(path) > _LONGEST:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    make_parents(path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _check_private(os.fstat(directory), os.path.dirname(path))
        # Of two servers that start at once, one finds the other's socket
        fcntl.flock(directory, fcntl.LOCK_EX)
        _remove_dead(path)
        made.bind(path)
        os.chmod(path, 0o600)
        made.listen(128)
    except BaseException:
        made.close()
        raise
    finally:
        os.close(directory)
    return made


def identity_of(path: bytes) -> tuple[int, int] | None:
    """Return which socket lies at a path, None if there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def remove_socket(path: bytes, identity: tuple[int, int] | None) -> None:
    """Remove a socket, unless another server has taken its place: that one's clients would not find it any more."""
    try:
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        if identity is not None and identity_of(path) == identity:
            os.unlink(path)
    finally:
        os.close(directory)


def _check_private(found: os.stat_result, directory: bytes) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        remedy = "Choose a directory of yours that nobody else can enter, such as one made by: mkdir -m 700 DIR"
        raise UsageError(f"other users can enter {show(directory)}", remedy=remedy)


def _remove_dead(path: bytes) -> None:
    """Remove a socket that nobody listens on any more, and nothing else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)
