# SPDX-License-Identifier: Apache-2.0
"""Upgrades a rootfs: the same wish once more, for what its source has now, beside the old one.

The old one stays as it is, for whoever runs in it; it goes by `Shelf.remove_unused` when nobody does.
"""

from __future__ import annotations

from unspill.errors import RootfsError
from unspill.rootfs.build import obtain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.rootfs import Rootfs
    from unspill.rootfs.build import Install, Report
    from unspill.rootfs.shelf import Shelf
    from unspill.rootfs.source import Source


def upgrade(shelf: Shelf, old: Rootfs, source: Source, *, install: Install, report: Report) -> Rootfs:
    """Return the rootfs that the wish of an old one means now, which may be the old one itself.

    A wish that pins a version or a digest still does. If the old one was the current one, the new one is then.

    Raises:
        RootfsError: it can't be had, or nobody knows what the old one was made from; the old one is as it was.
    """
    if old.manifest is None:
        raise RootfsError(f"{old.name} was made by hand", remedy="Make a new one the same way.")
    new, _is_new = obtain(shelf, old.manifest.wish, source, install=install, report=report)
    if new.name != old.name:
        shelf.use_instead(old.name, new.name)
    return new
