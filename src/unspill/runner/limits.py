# SPDX-License-Identifier: Apache-2.0
"""Turns Limits into what the kernel enforces, and watches what it does not.

Processes, memory and open files are the kernel's business (cgroup where delegated, else rlimit on the child that is
held back); the size of the layer is measured while the run goes on.
"""

from __future__ import annotations

import os
import resource

from unspill.model.run import Exited, LimitReached, Signalled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import Limits
    from unspill.model.run import LimitName, Outcome

# What a run may not eat: a machine without free space hurts more than a run that is ended
FREE_SPACE_KEPT = 256 * 1024 * 1024


def rlimits(limits: Limits, *, has_group: bool) -> tuple[tuple[int, int], ...]:
    """Return (resource, bound) pairs for the held child.

    Memory is RLIMIT_DATA, not RLIMIT_AS: runtimes reserve far more address space than they use.
    """
    wanted = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, None if has_group else limits.processes),
        (resource.RLIMIT_DATA, None if has_group else limits.memory_bytes),
    )
    return tuple((kind, bound) for kind, bound in wanted if bound is not None)


_SIGXFSZ = 25


def name_limit(outcome: Outcome, reached: LimitName | None, limits: Limits) -> Outcome:
    """Say which bound ended a run where the kernel tells: by the group's counters, or by its own signal."""
    if outcome == Exited(code=0) or not isinstance(outcome, Exited | Signalled):
        return outcome
    if outcome == Signalled(signal=_SIGXFSZ) and limits.file_bytes is not None:
        return LimitReached(limit="file_bytes", bound=limits.file_bytes)
    if reached == "memory" and limits.memory_bytes is not None:
        return LimitReached(limit="memory", bound=limits.memory_bytes)
    if reached == "processes" and limits.processes is not None:
        return LimitReached(limit="processes", bound=limits.processes)
    return outcome


def find_excess(
    limits: Limits, uppers: tuple[bytes, ...], *, is_over: bool = False, closed: list[bytes] | None = None
) -> LimitReached | None:
    """Return the bound that what lies in these directories exceeds, if any.

    `is_over`: every process is dead, so what the command closed to its owner can be opened and measured too.
    Before that such directories are passed over, and their names added to `closed`.
    """
    from unspill.changes.measure import measure

    used, entries = 0, 0
    for upper in uppers:
        more_bytes, more_entries = measure(
            upper, bytes_cap=limits.layer_bytes, entries_cap=limits.layer_entries, unlock=is_over, closed=closed
        )
        used, entries = used + more_bytes, entries + more_entries
    if limits.layer_bytes is not None and used > limits.layer_bytes:
        return LimitReached(limit="layer_bytes", bound=limits.layer_bytes)
    if limits.layer_entries is not None and entries > limits.layer_entries:
        return LimitReached(limit="layer_entries", bound=limits.layer_entries)
    return None


def free_bytes(path: bytes) -> int:
    """Return what an ordinary user may still write to the filesystem of a path."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
