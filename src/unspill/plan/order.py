# SPDX-License-Identifier: Apache-2.0
"""The order in which mounts are made: bwrap performs them one by one, and a later one hides what it covers.

Knows destinations only, not what an operation is for.
"""

from __future__ import annotations

from unspill.model.plan import ReadOnly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.plan import MountOp


def in_mount_order(operations: Iterable[MountOp]) -> tuple[MountOp, ...]:
    """Return the operations parents first, else as given; each ReadOnly after all that lies beneath it.

    What lies beneath a path has more components than it, so counting them is enough.
    """
    given = tuple(operations)
    mounts = [operation for operation in given if not isinstance(operation, ReadOnly)]
    remounts = [operation for operation in given if isinstance(operation, ReadOnly)]
    mounts.sort(key=_depth)
    remounts.sort(key=_depth, reverse=True)
    return (*mounts, *remounts)


def _depth(operation: MountOp) -> int:
    return 0 if operation.dest == b"/" else operation.dest.count(b"/")
