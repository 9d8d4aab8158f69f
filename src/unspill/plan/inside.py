# SPDX-License-Identifier: Apache-2.0
"""Where things are inside: on their own paths, but in view `rootfs`, where the project is `/workspace`.

The first root is the one that holds the project, so it is that which is shown there; every other keeps its path.
"""

from __future__ import annotations

from unspill.policy.paths import contains

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.policy import View

WORKSPACE = b"/workspace"
PLAYGROUND = b"/playground"


def to_inside(path: bytes, view: View, roots: Sequence[bytes]) -> bytes:
    """Return where a path of the host is seen in a sandbox, if it is seen at all."""
    if view == "rootfs" and contains(roots[0], path):
        return WORKSPACE + path[len(roots[0]) :]
    return path


def to_host(path: bytes, view: View, roots: Sequence[bytes]) -> bytes:
    """Return which path of the host is seen at a path in a root; others are returned as they are."""
    if view == "rootfs" and contains(WORKSPACE, path):
        return roots[0] + path[len(WORKSPACE) :]
    return path


def playground_inside(view: View, home: bytes) -> bytes:
    """Return where the playground is; it never lies in a root."""
    return PLAYGROUND if view == "rootfs" else home + b"/playground"
