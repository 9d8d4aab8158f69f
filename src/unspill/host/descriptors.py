# SPDX-License-Identifier: Apache-2.0
"""Descriptors of our own: numbers above the standard streams, whole writes, and names that last.

A caller may have been started with some of the standard streams closed. Then the next descriptor that anybody opens
gets such a number, and whatever is printed afterwards goes there: the output of a command must not go to our own
sockets.
"""

from __future__ import annotations

import os
from _socket import (
    AF_UNIX,
    SOCK_SEQPACKET,
    socket,
    socketpair,
)
from fcntl import F_DUPFD_CLOEXEC, fcntl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket


FIRST = 3
DESCRIPTORS_REMEDY = (
    "Raise the limit of open files of this program (`ulimit -n`, at most `ulimit -Hn`), or run fewer commands at once."
    " A run needs 5 descriptors, and about 15 more for a moment when it starts."
)


def copy_of(sock: Socket) -> Socket:
    """Return another socket object for the same socket of a pair, with a descriptor of its own."""
    return socket(AF_UNIX, SOCK_SEQPACKET, 0, fcntl(sock.fileno(), F_DUPFD_CLOEXEC, FIRST))


def above_standard(fd: int) -> int:
    """Return the descriptor, or another one of the same in its place if it has the number of a standard stream."""
    if fd >= FIRST:
        return fd
    try:
        return fcntl(fd, F_DUPFD_CLOEXEC, FIRST)
    finally:
        os.close(fd)


def make_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a pipe."""
    ends = os.pipe()
    return ends if min(ends) >= FIRST else _raised(*ends)


def make_pair() -> tuple[Socket, Socket]:
    """Return two sockets that are connected with each other and keep messages apart."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    if min(ours.fileno(), theirs.fileno()) >= FIRST:
        return ours, theirs
    first, second = _raised(ours.detach(), theirs.detach())
    return socket(fileno=first), socket(fileno=second)


def occupy_standard() -> None:
    """Open nothing on each of the standard streams that is closed: for a program that owns its process."""
    for number in range(FIRST):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one
            os.open(os.devnull, os.O_RDWR)


def _raised(first: int, second: int) -> tuple[int, int]:
    try:
        first = above_standard(first)
    except OSError:
        os.close(second)
        raise
    try:
        return first, above_standard(second)
    except OSError:
        os.close(first)
        raise


def write_whole(fd: int, content: bytes | memoryview) -> None:
    """Write all of the content to a descriptor that blocks."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(path: bytes) -> None:
    """Make the names in a directory of ours durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
