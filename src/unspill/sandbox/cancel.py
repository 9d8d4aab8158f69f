# SPDX-License-Identifier: Apache-2.0
"""Wait for a lock or for a person's answer, but not longer than the caller does.

A caller that gives up is told at once that it is over. So an operation that was given up before its first step does not
happen later, when the lock is free, and an answer that comes too late is recorded and used for nothing.
"""

from __future__ import annotations

import os
import select
import threading

from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import above_standard
from unspill.layers.locks import SandboxLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from unspill.model.layer import SandboxId

    Found = TypeVar("Found")


_LONGEST_PAUSE_MS = 20


def lock_unless_given_up(state: bytes, sandbox: SandboxId, cancel_fd: int | None) -> SandboxLock:
    """Return the sandbox's lock, held: `with lock_unless_given_up(state, sandbox, cancel_fd): ...`.

    Raises:
        SandboxUnavailable: the caller gave up before it was free.
    """
    lock = SandboxLock(state, sandbox)
    if cancel_fd is None:
        lock.acquire()
        return lock
    pause_ms = 1
    while True:
        refuse_given_up(cancel_fd)
        if lock.try_acquire():
            return lock
        _is_readable(cancel_fd, pause_ms)
        pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)


def refuse_given_up(cancel_fd: int | None) -> None:
    """Go on only for a caller that still waits.

    Raises:
        SandboxUnavailable: it has given up.
    """
    if cancel_fd is not None and _is_readable(cancel_fd, 0):
        raise given_up()


def given_up() -> SandboxUnavailable:
    """Return what is raised where the caller gave up."""
    return SandboxUnavailable("the caller gave up; nothing was changed", remedy="Try again if it is still wanted.")


def _is_readable(fd: int, wait_ms: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_ms))


def until_cancelled(work: Callable[[], Found], cancel_fd: int | None) -> Found | None:
    """Do what may take long in a thread of its own; return None if the caller gives up before it is done."""
    if cancel_fd is None:
        return work()
    waited = _Waited(work)
    threading.Thread(target=waited.do, name="unspill-question", daemon=True).start()
    found: Found | None = waited.result(cancel_fd)
    return found


class _Waited:
    """Something that is done in another thread. Whoever comes last closes the descriptor by which they meet."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._fd = above_standard(os.eventfd(0, os.EFD_CLOEXEC))
        self._lock = threading.Lock()
        self._is_done = self._is_left = False
        self._found: Any = None
        self._error: BaseException | None = None

    def do(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._is_done = True
            if self._is_left:
                os.close(self._fd)
            else:
                os.eventfd_write(self._fd, 1)

    def result(self, cancel_fd: int) -> Any:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(cancel_fd, select.POLLIN)
        poll.poll()
        with self._lock:
            if not self._is_done:
                self._is_left = True
                return None
        os.close(self._fd)
        if self._error is not None:
            raise self._error
        return self._found
