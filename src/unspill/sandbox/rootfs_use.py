# SPDX-License-Identifier: Apache-2.0
"""Use of a rootfs by runs: which one, and the shared lock that keeps it while one of them goes on.

The lock is on the directory that holds the tree, so it works where that can only be read.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.errors import RootfsError
from unspill.host.rootfs_base import look_at_rootfs
from unspill.model.rootfs import NOTE
from unspill.policy.paths import show
from unspill.sandbox.planning import forget_places, get_places
from unspill.sandbox.rootfs_choice import find_rootfs, rootfs_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from unspill.model.plan import Places
    from unspill.model.rootfs import Progress, Rootfs, RootfsBase
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.sandbox import Sandbox

_ATTEMPTS = 3
_PATIENCE_S, _PAUSE_S = 20.0, 0.02
_REMEDY = "`unspill rootfs keep LABEL` or `unspill rootfs discard`"


def base_of(opened: Opened) -> RootfsBase:
    """Return what a plan has to know of the rootfs that a sandbox's policy means.

    Raises:
        RootfsError: there is none, or it can't be used.
    """
    for _ in range(_ATTEMPTS):
        found, note = _find_meant(opened)
        try:
            base = look_at_rootfs(found.tree, found.name, os.getuid(), is_own=found.manifest is not None)
        except RootfsError:
            # One that is removed at this moment is not meant any more
            if os.path.isdir(found.tree):
                raise
        else:
            return base.replace(note=note)
    raise RootfsError("The rootfs is being exchanged all the time.", remedy="Try again.")


def _find_meant(opened: Opened) -> tuple[Rootfs, str]:
    """Return the rootfs that the policy means, or the one that the sandbox has written to, and what to say of that."""
    found = find_rootfs(opened.policy, opened.locations, opened.roots)
    note = ""
    if opened.policy.rootfs_writable:
        from unspill.sandbox.rootfs_layers import layered_tree

        tree = layered_tree(opened.store, opened.row.id)
        # What was installed over one tree would not fit another
        if tree is not None and tree != found.tree:
            older = _find_by_tree(opened, tree)
            if older is not None:
                found = older
                note = f"{NOTE}this sandbox stays on {found.name}, to which it has written ({_REMEDY})"
            else:
                gone = show(os.path.basename(os.path.dirname(tree)))
                note = f"{NOTE}what this sandbox had written to {gone} is lost: that is gone (`unspill rootfs discard`)"
    return found, note


def _find_by_tree(opened: Opened, tree: bytes) -> Rootfs | None:
    """Return the rootfs with this tree, checked as if the policy named it, None where there is none any more."""
    directory = rootfs_directory(opened.policy, opened.locations)
    if os.path.dirname(os.path.dirname(tree)) == os.path.join(directory, b"roots"):
        from unspill.rootfs.registry import Registry

        return Registry(directory).get(os.fsdecode(os.path.basename(os.path.dirname(tree))))
    if not os.path.isdir(tree):
        return None
    named = opened.policy.replace(rootfs=os.fsdecode(tree), provision=None)
    return find_rootfs(named, opened.locations, opened.roots)


def provide_rootfs(sandbox: Sandbox, report: Callable[[Progress], None]) -> Rootfs:
    """Return the rootfs of a sandbox; make it where it is missing and the policy says how, before the first run would.

    Raises:
        RootfsError: it can't be had.
    """
    opened = sandbox._opened
    return find_rootfs(opened.policy, opened.locations, opened.roots, report)


class RootfsUse:
    """Keeps the rootfs of a sandbox from being removed while a run uses it; `places` are those that have it."""

    def __init__(self, opened: Opened) -> None:
        """Wait until nobody removes it; if it has gone, the one that is meant now is taken.

        Raises:
            RootfsError: there is none, or somebody keeps it for themselves.
        """
        end = time.monotonic() + _PATIENCE_S
        while True:
            self.places = get_places(opened)
            base = self.places.rootfs
            if base is None:
                raise RootfsError("There is no rootfs.")
            self._fd = self._lock(base)
            if self._fd is not None:
                return
            if time.monotonic() > end:
                raise RootfsError(
                    f"Somebody has locked the rootfs {base.name} and does not let go of it.",
                    remedy="See who: `lsof +D` on its directory. A removal takes a moment only.",
                )
            forget_places(opened)
            time.sleep(_PAUSE_S)

    @staticmethod
    def _lock(base: RootfsBase) -> int | None:
        """Return a descriptor with the shared lock, -1 where a tree needs none, None where it has to be tried again."""
        if not base.is_own:
            return -1
        directory = os.path.dirname(base.tree)
        if not os.path.isdir(directory):
            return None
        from unspill.rootfs.layout import take

        return take(directory, fcntl.LOCK_SH)

    def __enter__(self) -> Places:
        return self.places

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let go of it."""
        if self._fd is not None and self._fd >= 0:
            from unspill.rootfs.layout import let_go

            let_go(self._fd)
            self._fd = None
