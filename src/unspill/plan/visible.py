# SPDX-License-Identifier: Apache-2.0
"""What a list of mounts shows: which operation decides what is at a path, and whether it is the host's.

Of the operations that cover a path the deepest decides, of two at one place the later.
"""

from __future__ import annotations

import posixpath

from unspill.errors import SandboxUnavailable
from unspill.model.plan import Bind, Overlay, ReadOnly, Symlink
from unspill.policy.paths import contains, normalise, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.plan import MountOp

_MOST_LINKS = 8


def find_cover(operations: Iterable[MountOp], path: bytes) -> MountOp | None:
    """Return the operation that decides what is at `path`, None where only bwrap's empty root is."""
    cover: MountOp | None = None
    for operation in operations:
        if not path.startswith(operation.dest) or isinstance(operation, ReadOnly):
            continue
        if contains(operation.dest, path) and (cover is None or contains(cover.dest, operation.dest)):
            cover = operation
    return cover


def is_shown(operations: Iterable[MountOp], path: bytes) -> bool:
    """Tell whether the host's own file or directory at `path` is seen there, through links that the plan makes."""
    operations = tuple(operations)
    for _ in range(_MOST_LINKS):
        cover = find_cover(operations, path)
        match cover:
            case Bind():
                return cover.source == cover.dest
            case Overlay():
                return cover.lowers[-1] == cover.dest
            case Symlink():
                target = posixpath.join(posixpath.dirname(cover.dest), cover.target)
                path = normalise(target + path[len(cover.dest) :])
            case _:
                return False
    return False


def is_writable_mount(operation: MountOp) -> bool:
    """Tell whether earlier runs may have left anything there, symlinks included."""
    match operation:
        case Bind():
            return operation.writable
        case Overlay():
            return operation.upper is not None
    return False


def is_written(operation: MountOp) -> bool:
    """Tell whether what is seen there may be a command's work, though this run may only read it."""
    return is_writable_mount(operation) or (isinstance(operation, Overlay) and operation.written)


def check_no_mounts_beneath_roots(operations: Iterable[MountOp]) -> None:
    """Make sure that bwrap makes no mount point in what a sandboxed command may have written.

    bwrap before 0.12 follows symlinks while it makes mount points (CVE-2026-87766): one of them, left by an
    earlier run, would make it write to the host.

    Raises:
        SandboxUnavailable: the plan has such a mount; that is a defect of ours.
    """
    operations = tuple(operations)
    writable = tuple(outer.dest + b"/" for outer in operations if is_writable_mount(outer))
    for inner in operations:
        if inner.dest.startswith(writable):
            raise SandboxUnavailable(f"the plan mounts something inside a writable directory: {show(inner.dest)}")
