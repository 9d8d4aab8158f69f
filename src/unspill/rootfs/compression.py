# SPDX-License-Identifier: Apache-2.0
"""The bytes of an archive, decompressed and bounded: the format is told by its first bytes, never by its name.

Every stream is read to its very end, where its checksum is. What comes out is bounded while it comes out, and
decompression runs in a thread of its own, since the decompressors of the standard library let others run meanwhile.
zstd is done by the program `zstd`: the Pythons that unspill supports have no decoder of their own.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from contextlib import suppress
from queue import Empty, Queue
from subprocess import PIPE, Popen
from threading import Event, Thread

from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.host.bwrap import why_unsafe
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from subprocess import Popen
    from typing import Protocol

    # Some bytes of the uncompressed stream, and how many bytes of the archive were read so far
    Chunks = Generator[tuple[bytes, int], None, None]
    Item = tuple[bytes, int] | BaseException | None

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


MIB = 1 << 20
GIB = 1 << 30
NAME_BYTES = 255
PATH_BYTES = 4096
# Of one extended header: a path and a target fit many times over, and so do the attributes that are left out
EXTENSION_BYTES = MIB
CHUNKS_AHEAD = 6
COMPLAINT_BYTES = 2000
_ZSTD_REMEDY = "Install zstd, or compress the archive with gzip or xz."
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


class Bounds(Record):
    """The most that one archive may hold.

    `total_bytes` is the uncompressed stream as a whole. Beyond the first `free_bytes` of it, it may be `ratio` times
    what was read for it. `memory_bytes` is what a decompressor may allocate.
    """

    total_bytes: int = 32 * GIB
    file_bytes: int = 16 * GIB
    entries: int = 2_000_000
    ratio: int = 1000
    free_bytes: int = 64 * MIB
    memory_bytes: int = 256 * MIB
    depth: int = 128

    def check_stream(self, read: int, made: int) -> None:
        """Check how much came out of how much.

        Raises:
            RootfsUnsafe: it is too much, or too much for what was read.
        """
        if made > self.total_bytes:
            raise too_much(f"it unpacks to more than {self.total_bytes} bytes")
        if made > self.free_bytes and made > read * self.ratio:
            raise too_much(f"it unpacks to more than {self.ratio} times its size")


class Memory:
    """What the paths that have to be remembered until the end of an archive may take; a path takes more than its bytes.

    `whose` names them for people.
    """

    def __init__(self, whose: str, most_bytes: int) -> None:
        self._whose = whose
        self._left = most_bytes

    def charge(self, size: int) -> None:
        """Take note that so many bytes more are in use.

        Raises:
            RootfsUnsafe: there are more paths, or longer ones, than in any rootfs.
        """
        self._left -= size
        if self._left < 0:
            raise too_much(f"{self._whose} are too many, or too long")


def too_much(what: str) -> RootfsUnsafe:
    """Return the refusal of an archive that goes beyond its bounds."""
    return RootfsUnsafe(
        f"the archive is larger than any rootfs should be: {what}",
        remedy="Don't use this archive. If you trust it, unpack it yourself and name the directory.",
    )


def shown(name: bytes) -> str:
    """Return a name that is safe to print, whatever bytes it has."""
    return repr(name if len(name) <= 200 else name[:200] + b"...")[1:]


def open_chunks(fd: int, bounds: Bounds) -> Chunks:
    """Return the uncompressed stream; it must be closed."""
    archive = Archive(fd)
    head = archive.peek()
    if head.startswith(GZIP):
        chunks = _gunzip(archive)
    elif head.startswith(BZIP2):
        import bz2  # lazy: rootfs

        chunks = _decompress(archive, bz2.BZ2Decompressor, BZIP2)
    elif head.startswith(XZ):
        chunks = _unxz(archive, bounds)
    elif head.startswith(ZSTD) or (head[1:4] == ZSTD_SKIPPABLE and head[0] & 0xF0 == 0x50):
        chunks = unzstd(archive, bounds)
    else:
        return _bounded(_plain(archive), bounds)

    return run_ahead(_bounded(chunks, bounds))


def run_ahead(chunks: Chunks) -> Chunks:
    """Yield what `chunks` yields, and raise what it raises."""
    ready: Queue[Item] = Queue(CHUNKS_AHEAD)
    abandoned = Event()
    thread = Thread(target=_produce, args=(chunks, ready, abandoned), name="unspill-decompress", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        abandoned.set()
        _drain(ready)
        thread.join()


def _produce(chunks: Chunks, ready: Queue[Item], abandoned: Event) -> None:
    last: Item = None
    try:
        for chunk in chunks:
            ready.put(chunk)
            if abandoned.is_set():
                return
    except BaseException as problem:
        last = problem
    finally:
        chunks.close()
        if not abandoned.is_set():
            ready.put(last)


def _drain(ready: Queue[Item]) -> None:
    """Make room: a producer that waits for it goes on, sees that nobody reads, and ends."""
    while True:
        try:
            ready.get_nowait()
        except Empty:
            return


def unzstd(archive: Archive, bounds: Bounds) -> Chunks:
    """Yield what `zstd` makes of the archive.

    Raises:
        RootfsError: there is no such program, or the archive is a pipe.
        RootfsUnverified: it is damaged or cut short.
        RootfsUnsafe: it needs too much memory.
    """
    try:
        archive.rewind()
    except OSError:
        raise RootfsError("a zstd archive can't be read from a pipe", remedy="Write it to a file first.") from None
    complaints = os.memfd_create("unspill-zstd", os.MFD_CLOEXEC)
    try:
        yield from _run_zstd(archive.fd, complaints, bounds)
    finally:
        os.close(complaints)


def _run_zstd(fd: int, complaints: int, bounds: Bounds) -> Chunks:
    begin = os.lseek(fd, 0, os.SEEK_CUR)
    process = _start_zstd(fd, complaints, bounds)
    assert process.stdout is not None
    made_by = process.stdout.fileno()
    try:
        _widen(made_by)
        while made := os.read(made_by, MADE_BYTES):
            # The position is shared with the program, so it tells how much that has read
            yield made, os.lseek(fd, 0, os.SEEK_CUR) - begin
        if process.wait() != 0:
            raise _refuse_zstd(os.pread(complaints, COMPLAINT_BYTES, 0), bounds)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _start_zstd(fd: int, complaints: int, bounds: Bounds) -> Popen[bytes]:
    argv = [find_zstd(), b"-d", b"-c", b"-q", b"--no-progress", b"--memory=%dKiB" % (bounds.memory_bytes >> 10)]
    try:
        return Popen(argv, stdin=fd, stdout=PIPE, stderr=complaints, env={"LC_ALL": "C"}, cwd="/", bufsize=0)
    except OSError as problem:
        raise RootfsError(f"zstd can't be started: {problem.strerror}", remedy=_ZSTD_REMEDY) from problem


def _widen(pipe: int) -> None:
    """Let the program run further ahead of us, if the system still allows large pipes."""
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, MADE_BYTES)


def _refuse_zstd(complaint: bytes, bounds: Bounds) -> RootfsError:
    if b"too much memory" in complaint or b"Window size larger" in complaint:
        return wants_memory(bounds)
    reason = complaint.decode("ascii", "replace").strip().rpartition(" : ")[2]
    return RootfsUnverified(f"the zstd stream of the archive is damaged or cut short: {ascii(reason)[1:-1]}")


def find_zstd() -> bytes:
    """Return the path of a `zstd` that only root can have written.

    Raises:
        RootfsError: there is none.
    """
    for directory in os.get_exec_path():
        path = os.path.realpath(os.path.join(os.fsencode(directory), b"zstd"))
        if os.path.isabs(directory) and os.access(path, os.X_OK) and not why_unsafe(path):
            return path
    raise RootfsError("the archive is compressed with zstd, and zstd is not installed", remedy=_ZSTD_REMEDY)


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
    import lzma  # lazy: rootfs

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
        raise RootfsUnverified("the archive has other data after its compressed stream")


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
        remedy="Compress it with a smaller window, such as xz -9 or zstd -19.",
    )


def _damaged(problem: Exception) -> RootfsUnverified:
    return RootfsUnverified(f"the compressed stream of the archive is damaged: {problem}")
