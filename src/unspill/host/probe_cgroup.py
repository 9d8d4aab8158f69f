# SPDX-License-Identifier: Apache-2.0
"""Finds where a control group for a run may be made, by making one and moving a process into it.

Version 2 needs a group that was delegated to the caller; version 1 needs root. Leaves no group behind.
"""

from __future__ import annotations

import os

from unspill.host.places import read_mounts
from unspill.host.probe_process import ask, child_argv
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import CgroupKind

CONTROLLERS = (b"memory", b"pids")
_PROBE_PREFIX = b"unspill-probe-"


class GroupPlace(Record):
    """Directories below which a run's groups can be made: one for version 2, one per controller for version 1."""

    kind: CgroupKind
    parents: tuple[bytes, ...] = ()
    reason: str = ""


def probe_cgroup() -> GroupPlace:
    """Return where groups can be made, or kind "none" with the reason."""
    try:
        memberships = read_memberships()
    except (OSError, ValueError) as error:
        return GroupPlace(kind="none", reason=f"/proc/self/cgroup or mountinfo: {error}")
    reasons = []
    for place in (find_delegated(memberships), find_classic(memberships)):
        reason = place.reason or _why_unusable(place)
        if not reason:
            return place
        reasons.append(reason)
    return GroupPlace(kind="none", reason="; ".join(reasons))


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


def find_delegated(memberships: dict[bytes, bytes]) -> GroupPlace:
    """Return the nearest group above this process that is ours and hands its controllers down.

    Only a group whose own processes stay elsewhere can hand them down, so it is rarely the process's own one.
    """
    own = memberships.get(b"")
    if own is None:
        return GroupPlace(kind="none", reason="no cgroup version 2 is mounted")
    group = own
    while os.path.exists(os.path.join(group, b"cgroup.subtree_control")):
        handed_down = _read(os.path.join(group, b"cgroup.subtree_control")).split()
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
        return GroupPlace(kind="none", reason="the groups of cgroup version 1 are root's")
    return GroupPlace(kind="v1", parents=parents)


def _why_unusable(place: GroupPlace) -> str:
    made: list[bytes] = []
    try:
        for parent in place.parents:
            group = os.path.join(parent, _PROBE_PREFIX + b"%d" % os.getpid())
            os.mkdir(group)
            made.append(group)
        for group, bound in ((made[0], b"memory"), (made[-1], b"pids")):
            _look_for_bound(group, bound)
        answers, reason = ask(child_argv("join", *made))
        value, why = answers.get("join", (0, "no answer"))
        return "" if value and not reason else f"no process can be moved into a new group: {reason or why}"
    except OSError as error:
        return f"{error.strerror}: {os.fsdecode(error.filename or b'')}"
    finally:
        for group in made:
            os.rmdir(group)


def _look_for_bound(group: bytes, controller: bytes) -> None:
    names = (b"pids.max",) if controller == b"pids" else (b"memory.max", b"memory.limit_in_bytes")
    if not any(os.access(os.path.join(group, name), os.W_OK) for name in names):
        raise FileNotFoundError(2, "A new group has no bound of its own", os.path.join(group, names[0]))


def _is_ours(group: bytes) -> bool:
    return os.access(group, os.W_OK | os.X_OK) and os.access(os.path.join(group, b"cgroup.procs"), os.W_OK)


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


def _read(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()
