# SPDX-License-Identifier: Apache-2.0
"""Everything that an operation reaches into, opened and locked once: live roots, our operations, the layers.

A root is opened by its path once, checked to be the directory that is meant, and locked by flock on itself: by device
and inode, whatever path, process or state directory the others come from.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.changes.walk import open_to_owner
from unspill.errors import ProjectBusy, RootRefused
from unspill.host.beneath import Beneath, is_one_mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from unspill.model.operation import Step

PATIENCE_S = 60.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PAUSE_S = 0.002


class Sites:
    """The live roots, in order, and the directory of operations; `staged` roots are on another mount than it."""

    def __init__(self, state: bytes, staging: bytes = b"") -> None:
        self.state = state
        self.staging = staging
        self.operations = self._open_operations()
        self.roots: list[Beneath] = []
        self.staged: list[bool] = []

    def _open_operations(self) -> Beneath:
        return Beneath(os.open(self.state + b"/operations", _DIRECTORY), open_to_owner)

    def look_anew(self) -> None:
        """Forget which directories of operations were opened to their owner: a scan of them closes them again."""
        self.operations.close()
        self.operations = self._open_operations()

    def open_roots(self, roots: Sequence[bytes], *, patience_s: float = PATIENCE_S) -> None:
        """Open and lock live roots; those of one operation always in the same order, so that nobody waits in a ring.

        Raises:
            RootRefused: one is not a directory (any more).
            ProjectBusy: another operation is under way there.
        """
        deadline = time.monotonic() + patience_s
        opened = [open_root(root) for root in roots]
        self.roots = [Beneath(fd) for fd in opened]
        for fd in sorted(opened, key=_device_and_inode):
            _lock(fd, deadline)
        self.staged = [not is_one_mount(fd, self.operations.root_fd) for fd in opened]

    def place(self, step: Step) -> tuple[int, bytes]:
        """Return the directory and name of a step's other side."""
        return self.place_of(step.root, step.place, staged=step.staged)

    def place_of(self, root: int, place: bytes, *, staged: bool) -> tuple[int, bytes]:
        """Return the directory and name of a place, in the staging directory of a root or among our operations."""
        if staged:
            return self.roots[root].parent(self.staging + b"/" + place)
        return self.operations.parent(place)

    def live(self, step: Step) -> tuple[int, bytes]:
        """Return the directory and name of a step's live side."""
        return self.roots[step.root].parent(step.path)

    def close(self) -> None:
        """Close everything, which also unlocks the roots."""
        self.operations.close()
        while self.roots:
            self.roots.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


def open_root(root: bytes) -> int:
    """Open a live root. Its path is not used again.

    Raises:
        RootRefused: it is not a directory, or a link to one.
    """
    try:
        return os.open(root, _DIRECTORY)
    except OSError as error:
        raise RootRefused(f"{os.fsdecode(root)} can't be used as a root: {error.strerror}.") from error


def _device_and_inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _lock(fd: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ProjectBusy("another operation on this project is still under way") from None
            time.sleep(_PAUSE_S)
