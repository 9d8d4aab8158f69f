# SPDX-License-Identifier: Apache-2.0
"""What an entry of an upper directory is, and which of its attributes are overlayfs's own.

Markers are recognised by their exact names. A command that sets `user.overlay.opaque` itself gets it stored as
`user.overlay.overlay.opaque`: that is the command's data, and matching by prefix would let it delete live files.
"""

from __future__ import annotations

import stat

from unspill.errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from unspill.model.change import EntryKind

USER = "user."
OWN = "user.overlay."
ESCAPED = "user.overlay.overlay."
OPAQUE = "user.overlay.opaque"

# Kernels write these only for mount options that unspill never uses, or for layers composed by something else.
FOREIGN = frozenset({"user.overlay.redirect", "user.overlay.metacopy", "user.overlay.whiteout"})

FORMAT = 0o170000
KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}


def kind_of(status: os.stat_result) -> EntryKind:
    """Return the kind of an entry from its lstat."""
    return KINDS.get(status.st_mode & FORMAT, "special")


def is_whiteout(status: os.stat_result) -> bool:
    """Tell whether this is overlayfs's mark of a deletion: a character device 0:0."""
    return status.st_mode & FORMAT == stat.S_IFCHR and status.st_rdev == 0


def is_user_attribute(name: str) -> bool:
    """Tell whether a stored attribute is one that the command sees and can set."""
    return name.startswith(USER) and (not name.startswith(OWN) or name.startswith(ESCAPED))


def is_plain_attribute(name: str) -> bool:
    """Tell whether an attribute is one that no overlay takes for a mark of its own, in a layer or in a live tree."""
    return name.startswith(USER) and not name.startswith(OWN)


def refuse_foreign(names: list[str], path: bytes) -> None:
    """Stop at marks whose meaning unspill does not read.

    Raises:
        SandboxUnavailable: The layer was not made by a mount of ours.
    """
    if names and not FOREIGN.isdisjoint(names):
        marks = ", ".join(sorted(FOREIGN.intersection(names)))
        raise SandboxUnavailable(
            f"the layer holds {marks} at {path!r}, which no layer of unspill has",
            remedy="Discard this sandbox; something else wrote into its layer.",
        )
