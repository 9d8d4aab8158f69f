# SPDX-License-Identifier: Apache-2.0
"""What every sandbox has apart from a home: system directories, /proc, /dev and the fresh directories.

The root itself is bwrap's empty tmpfs, so what is not named here does not exist inside.
"""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.model.plan import Bind, Dev, Overlay, Proc, ReadOnly, Symlink, Tmpfs
from unspill.model.policy import MIB
from unspill.plan.inside import to_inside
from unspill.policy.defaults import NEVER_SHOWN, SOCKET_FREE
from unspill.policy.paths import contains, lies_beneath, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.plan import MountOp, PlanInput

SHARED_MEMORY_BYTES = 64 * MIB
RUN_BYTES = 64 * MIB
STICKY = 0o1777


def system_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the host's system directories, read-only, and the links among them."""
    places = given.places
    if given.policy.view == "rootfs":
        from unspill.plan.rootfs import rootfs_operations

        yield from rootfs_operations(given)
        return
    shown = places.system if given.policy.view == "sealed" else (*places.system, *places.top)
    for path in dict.fromkeys(shown):
        if path in NEVER_SHOWN:
            continue
        if path in places.top:
            yield read_only_overlay(given, path, "view host shows it, read-only, without its sockets")
        elif any(contains(shared, path) for shared in SOCKET_FREE):
            yield read_only_overlay(given, path, "software that lies outside /usr, without its sockets")
        else:
            yield Bind(source=path, dest=path, why=_why_shown(path))
    for dest, target in places.links:
        if dest not in NEVER_SHOWN:
            yield Symlink(target=target, dest=dest, why="a link on this host too")


def _why_shown(path: bytes) -> str:
    return "settings of the system, read-only" if path == b"/etc" else "programs and libraries, read-only"


def read_only_overlay(given: PlanInput, path: bytes, why: str) -> Overlay:
    """Return an overlay that shows a directory read-only, and none of its sockets and FIFOs.

    The kernel wants two lower directories where there is no upper one; the first is always empty.
    """
    return Overlay(lowers=(given.places.state + b"/empty", path), dest=path, why=why)


def kernel_operations() -> Iterator[MountOp]:
    """Yield /proc and /dev."""
    yield Proc(dest=b"/proc", why="the sandbox's own processes")
    # For a caller with uid 0 the files below are writable without any capability (core_pattern)
    yield Bind(source=b"/proc/sys", dest=b"/proc/sys", why="no kernel setting can be changed")
    yield Dev(dest=b"/dev", why="null, zero, random, tty and pseudo-terminals")
    yield Tmpfs(dest=b"/dev/shm", size_bytes=SHARED_MEMORY_BYTES, mode=STICKY, why="shared memory of this run only")
    yield ReadOnly(dest=b"/dev", why="nothing is made among the devices")


def _check_nothing_in_tmp(given: PlanInput) -> None:
    """Refuse to keep a /tmp in which something else would be mounted: what commands left there may be links."""
    view = given.policy.view
    roots = [stack.live for stack in given.stacks]
    inside = (to_inside(root, view, roots) for root in roots)
    for path in (*inside, *given.policy.readable):
        if lies_beneath(path, b"/tmp"):
            raise UsageError(
                f"/tmp can't be kept: {show(path)} lies in it.", remedy='Use `tmp = "fresh"`, or move that elsewhere.'
            )


def fresh_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the directories that start empty and end with the run."""
    size = given.policy.limits.tmp_bytes
    if given.policy.tmp == "persistent" and given.places.tmp:
        _check_nothing_in_tmp(given)
        yield Bind(source=given.places.tmp, dest=b"/tmp", writable=True, why="temporary files that outlive the run")
    else:
        yield Tmpfs(dest=b"/tmp", size_bytes=size, mode=STICKY, why="temporary files of this run only")
    if not given.rootfs_layers:
        yield Tmpfs(dest=b"/var/tmp", size_bytes=size, mode=STICKY, why="temporary files of this run only")
    yield Tmpfs(dest=b"/run", size_bytes=RUN_BYTES, why="none of the host's sockets")
    if given.policy.view == "sealed":
        yield Symlink(target=b"../run", dest=b"/var/run", why="where older programs look for /run")
