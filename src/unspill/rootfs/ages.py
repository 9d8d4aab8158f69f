# SPDX-License-Identifier: Apache-2.0
"""Which of several rootfs is newer, and which of them one replaces.

By version where all versions are numbers; elsewhere (the name of a release, a digest) by when they were made.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.rootfs import Rootfs


def line_of(rootfs: Rootfs) -> tuple[str, str, int, str]:
    """Return what a rootfs has in common with those that it replaces: all of its key but the version."""
    if rootfs.manifest is None:
        return rootfs.name, "", 0, ""
    key = rootfs.manifest.key
    return key.source, key.arch, key.tier, key.variant


def newest(several: Sequence[Rootfs]) -> Rootfs:
    """Return the newest of some rootfs of one line; there must be one."""
    versions = {found.name: _numbers(found) for found in several}
    is_numbered = all(versions.values())
    return max(several, key=lambda found: (versions[found.name] if is_numbered else (), _made(found), found.name))


def _numbers(rootfs: Rootfs) -> tuple[int, ...]:
    """Return a version as numbers, nothing where it is not of numbers and dots alone."""
    parts = rootfs.manifest.key.version.split(".") if rootfs.manifest is not None else [""]
    return tuple(map(int, parts)) if all(part.isdecimal() and len(part) < 9 for part in parts) else ()


def _made(rootfs: Rootfs) -> int:
    return rootfs.manifest.created_ns if rootfs.manifest is not None else 0
