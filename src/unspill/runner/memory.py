# SPDX-License-Identifier: Apache-2.0
"""Watches the memory of the host while a run goes on that no control group bounds.

An rlimit counts what a process maps for itself alone. It does not count shared memory, files in memory, pipes and
sockets: of those only the host as a whole can tell. If it is nearly out of memory, this run is the first to go.
"""

from __future__ import annotations

from unspill.model.run import LimitReached

# What a run may not eat: a machine without memory hurts more than a run that is ended
FREE_MEMORY_KEPT = 256 * 1024 * 1024
# A run that went on while nothing of it was taken is not the reason
_TAKEN_MEANWHILE = 256 * 1024 * 1024

_COUNTED = (b"MemAvailable:", b"SwapFree:")


class MemoryWatch:
    """The host's memory from the start of one run on."""

    def __init__(self) -> None:
        self._before = free_memory()

    def check(self) -> LimitReached | None:
        """Return the bound if the host is nearly out of memory, and was not when the run began."""
        free = free_memory()
        if free >= FREE_MEMORY_KEPT or self._before - free < _TAKEN_MEANWHILE:
            return None
        return LimitReached(limit="free_memory", bound=FREE_MEMORY_KEPT)


def free_memory() -> int:
    """Return the bytes that programs can still have, without others being hurt."""
    free = 0
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(_COUNTED):
                free += int(line.split()[1]) * 1024
    return free
