# SPDX-License-Identifier: Apache-2.0
"""Use of a rootfs by runs: which one, and the shared lock that keeps it while one of them goes on.

The lock is on the directory that holds the tree, so it works where that can only be read.
"""

from __future__ import annotations

import fcntl
import os

from unspill.errors import RootfsError
from unspill.host.rootfs_base import look_at_rootfs
from unspill.sandbox.planning import forget_places, get_places
from unspill.sandbox.rootfs_choice import find_rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from unspill.model.rootfs import Progress, RootfsBase
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.sandbox import Sandbox

_ATTEMPTS = 8


def base_of(opened: Opened) -> RootfsBase:
    """Return what a plan has to know of the rootfs that a sandbox's policy means.

    Raises:
        RootfsError: there is none, or it can't be used.
    """
    found = find_rootfs(opened.policy, opened.locations, opened.roots)
    if opened.policy.rootfs_writable:
        from unspill.sandbox.rootfs_layers import layered_tree

        tree = layered_tree(opened.store, opened.row.id)
        # What was installed over one tree would not fit another
        if tree is not None and tree != found.tree and os.path.isdir(tree):
            name = os.fsdecode(os.path.basename(os.path.dirname(tree)))
            return look_at_rootfs(tree, name, os.getuid(), is_own=True)
    return look_at_rootfs(found.tree, found.name, os.getuid(), is_own=found.manifest is not None)


def provide_rootfs(sandbox: Sandbox, report: Callable[[Progress], None]) -> None:
    """Make the rootfs of a sandbox where it is missing and the policy says how, before the first run would.

    Raises:
        RootfsError: it can't be had.
    """
    opened = sandbox._opened
    find_rootfs(opened.policy, opened.locations, opened.roots, report)


class RootfsUse:
    """Keeps the rootfs of a sandbox from being removed while a run uses it."""

    def __init__(self, opened: Opened) -> None:
        """Wait until nobody removes it; if it has gone, the one that is meant now is taken.

        Raises:
            RootfsError: there is none.
        """
        self._fd = -1
        for _ in range(_ATTEMPTS):
            base = get_places(opened).rootfs
            if base is None:
                raise RootfsError("There is no rootfs.")
            if not base.is_own or self._lock(os.path.dirname(base.tree)):
                return
            forget_places(opened)
        raise RootfsError("The rootfs is being exchanged all the time.", remedy="Try again.")

    def _lock(self, directory: bytes) -> bool:
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            # Whoever removed it has renamed it before it let go of its lock
            if os.path.samestat(os.fstat(fd), os.lstat(directory)):
                self._fd, fd = fd, -1
                return True
        except FileNotFoundError:
            return False
        finally:
            if fd >= 0:
                os.close(fd)
        return False

    def __enter__(self) -> None:
        """Do nothing more."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
