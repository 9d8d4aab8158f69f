# SPDX-License-Identifier: Apache-2.0
"""Upgrades a rootfs: the same wish once more, for what its source has now, beside the old one.

The old one stays as it is, for whoever runs in it; it goes by `Shelf.remove_unused` when nobody does. What is older
never takes its place: a mirror that is behind, or is made to look so, would bring back what has been mended since.
"""

from __future__ import annotations

from unspill.errors import RootfsError, RootfsUnverified
from unspill.rootfs.ages import is_older, newest
from unspill.rootfs.build import obtain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.rootfs import Rootfs, RootfsWish
    from unspill.rootfs.build import Install, Report
    from unspill.rootfs.shelf import Shelf
    from unspill.rootfs.source import Filled, Means, Resolved, Source


def upgrade(shelf: Shelf, old: Rootfs, source: Source, *, install: Install, report: Report) -> Rootfs:
    """Return the rootfs that the wish of an old one means now, which may be the old one itself.

    A wish that pins a version or a digest still does. If the old one was the current one, the new one is then.

    Raises:
        RootfsUnverified: what the source offers now is older; nothing is made, and the old one stays in use.
        RootfsError: it can't be had, or nobody knows what the old one was made from; the old one is as it was.
    """
    if old.manifest is None:
        raise RootfsError(f"{old.name} was made by hand", remedy="Make a new one the same way.")
    asked = _NotOlder(source, old)
    new, _is_new = obtain(shelf, old.manifest.wish, asked, install=install, report=report)
    if new.name != old.name:
        if newest((old, new)) is not new:
            raise RootfsUnverified(
                f"What {old.name} is made of now is {new.name}, which was made before it; {old.name} stays",
                remedy=f"Ask whoever offers it why. `unspill rootfs use {new.name}` goes back to that one.",
            )
        shelf.use_instead(old.name, new.name)
    return new


class _NotOlder:
    """A source that is asked for nothing older than what is there."""

    def __init__(self, source: Source, old: Rootfs) -> None:
        self._source = source
        self._old = old

    def resolve(self, wish: RootfsWish, means: Means) -> Resolved:
        """Return which rootfs a wish means now."""
        resolved = self._source.resolve(wish, means)
        old, version = self._old.manifest, resolved.key.version
        if old is not None and is_older(version, old.key.version):
            raise RootfsUnverified(
                f"The newest version that is offered now is {version}, older than {self._old.name}, which stays",
                remedy=f"Ask another mirror. If you want the older one: `unspill rootfs pull {old.key.source} "
                f"--version {wish.version or version}`, and `unspill rootfs use` with its name.",
            )
        return resolved

    def fill(self, resolved: Resolved, tree: bytes, means: Means) -> Filled:
        """Put its content into `tree`."""
        return self._source.fill(resolved, tree, means)
