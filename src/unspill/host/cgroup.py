# SPDX-License-Identifier: Apache-2.0
"""A control group per run, where the host lets us make one: bounds that hold for all processes of the run together.

The group is made before the run, the spawner moves the held child into it, and it is removed when all are dead.
Version 2 needs a group that was delegated to the caller; version 1 needs root.
"""

from __future__ import annotations

import os
import time

from unspill.host.places import read_mounts
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.plan import CgroupKind
    from unspill.model.policy import Limits
    from unspill.model.run import LimitName

CONTROLLERS = (b"memory", b"pids")
_PREFIX = b"unspill-run-"
_SIGKILL = 9
_DYING_S, _PAUSE_S = 1.0, 0.005


class GroupPlace(Record):
    """Directories below which a run's groups can be made: one for version 2, one per controller for version 1."""

    kind: CgroupKind
    parents: tuple[bytes, ...] = ()
    reason: str = ""


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


def read_memberships() -> dict[bytes, bytes]:
    """Return the directory of the group this process is in, by controller; b"" is version 2."""
    mounts = _read_mounts()
    found: dict[bytes, bytes] = {}
    with open("/proc/self/cgroup", "rb") as file:
        for line in file.read().splitlines():
            _number, names, path = line.split(b":", 2)
            for name in names.split(b","):
                if name in mounts:
                    found[name] = os.path.normpath(mounts[name] + path)
    return found


def _read_mounts() -> dict[bytes, bytes]:
    """Return the mount point of each hierarchy, by controller; b"" is version 2."""
    mounts: dict[bytes, bytes] = {}
    for mount in read_mounts():
        # A mount of a part of the hierarchy would need its root taken off every path
        if mount.kind == "cgroup2" and mount.root == b"/":
            mounts.setdefault(b"", mount.point)
        elif mount.kind == "cgroup" and mount.root == b"/":
            mounts.update(dict.fromkeys(mount.options.split(b","), mount.point))
    return mounts


def find_delegated(memberships: dict[bytes, bytes]) -> GroupPlace:
    """Return the nearest group above this process that is ours and hands its controllers down.

    Only a group whose own processes stay elsewhere can hand them down, so it is rarely the process's own one.
    """
    own = memberships.get(b"")
    if own is None:
        return GroupPlace(kind="none", reason="no cgroup version 2 is mounted")
    group = own
    while os.path.exists(os.path.join(group, b"cgroup.subtree_control")):
        with open(os.path.join(group, b"cgroup.subtree_control"), "rb") as file:
            handed_down = file.read().split()
        if all(name in handed_down for name in CONTROLLERS) and _is_ours(group):
            return GroupPlace(kind="v2", parents=(group,))
        group = os.path.dirname(group)
    return GroupPlace(kind="none", reason="no cgroup version 2 with memory and pids is delegated to this process")


def find_classic(memberships: dict[bytes, bytes]) -> GroupPlace:
    """Return the groups of version 1, one per controller, if this process may make others below them."""
    parents = tuple(memberships[name] for name in CONTROLLERS if name in memberships)
    if len(parents) != len(CONTROLLERS):
        return GroupPlace(kind="none", reason="no cgroup version 1 with memory and pids is mounted")
    if not all(map(_is_ours, parents)):
        return GroupPlace(kind="none", reason="the groups of cgroup version 1 belong to root")
    return GroupPlace(kind="v1", parents=parents)


def _is_ours(group: bytes) -> bool:
    return os.access(group, os.W_OK | os.X_OK) and os.access(os.path.join(group, b"cgroup.procs"), os.W_OK)


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
