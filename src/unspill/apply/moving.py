# SPDX-License-Identifier: Apache-2.0
"""Move whole upper directories between the layers and an operation.

To move a directory is to write its "..", which needs the right to write it. The upper directory of a project that its
owner may not write has the project's mode: it is opened for the moment, with the mark that a scan knows as well.
"""

from __future__ import annotations

import os
import stat

from unspill.changes.walk import close_again, open_to_owner
from unspill.host.overlay import MODE_MARK


def move_upper(source: bytes, dest: bytes) -> None:
    """Move an upper directory; it keeps its mode.

    Raises:
        OSError: it is not there, or something else is.
    """
    try:
        os.rename(source, dest)
    except PermissionError:
        open_to_owner(source, stat.S_IMODE(os.lstat(source).st_mode))
        os.rename(source, dest)
        close_upper(dest)


def close_inside(upper: bytes, empty: bytes) -> None:
    """Give the directories of a layer their modes back that were opened to look into them.

    A scan does so, whoever left them open; over an empty directory it compares nothing.
    """
    from unspill.changes.scan import scan

    scan((upper,), (), empty)


def close_upper(upper: bytes) -> None:
    """Give an upper directory its mode back that was moved while it was open, or was about to be."""
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if MODE_MARK in os.listxattr(fd):
            close_again(fd, int(os.getxattr(fd, MODE_MARK), 8))
    finally:
        os.close(fd)
