# SPDX-License-Identifier: Apache-2.0
"""The form that overlayfs gives a layer on a mount with `userxattr`: how deletions and attributes are stored.

In a layer a character device 0:0 is a deletion, and `user.overlay.*` are marks; what a command sets by such a name
is stored with one more `overlay.` in it.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import SandboxUnavailable

USER = "user."
OWN = "user.overlay."
ESCAPED = "user.overlay.overlay."
OPAQUE = "user.overlay.opaque"

# Overlayfs writes these only for mount options that unspill never uses.
FOREIGN = frozenset({"user.overlay.redirect", "user.overlay.metacopy", "user.overlay.whiteout"})


def make_whiteout(name: bytes, directory: int) -> None:
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=directory)


def is_opaque(fd: int, names: list[str]) -> bool:
    """Tell whether a directory of a layer hides what lies below it."""
    return OPAQUE in names and os.getxattr(fd, OPAQUE) == b"y"


def shown_name(stored: str) -> str | None:
    """Return the name by which a command knows an attribute of a layer, None for what it does not see."""
    if not stored.startswith(USER):
        return None
    if not stored.startswith(OWN):
        return stored
    return OWN + stored[len(ESCAPED) :] if stored.startswith(ESCAPED) else None


def list_attributes(fd: int) -> list[str]:
    """Return the names of all attributes of an open entry."""
    try:
        return os.listxattr(fd)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def refuse_foreign(names: list[str], path: bytes) -> None:
    """Stop at marks whose meaning unspill does not read.

    Raises:
        SandboxUnavailable: The layer was not made by unspill.
    """
    if not FOREIGN.isdisjoint(names):
        raise SandboxUnavailable(
            f"A layer holds a mark at {path!r} that no layer of unspill has.",
            remedy="Discard this sandbox; something else wrote into its layer.",
        )
