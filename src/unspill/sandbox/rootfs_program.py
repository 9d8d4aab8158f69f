# SPDX-License-Identifier: Apache-2.0
"""Which programs of a rootfs no command can change: those that are reached within its tree alone.

A link of the tree may lead to where something else is mounted, such as the project; what it finds there is anybody's.
"""

from __future__ import annotations

import os
import stat

from unspill.host.inside import find_inside, resolve_inside
from unspill.host.libc import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2
from unspill.model.permission import UNKNOWN_PROGRAM
from unspill.model.plan import Bind, Directory, Overlay, ReadOnly, Symlink
from unspill.plan.visible import is_written
from unspill.policy.paths import contains

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import MountOp, Plan

_TREE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST_MANIFEST = 16 << 20
_LOOKUP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def is_steady_in_rootfs(plan: Plan, path: bytes) -> bool:
    """Tell whether the tree alone decides what is at a path, and no command can write there; it may be nothing."""
    others = tuple(op.dest for op in plan.mounts if not _is_of_tree(plan, op))
    fd = os.open(plan.rootfs, _TREE)
    try:
        if resolve_inside(fd, path, others) is not None:
            return True
        return not any(contains(other, path) for other in others) and _is_missing(fd, path)
    finally:
        os.close(fd)


def is_executable_in_rootfs(plan: Plan, path: bytes) -> bool:
    """Tell whether a path leads to a program of the tree."""
    fd = os.open(plan.rootfs, _TREE)
    try:
        found = find_inside(fd, path)
    finally:
        os.close(fd)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def identify_in_rootfs(plan: Plan, path: bytes) -> str:
    """Return what stands for a program of the tree, or `UNKNOWN_PROGRAM` for a script.

    The same path is another program in another rootfs; and what reads a script may read packages of the project too.
    """
    from hashlib import blake2b

    fd = os.open(plan.rootfs, _TREE)
    try:
        real = resolve_inside(fd, path)
        if not real:
            return UNKNOWN_PROGRAM
        program = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        try:
            is_script = os.read(program, 2) == b"#!"
        finally:
            os.close(program)
    except OSError:
        return UNKNOWN_PROGRAM
    finally:
        os.close(fd)
    return UNKNOWN_PROGRAM if is_script else blake2b(plan.rootfs + _manifest_of(plan), digest_size=32).hexdigest()


def _manifest_of(plan: Plan) -> bytes:
    try:
        with open(os.path.join(os.path.dirname(plan.rootfs), b"manifest.json"), "rb") as file:
            return file.read(_LARGEST_MANIFEST)
    except OSError:
        return b""  # a tree that the person made


def _is_of_tree(plan: Plan, operation: MountOp) -> bool:
    match operation:
        case Directory() | Symlink() | ReadOnly():
            return True
        case Bind():
            return not operation.writable and contains(plan.rootfs, operation.source)
        case Overlay():
            return not is_written(operation) and contains(plan.rootfs, operation.lowers[-1])
    return False


def _is_missing(fd: int, path: bytes) -> bool:
    """Tell whether there is nothing at a path, nor a link on the way to it."""
    try:
        os.close(openat2(fd, path[1:], _LOOKUP, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS))
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
