# SPDX-License-Identifier: Apache-2.0
"""The extended attributes of an entry that a command can see and set.

Names are as stored: an attribute that looks like overlayfs's own is escaped on both sides alike.
"""

from __future__ import annotations

import errno
import os

from unspill.changes.kinds import is_user_attribute

_NONE = frozenset({errno.ENOTSUP, errno.ENODATA})


def list_attributes(entry: bytes | int) -> list[str]:
    """Return every attribute name of an entry, given by descriptor or by a path whose last part is not followed."""
    try:
        return os.listxattr(entry, follow_symlinks=not isinstance(entry, bytes))
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def user_attributes(entry: bytes | int, names: list[str]) -> dict[str, bytes]:
    """Return the values of those of the `names` that are the command's own.

    Raises:
        OSError: A value can't be read.
    """
    values: dict[str, bytes] = {}
    for name in names:
        if is_user_attribute(name):
            try:
                values[name] = (
                    os.getxattr(entry, name)
                    if isinstance(entry, int)
                    else os.getxattr(entry, name, follow_symlinks=False)
                )
            except OSError as error:
                if error.errno not in _NONE:
                    raise
    return values
