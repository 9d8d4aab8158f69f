# SPDX-License-Identifier: Apache-2.0
"""Finds what is alive of a run by the name that its bwrap was given or by the layers that it has mounted; kills it.

Where the spawner is the pid 1 of a namespace the kernel kills all of it, but takes a moment. Where only bwrap may make
one, a bwrap whose parent is killed while it starts up goes on by itself, and its child with it.
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
