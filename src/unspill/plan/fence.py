# SPDX-License-Identifier: Apache-2.0
"""Plan a Landlock fence from the mounts of a plan. No run has one today; live sandboxes will set it.

A second layer that knows nothing of mounts: what it does not name is refused even to somebody who holds a descriptor
of it. Rules add up from the top down and never take away, so what is mounted read-only below a writable directory is
read-only by its mount alone. Which numbers the kernel is told is here too; `host.landlock` tells it.
"""

from __future__ import annotations

from unspill.errors import HostError
from unspill.model.plan import (
    PROXY_PORT,
    Bind,
    Dev,
    Fence,
    FenceRule,
    File,
    NoNetwork,
    Overlay,
    Proc,
    ProxyNetwork,
    ReadOnly,
    Tmpfs,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.plan import Facts, FenceAccess, MountOp, NetworkPlan


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
