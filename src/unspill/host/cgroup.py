# SPDX-License-Identifier: Apache-2.0
"""A control group per run, where the host lets us make one: bounds that hold for all processes of the run together.

The group is made before the run, the spawner moves the held child into it, and it is removed when all are dead.
"""

from __future__ import annotations

import os
import time

from unspill.host.probe_cgroup import find_classic, find_delegated, read_memberships

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.plan import CgroupKind
    from unspill.model.policy import Limits
    from unspill.model.run import LimitName

_PREFIX = b"unspill-run-"
_SIGKILL = 9
_DYING_S, _PAUSE_S = 1.0, 0.005


class Group:
    """The directories of one run's group: one of version 2, or one per controller of version 1."""

    def __init__(self, kind: CgroupKind, directories: tuple[bytes, ...]) -> None:
        self._kind = kind
        self._directories = directories

    def member_files(self) -> tuple[bytes, ...]:
        """Return the files that a pid is written to."""
        return tuple(directory + b"/cgroup.procs" for directory in self._directories)

    def bound(self, limits: Limits) -> None:
        """Write the bounds; swap counts as memory where the kernel keeps account of it."""
        memory, pids = self._directories[0], self._directories[-1]
        if limits.processes is not None:
            _write(pids + b"/pids.max", limits.processes)
        if limits.memory_bytes is None:
            return
        if self._kind == "v2":
            _write(memory + b"/memory.max", limits.memory_bytes)
            _try_write(memory + b"/memory.swap.max", 0)
        else:
            _write(memory + b"/memory.limit_in_bytes", limits.memory_bytes)
            _try_write(memory + b"/memory.memsw.limit_in_bytes", limits.memory_bytes)

    def reached(self) -> LimitName | None:
        """Return the bound that the kernel enforced, if it did."""
        memory, pids = self._directories[0], self._directories[-1]
        events = memory + (b"/memory.events" if self._kind == "v2" else b"/memory.oom_control")
        if _count(events, b"oom_kill"):
            return "memory"
        if _count(pids + b"/pids.events", b"max"):
            return "processes"
        return None

    def kill(self) -> None:
        """Kill all that is in the group, and wait a while for the end of it."""
        deadline = time.monotonic() + _DYING_S
        while (members := self._members()) and time.monotonic() < deadline:
            for pid in members:
                try:
                    os.kill(pid, _SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(_PAUSE_S)

    def _members(self) -> list[int]:
        try:
            with open(self._directories[0] + b"/cgroup.procs", "rb") as file:
                # One of another pid namespace is 0, which kill(2) takes for this process's own group
                return [pid for line in file if (pid := int(line)) > 0]
        except OSError:
            return []

    def remove(self) -> None:
        """Remove the group; all its processes are dead."""
        for directory in self._directories:
            try:
                os.rmdir(directory)
            except OSError:
                continue  # an empty group without processes does no harm


def make_group(kind: CgroupKind, run: str, limits: Limits) -> Group | None:
    """Make a group for a run, or return None where there is no place for one."""
    group = _group_of(kind, run)
    if group is None:
        return None
    try:
        for member in group.member_files():
            os.mkdir(os.path.dirname(member))
        group.bound(limits)
    except OSError:
        group.remove()
        return None
    return group


def sweep_groups(kind: CgroupKind, runs: Iterable[str]) -> None:
    """Remove the groups of runs whose caller was killed, and whoever is still alive in them."""
    for run in runs:
        group = _group_of(kind, run)
        if group is None:
            return
        group.kill()
        group.remove()


def _group_of(kind: CgroupKind, run: str) -> Group | None:
    if kind == "none":
        return None
    memberships = read_memberships()
    place = find_delegated(memberships) if kind == "v2" else find_classic(memberships)
    if not place.parents:
        return None
    return Group(kind, tuple(parent + b"/" + _PREFIX + run.encode() for parent in place.parents))


def _count(path: bytes, key: bytes) -> int:
    try:
        with open(path, "rb") as file:
            for line in file:
                name, _, number = line.partition(b" ")
                if name == key:
                    return int(number)
    except OSError:
        return 0
    return 0


def _write(path: bytes, number: int) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(b"%d" % number)


def _try_write(path: bytes, number: int) -> None:
    try:
        _write(path, number)
    except OSError:
        return  # this kernel does not count swap by group
