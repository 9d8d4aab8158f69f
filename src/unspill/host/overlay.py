# SPDX-License-Identifier: Apache-2.0
"""The form that overlayfs gives a layer on a mount with `userxattr`: how deletions, hidden directories and attributes
are stored.

In a layer a character device 0:0 is a deletion, and `user.overlay.*` are marks. Marks are recognised by their exact
names. A command that sets `user.overlay.opaque` itself gets it stored as `user.overlay.overlay.opaque`: that is the
command's data, and matching by prefix would let it delete live files.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.change import EntryKind

USER = "user."
OWN = "user.overlay."
ESCAPED = "user.overlay.overlay."
OPAQUE = "user.overlay.opaque"

# What a volatile mount leaves in its work directory, the outermost first, and the file in the last of them.
VOLATILE_DIRECTORIES = (b"work", b"work/incompat", b"work/incompat/volatile")
VOLATILE_FILE = b"work/incompat/volatile/dirty"

# Ours: the mode that a command gave a directory which is open to its owner for a while.
MODE_MARK = "user.overlay.unspill.mode"

# Kernels write these only for mount options that unspill never uses, or for layers composed by something else.
FOREIGN = frozenset({"user.overlay.redirect", "user.overlay.metacopy", "user.overlay.whiteout"})

FORMAT = 0o170000
KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}

# A directory of ours that its owner can't write must be written before an attribute can keep its mode. For that moment
# the mode itself says what it was: the owner's three bits stand in the place of the special ones.
_WRITE_ONLY = 0o200
_SPECIAL = 0o7000

_NO_ATTRIBUTE = frozenset({errno.ENOTSUP, errno.ENODATA})


def kind_of(status: os.stat_result) -> EntryKind:
    """Return the kind of an entry from its lstat."""
    return KINDS.get(status.st_mode & FORMAT, "special")


def is_whiteout(status: os.stat_result) -> bool:
    """Tell whether this is overlayfs's mark of a deletion: a character device 0:0."""
    return status.st_mode & FORMAT == stat.S_IFCHR and status.st_rdev == 0


def make_whiteout(name: bytes, directory: int | None = None) -> None:
    """Mark an entry of the layers below as deleted; its name counts from `directory`, or is a path."""
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=directory)


def is_opaque(entry: bytes | int) -> bool:
    """Tell whether a directory of a layer hides what lies below it."""
    try:
        return os.getxattr(entry, OPAQUE, follow_symlinks=not isinstance(entry, bytes)) == b"y"
    except OSError as error:
        if error.errno in _NO_ATTRIBUTE:
            return False
        raise


def is_user_attribute(name: str) -> bool:
    """Tell whether a stored attribute is one that the command sees and can set."""
    return name.startswith(USER) and (not name.startswith(OWN) or name.startswith(ESCAPED))


def is_plain_attribute(name: str) -> bool:
    """Tell whether an attribute is one that no overlay takes for a mark of its own, in a layer or in a live tree."""
    return name.startswith(USER) and not name.startswith(OWN)


def shown_name(stored: str) -> str | None:
    """Return the name by which a command knows an attribute of a layer, None for what it does not see."""
    if not is_user_attribute(stored):
        return None
    return OWN + stored[len(ESCAPED) :] if stored.startswith(ESCAPED) else stored


def list_attributes(entry: bytes | int) -> list[str]:
    """Return every attribute name of an entry, given by descriptor or by a path whose last part is not followed."""
    try:
        return os.listxattr(entry, follow_symlinks=not isinstance(entry, bytes))
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def user_attributes(entry: bytes | int, names: list[str]) -> dict[str, bytes]:
    """Return the values of those of the `names` that are the command's own, by their names as stored.

    Raises:
        OSError: A value can't be read.
    """
    values: dict[str, bytes] = {}
    for name in names:
        if is_user_attribute(name):
            try:
                values[name] = os.getxattr(entry, name, follow_symlinks=not isinstance(entry, bytes))
            except OSError as error:
                if error.errno not in _NO_ATTRIBUTE:
                    raise
    return values


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


def half_open(mode: int) -> int:
    """Return a mode that lets the owner write a directory and nothing else, and that `before_opening` understands.

    What had special bits itself can't be written so: it loses the owner's bits if this process dies now.
    """
    others, owner = mode & 0o077, (mode & 0o700) >> 6
    if mode & _SPECIAL:
        return mode & ~0o700 | _WRITE_ONLY
    # A directory that can really only be written keeps its mode, so the code for that stands for none of the bits
    shown = {0o2: 0, 0: 0o2}.get(owner, owner)
    return others | _WRITE_ONLY | shown << 9


def before_opening(mode: int) -> int:
    """Return the mode that a directory had; that of one which nobody was about to open is what it is."""
    shown = (mode & _SPECIAL) >> 9
    if mode & 0o700 != _WRITE_ONLY or not shown:
        return mode
    return mode & 0o077 | (0 if shown == 0o2 else shown << 6)
