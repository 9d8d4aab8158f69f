# SPDX-License-Identifier: Apache-2.0
"""Verifies a rootfs: whether its tree still is what it was when it became ready, and what spoke for it then."""

from __future__ import annotations

import os

from unspill.errors import RootfsError, RootfsUnverified
from unspill.rootfs.digest import tree_digest
from unspill.rootfs.hold import Hold
from unspill.rootfs.layout import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.rootfs import Proof, Rootfs

PROOFS = {
    "pinned": "the digest that you pinned",
    "known": "a digest in this release of unspill",
    "signed": "the distribution's signature",
    "same-server": "only a checksum from the server that the content is from, which is no proof",
    "none": "nothing",
}


def verify(rootfs: Rootfs) -> Proof:
    """Read the whole tree, compare its digest with the manifest's, and return which proof its content had.

    Raises:
        RootfsUnverified: it has changed, or was made by hand.
        RootfsError: it can't be read, or has gone.
    """
    if rootfs.manifest is None:
        raise RootfsUnverified(f"{rootfs.name} was made by hand: there is nothing to compare it with")
    with Hold(rootfs):
        try:
            digest, _entries, _size = tree_digest(rootfs.tree)
        except OSError as error:
            where = shown(os.fsencode(error.filename)) if error.filename is not None else rootfs.name
            raise RootfsError(
                f"{rootfs.name} can't be read: {where}: {error.strerror}", remedy="Verify it as its owner."
            ) from error
    if digest != rootfs.manifest.tree:
        raise RootfsUnverified(
            f"{rootfs.name} has changed since it was made; what spoke for it then was {PROOFS[rootfs.manifest.proof]}",
            remedy=f"Do not use it: `unspill rootfs remove --force {rootfs.name}`, and fetch it again.",
        )
    return rootfs.manifest.proof
