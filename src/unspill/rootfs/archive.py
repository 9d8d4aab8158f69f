# SPDX-License-Identifier: Apache-2.0
"""An archive as a source: any tar, compressed or not, on this disk or at an address.

Only a digest that the person pinned speaks for an archive: that it came by https says who sent it, not what it is.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import Progress, RootfsKey
from unspill.rootfs.arch import wished_arch
from unspill.rootfs.download import check_digest, fetch
from unspill.rootfs.given import check_tree, copy_given, label_of, open_given
from unspill.rootfs.source import Filled, Resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.rootfs import RootfsWish
    from unspill.rootfs.source import Means

MOST_BYTES = 16 << 30
_VERSION_DIGITS = 12


class ArchiveSource:
    """The source `archive`."""

    def resolve(self, wish: RootfsWish, means: Means) -> Resolved:
        """Return which rootfs an archive is: its version is the beginning of its digest.

        Raises:
            RootfsUnreachable: it can't be read or fetched.
            RootfsUnverified: it is not the one that is pinned.
            RootfsError: the wish can't be met.
        """
        arch, label, pinned = wished_arch(wish.arch), label_of(wish), check_digest(wish.sha256)
        digest = self._take_digest(wish.location, pinned, means)
        return Resolved(
            key=RootfsKey(source=label, version=digest[:_VERSION_DIGITS], arch=arch),
            wish=wish,
            fetch=wish.location,
            sha256=digest,
            proof="pinned" if pinned else "none",
        )

    def fill(self, resolved: Resolved, tree: bytes, means: Means) -> Filled:
        """Unpack the very bytes that have the digest that was resolved.

        Raises:
            RootfsUnreachable: it can't be read or fetched.
            RootfsUnverified: it is another one by now, or damaged.
            RootfsUnsafe: it would write where it must not.
            RootfsError: it is no root file system.
        """
        from unspill.rootfs.unpack import unpack

        fd = self._open(resolved, means)
        try:
            unpacked = unpack(fd, tree, report=_tell(means, "unpacking", os.fstat(fd).st_size))
        finally:
            os.close(fd)
        name = resolved.fetch.rpartition("/")[2]
        check_tree(tree, name)
        return Filled(proof=resolved.proof, fetched=((name, resolved.sha256),), left_out=unpacked.left_out)

    def _take_digest(self, location: str, pinned: str, means: Means) -> str:
        if is_remote(location):
            return fetch(location, means.downloads, sha256=pinned, most_bytes=MOST_BYTES, report=means.report).sha256
        from unspill.rootfs.download_part import digest_of

        fd = open_given(os.fsencode(location))
        try:
            means.report(Progress(step="reading"))
            digest = digest_of(fd)
        except OSError as error:
            raise RootfsUnreachable(f"{location} can't be read: {error.strerror}") from None
        finally:
            os.close(fd)
        check_same(location, digest, pinned or digest)
        return digest

    def _open(self, resolved: Resolved, means: Means) -> int:
        """Open what has the digest; nobody else can write to what is opened."""
        if is_remote(resolved.fetch):
            fetched = fetch(
                resolved.fetch, means.downloads, sha256=resolved.sha256, most_bytes=MOST_BYTES, report=means.report
            )
            return open_given(fetched.path)
        fd = open_given(os.fsencode(resolved.fetch))
        try:
            copy = copy_given(fd, means.scratch, means.report)
        finally:
            os.close(fd)
        try:
            check_same(resolved.fetch, copy.digest, resolved.sha256)
        except RootfsUnverified:
            os.close(copy.fd)
            raise
        return copy.fd


def is_remote(location: str) -> bool:
    """Tell whether a location is an address: whatever has a scheme; which ones are allowed is for `fetch` to say."""
    return "://" in location and not location.startswith("/")


def check_same(location: str, digest: str, expected: str) -> None:
    """Check that a file has the digest that it must have.

    Raises:
        RootfsUnverified: it has another one.
    """
    if digest != expected:
        raise RootfsUnverified(f"{location} has the SHA-256 {digest}, but should have {expected}")


def _tell(means: Means, step: str, total: int) -> Callable[[int], None]:
    return lambda done: means.report(Progress(step=step, done=done, total=total))
