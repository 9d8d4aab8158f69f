# SPDX-License-Identifier: Apache-2.0
"""The form that overlayfs gives a layer on a mount with `userxattr`: how deletions and attributes are stored.

In a layer a character device 0:0 is a deletion, and `user.overlay.*` are marks; what a command sets by such a name
is stored with one more `overlay.` in it. In a plain copy nothing is a mark: every name is the command's own.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import OverlayUnsupported, SandboxUnavailable

USER = "user."
OWN = "user.overlay."
ESCAPED = "user.overlay.overlay."
OPAQUE = "user.overlay.opaque"

# Overlayfs writes these only for mount options that unspill never uses.
FOREIGN = frozenset({"user.overlay.redirect", "user.overlay.metacopy", "user.overlay.whiteout"})

_PROOF = b".unspill-proof"
_TOO_MUCH = frozenset({errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE, errno.ENOTSUP, errno.EPERM})


def is_whiteout(status: os.stat_result) -> bool:
    """Tell whether an entry of a layer is the mark of a deletion."""
    return status.st_rdev == 0 and stat.S_ISCHR(status.st_mode)


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


def stored_name(shown: str) -> str:
    """Return the name under which a layer keeps an attribute of the command."""
    return ESCAPED + shown[len(OWN) :] if shown.startswith(OWN) else shown


def list_attributes(entry: int | bytes) -> list[str]:
    """Return the names of all attributes, by descriptor or by a path whose last part is not followed."""
    try:
        return os.listxattr(entry) if isinstance(entry, int) else os.listxattr(entry, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def own_attributes(fd: int) -> dict[str, bytes]:
    """Return all attributes of an entry of a plain copy that a command can see and set."""
    return {name: os.getxattr(fd, name) for name in list_attributes(fd) if name.startswith(USER)}


def shown_attributes(fd: int, names: list[str]) -> dict[str, bytes]:
    """Return the attributes of an entry of a live tree or a layer as the merged view shows them."""
    values: dict[str, bytes] = {}
    for name in names:
        shown = shown_name(name)
        if shown is not None:
            try:
                values[shown] = os.getxattr(fd, name)
            except OSError as error:
                if error.errno != errno.ENODATA:
                    raise
    return values


def set_attributes(entry: int | bytes, values: dict[str, bytes]) -> dict[str, bytes]:
    """Set attributes by descriptor or path; return those for which there is no room."""
    lost: dict[str, bytes] = {}
    for name, value in values.items():
        try:
            os.setxattr(entry, name, value)
        except OSError as error:
            if error.errno not in _TOO_MUCH:
                raise
            lost[name] = value
    return lost


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


def prove_marks(directory: int) -> None:
    """Make each mark once and remove it, so that a run is refused before it has done anything.

    Raises:
        OverlayUnsupported: The filesystem or the kernel does not let us make marks.
    """
    try:
        make_whiteout(_PROOF, directory)
        os.unlink(_PROOF, dir_fd=directory)
        os.setxattr(directory, OPAQUE, b"y")
        os.removexattr(directory, OPAQUE)
    except OSError as error:
        raise OverlayUnsupported(
            f"Changes can't be recorded in the state directory: {error.strerror}.",
            remedy="Point UNSPILL_STATE_DIR at a directory on ext4, XFS or btrfs that is not an overlay "
            "itself, and use Linux 5.8 or newer.",
        ) from error
