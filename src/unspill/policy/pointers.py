# SPDX-License-Identifier: Apache-2.0
"""Where a path that stands in a file or a link leads, by its text alone: inside the root, or possibly out of it."""

from __future__ import annotations


def resolve(place: bytes, target: bytes, root: bytes) -> list[bytes] | None:
    """Return the components, from the root on, of where `target` leads; None where that may be outside.

    A `..` after a name is taken for outside: if the name is a link, nobody can tell from the text where it leads.

    Args:
        place: The directory that a relative target starts from, itself relative to the root.
        target: Absolute or relative.
        root: The root's own path.
    """
    parts = split(target)
    if b"\0" in target:
        return None
    if target.startswith(b"/"):
        own = split(root)
        if parts[: len(own)] != own or b".." in parts:
            return None
        return parts[len(own) :]
    where = split(place)
    climbs = 0
    while climbs < len(parts) and parts[climbs] == b"..":
        climbs += 1
    if climbs > len(where) or b".." in parts[climbs:]:
        return None
    return where[: len(where) - climbs] + parts[climbs:]


def climbs_after_a_name(target: bytes) -> bool:
    """Tell whether a target has a `..` behind a name, so that its text does not say where it leads."""
    parts = split(target)
    first_name = next((index for index, part in enumerate(parts) if part != b".."), len(parts))
    return b".." in parts[first_name:]


def split(path: bytes) -> list[bytes]:
    """Return the components of a path, without those that mean nothing."""
    return [part for part in path.split(b"/") if part not in (b"", b".")]
