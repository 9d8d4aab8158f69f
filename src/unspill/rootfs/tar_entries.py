# SPDX-License-Identifier: Apache-2.0
"""The entries of a tar stream, one after the other, with what extended headers say of them.

Knows nothing of directories: names come out as the archive has them. The content of an entry is copied or passed over
before the next entry is read.
"""

from __future__ import annotations

from unspill.errors import RootfsUnsafe, RootfsUnverified
from unspill.host.writing import write_whole
from unspill.rootfs.tar_bounds import EXTENSION_BYTES, shown, too_much
from unspill.rootfs.tar_headers import BLOCK, ZEROS, Header, apply_pax, parse_header, parse_mtime, parse_pax

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.rootfs.streams import Chunks
    from unspill.rootfs.tar_bounds import Bounds

LONG_NAME, LONG_TARGET, EXTENDED, GLOBAL = b"L", b"K", b"x", b"g"
EXTENSIONS = frozenset((LONG_NAME, LONG_TARGET, EXTENDED, GLOBAL))
# git archive writes its comment globally, others a time; a name or a size for all entries has no good use
GLOBAL_NEVER = (b"path", b"linkpath", b"size")
_TAR = "Give a tar, plain or compressed with gzip, bzip2, xz or zstd."


class Stream:
    """The uncompressed bytes; `report` is told how much of the archive was read."""

    def __init__(self, chunks: Chunks, report: Callable[[int], None] | None = None) -> None:
        self._chunks = chunks
        self._report = report
        self._chunk = b""
        self._view = memoryview(b"")
        self._position = 0

    def read_block(self) -> bytes:
        """Return the next block.

        Raises:
            RootfsUnverified: the stream ends before, or within it.
        """
        begin = self._position
        block = self._chunk[begin : begin + BLOCK]
        if len(block) == BLOCK:
            self._position = begin + BLOCK
            return block
        return self.read(BLOCK)

    def read(self, size: int) -> bytes:
        """Return that many bytes."""
        parts = []
        while size:
            part = bytes(self._take(size))
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def copy(self, fd: int, size: int) -> None:
        """Write the content of an entry of that size to a file, and pass over what fills up its last block."""
        begin = self._position
        behind = begin + size + -size % BLOCK
        if behind <= len(self._chunk):
            self._position = behind
            if size:
                write_whole(fd, self._view[begin : begin + size])
            return
        padding = -size % BLOCK
        while size:
            part = self._take(size)
            size -= len(part)
            write_whole(fd, part)
        self.skip(padding)

    def skip(self, size: int) -> None:
        """Pass over that many bytes."""
        left = len(self._chunk) - self._position
        if size <= left:
            self._position += size
            return
        while size:
            size -= len(self._take(size))

    def expect_end(self) -> None:
        """Read on to the end: archives are filled up with zeros, and their streams have a checksum there.

        Raises:
            RootfsUnverified: there is something else.
        """
        rest = self._chunk[self._position :]
        while True:
            if rest.count(0) != len(rest):
                raise RootfsUnverified("the archive has something else behind its end")
            if not self._advance():
                return
            rest = self._chunk

    def _take(self, most: int) -> memoryview:
        if self._position == len(self._chunk) and not self._advance():
            raise RootfsUnverified("the archive is cut short")
        begin = self._position
        found = self._view[begin : begin + most]
        self._position = begin + len(found)
        return found

    def _advance(self) -> bool:
        self._chunk, self._position = b"", 0
        for chunk, read in self._chunks:
            if self._report is not None:
                self._report(read)
            if chunk:
                self._chunk, self._view = chunk, memoryview(chunk)
                return True
        return False


class Entries:
    """Reads headers; `attributes` counts the extended attributes and access lists that entries had."""

    def __init__(self, stream: Stream, bounds: Bounds) -> None:
        self._stream = stream
        self._bounds = bounds
        self._left = bounds.entries
        self._mtime_ns: int | None = None
        self.attributes = 0

    def read_next(self) -> Header | None:
        """Return the next entry, None at the end of the archive.

        Raises:
            RootfsUnverified: the archive is damaged or cut short.
            RootfsUnsafe: readers would disagree about what it says, or there are too many entries.
        """
        extensions: dict[bytes, bytes] = {}
        while True:
            block = self._stream.read_block()
            if block == ZEROS:
                self._end(extensions)
                return None
            try:
                header = parse_header(block)
            except RootfsUnverified:
                if self._left == self._bounds.entries:
                    raise RootfsUnverified(
                        "the archive is no tar, or damaged at its very beginning", remedy=_TAR
                    ) from None
                raise
            self._left -= 1
            if self._left < 0:
                raise too_much(f"it has more than {self._bounds.entries} entries")
            if header.kind not in EXTENSIONS:
                break
            self._extend(extensions, header)
        if self._mtime_ns is not None:
            header.mtime_ns = self._mtime_ns
        if extensions:
            self._apply(extensions, header)
        return header

    def _end(self, extensions: dict[bytes, bytes]) -> None:
        if extensions:
            raise RootfsUnverified("the archive is damaged: an extended header has no entry")
        self._stream.expect_end()

    def _extend(self, extensions: dict[bytes, bytes], header: Header) -> None:
        if header.kind in extensions or (header.kind == GLOBAL and extensions):
            raise RootfsUnsafe(f"{shown(header.name)}: an entry has two extended headers of one kind")
        if header.size > EXTENSION_BYTES:
            raise too_much(f"an extended header has {header.size} bytes")
        body = self._stream.read(header.size)
        self._stream.skip(-header.size % BLOCK)
        if header.kind == GLOBAL:
            self._apply_globally(parse_pax(body))
        else:
            extensions[header.kind] = body

    def _apply_globally(self, records: dict[bytes, bytes]) -> None:
        if any(key in GLOBAL_NEVER or key.startswith(b"GNU.sparse.") for key in records):
            raise RootfsUnsafe("a global header of the archive gives all entries one name or size")
        if mtime := records.get(b"mtime"):
            self._mtime_ns = parse_mtime(mtime)

    def _apply(self, extensions: dict[bytes, bytes], header: Header) -> None:
        records = parse_pax(extensions[EXTENDED]) if EXTENDED in extensions else {}
        for kind, key in ((LONG_NAME, b"path"), (LONG_TARGET, b"linkpath")):
            if kind not in extensions:
                continue
            if key in records:
                raise RootfsUnsafe(f"{shown(header.name)}: an entry has two long names")
            records[key] = extensions[kind].removesuffix(b"\0")
        self.attributes += apply_pax(header, records)
        for text in (header.name, header.target):
            if b"\0" in text:
                raise RootfsUnsafe(f"{shown(text)} has a NUL in its name")
