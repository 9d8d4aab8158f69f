# SPDX-License-Identifier: Apache-2.0
"""Make the directories of a layer whose row is already written, and tell later whether anything came of them.

The kernel shows the upper directory's own mode and attributes at the root of an overlay, so it gets those
of the directory that it will cover.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.layers.places import upper_dir, work_dir
from unspill.model.layer import LayerId


def new_id() -> LayerId:
    """Return a name that no other layer has."""
    return LayerId(os.urandom(8).hex())


def make_layer(state: bytes, layer: LayerId, like: bytes) -> os.stat_result:
    """Make the upper and work directory of a layer; return what the upper one is like when it is still unwritten."""
    os.mkdir(work_dir(state, layer), 0o700)
    return make_upper(upper_dir(state, layer), like)


def make_upper(upper: bytes, like: bytes) -> os.stat_result:
    """Make an upper directory that looks like the one below it."""
    mode = stat.S_IMODE(os.lstat(like).st_mode)
    attributes = user_attributes(like)
    # Attributes can be set by whoever may write the directory, which the owner of the one below perhaps may not
    os.mkdir(upper, mode | 0o200 if attributes else mode)
    for name, value in attributes.items():
        os.setxattr(upper, name, value)
    made = os.lstat(upper)
    if attributes or stat.S_IMODE(made.st_mode) != mode:
        os.chmod(upper, mode)
        made = os.lstat(upper)
    return made


def is_untouched(upper: bytes, like: bytes) -> bool:
    """Tell whether an upper directory is still as it was made; the times of a directory do not count."""
    if not is_empty(upper):
        return False
    same_mode = stat.S_IMODE(os.lstat(upper).st_mode) == stat.S_IMODE(os.lstat(like).st_mode)
    return same_mode and user_attributes(upper) == user_attributes(like)


def is_empty(upper: bytes) -> bool:
    """Tell whether an upper directory has no entry. One that can't be read was made so by a command: it is not."""
    try:
        with os.scandir(upper) as entries:
            return next(entries, None) is None
    except PermissionError:
        return False


def user_attributes(path: bytes) -> dict[str, bytes]:
    """Return a directory's own `user.*` attributes as they are stored, without those that overlayfs keeps there."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EACCES):
            return {}
        raise
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names if _is_own(name)}


def _is_own(name: str) -> bool:
    # What a command named like a mark is stored with one more `overlay.`, and shown without it
    return name.startswith("user.overlay.overlay.") or (name.startswith("user.") and name[5:13] != "overlay.")
