# SPDX-License-Identifier: Apache-2.0
"""View `rootfs`: the top-level entries of a tree of our own, read-only, instead of the host's system directories.

The root itself stays bwrap's own empty one, so a mount point at the top needs nothing of the tree. One further below
must be a directory that is reached without a link, for bwrap before 0.12 follows links when it makes mount points
(CVE-2026-87766) and the tree is somebody else's work. Where the tree has none, a *skeleton* of ours, laid over that
top-level directory, has it.

MERGED
[system] What every sandbox has apart from a home: system directories, /proc, /dev and the fresh directories.

The root itself is bwrap's empty tmpfs, so what is not named here does not exist inside.
"""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.model.plan import (
    Bind,
    Dev,
    Directory,
    File,
    Overlay,
    Point,
    Proc,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from unspill.model.policy import MIB
from unspill.plan.view import is_writable_mount, to_inside
from unspill.policy.defaults import NEVER_SHOWN, SOCKET_FREE
from unspill.policy.paths import contains, lies_beneath, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unspill.model.plan import MountOp, PlanInput
    from unspill.model.rootfs import RootfsBase


# What every sandbox has of its own; what a tree has there is never shown
OWN_PLACES = (b"/dev", b"/proc", b"/sys", b"/run", b"/tmp", b"/workspace", b"/playground")
PASSWD = b"/etc/passwd"
RESOLVER_FILE = b"/etc/resolv.conf"
_NOT_FOR_MOUNTS = (*OWN_PLACES, PASSWD, RESOLVER_FILE)


def get_base(given: PlanInput) -> RootfsBase:
    """Return the rootfs that a plan is laid over.

    Raises:
        UsageError: there is none.
    """
    if given.places.rootfs is None:
        raise UsageError("The view `rootfs` needs one.", remedy="`unspill rootfs pull alpine` makes one.")
    return given.places.rootfs


def rootfs_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the top-level directories of the tree, and the links among them."""
    base = get_base(given)
    layers = {layer.path: layer for layer in given.rootfs_layers}  # by the path of the directory in the tree
    for dest in base.directories:
        if dest in OWN_PLACES:
            continue
        source = base.tree + dest
        layer = layers.get(source)
        if layer is not None and layer.stack.open is not None:
            opened = layer.stack.open
            yield Overlay(
                lowers=layer.stack.lowers(),
                dest=dest,
                upper=opened.upper,
                work=opened.work,
                why="of the rootfs; what is written stays in this sandbox",
            )
        elif dest in base.empty:
            yield Directory(dest=dest, why="of the rootfs, empty")
        elif base.is_own:
            yield Bind(source=source, dest=dest, why="of the rootfs, read-only")
        else:
            # Nobody knows what somebody's own tree has: an overlay lets neither a socket nor a FIFO through
            lowers = (given.places.state + b"/empty", source)
            yield Overlay(lowers=lowers, dest=dest, why="of the rootfs, read-only, without its sockets")
    for dest, target in base.links:
        if dest not in OWN_PLACES:
            yield Symlink(target=target, dest=dest, why="a link of the rootfs")
    if base.passwd and given.uid is None:
        user = given.places.home.user.encode("utf-8", "surrogateescape")
        line = b"%b:x:%d:%d::/workspace:%b\n" % (user, given.facts.uid, given.gid, base.shell)
        yield File(content=base.passwd + line, dest=PASSWD, over=True, why="the caller has a name inside")


def mount_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the directories that the policy shows at places of its own.

    Raises:
        UsageError: a place is not to be had.
    """
    for dest, source in given.policy.mounts:
        if given.policy.view != "rootfs":
            raise UsageError(
                f"{show(source)} can't be shown at {show(dest)} in the view `{given.policy.view}`.",
                remedy='Choose `view = "rootfs"`, or name it in `readable`: then it is seen on its own path.',
            )
        _check_place(given, dest)
        real = dict(given.places.aliases).get(dest, source)
        both = (source, real)
        root = next((stack.live for stack in given.stacks if any(contains(stack.live, path) for path in both)), None)
        if root is not None:
            # Its masks and its layer would be bypassed, or cover each other
            raise UsageError(f"{show(source)} can't be shown at {show(dest)}: it lies in the root {show(root)}.")
        if source in given.places.absent or source in given.places.files:
            raise UsageError(
                f"{show(source)} can't be shown at {show(dest)}: it is no directory.",
                remedy="Make it, or take it out of `mounts` in your configuration.",
            )
        lowers = (given.places.state + b"/empty", real)
        yield Overlay(lowers=lowers, dest=dest, why="shown by your policy, read-only, without its sockets")


def _check_place(given: PlanInput, dest: bytes) -> None:
    """Refuse a place that the sandbox or the rootfs needs for something else."""
    base = get_base(given)
    why = ""
    if dest == b"/" or any(contains(own, dest) or contains(dest, own) for own in _NOT_FOR_MOUNTS):
        why = "a sandbox has its own"
    elif dest in base.directories or dest in dict(base.links):
        why = "the rootfs has a directory of its own there"
    elif given.rootfs_layers and b"/" + dest.split(b"/", 2)[1] in base.directories:
        why = "it lies in a directory of the rootfs that commands may write"
    if why:
        raise UsageError(
            f"Nothing can be mounted at {show(dest)}: {why}.", remedy="Choose another place, such as `/skills`."
        )


def check_beside(given: PlanInput) -> None:
    """Refuse further roots and readable paths that would be where the sandbox or the rootfs has something else.

    Raises:
        UsageError: one of them would.
    """
    base = get_base(given)
    for path in (*(stack.live for stack in given.stacks[1:]), *given.policy.readable):
        taken = [own for own in OWN_PLACES if contains(path, own) or (own != b"/tmp" and contains(own, path))]
        if taken or path in base.directories or path in dict(base.links):
            raise UsageError(
                f"{show(path)} can't be shown on its own path in the view `rootfs`: something else is there.",
                remedy="Use another view, or show it at another place: `[mounts]` in your configuration.",
            )


def with_skeleton(given: PlanInput, operations: Sequence[MountOp]) -> tuple[list[MountOp], tuple[Point, ...]]:
    """Return the operations with every mount point given for, and what has to be made for that.

    Raises:
        UsageError: a mount point lies behind a link of the tree.
    """
    base = get_base(given)
    links = tuple(dest for dest, _target in base.links if dest not in OWN_PLACES)
    # In a directory that is only bwrap's own, as the root is, it makes whatever is needed
    mounted = {op.dest for op in operations if isinstance(op, Bind | Overlay) and op.dest in base.directories}
    mounted.difference_update(OWN_PLACES)
    writable = {operation.dest for operation in operations if is_writable_mount(operation)}
    missing: dict[bytes, list[MountOp]] = {}
    for operation in operations:
        top = b"/" + operation.dest.split(b"/", 2)[1]
        if operation.dest == top or isinstance(operation, ReadOnly):
            continue
        if top in links:
            raise UsageError(
                f"Nothing can be mounted at {show(operation.dest)}: {show(top)} is a link in the rootfs.",
                remedy="Choose another place, such as `/skills`.",
            )
        is_there = operation.dest in base.points and top not in writable
        if top in mounted and not is_there:
            missing.setdefault(top, []).append(operation)
    if not missing:
        return list(operations), ()
    return _lay_skeleton(given, operations, missing)


def _lay_skeleton(
    given: PlanInput, operations: Sequence[MountOp], missing: dict[bytes, list[MountOp]]
) -> tuple[list[MountOp], tuple[Point, ...]]:
    points = tuple(
        Point(path=operation.dest, is_file=_is_file(given, operation))
        for inner in missing.values()
        for operation in inner
    )
    top_of_all = given.places.state + b"/skeletons/" + _name_of(points)
    laid: list[MountOp] = []
    for operation in operations:
        if operation.dest in missing and isinstance(operation, Bind | Overlay):
            lowers = (top_of_all + operation.dest, *_sources(operation))
            why = "of the rootfs, with room for mounts"
            # Read-only even in a writable rootfs: nothing is ever mounted in what a command can write
            laid.append(Overlay(lowers=lowers, dest=operation.dest, why=why, written=is_writable_mount(operation)))
        else:
            laid.append(operation)
    made = tuple(point.replace(path=top_of_all + point.path) for point in points)
    return laid, made


def _sources(operation: Bind | Overlay) -> tuple[bytes, ...]:
    if isinstance(operation, Bind):
        return (operation.source,)
    return operation.lowers if operation.upper is not None else operation.lowers[1:]


def _is_file(given: PlanInput, operation: MountOp) -> bool:
    if operation.dest == RESOLVER_FILE:
        return True
    match operation:
        case File():
            return True
        case Bind():
            return operation.source in given.places.files
    return False


def _name_of(points: Sequence[Point]) -> bytes:
    """Return a name that differs for different mount points (FNV-1a: only the person chooses them)."""
    key = 0xCBF29CE484222325
    for point in sorted(points, key=lambda point: point.path):
        for byte in (b"f" if point.is_file else b"d") + point.path + b"\0":
            key = (key ^ byte) * 0x100000001B3 & 0xFFFF_FFFF_FFFF_FFFF
    return b"%016x" % key


SHARED_MEMORY_BYTES = 64 * MIB
RUN_BYTES = 64 * MIB
STICKY = 0o1777


def system_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the host's system directories, read-only, and the links among them."""
    places = given.places
    if given.policy.view == "rootfs":
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
