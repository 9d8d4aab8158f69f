# SPDX-License-Identifier: Apache-2.0
"""The files of an OCI layout, or of what `docker save` writes: a directory, or an archive of one.

An archive is unpacked to a directory that nobody else can write in. Every blob is checked against its digest and its
size before any of it is used, and what is used are the bytes that were checked. A link never leads out of the layout.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnsafe, RootfsUnverified
from unspill.host.inside import resolve_inside
from unspill.rootfs.download_part import digest_of
from unspill.rootfs.given import copy_given, open_given
from unspill.rootfs.oci_json import MOST_DOCUMENT_BYTES, Digest, parse_document
from unspill.rootfs.tar_bounds import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from unspill.rootfs.oci_json import Descriptor, Document
    from unspill.rootfs.source import Means

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1 << 20


class Layout:
    """A layout that is open; `archive_digest` is that of the archive it was in, if it was in one."""

    def __init__(self, location: str, means: Means) -> None:
        self._location = location
        self._means = means
        self._fd = -1
        self.archive_digest = ""

    def __enter__(self) -> Self:
        path = os.fsencode(self._location)
        if not os.path.isdir(path):
            path = self._unpack(path)
        try:
            self._fd = os.open(path, _DIRECTORY)
        except OSError as error:
            raise RootfsUnreachable(f"{self._location} can't be read: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def has(self, path: str) -> bool:
        """Tell whether the layout has a file."""
        return resolve_inside(self._fd, path.encode()) is not None

    def read_document(self, path: str) -> bytes:
        """Return the content of a small file.

        Raises:
            RootfsError: it is missing, or too big.
        """
        fd = self._open(path)
        try:
            content = b""
            while block := os.read(fd, _BLOCK):
                content += block
                if len(content) > MOST_DOCUMENT_BYTES:
                    raise RootfsUnsafe(f"{path} is bigger than {MOST_DOCUMENT_BYTES} bytes")
            return content
        finally:
            os.close(fd)

    def read_blob(self, descriptor: Descriptor, what: str) -> bytes:
        """Return the content of a document, which is what its descriptor says.

        Raises:
            RootfsUnverified: it is not.
            RootfsError: it is missing, or too big.
        """
        import hashlib

        content = self.read_document(path_of(descriptor.digest))
        found = Digest(
            algorithm=descriptor.digest.algorithm,
            value=hashlib.new(descriptor.digest.algorithm, content).hexdigest(),
        )
        check_blob(what, found, len(content), descriptor)
        return content

    def read_blob_document(self, descriptor: Descriptor, what: str) -> Document:
        """Return a document of a blob."""
        return parse_document(self.read_blob(descriptor, what), what)

    def copy(self, path: str, algorithm: str) -> tuple[int, Digest, int]:
        """Return a descriptor of a private copy of a file, which the caller closes, its digest, and its size."""
        fd = self._open(path)
        if self.archive_digest:
            # Unpacked by us, to a place where nobody else writes
            return fd, Digest(algorithm=algorithm, value=digest_of(fd, algorithm)), os.fstat(fd).st_size
        try:
            copy = copy_given(fd, self._means.scratch, self._means.report, algorithm=algorithm)
        finally:
            os.close(fd)
        return copy.fd, Digest(algorithm=algorithm, value=copy.digest), copy.size

    def copy_blob(self, descriptor: Descriptor, what: str) -> int:
        """Return a descriptor of a private copy of a blob that is what its descriptor says; the caller closes it.

        Raises:
            RootfsUnverified: it is not what it should be.
            RootfsError: it is missing.
        """
        fd, digest, size = self.copy(path_of(descriptor.digest), descriptor.digest.algorithm)
        try:
            check_blob(what, digest, size, descriptor)
        except RootfsUnverified:
            os.close(fd)
            raise
        return fd

    def _open(self, path: str) -> int:
        real = resolve_inside(self._fd, path.encode())
        if real is None:
            raise RootfsUnverified(f"{self._location} is not whole: it has no {path}")
        try:
            fd = os.open(real, _FILE, dir_fd=self._fd)
        except OSError as error:
            raise RootfsUnreachable(f"{self._location}: {path} can't be read: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise RootfsUnsafe(f"{self._location}: {path} is no file")
        return fd

    def _unpack(self, path: bytes) -> bytes:
        from unspill.rootfs.unpack import unpack

        target = os.path.join(self._means.scratch, b"layout")
        fd = open_given(path)
        try:
            copy = copy_given(fd, self._means.scratch, self._means.report)
        finally:
            os.close(fd)
        try:
            os.mkdir(target, 0o700)
            unpack(copy.fd, target)
        except RootfsUnsafe as error:
            raise RootfsUnsafe(f"{shown(path)} is no archive of an OCI layout: {error.message}") from None
        finally:
            os.close(copy.fd)
        self.archive_digest = copy.digest
        return target


def path_of(digest: Digest) -> str:
    """Return where a layout has the blob of a digest."""
    return f"blobs/{digest.algorithm}/{digest.value}"


def check_blob(what: str, digest: Digest, size: int, descriptor: Descriptor) -> None:
    """Check that a blob is what its descriptor says.

    Raises:
        RootfsUnverified: it has another digest or size.
    """
    if digest != descriptor.digest:
        raise RootfsUnverified(f"{what} has the digest {digest}, but should have {descriptor.digest}")
    if size != descriptor.size:
        raise RootfsUnverified(f"{what} has {size} bytes, but should have {descriptor.size}")


def no_layout(location: str) -> RootfsError:
    """Return the error that there is something else at a location."""
    return RootfsError(
        f"{location} is no OCI layout: it has neither oci-layout and index.json nor manifest.json",
        remedy="Make one with `skopeo copy docker://NAME oci:DIRECTORY:TAG`; a plain tar is for --archive"
        ' (`source = "archive"`).',
    )
