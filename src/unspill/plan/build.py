# SPDX-License-Identifier: Apache-2.0
"""The one planner: from what was decided, found and stacked to the whole sandbox as data.

Pure: everything it needs is in its argument, so a plan can be printed, compared and tested without a kernel.
"""

from __future__ import annotations

from unspill.errors import BwrapMissing, UsageError
from unspill.lazy import lazy_module
from unspill.model.plan import Bind, File, HostNetwork, Overlay, Plan, ProxyNetwork, ReadOnly, Tmpfs
from unspill.plan.environ import NODE_SCRIPT, NODE_SCRIPT_PATH, build_environ
from unspill.plan.view import (
    WORKSPACE,
    cache_operations,
    check_hidden,
    check_no_mounts_beneath_roots,
    chosen_caches,
    find_mount_beneath,
    fresh_operations,
    home_operations,
    home_skeleton,
    in_mount_order,
    is_staged,
    kernel_operations,
    mask_operations,
    overlay_problem,
    shown_operations,
    system_operations,
    to_inside,
    without_hidden,
)
from unspill.policy.defaults import check_root
from unspill.policy.paths import normalise, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.model.plan import MountOp, NetworkPlan, PlanInput
    from unspill.model.run import Stack
    from unspill.plan import rootfs
else:
    rootfs = lazy_module("unspill.plan.rootfs")  # lazy: rootfs


COMMAND_FILE = b"/run/unspill-command"
HOST_NETWORK = (
    "the command uses this host's network and can reach everything that listens on it "
    '(`mode = "host"`): weaker than a network of its own'
)
UNMOUNT_REMEDY = "Unmount it, mount it outside the project, or choose a project directory without it."


def build_plan(given: PlanInput) -> Plan:
    """Return the sandbox for one run.

    Raises:
        UsageError: the policy asks for something that can't be done with these roots, or one can't be a root.
        BwrapMissing: no bubblewrap was found.
    """
    if given.facts.bwrap is None:
        raise BwrapMissing("bubblewrap was not found.")
    _check_places(given)
    check_hidden(given)
    warnings: list[str] = []
    skeleton = home_skeleton(given)
    operations = _operations(given, warnings)
    if given.policy.view == "rootfs":
        operations, skeleton = rootfs.with_skeleton(given, operations)
    mounts = in_mount_order(operations)
    check_no_mounts_beneath_roots(mounts)
    return Plan(
        engine=given.engine,
        bwrap=given.facts.bwrap.path,
        mounts=mounts,
        environ=build_environ(given, mounts),
        cwd=given.cwd,
        argv=given.argv if given.command_file is None else (_shell(given), b"-c", b". " + COMMAND_FILE),
        staged=is_staged(mounts, given.cwd),
        limits=given.policy.limits,
        profile=given.policy.profile,
        filter=given.filter,
        uid=given.uid,
        rootfs=b"" if given.places.rootfs is None else given.places.rootfs.tree,
        skeleton=skeleton,
        network=given.network,
        warnings=(*warnings, *_network_warnings(given.network)),
    )


def with_other_layers(plan: Plan, stacks: Iterable[Stack]) -> Plan | None:
    """Return a plan over other layers of the same directories, None if one of them has none.

    Of a stack everything else in a plan depends only on which directory it is over.
    """
    by_live = {stack.live: stack for stack in stacks}
    mounts: list[MountOp] = []
    for operation in plan.mounts:
        if isinstance(operation, Overlay) and operation.upper is not None:
            stack = by_live.get(operation.lowers[-1])
            if stack is None or stack.open is None:
                return None
            mounts.append(
                operation.replace(lowers=stack.lowers(), upper=stack.open.upper, work=stack.open.work, mask=stack.mask)
            )
        else:
            mounts.append(operation)
    return plan.replace(mounts=tuple(mounts))


def _network_warnings(network: NetworkPlan) -> tuple[str, ...]:
    if isinstance(network, ProxyNetwork):
        return network.problems
    return (HOST_NETWORK,) if isinstance(network, HostNetwork) else ()


