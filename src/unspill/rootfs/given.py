# SPDX-License-Identifier: Apache-2.0
"""What a person gives: a file opened once, and copied while its digest is taken, so that nobody can swap it later.

The copy has no name, is the caller's alone and ends with its descriptor.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsError, RootfsUnreachable
from unspill.host.writing import write_whole
from unspill.model.record import Record
from unspill.model.rootfs import Progress
from unspill.policy.rootfs_wish import is_label
from unspill.rootfs.tar_bounds import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.rootfs import RootfsWish

_BLOCK = 1 << 20
_REPORT_BYTES = 16 << 20
_COMPRESSED = (".gz", ".xz", ".zst", ".bz2", ".tgz", ".txz", ".tzst", ".tbz", ".tbz2")
_LONGEST_STEM = 32
_LAYOUT_MARKS = frozenset((b"oci-layout", b"manifest.json"))
_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._")


class Copy(Record):
    """A copy of a file: its descriptor, which stands at the start and is the caller's to close, digest and size."""

    fd: int
    digest: str
    size: int


def open_given(path: bytes) -> int:
    """Open a file for reading.

    Raises:
        RootfsUnreachable: it can't be opened, or is no file.
    """
    try:
        # A pipe would otherwise be waited for
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error.strerror or "it can't be opened") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _unreadable(path, "it is no file")
    return fd


def copy_given(fd: int, scratch: bytes, report: Callable[[Progress], None], *, algorithm: str = "sha256") -> Copy:
    """Copy a file to one without a name in `scratch`.

    Raises:
        OSError: the copy can't be written.
    """
    import hashlib

    summer = hashlib.new(algorithm)
    total, size, told = os.fstat(fd).st_size, 0, 0
    copy = _make_nameless(scratch)
    try:
        while block := os.pread(fd, _BLOCK, size):
            write_whole(copy, block)
            summer.update(block)
            size += len(block)
            if size - told >= _REPORT_BYTES:
                told = size
                report(Progress(step="reading", done=size, total=total))
        os.lseek(copy, 0, os.SEEK_SET)
    except BaseException:
        os.close(copy)
        raise
    return Copy(fd=copy, digest=summer.hexdigest(), size=size)


def label_of(wish: RootfsWish) -> str:
    """Return what the rootfs of a location is called: its label, or what its file is called without its endings."""
    if wish.label:
        if not is_label(wish.label):
            raise RootfsError(
                f"a rootfs can't be called {wish.label[:80]!r}", remedy="Use small letters, digits, dots and _ only."
            )
        return wish.label
    stem = wish.location.rstrip("/").rpartition("/")[2].lower()
    stem = next((stem.removesuffix(ending) for ending in _COMPRESSED if stem.endswith(ending)), stem)
    stem = stem.removesuffix(".tar").removesuffix(".oci")
    plain = "".join(sign if sign in _SIGNS else "_" for sign in stem).strip("._")[:_LONGEST_STEM].rstrip("._")
    return plain if is_label(plain) else f"a_{plain}"[:_LONGEST_STEM].rstrip("._")


def check_tree(tree: bytes, name: str) -> None:
    """Check that there is a shell in what was unpacked; where it is an OCI layout, say so.

    Raises:
        RootfsError: there is none.
    """
    from unspill.rootfs.layout import DIRECTORY
    from unspill.rootfs.ready import has_shell

    fd = os.open(tree, DIRECTORY)
    try:
        if has_shell(fd):
            return
        is_layout = not _LAYOUT_MARKS.isdisjoint(map(os.fsencode, os.listdir(fd)))
    finally:
        os.close(fd)
    raise RootfsError(
        f"{name} is no root file system: it has no /bin/sh",
        remedy='It looks like an OCI layout: give it with --oci (`source = "oci"`).'
        if is_layout
        else "At its top must be bin with a shell in it: no directory around that, and not the archive of a program.",
    )


def _make_nameless(scratch: bytes) -> int:
    path = os.path.join(scratch, b"copy." + os.urandom(8).hex().encode())
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd


def _unreadable(path: bytes, why: str) -> RootfsUnreachable:
    return RootfsUnreachable(
        f"{shown(path)} can't be read: {why}", remedy="Check the path, and whether you may read it."
    )
