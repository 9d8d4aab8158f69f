# SPDX-License-Identifier: Apache-2.0
"""Which extended attributes an entry of a rootfs may have: none that were given to it by whoever made it.

As a lower directory of an overlay a tree would be read by its marks: one makes a directory hide those below it, one
leads elsewhere, so that a sandbox would see something else than the digest was taken of.
"""

from __future__ import annotations

import errno
import os

_UNSAFE = ("user.overlay.", "trusted.")
_GIVEN = ("user.", "trusted.", "system.posix_acl_")
# A program with it has rights that its caller does not have
_CAPABILITY = "security.capability"
_NONE = (errno.ENOTSUP, errno.ENOSYS)


def list_attributes(path: bytes | int) -> list[str]:
    """Return the names of an entry's extended attributes; a link at the end of a path is not followed.

    Raises:
        OSError: they can't be listed, though there could be some.
    """
    try:
        return os.listxattr(path, follow_symlinks=isinstance(path, int))
    except OSError as error:
        if error.errno in _NONE:
            return []
        raise


def is_removable(name: str) -> bool:
    """Tell whether somebody gave an attribute, and not the host's own security module."""
    return name == _CAPABILITY or name.startswith(_GIVEN)


def is_unsafe(name: str) -> bool:
    """Tell whether an attribute makes a tree other than it looks."""
    return name == _CAPABILITY or name.startswith(_UNSAFE)
