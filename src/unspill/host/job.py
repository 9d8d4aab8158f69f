# SPDX-License-Identifier: Apache-2.0
"""A job: what the spawner is asked to start and what it answers, and how to find and kill what is still alive of a run.

A job's descriptors travel beside it in the order of `Job.DESCRIPTORS`, then the generated files. marshal is
safe here: both ends are this package, in one interpreter version, over a socket pair nobody else has. What comes
without the descriptors that every job has was not sent by us, and is not even looked at.

A run is found by the name that its bwrap was given or by the layers that it has mounted. Where the spawner is the pid 1
of a namespace the kernel kills all of it, but takes a moment. Where only bwrap may make one, a bwrap whose parent is
killed while it starts up goes on by itself, and its child with it.
"""

from __future__ import annotations

import errno
import marshal
import os
import resource
import select
import sys
import time

# The C module itself: the socket module imports enum and selectors, half of what starting Python costs
from _socket import (
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_DONTWAIT,
    SCM_RIGHTS,
    SOL_SOCKET,
)

from unspill.host.dirfd import above_standard, write_whole
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Iterable
    from typing import Any, ClassVar

    # A directory in memory, and what the plan has made in it: by path the content of files, None of all else
    Temporary = tuple[bytes, dict[bytes, bytes | None]]
    Overlays = tuple[tuple[tuple[bytes, ...], bytes, bytes | None, bytes | None], ...]


_INLINE_BYTES = 65_536
_RIGHTS_SPACE = CMSG_SPACE(64 * 4)
_IN_FILE = b"file"
ARGS_FD, STATUS_FD, BLOCK_FD, FIRST_FILE_FD = range(3, 7)

_PAUSE_S = 0.01
_LONGEST_S = 5.0
_DYING_MS = 1000


class Job(Record):
    """One bwrap to start. In the child the descriptors are 0 to 3 in this order, 4 and 5 the spawner's, then the files.

    `kept` are directories below an overlay that the command writes itself. `port` is where a listener is made inside;
    0 for none. `temporary` are directories in memory that are looked into at the end, each with what the plan has made
    there. `live`: its command only waits, and what follows on its reply are requests (`spawner.LiveRun`).
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
    live: bool = False


def send(sock: Socket, message: Any, descriptors: tuple[int, ...] = (), *, may_wait: bool = True) -> None:
    """Send one message with descriptors; a long one goes through a file in memory.

    Where nobody takes it, whoever may not wait gets a BlockingIOError.
    """
    flags = 0 if may_wait else MSG_DONTWAIT
    payload = marshal.dumps(message)
    if len(payload) <= _INLINE_BYTES:
        _send(sock, payload, descriptors, flags)
        return
    file_fd = memory_file(payload)
    try:
        _send(sock, _IN_FILE, (file_fd, *descriptors), flags)
    finally:
        os.close(file_fd)


def _send(sock: Socket, payload: bytes, descriptors: tuple[int, ...], flags: int) -> None:
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors)
    ancillary = [(SOL_SOCKET, SCM_RIGHTS, rights)] if descriptors else []
    try:
        sock.sendmsg([payload], ancillary, flags)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        _send_above_soft_limit(sock, payload, ancillary, flags)


def _send_above_soft_limit(sock: Socket, payload: bytes, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
    """Send although the user has more descriptors on their way than this process may have open.

    The kernel counts them by user, and a command may have more of them than many programs' soft limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        sock.sendmsg([payload], ancillary, flags)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
        payload, descriptors = receive_bytes(sock, _INLINE_BYTES)
    except ConnectionError:
        # The other end went away with something of ours unread; this is told once, before its last words
        payload, descriptors = receive_bytes(sock, _INLINE_BYTES)
    if not payload:
        return None
    if payload == _IN_FILE and descriptors:
        with os.fdopen(descriptors.pop(0), "rb") as file:
            payload = file.read()
    return payload, descriptors


def receive_bytes(sock: Socket, most: int) -> tuple[bytes, list[int]]:
    """Return one message as it came, and its descriptors: whatever they are, the caller closes them."""
    payload, ancillary, _flags, _address = sock.recvmsg(most, _RIGHTS_SPACE, MSG_CMSG_CLOEXEC)
    descriptors = [
        int.from_bytes(rights[i : i + 4], sys.byteorder)
        for _level, kind, rights in ancillary
        if kind == SCM_RIGHTS
        for i in range(0, len(rights) - 3, 4)
    ]
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


def kill_strays(runs: Iterable[str], *, settle_s: float = 0.0) -> int:
    """Kill all that is alive of runs and wait for its end; return how many processes that were.

    A process that was just forked does not have its name yet: whoever has seen its parent die looks for `settle_s`.
    """
    return _kill_all({run_name(run) for run in runs}, [], settle_s)[0]


def end_run(run: str, layers: Iterable[str]) -> bool:
    """Kill all that is alive of a run, and tell whether nothing can write its layers any more.

    Not by the name alone: a command can overwrite that of its sandbox's pid 1. It can't change the mounts.
    """
    return _kill_all({run_name(run)}, [layer.encode() for layer in layers], 0.0)[1]


def _kill_all(names: set[bytes], mounted: list[bytes], settle_s: float) -> tuple[int, bool]:
    """Kill processes until there is none left; return how many there were, and whether none is."""
    begun, killed = time.monotonic(), 0
    while time.monotonic() - begun < _LONGEST_S:
        found = sum(map(_kill, _open_all(names, mounted)))
        killed += found
        if not found and time.monotonic() - begun >= settle_s:
            return killed, True
        time.sleep(_PAUSE_S)
    return killed, False


def _open_all(names: set[bytes], mounted: list[bytes]) -> list[int]:
    """Return descriptors of the processes that have one of the names, or something mounted that is called so."""

    def is_one(pid: str) -> bool:
        return _name(pid) in names or (bool(mounted) and _has_mounted(pid, mounted))

    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and is_one(entry):
            try:
                pidfd = os.pidfd_open(int(entry))
            except OSError:
                continue
            # Once more, now that the number can't come to belong to another process
            if is_one(entry):
                found.append(pidfd)
            else:
                os.close(pidfd)
    return found


def _has_mounted(pid: str, mounted: list[bytes]) -> bool:
    """Tell whether a mount of a process names one of the layers. The first thread may have ended before others."""
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/mountinfo", "rb") as file:
                table = file.read()
        except OSError:
            continue
        return any(name in table for name in mounted)
    return False


def _threads(pid: str) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _name(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(256).split(b"\0")[0]
    except OSError:
        return b""


def _kill(pidfd: int) -> bool:
    """Kill a process and wait a while for its end; tell whether it was ours: anybody's can have such a name."""
    from signal import SIGKILL, pidfd_send_signal  # lazy: upkeep

    try:
        pidfd_send_signal(pidfd, SIGKILL)
        is_dead(pidfd, _DYING_MS)
    except ProcessLookupError:
        return True  # dead already
    except PermissionError:
        return False
    finally:
        os.close(pidfd)
    return True
