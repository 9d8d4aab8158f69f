# SPDX-License-Identifier: Apache-2.0
"""How directories of several layers make one view, topmost first, as overlayfs merges them.

A directory merges with those of the same name beneath it until one is opaque or something else has the name.
"""

from __future__ import annotations

import os

from unspill.changes.attributes import list_attributes
from unspill.changes.closed import MARK
from unspill.changes.kinds import FORMAT, KINDS, OPAQUE, is_whiteout, refuse_foreign
from unspill.errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.changes.report import Found
    from unspill.changes.walk import Dir

    # Why merging ended: at the last layer, at an opaque directory, or at something that is no directory.
    End = Literal["bottom", "opaque", "other"]


def open_merged(directories: list[Dir], name: bytes) -> tuple[list[Dir], End]:
    """Open the subdirectories of one name that merge, the topmost first.

    Raises:
        PermissionError: One of them is closed to us.
        SandboxUnavailable: One of them has marks that no mount of unspill makes.
    """
    opened: list[Dir] = []
    for directory in directories:
        try:
            child = directory.open_child(name)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            return opened, "other"
        opened.append(child)
        if child.owned and read_marks(child):
            return opened, "opaque"
    return opened, "bottom"


def find_entry(directories: list[Dir], name: bytes) -> Found | None:
    """Find what a merged directory shows under a name.

    Raises:
        PermissionError: Its directory in the live tree is closed to us.
    """
    for directory in directories:
        try:
            fd = directory.fd if directory.fd >= 0 else directory.descriptor()
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            # The second one where the live directory itself was replaced meanwhile.
            continue
        kind = KINDS.get(status.st_mode & FORMAT, "special")
        # overlayfs honours a whiteout in every layer, also one that someone has put into the live tree.
        if kind == "special" and is_whiteout(status):
            return None
        return directory, name, status, kind
    return None


def read_marks(directory: Dir) -> bool:
    """Read the attribute names of a directory of an upper; tell whether it hides what is beneath it."""
    names = directory.attributes = list_attributes(directory.descriptor())
    if directory.status.st_mode & 0o077 == 0 or MARK in names:
        directory.make_sure_of_mode(names)
    if not names:
        return False
    refuse_foreign(names, directory.name)
    if OPAQUE not in names:
        return False
    mark = os.getxattr(directory.descriptor(), OPAQUE)
    if mark == b"x":
        raise SandboxUnavailable(
            f"the layer holds whiteouts in attributes below {directory.name!r}, which no layer of unspill has",
            remedy="Discard this sandbox; something else wrote into its layer.",
        )
    return mark == b"y"
