# SPDX-License-Identifier: Apache-2.0
"""A rootfs instead of the host's system directories: what view `rootfs` mounts, and how packages get into a new one.

The root itself stays bwrap's own empty one, so a mount point at the top needs nothing of the tree. One further below
must be a directory that is reached without a link, for bwrap before 0.12 follows links when it makes mount points
(CVE-2026-87766) and the tree is somebody else's work. Where the tree has none, a *skeleton* of ours, laid over that
top-level directory, has it.
"""

from __future__ import annotations

from unspill.errors import BwrapMissing, UsageError
from unspill.model.plan import (
    PROXY_PORT,
    Bind,
    Directory,
    File,
    NoNetwork,
    Overlay,
    Plan,
    Point,
    ProxyNetwork,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from unspill.model.policy import GIB, MIB, Limits
from unspill.plan.environ import ROOTFS_PATH, proxy_variables
from unspill.plan.view import (
    RUN_BYTES,
    STICKY,
    check_no_mounts_beneath_roots,
    in_mount_order,
    is_writable_mount,
    kernel_operations,
)
from unspill.policy.paths import contains, show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unspill.model.plan import Facts, MountOp, NetworkPlan, PlanInput
    from unspill.model.policy import EngineName
    from unspill.model.rootfs import RootfsBase


# What every sandbox has of its own; what a tree has there is never shown
FRESH_PLACES = (b"/dev", b"/proc", b"/sys", b"/run", b"/tmp")
OWN_PLACES = (*FRESH_PLACES, b"/workspace", b"/playground")
# Of one step of an installation
INSTALL_LIMITS = Limits(wall_s=900.0, layer_bytes=16 * GIB, layer_entries=2_000_000, file_bytes=8 * GIB)
_PASSWD, _RESOLVER_FILE = b"/etc/passwd", b"/etc/resolv.conf"
_NOT_FOR_MOUNTS = (*OWN_PLACES, _PASSWD, _RESOLVER_FILE)
# Packages are asked for, not sent
_UP_BYTES, _DOWN_BYTES = 64 * MIB, 16 * GIB
_INSTALL_ENVIRON = {
    b"PATH": ROOTFS_PATH,
    b"HOME": b"/root",
    b"USER": b"root",
    b"LOGNAME": b"root",
    b"SHELL": b"/bin/sh",
    b"LANG": b"C.UTF-8",
    b"TMPDIR": b"/tmp",
}
# None for addresses that are reached directly: a mirror may be on the host's loopback, which is not the sandbox's
_PROXY_NAMES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def check_beside(given: PlanInput) -> None:
    """Refuse further roots and readable paths that would be where the sandbox or the rootfs has something else.

    Raises:
        UsageError: one of them would.
    """
    base = _get_base(given)
    for path in (*(stack.live for stack in given.stacks[1:]), *given.policy.readable):
        taken = [own for own in OWN_PLACES if contains(path, own) or (own != b"/tmp" and contains(own, path))]
        if taken or path in base.directories or path in dict(base.links):
            raise UsageError(
                f"{show(path)} can't appear at its own path in the view `rootfs`: something else is there.",
                remedy="Use another view, or show it at another path with `[mounts]` in your configuration.",
            )


def rootfs_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the top-level directories of the tree, and the links among them."""
    base = _get_base(given)
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
        yield File(content=base.passwd + line, dest=_PASSWD, over=True, why="the caller has a name inside")


def mount_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the directories that the policy shows at places of its own.

    Raises:
        UsageError: a place is not to be had.
    """
    for dest, source in given.policy.mounts:
        if given.policy.view != "rootfs":
            raise UsageError(
                f"{show(source)} can't be shown at {show(dest)} in the view `{given.policy.view}`.",
                remedy='Set `view = "rootfs"`, or list it under `readable`, which shows it at its own path.',
            )
        _check_place(given, dest)
        real = dict(given.places.aliases).get(dest, source)
        both = (source, real)
        root = next((stack.live for stack in given.stacks if any(contains(stack.live, path) for path in both)), None)
        if root is not None:
            # Its masks and its layer would be bypassed, or cover each other
            raise UsageError(f"{show(source)} can't be shown at {show(dest)}: it is inside the root {show(root)}.")
        if source in given.places.absent or source in given.places.files:
            raise UsageError(
                f"{show(source)} can't be shown at {show(dest)}: it is not a directory.",
                remedy="Create it, or remove it from `mounts` in your configuration.",
            )
        lowers = (given.places.state + b"/empty", real)
        yield Overlay(lowers=lowers, dest=dest, why="shown by your policy, read-only, without its sockets")


def with_skeleton(given: PlanInput, operations: Sequence[MountOp]) -> tuple[list[MountOp], tuple[Point, ...]]:
    """Return the operations with every mount point given for, and what has to be made for that.

    Raises:
        UsageError: a mount point lies behind a link of the tree.
    """
    base = _get_base(given)
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
                f"Nothing can be mounted at {show(operation.dest)}: {show(top)} is a symlink in the rootfs.",
                remedy="Choose another place, such as `/skills`.",
            )
        is_there = operation.dest in base.points and top not in writable
        if top in mounted and not is_there:
            missing.setdefault(top, []).append(operation)
    if not missing:
        return list(operations), ()
    return _lay_skeleton(given, operations, missing)


