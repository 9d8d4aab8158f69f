# SPDX-License-Identifier: Apache-2.0
"""Unpacks the layers of an OCI layout one over the other, with one bound for all of them.

Each layer is checked twice: as it lies there, and uncompressed, as the config says. Both are done with a copy that
nobody else can write to, and before anything of it is unpacked.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsUnsafe, RootfsUnverified
from unspill.model.rootfs import Progress
from unspill.rootfs.oci_json import Digest
from unspill.rootfs.streams import open_chunks
from unspill.rootfs.tar_bounds import Bounds
from unspill.rootfs.unpack import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.rootfs.oci_choice import Layer
    from unspill.rootfs.oci_layout import Layout
    from unspill.rootfs.source import Means

_TAR = ("", "+gzip", "+zstd")
_DOCKER_TAR = ("", ".gzip", ".zstd")
LAYERS = frozenset(
    [f"application/vnd.oci.image.layer.v1.tar{ending}" for ending in _TAR]
    + [f"application/vnd.docker.image.rootfs.diff.tar{ending}" for ending in _DOCKER_TAR]
)


def unpack_layers(
    layout: Layout, layers: Sequence[Layer], tree: bytes, means: Means, bounds: Bounds | None = None
) -> tuple[tuple[str, int], ...]:
    """Unpack all layers and return what was left out, by kind.

    Raises:
        RootfsUnverified: a layer is not what it should be, or damaged.
        RootfsUnsafe: a layer is of a kind that can't be had, would write where it must not, or it is all too much.
    """
    for layer in layers:
        if layer.blob is not None and layer.blob.kind not in LAYERS:
            raise _refusal(layer.blob.kind)
    left = bounds or Bounds()
    left_out: dict[str, int] = {}
    for number, layer in enumerate(layers, 1):
        means.report(Progress(step="unpacking layers", done=number - 1, total=len(layers), unit="layer"))
        what = f"layer {number}"
        fd = _open(layout, layer, what)
        try:
            made = _check_uncompressed(fd, layer.diff_id, left, what)
            unpacked = unpack(fd, tree, bounds=left, whiteouts=True)
        finally:
            os.close(fd)
        left = left.replace(total_bytes=left.total_bytes - made, entries=left.entries - unpacked.entries)
        for kind, count in unpacked.left_out:
            left_out[kind] = left_out.get(kind, 0) + count
    return tuple(sorted(left_out.items()))


def _open(layout: Layout, layer: Layer, what: str) -> int:
    if layer.blob is not None:
        return layout.copy_blob(layer.blob, what)
    fd, _digest, _size = layout.copy(layer.path, layer.diff_id.algorithm)
    return fd


def _check_uncompressed(fd: int, expected: Digest, bounds: Bounds, what: str) -> int:
    """Check the digest of what comes out of a layer, and return how much that is; the descriptor stands as before."""
    import hashlib

    summer, made = hashlib.new(expected.algorithm), 0
    chunks = open_chunks(fd, bounds)
    try:
        for chunk, _read in chunks:
            summer.update(chunk)
            made += len(chunk)
    finally:
        chunks.close()
    os.lseek(fd, 0, os.SEEK_SET)
    found = Digest(algorithm=expected.algorithm, value=summer.hexdigest())
    if found != expected:
        raise RootfsUnverified(f"{what} has uncompressed the digest {found}, but should have {expected}")
    return made


def _refusal(kind: str) -> RootfsUnsafe:
    if "encrypted" in kind:
        why = "it is encrypted"
    elif "nondistributable" in kind or "foreign" in kind:
        why = "it is not distributed with the others"
    else:
        why = "this kind is not known"
    return RootfsUnsafe(f"a layer can't be used, {why}: {kind[:100]!r}", remedy="Use one that is made of plain layers.")
