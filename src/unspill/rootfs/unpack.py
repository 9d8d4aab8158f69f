# SPDX-License-Identifier: Apache-2.0
"""Unpacks a tar archive that nobody has to trust: directories, files, symbolic links, hard links, and nothing else.

Nothing is ever written outside the tree, and nothing of the archive is obeyed but names, contents, permissions and
times: owners, devices, attributes and the bits that give rights away are left out. After a failure the tree is
half-filled; it is the caller's to remove.
"""

from __future__ import annotations

import errno
import os

from unspill.errors import RootfsError
from unspill.model.record import Record
from unspill.rootfs.streams import open_chunks
from unspill.rootfs.tar_bounds import Bounds, shown
from unspill.rootfs.tar_entries import Entries, Stream
from unspill.rootfs.tar_layers import Layer
from unspill.rootfs.tar_tree import Tree
from unspill.rootfs.tar_writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Bounds", "Unpacked", "unpack"]

USUAL = Bounds()


class Unpacked(Record):
    """What an archive had: `left_out` counts what it had and the tree does not have, by kind."""

    entries: int
    size_bytes: int
    left_out: tuple[tuple[str, int], ...] = ()


def unpack(
    archive: bytes | int,
    tree: bytes,
    *,
    bounds: Bounds = USUAL,
    whiteouts: bool = False,
    report: Callable[[int], None] | None = None,
) -> Unpacked:
    """Unpack a tar archive, compressed or not, to an empty directory; or with `whiteouts` an OCI layer onto others.

    Args:
        archive: its path, or a descriptor that is read from where it stands.
        tree: the directory; without `whiteouts` it must be empty.
        bounds: how much the archive may hold.
        whiteouts: whether names of whiteouts remove what is in the tree already.
        report: is told now and then how many bytes of the archive were read.

    Raises:
        RootfsUnsafe: an entry leads out of the tree, is of a kind nobody needs, or it is all too much.
        RootfsUnverified: the archive is damaged or cut short.
        RootfsError: it can't be read, or the tree can't be written.
    """
    if isinstance(archive, int):
        return _unpack(archive, tree, bounds, whiteouts, report)
    try:
        fd = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise RootfsError(f"the archive {shown(archive)} can't be read: {problem.strerror}") from None
    try:
        return _unpack(fd, tree, bounds, whiteouts, report)
    finally:
        os.close(fd)


def _unpack(fd: int, tree: bytes, bounds: Bounds, whiteouts: bool, report: Callable[[int], None] | None) -> Unpacked:
    target = Tree(tree)
    chunks = None
    try:
        if not whiteouts and not target.is_empty():
            raise RootfsError(f"{shown(tree)} is not empty")
        chunks = open_chunks(fd, bounds)
        stream = Stream(chunks, report)
        entries = Entries(stream, bounds)
        writer = Writer(stream, target, bounds, Layer(target) if whiteouts else None)
        while (entry := entries.read_next()) is not None:
            writer.write(entry)
        writer.finish()
        left_out = writer.left_out | ({"xattr": entries.attributes} if entries.attributes else {})
        return Unpacked(entries=writer.entries, size_bytes=writer.size_bytes, left_out=tuple(sorted(left_out.items())))
    except OSError as problem:
        raise RootfsError(f"the archive can't be unpacked: {problem.strerror}", remedy=_remedy(problem)) from problem
    finally:
        if chunks is not None:
            chunks.close()
        target.close()


def _remedy(problem: OSError) -> str:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space, or choose another directory for root file systems (`rootfs_dir`)."
    return "Check that the archive can be read and that the directory can be written."
