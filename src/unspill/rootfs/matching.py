# SPDX-License-Identifier: Apache-2.0
"""Which of the rootfs that are ready a wish could mean, without asking anybody.

An open version is met by any; an open architecture by one that was made for its machine. The mirror says where to
fetch from, not what: it does not matter where something else speaks for the content than the mirror itself.
"""

from __future__ import annotations

import os

from unspill.rootfs.ages import newest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.rootfs import Rootfs, RootfsManifest, RootfsWish


_PROVEN = ("pinned", "known", "signed")


def find_ready(wish: RootfsWish, ready: Iterable[Rootfs]) -> Rootfs | None:
    """Return the newest that meets a wish, None where it has to be resolved.

    What lies on this disk is always looked at: at the same place there may be another archive by now.
    """
    if wish.location and os.path.exists(wish.location):
        return None
    several = [found for found in ready if found.manifest is not None and meets(found.manifest, wish)]
    return newest(several) if several else None


def meets(manifest: RootfsManifest, wish: RootfsWish) -> bool:
    """Tell whether a rootfs is what a wish asks for."""
    made = manifest.wish
    return (
        (made.source, made.label, made.location, made.tier) == (wish.source, wish.label, wish.location, wish.tier)
        and set(made.packages) == set(wish.packages)
        and _meets_version(manifest, wish.version)
        and _meets_arch(manifest, wish.arch)
        and is_of_digest(manifest, wish.sha256)
        and _meets_mirror(manifest, wish)
    )


def is_of_digest(manifest: RootfsManifest, sha256: str) -> bool:
    """Tell whether a rootfs was made from what has this digest, if one is pinned."""
    return not sha256 or sha256.lower() in {digest.lower().removeprefix("sha256:") for _, digest in manifest.fetched}


def _meets_mirror(manifest: RootfsManifest, wish: RootfsWish) -> bool:
    """Tell whether the mirror is the same, or does not matter: what one said of itself stands for no other."""
    is_proven = manifest.proof in _PROVEN or bool(wish.sha256)
    return is_proven or manifest.wish.mirror.rstrip("/") == wish.mirror.rstrip("/")


def _meets_version(manifest: RootfsManifest, version: str) -> bool:
    known = (manifest.key.version, manifest.wish.version)
    return not version or version in known or manifest.key.version.startswith(f"{version}.")


def _meets_arch(manifest: RootfsManifest, arch: str) -> bool:
    if arch:
        return arch in (manifest.key.arch, manifest.wish.arch)
    return not manifest.wish.arch or manifest.key.arch == os.uname().machine
