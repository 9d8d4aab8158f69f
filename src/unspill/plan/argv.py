# SPDX-License-Identifier: Apache-2.0
"""A plan as what the kernel is told: options for bwrap, everything but the command, and the rules of a Landlock fence.

The options are passed through `--args FD`. Each is one element, so no name can be taken for another option; a NUL would
end one and is refused.

The fence is made from the mounts of a plan. No run has one today; live sandboxes will set it (`host.landlock`). It is a
second layer that knows nothing of mounts: what it does not name is refused even to somebody who holds a descriptor of
it. Rules add up from the top down and never take away, so what is mounted read-only below a writable directory is
read-only by its mount alone.
"""

from __future__ import annotations

from unspill.errors import (
    HostError,
    NamespacesForbidden,
    OverlayUnsupported,
    UsageError,
)
from unspill.model.plan import (
    PROXY_PORT,
    Bind,
    Dev,
    Directory,
    Fence,
    FenceRule,
    File,
    HostNetwork,
    NoNetwork,
    Overlay,
    Proc,
    ProxyNetwork,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from unspill.policy.paths import lies_beneath, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from unspill.model.plan import (
        Facts,
        FenceAccess,
        MountOp,
        NetworkPlan,
        Plan,
    )


# bwrap 0.11 gives all of an overlay's directories to mount(2) in one page.
_OPTION_PAGE = 4096
_OLD_ROOT = b"/oldroot"

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REFER, _TRUNCATE, _IOCTL_DEV = 1, 2, 4, 8, 1 << 13, 1 << 14, 1 << 15
_REMOVE = 1 << 4 | 1 << 5
# Directories, files, sockets, FIFOs and symlinks; neither kind of device
_MAKE = 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12
_ALL_OF_ABI_1 = (1 << 13) - 1
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
ACCESS_RIGHTS: dict[FenceAccess, int] = {
    "list": _READ_DIR,
    "read": _EXECUTE | _READ_FILE | _READ_DIR,
    "device": _READ_FILE | _WRITE_FILE | _READ_DIR | _TRUNCATE | _IOCTL_DEV,
    "process": _READ_FILE | _WRITE_FILE | _READ_DIR | _TRUNCATE,
    "write": _EXECUTE | _READ_FILE | _WRITE_FILE | _READ_DIR | _REMOVE | _MAKE | _REFER | _TRUNCATE,
}


def bwrap_options(plan: Plan, facts: Facts, first_fd: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return the options, and the contents that bwrap reads from descriptors `first_fd`, `first_fd` + 1, ...

    Raises:
        NamespacesForbidden: this host can't keep the command from making user namespaces.
        HostError: its kernel has no own /proc for a sandbox, or no filters of system calls.
        OverlayUnsupported: the stack is too deep for the engine `native`.
        UsageError: a path, name or value has a NUL.
    """
    # The engine `mount` has laid the overlay over the live directory by then
    overlay = mounted_by_bwrap if plan.engine == "native" else _live
    return _with_files(plan, facts, first_fd, overlay)


def bare_options(plan: Plan, facts: Facts, first_fd: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return the same with a plain bind of the live directory in place of each overlay: a baseline to measure by."""
    return _with_files(plan, facts, first_fd, _live)


def _with_files(
    plan: Plan, facts: Facts, first_fd: int, overlay: Callable[[Overlay], Iterable[bytes]]
) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    contents: list[bytes] = []

    def file(operation: File) -> tuple[bytes, ...]:
        contents.append(operation.content)
        return file_options(operation, first_fd + len(contents) - 1)

    options = to_options(plan, facts, overlay=overlay, file=file)
    if plan.filter:
        contents.append(plan.filter)
        options += filter_options(facts, first_fd + len(contents) - 1)
    for option in options:
        if b"\0" in option:
            raise UsageError(f"{show(option)} contains NUL.")
    return tuple(options), tuple(contents)


def to_options(
    plan: Plan,
    facts: Facts,
    *,
    overlay: Callable[[Overlay], Iterable[bytes]],
    file: Callable[[File], Iterable[bytes]],
) -> list[bytes]:
    """Return the options of a plan; how overlays and generated files get in is the caller's."""
    options = [*_namespaces(facts, plan.network), b"--hostname", plan.hostname.encode()]
    if plan.uid is not None:
        options += (b"--uid", b"%d" % plan.uid, b"--gid", b"%d" % plan.uid)
    for operation in plan.mounts:
        match operation:
            case File():
                options += file(operation)
            case Overlay():
                options += overlay(operation)
            case _:
                options += _mount(operation, facts)
    options.append(b"--clearenv")
    for name, value in plan.environ:
        options += (b"--setenv", name, value)
    options += (b"--chdir", b"/" if plan.staged else plan.cwd)
    return options


def _namespaces(facts: Facts, network: NetworkPlan) -> tuple[bytes, ...]:
    if not facts.namespaces:
        raise NamespacesForbidden("This host does not allow user namespaces.")
    if not facts.disable_userns:
        # In a namespace of its own the command could undo every read-only mount
        raise NamespacesForbidden("bwrap can't forbid user namespaces inside the sandbox here.")
    return (
        b"--unshare-user",
        b"--unshare-ipc",
        b"--unshare-pid",
        *(() if isinstance(network, HostNetwork) else (b"--unshare-net",)),
        b"--unshare-uts",
        b"--unshare-cgroup-try",
        b"--disable-userns",
        b"--assert-userns-disabled",
        b"--cap-drop",
        b"ALL",
        b"--die-with-parent",
        b"--new-session",
    )


def _mount(operation: MountOp, facts: Facts) -> tuple[bytes, ...]:
    match operation:
        case Bind():
            return bind_options(operation.source, operation.dest, writable=operation.writable)
        case Tmpfs():
            size, mode = b"%d" % operation.size_bytes, b"%04o" % operation.mode
            return (b"--perms", mode, b"--size", size, b"--tmpfs", operation.dest)
        case Proc():
            if not facts.proc_mount:
                raise HostError("This host does not let a sandbox have its own /proc.")
            return (b"--proc", operation.dest)
        case Dev():
            return (b"--dev", operation.dest)
        case Directory():
            return (b"--dir", operation.dest)
        case Symlink():
            return (b"--symlink", operation.target, operation.dest)
        case ReadOnly():
            return (b"--remount-ro", operation.dest)
    raise TypeError(operation)


def file_options(operation: File, fd: int) -> tuple[bytes, ...]:
    """Return the options for a generated file that is read from `fd`."""
    kind = b"--ro-bind-data" if operation.over else b"--file"
    return (b"--perms", b"%04o" % operation.mode, kind, b"%d" % fd, operation.dest)


def filter_options(facts: Facts, fd: int) -> tuple[bytes, ...]:
    """Return the options for a filter of system calls that is read from `fd`."""
    if not facts.seccomp:
        raise HostError(
            "The kernel of this host can't filter system calls, and unspill runs no command without a filter.",
            remedy="Use a kernel with CONFIG_SECCOMP_FILTER. In a container, allow unspill to set a filter.",
        )
    return (b"--seccomp", b"%d" % fd)


def bind_options(source: bytes, dest: bytes, *, writable: bool) -> tuple[bytes, ...]:
    """Return the options for a bind, read-only unless `writable`."""
    return (b"--bind" if writable else b"--ro-bind", source, dest)


def _live(overlay: Overlay) -> tuple[bytes, ...]:
    return bind_options(overlay.lowers[-1], overlay.dest, writable=overlay.upper is not None)


def is_overlapping(overlay: Overlay) -> bool:
    """Tell whether the empty first directory lies inside another: such layers the kernel does not take together."""
    first, *rest = overlay.lowers
    return overlay.upper is None and any(lies_beneath(first, lower) for lower in rest)


def mounted_by_bwrap(overlay: Overlay) -> tuple[bytes, ...]:
    """Return the options for an overlay that bwrap itself mounts."""
    _check_page(overlay)
    if is_overlapping(overlay):
        sources = [part for lower in reversed(overlay.lowers[1:]) for part in (b"--overlay-src", lower)]
        points = [part for name in overlay.points for part in (b"--dir", overlay.dest + b"/" + name)]
        return (*sources, b"--tmp-overlay", overlay.dest, *points, b"--remount-ro", overlay.dest)
    options: list[bytes] = []
    # bwrap wants the lowest first
    for lower in reversed(overlay.lowers):
        options += (b"--overlay-src", lower)
    if overlay.upper is None or overlay.work is None:
        return (*options, b"--ro-overlay", overlay.dest)
    return (*options, b"--overlay", overlay.upper, overlay.work, overlay.dest)


def _check_page(overlay: Overlay) -> None:
    paths = [*overlay.lowers, *(path for path in (overlay.upper, overlay.work) if path is not None)]
    escaped = sum(len(path) + sum(path.count(char) for char in b"\\,:") for path in paths)
    length = escaped + len(paths) * (len(_OLD_ROOT) + 1) + len(b"lowerdir=,upperdir=,workdir=,userxattr")
    if length >= _OPTION_PAGE:
        raise OverlayUnsupported(
            f"The stack over {show(overlay.dest)} has {len(overlay.lowers)} layers, more than bwrap can mount.",
            remedy="Apply or discard the held changes, or use the engine `mount`.",
        )


def build_fence(mounts: tuple[MountOp, ...], facts: Facts, network: NetworkPlan) -> Fence:
    """Return the fence around what a plan mounts.

    Raises:
        HostError: this kernel has no Landlock.
    """
    if not facts.landlock_abi:
        raise HostError(
            "The kernel of this host has no Landlock.",
            remedy='Use a kernel from 5.13 on with "landlock" in its `lsm=`.',
        )
    # Of two mounts at one place the later is what is seen there
    rules = {rule.path: rule for rule in (FenceRule(path=b"/", access="list"), *_rules(mounts))}
    return Fence(abi=facts.landlock_abi, rules=tuple(rules.values()), ports=_ports(network, facts.landlock_abi))


def handled_rights(fence: Fence) -> tuple[int, int, int]:
    """Return the rights that are refused where no rule has them: of files, of TCP, and what ends at the fence."""
    files = _ALL_OF_ABI_1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        files |= right if fence.abi >= since else 0
    tcp = 0 if fence.ports is None else _BIND_TCP | _CONNECT_TCP
    return files, tcp, _ABSTRACT_SOCKETS | _SIGNALS if fence.abi >= 6 else 0


def rule_rights(fence: Fence) -> tuple[tuple[bytes, int], ...]:
    """Return each path with the rights that it has there and below."""
    files = handled_rights(fence)[0]
    found = ((rule.path, ACCESS_RIGHTS[rule.access] & files) for rule in fence.rules)
    # The kernel takes no rule that allows nothing
    return tuple((path, rights) for path, rights in found if rights)


def _rules(mounts: tuple[MountOp, ...]) -> Iterator[FenceRule]:
    read_only = {operation.dest for operation in mounts if isinstance(operation, ReadOnly)}
    for operation in mounts:
        match operation:
            case Bind():
                yield FenceRule(path=operation.dest, access="write" if operation.writable else "read")
            case Overlay():
                yield FenceRule(path=operation.dest, access="read" if operation.upper is None else "write")
            case Tmpfs():
                yield FenceRule(path=operation.dest, access="read" if operation.dest in read_only else "write")
            case Dev():
                yield FenceRule(path=operation.dest, access="device")
            case Proc():
                yield FenceRule(path=operation.dest, access="process")
            case File() if operation.over:
                yield FenceRule(path=operation.dest, access="read")


def _ports(network: NetworkPlan, abi: int) -> tuple[int, ...] | None:
    if abi < 4:
        return None
    match network:
        case NoNetwork():
            return ()
        case ProxyNetwork():
            return (PROXY_PORT,)
    return None
