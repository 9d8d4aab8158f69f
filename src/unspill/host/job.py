# SPDX-License-Identifier: Apache-2.0
"""What the spawner is asked to start, and what it answers: plain values over a socket.

A job's descriptors travel beside it in the order of `Job.DESCRIPTORS`, then the generated files. marshal is
safe here: both ends are this package, in one interpreter version, over a socket pair nobody else has. What comes
without the descriptors that every job has was not sent by us, and is not even looked at.
"""

from __future__ import annotations

import marshal
import os
import select
import sys

# The C module itself: the socket module imports enum and selectors, half of what starting Python costs
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOL_SOCKET

from unspill.host.descriptors import above_standard, write_whole
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Iterable
    from typing import Any, ClassVar

    from unspill.host.remains import Temporary

    Overlays = tuple[tuple[tuple[bytes, ...], bytes, bytes | None, bytes | None], ...]

_INLINE_BYTES = 65_536
_RIGHTS_SPACE = CMSG_SPACE(64 * 4)
_IN_FILE = b"file"
ARGS_FD, STATUS_FD, BLOCK_FD, FIRST_FILE_FD = range(3, 7)


class Job(Record):
    """One bwrap to start. In the child the descriptors are 0 to 3 in this order, 4 and 5 the spawner's, then the files.

    `kept` are directories below an overlay that the command writes itself. `port` is where a listener is made inside;
    0 for none. `temporary` are directories in memory that are looked into at the end, each with what the plan has made
    there.
    """

    DESCRIPTORS: ClassVar[tuple[str, ...]] = ("stdin", "stdout", "stderr", "args")
    overlays: Overlays
    program: bytes
    argv: tuple[bytes, ...]
    limits: tuple[tuple[int, int], ...]
    cgroups: tuple[bytes, ...] = ()
    umask: int = 0o022
    kept: tuple[bytes, ...] = ()
    port: int = 0
    temporary: tuple[Temporary, ...] = ()


def send(sock: Socket, message: Any, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message with descriptors; a long one goes through a file in memory."""
    payload = marshal.dumps(message)
    if len(payload) <= _INLINE_BYTES:
        _send(sock, payload, descriptors)
        return
    file_fd = memory_file(payload)
    try:
        _send(sock, _IN_FILE, (file_fd, *descriptors))
    finally:
        os.close(file_fd)


def _send(sock: Socket, payload: bytes, descriptors: tuple[int, ...]) -> None:
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors)
    sock.sendmsg([payload], [(SOL_SOCKET, SCM_RIGHTS, rights)] if descriptors else [])


def receive(sock: Socket) -> tuple[Any, list[int]] | None:
    """Return one message and its descriptors, None at the end of the socket."""
    received = _receive(sock)
    if received is None:
        return None
    payload, descriptors = received
    return marshal.loads(payload), descriptors


def receive_job(sock: Socket) -> tuple[Job | None, list[int]] | None:
    """Return one job and its descriptors, None at the end of the socket; a message that is no job has none of both."""
    received = _receive(sock)
    if received is None:
        return None
    payload, descriptors = received
    if not descriptors:
        return None, []
    try:
        return Job(**marshal.loads(payload)), descriptors
    except (EOFError, TypeError, ValueError):
        for fd in descriptors:
            os.close(fd)
        return None, []


def _receive(sock: Socket) -> tuple[bytes, list[int]] | None:
    try:
        payload, ancillary, _flags, _address = sock.recvmsg(_INLINE_BYTES, _RIGHTS_SPACE, MSG_CMSG_CLOEXEC)
    except ConnectionError:
        # The other end went away with something of ours unread; this is told once, before its last words
        payload, ancillary, _flags, _address = sock.recvmsg(_INLINE_BYTES, _RIGHTS_SPACE, MSG_CMSG_CLOEXEC)
    descriptors = [
        int.from_bytes(rights[i : i + 4], sys.byteorder)
        for _level, kind, rights in ancillary
        if kind == SCM_RIGHTS
        for i in range(0, len(rights) - 3, 4)
    ]
    if not payload:
        return None
    if payload == _IN_FILE and descriptors:
        with os.fdopen(descriptors.pop(0), "rb") as file:
            payload = file.read()
    return payload, descriptors


def run_name(run: str) -> bytes:
    """Return the first word of the bwrap of a run: whoever looks at the host's processes knows it by that."""
    return b"unspill-run-" + run.encode()


def memory_file(content: bytes) -> int:
    """Return the descriptor of a file in memory, to be read from its start."""
    fd = above_standard(os.memfd_create("unspill", os.MFD_CLOEXEC))
    write_whole(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def memory_files(contents: Iterable[bytes]) -> list[int]:
    """Return such descriptors for several contents, or none of them."""
    made: list[int] = []
    try:
        for content in contents:
            made.append(memory_file(content))
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    return made


def is_dead(pidfd: int, timeout_ms: int | None = None) -> bool:
    """Wait for the death of the process behind a descriptor. Not by select, which ends at descriptor 1023."""
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(timeout_ms))
