# SPDX-License-Identifier: Apache-2.0
"""Which directories may be writable roots, and how several become a set without overlaps.

Roots come from the command line or the person's configuration, never from a symlink in a project and never from a
model. Paths are resolved before they get here: what is judged is where a directory really lies.
"""

from __future__ import annotations

from unspill.errors import RootRefused
from unspill.policy.defaults import SHARED_PARENTS, SYSTEM_TREES
from unspill.policy.paths import contains, lies_beneath, normalise, show
from unspill.policy.secrets import find_secret


def check_root(path: bytes, *, home: bytes, own: tuple[bytes, ...]) -> None:
    """Refuse what can't be a writable root. `own` are unspill's state, configuration and data directories.

    Raises:
        RootRefused: with the reason.
    """
    reason = _refusal(path, home, own)
    if reason:
        raise RootRefused(f"{show(path)} can't be a root: {reason}.")


def _refusal(path: bytes, home: bytes, own: tuple[bytes, ...]) -> str:
    if not path.startswith(b"/") or b"\0" in path or normalise(path) != path:
        return "its path is not absolute and normalised"
    if path == b"/":
        return "it is the whole file system"
    if contains(path, home):
        return "it is your home directory" if path == home else "it contains your home directory"
    for directory in own:
        if contains(directory, path):
            return f"unspill keeps its own files there ({show(directory)})"
        if contains(path, directory):
            return f"it contains unspill's own files ({show(directory)})"
    secret = find_secret(path, home)
    if secret is not None:
        return f"{show(secret)} is never shown to a sandbox"
    return _system_refusal(path, home)


def _system_refusal(path: bytes, home: bytes) -> str:
    if path in SHARED_PARENTS:
        return "it is shared by many things"
    if any(lies_beneath(path, parent) for parent in SHARED_PARENTS):
        return ""
    # A service's account may live below /var; the accounts whose home is /bin or /dev are not meant
    home_is_a_place_to_work = lies_beneath(home, b"/var") or home == b"/root"
    if home_is_a_place_to_work and lies_beneath(path, home):
        return ""
    for tree in SYSTEM_TREES:
        if contains(tree, path):
            return f"{show(tree)} belongs to the system"
    return ""


def merge_roots(project: bytes, extra: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """Return roots of which none contains another, the one that holds the project first.

    A directory inside another root is writable already, so it is dropped. An extra root that contains the project
    takes its place: the person asked for all of it, and two overlays on one tree would hide each other's writes.
    The project stays the working directory.
    """
    given = (project, *extra)
    kept: list[bytes] = []
    for path in given:
        inside_another = any(lies_beneath(path, other) for other in given)
        if not inside_another and path not in kept:
            kept.append(path)
    kept.sort(key=lambda path: not contains(path, project))
    return tuple(kept)
