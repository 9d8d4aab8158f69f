# SPDX-License-Identifier: Apache-2.0
"""An OCI layout on disk as a source: a directory, an archive of one, or an archive of `docker save`.

Where it has several, `version` is the tag of the one that is meant, or `sha256` pins it: its manifest, an index that
leads to it, or the archive as a whole. Nothing is ever fetched from a registry.
"""

from __future__ import annotations

from unspill.errors import RootfsError, RootfsUnverified
from unspill.model.rootfs import Progress, RootfsKey
from unspill.rootfs.arch import wished_arch
from unspill.rootfs.archive import is_remote
from unspill.rootfs.download import check_digest
from unspill.rootfs.given import check_tree, label_of
from unspill.rootfs.oci_choice import choose
from unspill.rootfs.oci_json import get_text, parse_document
from unspill.rootfs.oci_layout import Layout, no_layout
from unspill.rootfs.source import Filled, Resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.rootfs import RootfsWish
    from unspill.rootfs.oci_choice import Choice
    from unspill.rootfs.source import Means

_VERSION_DIGITS = 12


class OciSource:
    """The source `oci`."""

    def resolve(self, wish: RootfsWish, means: Means) -> Resolved:
        """Return which rootfs a layout has: its version is the beginning of the manifest's digest.

        Raises:
            RootfsUnreachable: the layout can't be read.
            RootfsUnverified: it is not what is pinned, or a document is not what its digest says.
            RootfsUnsafe: a document can't be understood.
            RootfsError: nothing in it fits the wish, or several do.
        """
        if is_remote(wish.location):
            raise RootfsError(
                f"{wish.location} is an address, but an OCI layout is read from disk",
                remedy="Copy it first: `skopeo copy docker://NAME oci:DIRECTORY:TAG`.",
            )
        label = label_of(wish)
        arch = wished_arch(wish.arch)
        means.report(Progress(step="reading"))
        with Layout(wish.location, means) as layout:
            choice = _choose(layout, wish, arch)
        return Resolved(
            key=RootfsKey(source=label, version=choice.identity[:_VERSION_DIGITS], arch=arch),
            wish=wish,
            fetch=wish.location,
            sha256=choice.identity,
            proof="pinned" if wish.sha256 else "none",
        )

    def fill(self, resolved: Resolved, tree: bytes, means: Means) -> Filled:
        """Unpack the layers of the manifest that was resolved, each checked against its digests.

        Raises:
            RootfsUnreachable: the layout can't be read.
            RootfsUnverified: something of it is not what it should be, or was changed meanwhile.
            RootfsUnsafe: a layer would write where it must not.
            RootfsError: it is no root file system.
        """
        from unspill.rootfs.oci_layers import unpack_layers

        with Layout(resolved.fetch, means) as layout:
            choice = _choose(layout, resolved.wish, resolved.key.arch)
            if choice.identity != resolved.sha256:
                raise RootfsUnverified(
                    f"{resolved.fetch} has the SHA-256 {choice.identity}, but had {resolved.sha256} a moment ago",
                    remedy="Try again when nobody writes to it.",
                )
            left_out = unpack_layers(layout, choice.layers, tree, means)
            archive = (("archive", layout.archive_digest),) if layout.archive_digest else ()
        check_tree(tree, resolved.fetch)
        fetched = (*archive, *choice.chain, *_blobs(choice))
        if not any(digest == f"sha256:{choice.identity}" for _, digest in choice.chain):
            # What names it does so by a SHA-512
            fetched = (*fetched, ("identity", f"sha256:{choice.identity}"))
        return Filled(proof=resolved.proof, fetched=fetched, left_out=left_out)


def _choose(layout: Layout, wish: RootfsWish, arch: str) -> Choice:
    pinned = check_digest(wish.sha256)
    if layout.has("oci-layout") and layout.has("index.json"):
        version = get_text(
            parse_document(layout.read_document("oci-layout"), "oci-layout"), "imageLayoutVersion", "oci-layout"
        )
        if not version.startswith("1."):
            raise RootfsError(f"{wish.location} is an OCI layout of version {version!r}, which is not known")
        return choose(layout, tag=wish.version, arch=arch, pinned=pinned)
    if layout.has("manifest.json"):
        from unspill.rootfs.oci_saved import choose_saved

        return choose_saved(layout, tag=wish.version, arch=arch, pinned=pinned)
    raise no_layout(wish.location)


def _blobs(choice: Choice) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"layer {number}", str(layer.blob.digest if layer.blob else layer.diff_id))
        for number, layer in enumerate(choice.layers, 1)
    )
