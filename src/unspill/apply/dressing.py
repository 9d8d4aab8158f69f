# SPDX-License-Identifier: Apache-2.0
"""The bits and attributes of a live directory, read and changed in place: it keeps its inode and what is in it.

Attributes that an overlay takes for its own marks are neither seen nor set here: a live tree lies below the overlay of
every sandbox. Those that a person's live directory has stay as they are.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.host.overlay import is_plain_attribute
from unspill.model.operation import Dress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.operation import Attributes, Step

_NONE = (errno.ENODATA, errno.ENOTSUP)


def dress_of(fd: int) -> Dress:
    """Return what a directory wears; the descriptor may be one for look-ups only."""
    return Dress(mode=stat.S_IMODE(os.fstat(fd).st_mode), attributes=_attributes(fd))


def is_dressed(fd: int, dress: Dress) -> bool:
    """Tell whether a directory wears this."""
    return dress_of(fd) == dress


def was_between(fd: int, was: Dress, becomes: Dress) -> bool:
    """Tell whether a directory wears a mixture of two: a change that was interrupted, done, or not begun."""
    found = dress_of(fd)
    # For as long as its attributes change, the owner may write it
    if not {found.mode, found.mode & ~0o200} & {was.mode, becomes.mode, was.mode & ~0o200, becomes.mode & ~0o200}:
        return False
    known = {*was.attributes, *becomes.attributes}
    kept = {*was.attributes} & {*becomes.attributes}
    return {*found.attributes} <= known and kept <= {*found.attributes}


def change_dress(fd: int, was: Dress, becomes: Dress) -> None:
    """Give a directory other attributes and bits."""
    path = _path(fd)
    if was.attributes != becomes.attributes:
        # Attributes can be set by whoever may write the directory, which the owner may be about to lose or get
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if not mode & 0o200:
            os.chmod(path, mode | 0o200)
        wanted = {name: value for name, value in becomes.attributes if is_plain_attribute(name)}
        for name in dict(_attributes(fd)):
            if name not in wanted:
                os.removexattr(path, name)
        for name, value in wanted.items():
            os.setxattr(path, name, value)
        if not mode & 0o200 and mode == becomes.mode:
            os.chmod(path, mode)
    if stat.S_IMODE(os.fstat(fd).st_mode) != becomes.mode:
        os.chmod(path, becomes.mode)


def opened_and_closed(steps: Sequence[Step]) -> set[tuple[int, bytes]]:
    """Return the directories that look after all steps as they did before, though some step dressed them."""
    first: dict[tuple[int, bytes], Dress | None] = {}
    last: dict[tuple[int, bytes], Dress | None] = {}
    for step in steps:
        if step.action == "dress":
            first.setdefault((step.root, step.path), step.was)
            last[step.root, step.path] = step.becomes
    return {key for key, was in first.items() if was == last[key]}


def _attributes(fd: int) -> Attributes:
    path = _path(fd)
    try:
        names = os.listxattr(path)
        return tuple((name, os.getxattr(path, name)) for name in sorted(names) if is_plain_attribute(name))
    except OSError as error:
        if error.errno in _NONE or error.errno == errno.EACCES:
            return ()
        raise


def _path(fd: int) -> bytes:
    # The attribute calls and chmod refuse a descriptor for look-ups; the kernel's link to it leads to that very inode
    return b"/proc/self/fd/%d" % fd
