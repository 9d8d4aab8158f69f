# SPDX-License-Identifier: Apache-2.0
"""The turn of an operation that a caller may give up: what was given up before its first step does not happen.

Whoever gives up is told at once that it is over, so it must not be done later, when the lock is free.
"""

from __future__ import annotations

import select

from unspill.errors import SandboxUnavailable
from unspill.layers.locks import SandboxLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import SandboxId

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
