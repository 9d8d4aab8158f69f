# SPDX-License-Identifier: Apache-2.0
"""Finds what is alive of a run by the name that its bwrap was given, and kills it.

Where the spawner is the pid 1 of a namespace the kernel does this. It is for hosts where only bwrap may make one:
a bwrap whose parent is killed while it starts up goes on by itself, and its child with it.
"""

from __future__ import annotations

import os
import time

from unspill.host.job import is_dead, run_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PAUSE_S = 0.01
_LONGEST_S = 5.0
_DYING_MS = 1000


def kill_strays(runs: Iterable[str], *, settle_s: float = 0.0) -> int:
    """Kill all that is alive of runs and wait for its end; return how many processes that were.

    A process that was just forked does not have its name yet: whoever has seen its parent die looks for `settle_s`.
    """
    names = {run_name(run) for run in runs}
    begun, killed = time.monotonic(), 0
    while time.monotonic() - begun < _LONGEST_S:
        found = _open_all(names)
        killed += len(found)
        for pidfd in found:
            _kill(pidfd)
        if not found and time.monotonic() - begun >= settle_s:
            break
        time.sleep(_PAUSE_S)
    return killed


def _open_all(names: set[bytes]) -> list[int]:
    """Return descriptors of the processes that have one of the names; the commands inside have names of their own."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and _name(entry) in names:
            try:
                pidfd = os.pidfd_open(int(entry))
            except OSError:
                continue
            # Once more, now that the number can't come to belong to another process
            if _name(entry) in names:
                found.append(pidfd)
            else:
                os.close(pidfd)
    return found


def _name(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(256).split(b"\0")[0]
    except OSError:
        return b""


def _kill(pidfd: int) -> None:
    from signal import SIGKILL, pidfd_send_signal

    try:
        pidfd_send_signal(pidfd, SIGKILL)
        is_dead(pidfd, _DYING_MS)
    except (ProcessLookupError, PermissionError):
        return  # dead already, or not ours in spite of its name
    finally:
        os.close(pidfd)
