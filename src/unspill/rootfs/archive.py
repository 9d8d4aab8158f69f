# SPDX-License-Identifier: Apache-2.0
"""An archive as a source: any tar, compressed or not, on this disk or at an address.

Only a digest that the person pinned speaks for an archive: that it came by https says who sent it, not what it is. A
file of the person is opened once, and copied while its digest is taken, so that nobody can swap it later.
"""

from __future__ import annotations

import hashlib
import os
import stat

from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.host.dirfd import write_whole
from unspill.model.rootfs import Progress, RootfsKey
from unspill.policy.config import is_rootfs_label
from unspill.record import Record
from unspill.rootfs.compression import shown
from unspill.rootfs.download import check_digest, digest_of, fetch
from unspill.rootfs.layout import DIRECTORY
from unspill.rootfs.registry import has_shell
from unspill.rootfs.source import Filled, Resolved, arch_of
from unspill.rootfs.tar import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.rootfs import RootfsSpec
    from unspill.rootfs.source import BuildContext

_BLOCK = 1 << 20
_REPORT_BYTES = 16 << 20
_COMPRESSED = (".gz", ".xz", ".zst", ".bz2", ".tgz", ".txz", ".tzst", ".tbz", ".tbz2")
_LONGEST_STEM = 32
_LAYOUT_MARKS = frozenset((b"oci-layout", b"manifest.json"))
_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._")
MOST_BYTES = 16 << 30
_VERSION_DIGITS = 12


class ArchiveSource:
    """The source `archive`."""

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Return which rootfs an archive is: its version is the beginning of its digest.

        Raises:
            RootfsUnreachable: it can't be read or fetched.
            RootfsUnverified: it is not the one that is pinned.
            RootfsError: the spec can't be met.
        """
        arch, label, pinned = arch_of(spec.arch), label_of(spec), check_digest(spec.sha256)
        digest = self._take_digest(spec.location, pinned, means)
        return Resolved(
            key=RootfsKey(source=label, version=digest[:_VERSION_DIGITS], arch=arch),
            spec=spec,
            fetch=spec.location,
            sha256=digest,
            proof="pinned" if pinned else "none",
        )

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Unpack the very bytes that have the digest that was resolved.

        Raises:
            RootfsUnreachable: it can't be read or fetched.
            RootfsUnverified: it is another one by now, or damaged.
            RootfsUnsafe: it would write where it must not.
            RootfsError: it is no root file system.
        """
        fd = self._open(resolved, means)
        try:
            unpacked = unpack(fd, tree, report=_tell(means, "unpacking", os.fstat(fd).st_size))
        finally:
            os.close(fd)
        name = resolved.fetch.rpartition("/")[2]
        check_tree(tree, name)
        return Filled(proof=resolved.proof, fetched=((name, resolved.sha256),), left_out=unpacked.left_out)

    def _take_digest(self, location: str, pinned: str, means: BuildContext) -> str:
        if is_remote(location):
            return fetch(location, means.downloads, sha256=pinned, most_bytes=MOST_BYTES, report=means.report).sha256
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

    def _open(self, resolved: Resolved, means: BuildContext) -> int:
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


def _tell(means: BuildContext, step: str, total: int) -> Callable[[int], None]:
    return lambda done: means.report(Progress(step=step, done=done, total=total))


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
        raise _unreadable(path, "it is not a file")
    return fd


def copy_given(fd: int, scratch: bytes, report: Callable[[Progress], None], *, algorithm: str = "sha256") -> Copy:
    """Copy a file to one without a name in `scratch`.

    Raises:
        OSError: the copy can't be written.
    """
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


def label_of(spec: RootfsSpec) -> str:
    """Return what the rootfs of a location is called: its label, or what its file is called without its endings."""
    if spec.label:
        if not is_rootfs_label(spec.label):
            raise RootfsError(
                f"{spec.label[:80]!r} can't be the name of a rootfs",
                remedy="Use only lower-case letters, digits, dots and _.",
            )
        return spec.label
    stem = spec.location.rstrip("/").rpartition("/")[2].lower()
    stem = next((stem.removesuffix(ending) for ending in _COMPRESSED if stem.endswith(ending)), stem)
    stem = stem.removesuffix(".tar").removesuffix(".oci")
    plain = "".join(sign if sign in _SIGNS else "_" for sign in stem).strip("._")[:_LONGEST_STEM].rstrip("._")
    return plain if is_rootfs_label(plain) else f"a_{plain}"[:_LONGEST_STEM].rstrip("._")


def check_tree(tree: bytes, name: str) -> None:
    """Check that there is a shell in what was unpacked; where it is an OCI layout, say so.

    Raises:
        RootfsError: there is none.
    """
    fd = os.open(tree, DIRECTORY)
    try:
        if has_shell(fd):
            return
        is_layout = not _LAYOUT_MARKS.isdisjoint(map(os.fsencode, os.listdir(fd)))
    finally:
        os.close(fd)
    raise RootfsError(
        f"{name} is not a root file system: it has no /bin/sh",
        remedy='It looks like an OCI layout: use --oci (`source = "oci"`).'
        if is_layout
        else "It must have bin with a shell at its top, not inside another directory. A program's archive won't do.",
    )


def _make_nameless(scratch: bytes) -> int:
    path = os.path.join(scratch, b"copy." + os.urandom(8).hex().encode())
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd


def _unreadable(path: bytes, why: str) -> RootfsUnreachable:
    return RootfsUnreachable(
        f"{shown(path)} can't be read: {why}", remedy="Check the path and your permission to read it."
    )