def _check_places(given: PlanInput) -> None:
    if given.policy.view == "rootfs":
        rootfs.check_beside(given)
    home = given.places.home.path
    if not home.startswith(b"/") or home == b"/" or normalise(home) != home:
        raise UsageError(
            f"{show(home)} can't be the home directory of a sandbox.",
            remedy="Set HOME to a directory of your own.",
        )
    for stack in given.stacks:
        # The caller has checked too; here it is what keeps every mount below out of the roots
        check_root(stack.live, home=home, own=(given.places.state, *given.places.own))
        point = find_mount_beneath(given, stack.live)
        if point is not None:
            raise UsageError(
                f"Something is mounted on {show(point)}, inside the root {show(stack.live)}: "
                "the kernel can't put an overlay over a mount point.",
                remedy=UNMOUNT_REMEDY,
            )


def _operations(given: PlanInput, warnings: list[str]) -> list[MountOp]:
    caches = chosen_caches(given, warnings)
    system = system_operations(given)
    mounted: Iterator[MountOp] = iter(())
    if given.policy.view == "rootfs" or given.policy.mounts:
        system = rootfs.rootfs_operations(given) if given.policy.view == "rootfs" else system
        mounted = rootfs.mount_operations(given)
    operations = [
        *_mountable(given, system, warnings),
        *kernel_operations(given.places.files_of_others),
        *fresh_operations(given),
        *home_operations(given, warnings),
        *shown_operations(given, caches, warnings),
        *cache_operations(caches),
        *_root_operations(given),
    ]
    if given.places.rootfs is not None and given.places.rootfs.note:
        warnings.append(given.places.rootfs.note)
    operations += mounted
    if given.command_file is not None:
        operations.append(File(content=given.command_file, dest=COMMAND_FILE, why="the command, too long to pass"))
    if isinstance(given.network, ProxyNetwork):
        operations.append(
            File(content=NODE_SCRIPT, dest=NODE_SCRIPT_PATH, why="points older versions of node to the proxy")
        )
    if isinstance(given.network, HostNetwork):
        operations += _resolver_operations(given.network.resolver_file, is_host_root=given.policy.view != "rootfs")
    operations = without_hidden(given, operations)
    operations += mask_operations(given, operations)
    operations.append(ReadOnly(dest=b"/", why="nothing can be created outside the directories above"))
    return operations


def _mountable(given: PlanInput, operations: Iterator[MountOp], warnings: list[str]) -> Iterator[MountOp]:
    for operation in operations:
        problem = ""
        if isinstance(operation, Overlay):
            problem = overlay_problem(given, operation.lowers[-1], is_read_only=operation.upper is None)
        if problem:
            warnings.append(f"{show(operation.dest)} is not shown: {problem}.")
        else:
            yield operation


def _root_operations(given: PlanInput) -> Iterator[MountOp]:
    roots = [stack.live for stack in given.stacks]
    if not roots and given.policy.view == "rootfs":
        size = given.policy.limits.tmp_bytes
        yield Tmpfs(dest=WORKSPACE, size_bytes=size, mode=0o700, why="no project: an empty home directory for this run")
    for stack in given.stacks:
        dest = to_inside(stack.live, given.policy.view, roots)
        if stack.open is None:
            lowers = (given.places.state + b"/empty", *stack.lowers())
            yield Overlay(lowers=lowers, dest=dest, why="root with the changes of earlier runs, read-only")
            continue
        yield Overlay(
            lowers=stack.lowers(),
            dest=dest,
            upper=stack.open.upper,
            work=stack.open.work,
            mask=stack.mask,
            why="root: every write goes to a layer",
        )


def _resolver_operations(place: bytes, *, is_host_root: bool) -> Iterator[Bind]:
    """Yield the host's /etc/resolv.conf, nothing where it has none or it is shown anyway."""
    # On hosts with a resolver of their own it is a link into /run, which is fresh inside
    if place and (not is_host_root or place.startswith(b"/run/")):
        dest = place if is_host_root else b"/etc/resolv.conf"
        yield Bind(source=place, dest=dest, why="names resolve as on the host")


def _shell(given: PlanInput) -> bytes:
    return b"/bin/sh" if given.places.rootfs is None else given.places.rootfs.shell
