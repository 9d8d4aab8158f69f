# SPDX-License-Identifier: Apache-2.0
"""A listening socket on the loopback of a sandbox, made from outside before the command is let go.

A process that has left its network namespace can't come back to the host's without being root there, so a child does
it and passes the socket out. Of ours nothing is inside but that socket.
"""

from __future__ import annotations

import fcntl
import os
from _socket import AF_INET, AF_UNIX, SOCK_SEQPACKET, SOCK_STREAM, SOL_SOCKET, socket, socketpair

from unspill.host import libc
from unspill.host.job import receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_NS_GET_USERNS = 0xB701
_IP_FREEBIND = 15
_SO_REUSEADDR = 2
_LOOPBACK = "127.0.0.1"
# As many as may wait for the proxy while it is busy; the kernel cuts it to what it allows
_BACKLOG = 1024


def make_listener(init: int, port: int) -> int:
    """Return a socket that listens on a port of the loopback of a sandbox, of which `init` is pid 1.

    Raises:
        OSError: the kernel does not let us in, or there is no process or descriptor to be had.
    """
    # By descriptor from here on: a pid could be somebody else's by then
    namespace = os.open(f"/proc/{init}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    try:
        pid = os.fork()
        if not pid:
            _serve_as_child(theirs, namespace, port)
        theirs.close()
        message = receive(ours)
        os.waitpid(pid, 0)
    finally:
        os.close(namespace)
        ours.close()
        theirs.close()
    if message is None:
        raise OSError("the listener of the sandbox could not be made")
    (problem, text), descriptors = message
    if problem:
        raise OSError(problem, text)
    return descriptors[0]


def _serve_as_child(to: socket, namespace: int, port: int) -> NoReturn:
    """Send the socket out and end, whatever happens: another spawner must not come of this process."""
    try:
        _send_listener(to, namespace, port)
    finally:
        os._exit(0)


def _send_listener(to: socket, namespace: int, port: int) -> None:
    """Make the socket inside and send it out, or why there is none."""
    try:
        # bwrap's own user namespace, in which this user has every capability because it is theirs
        libc.setns(fcntl.ioctl(namespace, _NS_GET_USERNS), libc.CLONE_NEWUSER)
        libc.setns(namespace, libc.CLONE_NEWNET)
        listener = socket(AF_INET, SOCK_STREAM)
        # bwrap may not have brought loopback up yet, and then it has no address
        listener.setsockopt(0, _IP_FREEBIND, 1)
        listener.setsockopt(SOL_SOCKET, _SO_REUSEADDR, 1)
        listener.bind((_LOOPBACK, port))
        listener.listen(_BACKLOG)
        send(to, (0, ""), (listener.fileno(),))
    except OSError as error:
        send(to, (error.errno or -1, f"network of the sandbox: {error.strerror or error}"))
