# SPDX-License-Identifier: Apache-2.0
"""Keeps what a sandbox wrote to its rootfs as a rootfs of its own: the tree and the sandbox's layers, copied.

The new one is immutable like every other. What commands wrote has no proof, whatever its base had.
"""

from __future__ import annotations

import os
import time

from unspill.errors import RootfsError, UsageError
from unspill.layers.flatten import flatten
from unspill.layers.locks import lock_sandbox
from unspill.model.rootfs import Installed, RootfsKey, RootfsWish
from unspill.policy.rootfs_wish import is_label
from unspill.rootfs.build import obtain
from unspill.rootfs.registry import Registry
from unspill.rootfs.source import Filled, Resolved, detect_arch
from unspill.sandbox.rootfs_choice import rootfs_directory
from unspill.sandbox.rootfs_layers import layers_of
from unspill.sandbox.rootfs_use import RootfsUse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.rootfs import Progress, Rootfs, RootfsBase
    from unspill.rootfs.source import Means
    from unspill.sandbox.opening import Opened

_PAUSE_S = 0.2


def keep_rootfs(opened: Opened, label: str, report: Callable[[Progress], None]) -> Rootfs:
    """Make what the sandbox sees of its rootfs a rootfs of its own, called by `label`; the sandbox keeps its layers.

    Raises:
        UsageError: the sandbox has written nothing to a rootfs.
        RootfsError: it can't be made.
    """
    if not is_label(label):
        raise UsageError(
            f"not a label for a rootfs: {label!a}",
            remedy="Use small letters, digits, `.` and `_`, a letter first, and not the name of a source there.",
        )
    # Whatever the policy says by now: the tree that the layers were written for
    opened = opened.replace(policy=opened.policy.replace(view="rootfs", rootfs_writable=True))
    with lock_sandbox(opened.store.state, opened.row.id), RootfsUse(opened) as places:
        base = places.rootfs
        tree = b"" if base is None else base.tree
        layers = {path: uppers for path, uppers in layers_of(opened).items() if os.path.dirname(path) == tree}
        if base is None or not layers:
            raise UsageError(
                "This sandbox has written nothing to its rootfs.",
                remedy="Set `rootfs_writable = true`, and install something with `unspill run`.",
            )
        shelf = Registry(rootfs_directory(opened.policy, opened.locations))
        while True:
            wish = RootfsWish(source="kept", version=time.strftime("%Y%m%d.%H%M%S", time.gmtime()), label=label)
            made, is_new = obtain(shelf, wish, _Kept(base, layers), install=_install, report=report)
            if is_new:
                return made
            # Of this very second there is one already, which may hold something else
            time.sleep(_PAUSE_S)


class _Kept:
    """The tree of a base with the layers of one sandbox over it."""

    def __init__(self, base: RootfsBase, layers: dict[bytes, tuple[bytes, ...]]) -> None:
        self._base = base
        self._layers = layers

    def resolve(self, wish: RootfsWish, means: Means) -> Resolved:
        key = RootfsKey(source=wish.label, version=wish.version, arch=detect_arch())
        return Resolved(key=key, wish=wish)

    def fill(self, resolved: Resolved, tree: bytes, means: Means) -> Filled:
        unreadable = 0
        for top in self._base.directories:
            os.mkdir(tree + top, 0o755)
            source = self._base.tree + top
            unreadable += flatten(source, self._layers.get(source, ()), tree + top)
        for dest, target in self._base.links:
            os.symlink(target, tree + dest)
        left_out = (("unreadable", unreadable),) if unreadable else ()
        return Filled(proof="none", fetched=(("base", self._base.name),), left_out=left_out)


def _install(tree: bytes, argv: Sequence[bytes], hosts: Sequence[str]) -> Installed:
    raise RootfsError("Nothing is installed into what is kept.")
