# SPDX-License-Identifier: Apache-2.0
"""The sandbox in which packages are installed into a half-built rootfs: only the tree is there, and it is writable.

The command is uid 0 inside, without a capability; on the host it is the caller. bwrap's own empty root stays the root:
the entries at the top of the tree are shown on it one by one, and nothing is ever mounted below what the tree decides,
for bwrap before 0.12 follows links when it makes mount points (CVE-2026-87766).
"""

from __future__ import annotations

from unspill.errors import BwrapMissing
from unspill.model.plan import PROXY_PORT, Bind, NoNetwork, Plan, ProxyNetwork, ReadOnly, Symlink, Tmpfs
from unspill.model.policy import GIB, MIB, Limits
from unspill.plan.environ import proxy_variables
from unspill.plan.rootfs import RUN_BYTES, STICKY, kernel_operations
from unspill.plan.view import check_no_mounts_beneath_roots, in_mount_order
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.plan import Facts, MountOp, NetworkPlan
    from unspill.model.policy import EngineName

ROOT = 0
# What the sandbox has of its own, whatever the tree has there
OWN = (b"/dev", b"/proc", b"/sys", b"/run", b"/tmp")
LIMITS = Limits(wall_s=900.0, layer_bytes=16 * GIB, layer_entries=2_000_000, file_bytes=8 * GIB)
# Packages are asked for, not sent
UP_BYTES, DOWN_BYTES = 64 * MIB, 16 * GIB

_ENVIRON = {
    b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    b"HOME": b"/root",
    b"USER": b"root",
    b"LOGNAME": b"root",
    b"SHELL": b"/bin/sh",
    b"LANG": b"C.UTF-8",
    b"TMPDIR": b"/tmp",
}
# None for addresses that are reached directly: a mirror may be on the host's loopback, which is not the sandbox's
_PROXY = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


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
    limits: Limits = LIMITS


def build_install(given: InstallInput) -> Plan:
    """Return the sandbox for one command that changes a half-built rootfs.

    Raises:
        BwrapMissing: no bubblewrap was found.
    """
    if given.facts.bwrap is None:
        raise BwrapMissing("bubblewrap was not found.")
    mounts = in_mount_order(_operations(given))
    check_no_mounts_beneath_roots(mounts)
    return Plan(
        engine=given.engine,
        bwrap=given.facts.bwrap.path,
        mounts=mounts,
        environ=tuple(sorted(_environ(given).items())),
        cwd=b"/",
        argv=given.argv,
        limits=given.limits,
        filter=given.filter,
        uid=ROOT,
        measured=(given.tree,),
        network=_network(given),
    )


def _network(given: InstallInput) -> NetworkPlan:
    return ProxyNetwork(hosts=given.hosts, up_bytes=UP_BYTES, down_bytes=DOWN_BYTES) if given.hosts else NoNetwork()


def _operations(given: InstallInput) -> Iterator[MountOp]:
    for dest in given.directories:
        if dest not in OWN:
            yield Bind(source=given.tree + dest, dest=dest, writable=True, why="of the rootfs that is being made")
    for dest, target in given.links:
        if dest not in OWN:
            yield Symlink(target=target, dest=dest, why="a link of the rootfs that is being made")
    yield from kernel_operations()
    yield Tmpfs(dest=b"/tmp", size_bytes=given.limits.tmp_bytes, mode=STICKY, why="temporary files of this step only")
    yield Tmpfs(dest=b"/run", size_bytes=RUN_BYTES, why="none of the host's sockets")
    yield ReadOnly(dest=b"/", why="nothing is made outside the directories above")


def _environ(given: InstallInput) -> dict[bytes, bytes]:
    if not given.hosts:
        return _ENVIRON
    variables = proxy_variables(PROXY_PORT)
    return _ENVIRON | {name.encode(): variables[name].encode() for name in _PROXY}
