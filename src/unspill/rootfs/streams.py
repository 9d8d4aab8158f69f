# SPDX-License-Identifier: Apache-2.0
"""The bytes of an archive, decompressed: the format is told by its first bytes, never by its name.

Every stream is read to its very end, where its checksum is. What comes out is bounded while it comes out, and
decompression runs in a thread of its own, since the decompressors of the standard library let others run meanwhile.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsUnsafe, RootfsUnverified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Protocol

    from unspill.rootfs.tar_bounds import Bounds

    # Some bytes of the uncompressed stream, and how many bytes of the archive were read so far
    Chunks = Generator[tuple[bytes, int], None, None]

    class Decompressor(Protocol):
        """What bz2 and lzma have in common."""

        @property
        def eof(self) -> bool: ...
        @property
        def needs_input(self) -> bool: ...
        @property
        def unused_data(self) -> bytes: ...
        def decompress(self, data: bytes, max_length: int, /) -> bytes:
            """Return at most that many bytes more."""


READ_BYTES = 128 << 10
PLAIN_BYTES = 1 << 20
MADE_BYTES = 1 << 20

GZIP = b"\x1f\x8b"
BZIP2 = b"BZh"
XZ = b"\xfd7zXZ\0"
ZSTD = b"\x28\xb5\x2f\xfd"
# Skippable frames, with which a zstd archive may begin, differ in the low half of their first byte
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
MAGIC_BYTES = 6


class Archive:
    """The archive as it lies on disk; `count` is how much of it was read."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.count = 0
        self._head = b""

    def peek(self) -> bytes:
        """Return the next bytes, which stay unread: at least as many as a magic has, unless there are no more."""
        while len(self._head) < MAGIC_BYTES and (more := os.read(self.fd, READ_BYTES)):
            self._head += more
        return self._head

    def read(self, size: int = READ_BYTES) -> bytes:
        """Return the next bytes, none at the end."""
        found, self._head = self._head or os.read(self.fd, size), b""
        self.count += len(found)
        return found

    def unread(self, rest: bytes) -> None:
        """Put back what belongs to what follows."""
        self.count -= len(rest)
        self._head = rest + self._head

    def rewind(self) -> None:
        """Let the descriptor stand where `peek` found it, for another process to read on.

        Raises:
            OSError: it is a pipe.
        """
        os.lseek(self.fd, -len(self._head), os.SEEK_CUR)
        self._head = b""


def open_chunks(fd: int, bounds: Bounds) -> Chunks:
    """Return the uncompressed stream; it must be closed."""
    archive = Archive(fd)
    head = archive.peek()
    if head.startswith(GZIP):
        chunks = _gunzip(archive)
    elif head.startswith(BZIP2):
        import bz2

        chunks = _decompress(archive, bz2.BZ2Decompressor, BZIP2)
    elif head.startswith(XZ):
        chunks = _unxz(archive, bounds)
    elif head.startswith(ZSTD) or (head[1:4] == ZSTD_SKIPPABLE and head[0] & 0xF0 == 0x50):
        from unspill.rootfs.streams_zstd import unzstd

        chunks = unzstd(archive, bounds)
    else:
        return _bounded(_plain(archive), bounds)
    from unspill.rootfs.streams_ahead import run_ahead

    return run_ahead(_bounded(chunks, bounds))


def _bounded(chunks: Chunks, bounds: Bounds) -> Chunks:
    made = 0
    try:
        for chunk, read in chunks:
            made += len(chunk)
            bounds.check_stream(read, made)
            yield chunk, read
    finally:
        chunks.close()


def _plain(archive: Archive) -> Chunks:
    while chunk := archive.read(PLAIN_BYTES):
        yield chunk, archive.count


def _gunzip(archive: Archive) -> Chunks:
    import zlib

    while archive.peek():
        _expect(archive, GZIP)
        inflate = zlib.decompressobj(wbits=31)
        pending = b""
        while not inflate.eof:
            pending = pending or _more(archive)
            try:
                made = inflate.decompress(pending, MADE_BYTES)
            except zlib.error as problem:
                raise _damaged(problem) from None
            pending = inflate.unconsumed_tail
            yield made, archive.count
        archive.unread(inflate.unused_data)
        _skip_padding(archive)


def _decompress(archive: Archive, make: Callable[[], Decompressor], magic: bytes) -> Chunks:
    while archive.peek():
        _expect(archive, magic)
        member = make()
        while not member.eof:
            pending = _more(archive) if member.needs_input else b""
            try:
                made = member.decompress(pending, MADE_BYTES)
            except (OSError, ValueError) as problem:
                raise _damaged(problem) from None
            yield made, archive.count
        archive.unread(member.unused_data)
        _skip_padding(archive)


def _unxz(archive: Archive, bounds: Bounds) -> Chunks:
    import lzma

    try:
        yield from _decompress(archive, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=bounds.memory_bytes), XZ)
    except lzma.LZMAError as problem:
        if "limit" in str(problem):
            raise wants_memory(bounds) from None
        raise _damaged(problem) from None


def _more(archive: Archive) -> bytes:
    if found := archive.read():
        return found
    raise RootfsUnverified("the archive is cut short: its compressed stream has no end")


def _expect(archive: Archive, magic: bytes) -> None:
    if not archive.peek().startswith(magic):
        raise RootfsUnverified("the archive has something else behind its compressed stream")


def _skip_padding(archive: Archive) -> None:
    """Pass over zeros up to the end, with which some tools fill up a block; anything else stays unread."""
    if not archive.peek().startswith(b"\0"):
        return
    while found := archive.read():
        if found.count(0) != len(found):
            archive.unread(found)
            return


def wants_memory(bounds: Bounds) -> RootfsUnsafe:
    """Return the refusal of a stream that can't be decompressed within the bounds."""
    return RootfsUnsafe(
        f"decompressing the archive takes more than {bounds.memory_bytes >> 20} MiB of memory",
        remedy="Compress it with a smaller window (xz -9 and zstd -19 are small enough).",
    )


def _damaged(problem: Exception) -> RootfsUnverified:
    return RootfsUnverified(f"the compressed stream of the archive is damaged: {problem}")
