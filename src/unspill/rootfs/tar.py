# SPDX-License-Identifier: Apache-2.0
"""Unpacks a tar archive that nobody has to trust: directories, files, symbolic links, hard links, and nothing else.

Nothing is ever written outside the tree, and nothing of the archive is obeyed but names, contents, permissions and
times: owners, devices, attributes and the bits that give rights away are left out. After a failure the tree is
half-filled; it is the caller's to remove.
"""

from __future__ import annotations

import errno
import os
import stat
from struct import Struct
from zlib import adler32

from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.host.dirfd import write_whole
from unspill.record import Record
from unspill.rootfs.compression import (
    EXTENSION_BYTES,
    NAME_BYTES,
    PATH_BYTES,
    Bounds,
    Memory,
    open_chunks,
    shown,
    too_much,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.rootfs.compression import Bounds, Chunks

BLOCK = 512
ZEROS = bytes(BLOCK)
FIELDS = Struct("100s8s16x12s12s8sc100s8s80x155s12x")
POSIX_MAGIC = b"ustar\0"
# Beyond it the 11 digits of a plain header are too few, so that PAX headers have a size of their own
LARGEST_PLAIN_SIZE = 8 << 30
LATEST_SECOND = (1 << 33) - 1
NANOSECONDS = 1_000_000_000
KNOWN_FIELDS = 1000
_KNOWN: dict[bytes, int] = {}
ATTRIBUTE_KEYS = (b"SCHILY.xattr.", b"LIBARCHIVE.xattr.", b"SCHILY.acl.", b"RHT.security.")
LONG_NAME, LONG_TARGET, EXTENDED, GLOBAL = b"L", b"K", b"x", b"g"
EXTENSIONS = frozenset((LONG_NAME, LONG_TARGET, EXTENDED, GLOBAL))
# git archive writes its comment globally, others a time; a name or a size for all entries has no good use
GLOBAL_NEVER = (b"path", b"linkpath", b"size")
_TAR = "Use a tar file, plain or compressed with gzip, bzip2, xz or zstd."
# How many directories are remembered as checked: archives list what is in one directory in a row
REMEMBERED = 4096
NO_NAMES = (b"", b".", b"..")
SLASH = 0x2F
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
IMPLIED_MODE = 0o755
OPEN_DIRECTORIES = 128
PREFIX = b".wh."
OPAQUE = b".wh..wh..opq"
# What the paths of one layer may take in memory: half a million files fit. A path takes some more than its bytes
_MOST_LAYER_BYTES = 128 << 20
_EACH_ENTRY_BYTES = 100
OLD_FILE, FILE, CONTIGUOUS, HARD_LINK, SYMLINK, DIRECTORY_ENTRY = b"\0", b"0", b"7", b"1", b"2", b"5"
FILES = frozenset((OLD_FILE, FILE, CONTIGUOUS))
# What a rootfs gets from its sandbox, and no archive may bring
LEFT_OUT = {b"3": "device", b"4": "device", b"6": "fifo"}
# What the directories may take in memory whose times are set at the end: half a million fit
_MOST_TIME_BYTES = 192 << 20
_EACH_TIME_BYTES = 300
RIGHTS = ((stat.S_ISUID, "setuid"), (stat.S_ISGID, "setgid"))
__all__ = ["Bounds", "Unpacked", "unpack"]
USUAL = Bounds()


class Header:
    """One header block. A plain class, because there are tens of thousands of them."""

    __slots__ = ("kind", "mode", "mtime_ns", "name", "size", "target")

    def __init__(self, name: bytes, kind: bytes, mode: int, size: int, mtime_ns: int, target: bytes) -> None:
        self.name = name
        self.kind = kind
        self.mode = mode
        self.size = size
        self.mtime_ns = mtime_ns
        self.target = target


def parse_header(block: bytes) -> Header:
    """Read one block.

    Raises:
        RootfsUnverified: it is not a header, or a damaged one.
    """
    name, mode, size, mtime, checksum, kind, target, magic, prefix = FIELDS.unpack(block)
    # The low half of Adler-32 is 1 more than the sum of the bytes, below 65521: so it is for 256 bytes. The checksum
    # itself counts as eight spaces
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - (adler32(checksum) & 0xFFFF) + 255
    if checksum != b"%06o\0 " % total and total != _number(checksum):
        raise RootfsUnverified("the archive is damaged: the checksum of a header is wrong")
    name = name.partition(b"\0")[0]
    if prefix[0] and magic.startswith(POSIX_MAGIC):
        name = prefix.partition(b"\0")[0] + b"/" + name
    length = _number(size)
    if length < 0:
        raise RootfsUnverified(f"the archive is damaged: {shown(name)} has a negative size")
    seconds = min(max(_often(mtime), 0), LATEST_SECOND)
    target = target.partition(b"\0")[0] if target[0] else b""
    return Header(name, kind, _often(mode) & 0o7777, length, seconds * NANOSECONDS, target)


def _often(field: bytes) -> int:
    """Read a number of which an archive has only a few: modes, and times of what was made at once."""
    found = _KNOWN.get(field)
    if found is None:
        if len(_KNOWN) > KNOWN_FIELDS:
            _KNOWN.clear()
        found = _KNOWN[field] = _number(field)
    return found


def _number(field: bytes) -> int:
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.isdigit():
        try:
            return int(digits, 8)
        except ValueError:
            raise _no_number(field) from None
    if not digits and field[0] in b" \0":
        return 0
    # GNU tar's way to write large and negative numbers: the first byte marks it, the rest is binary
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        return int.from_bytes(field, "big", signed=True)
    raise _no_number(field)


def _no_number(field: bytes) -> RootfsUnverified:
    return RootfsUnverified(f"the archive is damaged: {shown(field)} is not a number")


def parse_pax(body: bytes) -> dict[bytes, bytes]:
    """Read the records `LENGTH KEY=VALUE\\n` of an extended header; of two with one key the later holds.

    Raises:
        RootfsUnverified: they are not such records.
    """
    found: dict[bytes, bytes] = {}
    position = 0
    while position < len(body):
        digits, space, _ = body[position : position + 20].partition(b" ")
        if not space or not digits.isdigit():
            raise _bad_record()
        end = position + int(digits)
        record = body[position + len(digits) + 1 : end]
        key, equals, value = record.partition(b"=")
        if end > len(body) or not key or not equals or not record.endswith(b"\n"):
            raise _bad_record()
        found[key] = value[:-1]
        position = end
    return found


def _bad_record() -> RootfsUnverified:
    return RootfsUnverified("the archive is damaged: an extended header is not one")


def apply_pax(header: Header, records: dict[bytes, bytes]) -> int:
    """Let the records of an extended header hold for the header that follows; return how many are attributes.

    Raises:
        RootfsUnverified: a record is damaged.
        RootfsUnsafe: the entry is sparse, or has two sizes.
    """
    attributes = 0
    for key, value in records.items():
        if key == b"path":
            header.name = value
        elif key == b"linkpath":
            header.target = value
        elif key == b"size":
            _apply_size(header, value)
        elif key == b"mtime":
            header.mtime_ns = parse_mtime(value)
        elif key.startswith(b"GNU.sparse."):
            raise RootfsUnsafe(f"{shown(header.name)} is a sparse file")
        elif key.startswith(ATTRIBUTE_KEYS):
            attributes += 1
    return attributes


def _apply_size(header: Header, value: bytes) -> None:
    if not value.isdigit() or len(value) > 20:
        raise _bad_record()
    size = int(value)
    if size < LARGEST_PLAIN_SIZE and header.size not in (0, size):
        raise RootfsUnsafe(f"{shown(header.name)} has two sizes: {header.size} and {size}")
    header.size = size


def parse_mtime(value: bytes) -> int:
    """Read a decimal number of seconds as nanoseconds, within what file systems know.

    Raises:
        RootfsUnverified: it is not one.
    """
    whole, _, fraction = value.partition(b".")
    if not whole.removeprefix(b"-").isdigit() or not (fraction or b"0").isdigit() or len(value) > 100:
        raise _bad_record()
    if whole.startswith(b"-"):
        return 0
    return min(int(whole), LATEST_SECOND) * NANOSECONDS + int(fraction[:9].ljust(9, b"0"))


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
                raise RootfsUnverified("the archive has other data after its end")
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
                        "the archive is not a tar, or is damaged at its beginning", remedy=_TAR
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


class Names:
    """Checks names; each directory is looked at once, since most entries share theirs with the one before."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._parents: dict[bytes, bytes] = {}

    def split(self, name: bytes) -> tuple[bytes, bytes]:
        """Return the path of the directory and the name in it; both are empty for the tree itself.

        Raises:
            RootfsUnsafe: the name leads out of the tree, or is too long.
        """
        above, _, base = name.rpartition(b"/")
        parent = self._parents.get(above)
        if parent is None or base in NO_NAMES or len(base) > NAME_BYTES or name[0] == SLASH:
            parent, _, base = self.normal(name).rpartition(b"/")
            if len(self._parents) > REMEMBERED:
                self._parents.clear()
            self._parents[above] = self.normal(above + b"/.") if above else b""
        return parent, base

    def normal(self, name: bytes) -> bytes:
        """Return the path without what means nothing: `./`, doubled and trailing slashes."""
        if not name:
            raise RootfsUnsafe("an entry of the archive has no name")
        if name.startswith(b"/"):
            raise RootfsUnsafe(f"{shown(name)} is an absolute path")
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise RootfsUnsafe(f"{shown(name)} points outside its directory")
        path = b"/".join(parts)
        if len(path) >= PATH_BYTES or max(map(len, parts), default=0) > NAME_BYTES:
            raise RootfsUnsafe(f"{shown(name)} is too long")
        if len(parts) > self._depth:
            raise RootfsUnsafe(f"{shown(name)} is too deep")
        return path


class Tree:
    """The tree and its open directories."""

    def __init__(self, path: bytes) -> None:
        try:
            self._open = {b"": os.open(path, DIRECTORY)}
        except OSError as problem:
            raise RootfsError(f"{shown(path)} is not a directory to unpack to: {problem.strerror}") from None

    def close(self) -> None:
        """Close every directory."""
        while self._open:
            os.close(self._open.popitem()[1])

    def is_empty(self) -> bool:
        """Return whether there is nothing in the tree."""
        with os.scandir(self._open[b""]) as found:
            return next(found, None) is None

    def trim(self) -> None:
        """Close directories if many are open; not to be called while one is in use."""
        if len(self._open) > OPEN_DIRECTORIES:
            for path in list(self._open)[1 : OPEN_DIRECTORIES // 2]:
                os.close(self._open.pop(path))

    def forget(self, path: bytes) -> None:
        """Close the directory at a path and all beneath it, because they go away."""
        below = path + b"/"
        for known in [known for known in self._open if known == path or known.startswith(below)]:
            os.close(self._open.pop(known))

    def directory(self, path: bytes, *, make: bool = True) -> int:
        """Return a descriptor of a directory, which is made if need be; it stays ours.

        Raises:
            RootfsUnsafe: there is something else, for instance a link.
            FileNotFoundError: it is not there, and is not to be made.
        """
        if (known := self._open.get(path)) is not None:
            return known
        above, _, name = path.rpartition(b"/")
        parent = self.directory(above, make=make)
        try:
            fd = os.open(name, DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
            return self.make_directory(above, name, IMPLIED_MODE)
        except OSError as problem:
            if problem.errno in (errno.ELOOP, errno.ENOTDIR):
                raise RootfsUnsafe(f"{shown(path)} is not a directory, but entries would be written below it") from None
            raise
        self._open[path] = fd
        return fd

    def make_directory(self, above: bytes, name: bytes, mode: int) -> int:
        """Make a directory that is not there, with exactly that mode."""
        parent = self.directory(above)
        os.mkdir(name, 0o700, dir_fd=parent)
        fd = self._open[join(above, name)] = os.open(name, DIRECTORY, dir_fd=parent)
        if mode != 0o700:
            os.fchmod(fd, mode)
        return fd

    def kind(self, above: bytes, name: bytes) -> int | None:
        """Return the file type of an entry, None if there is none."""
        try:
            parent = self.directory(above, make=False)
            return stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return None


def join(above: bytes, name: bytes) -> bytes:
    """Return the path of an entry."""
    return above + b"/" + name if above else name


class LayerTree:
    """One layer over those that are in the tree already; `_own` are its paths, with all the directories above them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._own: set[bytes] = {b""}
        self._memory = Memory("the paths of one layer", _MOST_LAYER_BYTES)

    def claim(self, path: bytes) -> None:
        """Take note that the layer has an entry at a path.

        Raises:
            RootfsUnsafe: a directory on the way has the name of a whiteout, or there are more paths than in any layer.
        """
        while path not in self._own:
            self._memory.charge(len(path) + _EACH_ENTRY_BYTES)
            self._own.add(path)
            path, _, name = path.rpartition(b"/")
            if name.startswith(PREFIX):
                raise RootfsUnsafe(f"{shown(name)} has the name of a whiteout, but is something else")

    def owns(self, path: bytes) -> bool:
        """Return whether the layer has that path, or something beneath it."""
        return path in self._own

    def white_out(self, above: bytes, name: bytes) -> None:
        """Do what an entry says whose name begins as those of whiteouts do.

        Raises:
            RootfsUnsafe: it names nothing that could be removed.
        """
        if above:
            self.claim(above)
        victim = name.removeprefix(PREFIX)
        if name != OPAQUE and (victim in (b"", b".", b"..") or victim.startswith(PREFIX)):
            raise RootfsUnsafe(f"the whiteout {shown(name)} names nothing in its directory")
        if name == OPAQUE:
            self._empty(above)
        else:
            self.remove(above, victim)

    def remove(self, above: bytes, name: bytes) -> None:
        """Remove what the layers below have at a path."""
        try:
            parent = self._tree.directory(above, make=False)
        except FileNotFoundError:
            return
        path = join(above, name)
        if not self.owns(path):
            self._tree.forget(path)
            _remove_below(parent, name)
        elif self._tree.kind(above, name) == stat.S_IFDIR:
            self._empty(path)

    def _empty(self, path: bytes) -> None:
        for name in os.listdir(self._tree.directory(path)):
            self.remove(path, os.fsencode(name))


def _remove_below(parent: int, name: bytes) -> None:
    """Remove an entry, and what is beneath it; how deep that goes was bounded when it was made."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        fd = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            for child in os.listdir(fd):
                _remove_below(fd, os.fsencode(child))
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=parent)


class Writer:
    """Counts what it wrote in `entries` and `size_bytes`, and what it did not in `left_out`, by kind."""

    def __init__(self, stream: Stream, tree: Tree, bounds: Bounds, layer: LayerTree | None) -> None:
        self._stream = stream
        self._tree = tree
        self._bounds = bounds
        self._layer = layer
        self._names = Names(bounds.depth)
        self._times: dict[tuple[bytes, bytes], int] = {}
        self._memory = Memory("the paths of directories", _MOST_TIME_BYTES)
        self.entries = 0
        self.size_bytes = 0
        self.left_out: dict[str, int] = {}

    def write(self, entry: Header) -> None:
        """Write one entry, with its content.

        Raises:
            RootfsUnsafe: it must not be written.
        """
        self.entries += 1
        self._tree.trim()
        kind = entry.kind
        if kind in FILES and not entry.name.endswith(b"/"):
            self._write_file(entry)
        elif entry.size:
            raise RootfsUnsafe(f"{shown(entry.name)} has content, but is not a file")
        elif kind in (DIRECTORY_ENTRY, OLD_FILE):
            # The oldest tar marks directories by their slash alone
            self._write_directory(entry)
        elif kind == SYMLINK:
            self._write_symlink(entry)
        elif kind == HARD_LINK:
            self._write_hard_link(entry)
        else:
            self._leave_out(entry)

    def finish(self) -> None:
        """Set the times of the directories, which change as long as something is written into them."""
        for above, name in sorted(self._times):
            time_ns = self._times[above, name]
            self._tree.trim()
            if name:
                parent = self._tree.directory(above)
                os.utime(name, ns=(time_ns, time_ns), dir_fd=parent, follow_symlinks=False)
            else:
                os.utime(self._tree.directory(b""), ns=(time_ns, time_ns))

    def _write_file(self, entry: Header) -> None:
        above, name = self._split(entry)
        size = entry.size
        if self._layer is not None and name.startswith(PREFIX):
            if size:
                raise RootfsUnsafe(f"{shown(entry.name)} has content, but is a whiteout")
            self._layer.white_out(above, name)
            return
        if size > self._bounds.file_bytes:
            raise too_much(f"{shown(name)} has {size} bytes")
        parent = self._tree.directory(above)
        mode = self._allowed(entry.mode) & 0o777 | stat.S_IRUSR
        try:
            fd = os.open(name, NEW_FILE, mode, dir_fd=parent)
        except FileExistsError:
            self._make_room(above, name)
            fd = os.open(name, NEW_FILE, mode, dir_fd=parent)
        try:
            # Neither the umask nor a default access list of the tree may change what the archive says
            os.fchmod(fd, mode)
            self._stream.copy(fd, size)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)
        self.size_bytes += size
        self._claim(above, name)

    def _write_directory(self, entry: Header) -> None:
        above, name = self._names.split(entry.name)
        mode = self._allowed(entry.mode) | stat.S_IRWXU
        if (above, name) not in self._times:
            self._memory.charge(len(above) + len(name) + _EACH_TIME_BYTES)
        self._times[above, name] = entry.mtime_ns
        kind = self._tree.kind(above, name) if name else stat.S_IFDIR
        if kind == stat.S_IFDIR:
            os.fchmod(self._tree.directory(join(above, name)), mode)
        else:
            if kind is not None:
                self._make_room(above, name, for_directory=True)
            self._tree.make_directory(above, name, mode)
        self._claim(above, name)

    def _write_symlink(self, entry: Header) -> None:
        above, name = self._split(entry)
        target, time_ns = entry.target, entry.mtime_ns
        if not 0 < len(target) < PATH_BYTES:
            raise RootfsUnsafe(f"{shown(entry.name)} is a link to nothing, or its target's name is too long")
        self._make(above, name, lambda parent: os.symlink(target, name, dir_fd=parent))
        os.utime(name, ns=(time_ns, time_ns), dir_fd=self._tree.directory(above), follow_symlinks=False)
        self._claim(above, name)

    def _write_hard_link(self, entry: Header) -> None:
        above, name = self._split(entry)
        there, target = self._names.split(entry.target)
        # Nor to what would have to be removed to make room for the link
        is_own = (join(there, target) + b"/").startswith(join(above, name) + b"/")
        if is_own or self._tree.kind(there, target) != stat.S_IFREG:
            raise RootfsUnsafe(f"{shown(entry.name)} is a hard link to no file in the archive: {shown(entry.target)}")
        source = self._tree.directory(there)
        self._make(
            above,
            name,
            lambda parent: os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False),
        )
        self._claim(above, name)

    def _leave_out(self, entry: Header) -> None:
        above, _ = self._split(entry)
        if entry.kind not in LEFT_OUT:
            raise RootfsUnsafe(f"{shown(entry.name)} has a type that no rootfs needs: {shown(entry.kind)}")
        what = LEFT_OUT[entry.kind]
        if above.partition(b"/")[0] != b"dev":
            raise RootfsUnsafe(f"{shown(entry.name)} is a {what} outside dev")
        self.left_out[what] = self.left_out.get(what, 0) + 1

    def _split(self, entry: Header) -> tuple[bytes, bytes]:
        above, name = self._names.split(entry.name)
        if not name or entry.name.endswith(b"/"):
            raise RootfsUnsafe(f"{shown(entry.name)} has the name of a directory, but is something else")
        return above, name

    def _allowed(self, mode: int) -> int:
        """Return the mode without the bits that give a user's rights away."""
        if mode & (stat.S_ISUID | stat.S_ISGID):
            for bit, what in RIGHTS:
                if mode & bit:
                    self.left_out[what] = self.left_out.get(what, 0) + 1
        return mode & 0o1777

    def _make(self, above: bytes, name: bytes, make: Callable[[int], object]) -> None:
        parent = self._tree.directory(above)
        try:
            make(parent)
        except FileExistsError:
            self._make_room(above, name)
            make(parent)

    def _make_room(self, above: bytes, name: bytes, *, for_directory: bool = False) -> None:
        path = join(above, name)
        if self._layer is not None and not self._layer.owns(path):
            self._layer.remove(above, name)
        elif for_directory or self._tree.kind(above, name) == stat.S_IFDIR:
            raise RootfsUnsafe(f"{shown(path)} appears twice in the archive, as a directory and as something else")
        else:
            os.unlink(name, dir_fd=self._tree.directory(above))

    def _claim(self, above: bytes, name: bytes) -> None:
        if self._layer is not None:
            self._layer.claim(join(above, name))


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
        writer = Writer(stream, target, bounds, LayerTree(target) if whiteouts else None)
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
    return "Check that you can read the archive and write to the directory."