class InstallInput(Record):
    """All that `build_install` looks at: the entries at the top of the tree, what is run, what it may reach."""

    tree: bytes
    directories: tuple[bytes, ...]
    links: tuple[tuple[bytes, bytes], ...]
    argv: tuple[bytes, ...]
    hosts: tuple[str, ...]
    facts: Facts
    engine: EngineName
    filter: bytes
    limits: Limits = INSTALL_LIMITS
    files_of_others: tuple[bytes, ...] = ()


def build_install(given: InstallInput) -> Plan:
    """Return the sandbox for one command that changes a half-built rootfs.

    Only the tree is there, and it is writable. The command is uid 0 inside, without a capability; on the host it is the
    caller. The entries at the top of the tree are shown one by one, and nothing is ever mounted below what the tree
    decides.

    Raises:
        BwrapMissing: no bubblewrap was found.
    """
    if given.facts.bwrap is None:
        raise BwrapMissing("bubblewrap was not found.")
    mounts = in_mount_order(_install_operations(given))
    check_no_mounts_beneath_roots(mounts)
    return Plan(
        engine=given.engine,
        bwrap=given.facts.bwrap.path,
        mounts=mounts,
        environ=tuple(sorted(_install_environ(given).items())),
        cwd=b"/",
        argv=given.argv,
        limits=given.limits,
        filter=given.filter,
        uid=0,
        measured=(given.tree,),
        network=_install_network(given),
    )


def _get_base(given: PlanInput) -> RootfsBase:
    """Return the rootfs that a plan is laid over.

    Raises:
        UsageError: there is none.
    """
    if given.places.rootfs is None:
        raise UsageError("The view `rootfs` needs a rootfs.", remedy="Make one with `unspill rootfs pull alpine`.")
    return given.places.rootfs


def _check_place(given: PlanInput, dest: bytes) -> None:
    """Refuse a place that the sandbox or the rootfs needs for something else."""
    base = _get_base(given)
    why = ""
    if dest == b"/" or any(contains(own, dest) or contains(dest, own) for own in _NOT_FOR_MOUNTS):
        why = "a sandbox has its own"
    elif dest in base.directories or dest in dict(base.links):
        why = "the rootfs has its own directory there"
    elif given.rootfs_layers and b"/" + dest.split(b"/", 2)[1] in base.directories:
        why = "it is in a directory of the rootfs that commands can write"
    if why:
        raise UsageError(
            f"Nothing can be mounted at {show(dest)}: {why}.", remedy="Choose another place, such as `/skills`."
        )


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
    if operation.dest == _RESOLVER_FILE:
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


def _install_network(given: InstallInput) -> NetworkPlan:
    return ProxyNetwork(hosts=given.hosts, up_bytes=_UP_BYTES, down_bytes=_DOWN_BYTES) if given.hosts else NoNetwork()


def _install_operations(given: InstallInput) -> Iterator[MountOp]:
    for dest in given.directories:
        if dest not in FRESH_PLACES:
            yield Bind(source=given.tree + dest, dest=dest, writable=True, why="of the rootfs that is being made")
    for dest, target in given.links:
        if dest not in FRESH_PLACES:
            yield Symlink(target=target, dest=dest, why="a link of the rootfs that is being made")
    yield from kernel_operations(given.files_of_others)
    yield Tmpfs(dest=b"/tmp", size_bytes=given.limits.tmp_bytes, mode=STICKY, why="temporary files for this step only")
    yield Tmpfs(dest=b"/run", size_bytes=RUN_BYTES, why="none of the host's sockets")
    yield ReadOnly(dest=b"/", why="nothing can be created outside the directories above")


def _install_environ(given: InstallInput) -> dict[bytes, bytes]:
    if not given.hosts:
        return _INSTALL_ENVIRON
    variables = proxy_variables(PROXY_PORT)
    return _INSTALL_ENVIRON | {name.encode(): variables[name].encode() for name in _PROXY_NAMES}
