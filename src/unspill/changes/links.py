# SPDX-License-Identifier: Apache-2.0
"""Where a symlink points, by its text alone: nothing is ever followed."""

from __future__ import annotations


def leads_out(path: bytes, target: bytes, root: bytes) -> bool:
    """Tell whether the symlink at `path` (relative to `root`) points outside of the root."""
    if target.startswith(b"/"):
        place: list[bytes] = []
        needed = _parts(root)
    else:
        place = path.split(b"/")[:-1]
        needed = []
    for part in _parts(target):
        if part != b"..":
            place.append(part)
        elif place:
            place.pop()
        elif not target.startswith(b"/"):
            return True
    return place[: len(needed)] != needed


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]
