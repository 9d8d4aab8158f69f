# SPDX-License-Identifier: Apache-2.0
"""Answers the calls of `entries_inside.py` that the filter let through, from outside the sandbox.

Inside nobody could: the filter refuses the ioctl requests by which such calls are answered.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import select
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from scripts.seccomp.rules import numbers_of
from tests.attack.arena import processes_with
from tests.attack.entries_inside import LISTENER, PASSED
from tests.kernel.seccomp_box import MACHINE

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
PIDFD_GETFD: Final = numbers_of(MACHINE)["pidfd_getfd"]


@contextmanager
def passing() -> Iterator[str]:
    """Answer the marked calls of the process that has this word among its arguments, for the time of the context."""
    mark, over = f"marked-{secrets.token_hex(8)}", threading.Event()
    thread = threading.Thread(target=_answer, args=(mark, over))
    thread.start()
    try:
        yield mark
    finally:
        over.set()
        thread.join()


def _answer(mark: str, over: threading.Event) -> None:
    listener = None
    while listener is None:
        if over.wait(0.01):
            return
        listener = _find_listener(mark)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while not over.is_set():
        if any(event & select.POLLIN for _, event in poll.poll(100)):
            notice = bytearray(80)
            # Its caller may have died
            with suppress(OSError):
                fcntl.ioctl(listener, NOTIF_RECV, notice)
                [which] = struct.unpack_from("Q", notice)
                fcntl.ioctl(listener, NOTIF_SEND, struct.pack("QqiI", which, 0, -PASSED, 0))
    os.close(listener)


def _find_listener(mark: str) -> int | None:
    """Return a copy of the listener, once the process has it; others have the mark among their arguments too."""
    libc = ctypes.CDLL(None)
    for pid in processes_with(mark):
        with suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            found = int(libc.syscall(PIDFD_GETFD, process, LISTENER, 0))
            os.close(process)
            if found >= 0:
                return found
    return None
