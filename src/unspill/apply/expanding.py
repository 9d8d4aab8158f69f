# SPDX-License-Identifier: Apache-2.0
"""A live directory as the list of everything in it, children before their parents: the order of taking it away."""

from __future__ import annotations

import errno
import os

from unspill.changes.kinds import FORMAT
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.host.beneath import Beneath

_DIR = 0o040000


class Found(Record):
    """An entry of the live tree."""

    path: bytes
    status: os.stat_result

    @property
    def is_dir(self) -> bool:
        return self.status.st_mode & FORMAT == _DIR


def expand(live: Beneath, path: bytes, status: os.stat_result) -> list[Found]:
    """Return a live directory and all that is in it.

    Raises:
        OSError: a directory in it can't be read, or is a mount point.
    """
    found: list[Found] = []
    waiting = [Found(path=path, status=status)]
    while waiting:
        here = waiting.pop()
        found.append(here)
        if not here.is_dir:
            continue
        fd = live.directory(here.path)
        with os.scandir(fd) as entries:
            names = [os.fsencode(entry.name) for entry in entries]
        for name in names:
            inner = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if inner.st_dev != status.st_dev:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
            waiting.append(Found(path=here.path + b"/" + name, status=inner))
    # A parent is found before what is in it
    return found[::-1]
