# SPDX-License-Identifier: Apache-2.0
"""The first program of a plan: whether there is one, the file it is, and the words it is started with.

It stands before the command only where the kernel wants to be asked from inside: for Landlock, and to hear of
refused file accesses. A plan without it starts the command itself.
"""

from __future__ import annotations

import posixpath

from unspill.errors import HostError, SandboxUnavailable
from unspill.model.plan import File, FirstProgram
from unspill.plan.fence import build_fence, handled_rights, rule_rights
from unspill.plan.stage import NO_STAGE_FD, staged_words
from unspill.plan.visible import find_cover, is_shown, is_written
from unspill.policy.paths import contains

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import MountOp, Plan, PlanInput

FIRST_FILE = b"/run/unspill-first"
# By hand there is nobody to talk to
NO_CHANNEL = -1


def plan_first(given: PlanInput, mounts: tuple[MountOp, ...]) -> FirstProgram | None:
    """Return the program that a plan with these mounts needs before the command, None where it needs none.

    Raises:
        HostError: the kernel has no Landlock, or nothing that the sandbox shows could run the program.
        SandboxUnavailable: the caller has forgotten it; that is a defect of ours.
    """
    is_strict = given.policy.profile == "strict"
    if given.first is None:
        if is_strict:
            raise SandboxUnavailable("a plan with the profile `strict` has no program to make its fence")
        return None
    fence = build_fence(mounts, given.facts, given.network) if is_strict else None
    usable = [path for path in _interpreters(given) if _is_usable(given, mounts, path)]
    if not usable:
        why = "the profile `strict`" if is_strict else "explaining refused accesses"
        if given.places.rootfs is not None:
            raise HostError(
                f"The rootfs {given.places.rootfs.name} has no Python that no command can have changed, "
                f"and {why} needs one before the command.",
                remedy="Use a rootfs with python3, and not `rootfs_writable`, or do without.",
            )
        raise HostError(
            f"No Python is shown read-only inside the sandbox, and {why} needs one before the command.",
            remedy='Install python3 for the system, or choose `profile = "default"` and `explain = false`.',
        )
    return FirstProgram(interpreter=usable[0], source=given.first.source, fence=fence, notices=given.first.notices)


def _interpreters(given: PlanInput) -> tuple[bytes, ...]:
    if given.places.rootfs is not None:
        return given.places.rootfs.interpreters
    return () if given.first is None else given.first.interpreters


def _is_usable(given: PlanInput, mounts: tuple[MountOp, ...], interpreter: bytes) -> bool:
    """Tell whether an interpreter is seen inside, and no earlier command can have written to it or its modules."""
    prefix = posixpath.dirname(posixpath.dirname(interpreter))
    cover = find_cover(mounts, interpreter)
    if cover is None or is_written(cover):
        return False
    if given.places.rootfs is None and not is_shown(mounts, interpreter):
        return False
    return not any(is_written(other) and contains(prefix, other.dest) for other in mounts)


def first_file(first: FirstProgram) -> File:
    """Return the program as a file, with the call at its end that says what to do."""
    named: dict[str, object] = {"notices": first.notices}
    fence = first.fence
    if fence is not None:
        named |= {"handled": handled_rights(fence), "rules": rule_rights(fence), "ports": fence.ports or ()}
    call = ", ".join(f"{name}={value!r}" for name, value in named.items())
    return File(
        content=first.source + f"\n\nmain({call})\n".encode("ascii"),
        dest=FIRST_FILE,
        why="runs before the command and becomes it",
    )


def command_words(plan: Plan, channel: int = NO_CHANNEL) -> tuple[bytes, ...]:
    """Return what is started inside; `channel` is the descriptor by which a first program tells how it went."""
    if plan.first is None:
        return staged_words(plan.cwd, plan.argv, max(channel, NO_STAGE_FD)) if plan.staged else plan.argv
    return (plan.first.interpreter, b"-I", b"-S", b"-E", FIRST_FILE, b"%d" % channel, plan.cwd, *plan.argv)
