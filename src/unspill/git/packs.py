# SPDX-License-Identifier: Apache-2.0
"""The packs of a repository: where an object begins in one, and what it is once its deltas are applied."""

from __future__ import annotations

import os
import zlib
from mmap import ACCESS_READ, mmap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Literal

    Kind = Literal["commit", "tree", "blob", "tag"]
    # Returns kind and content of an object that is in another pack, or loose, by its name
    ReadElsewhere = Callable[[bytes], tuple[Kind, bytes]]

# Larger commits and trees are nothing that git made for a person; blobs may have any size
LARGEST_OBJECT = 64 << 20
_CHUNK = 1 << 20
_DEEPEST = 4096
_KINDS: dict[int, Kind] = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _NAME_DELTA = 6, 7
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Broken(Exception):
    """An object is not what its name says, or can't be read."""


class Pack:
    """One pack and the index of it that says where its objects begin."""

    def __init__(self, index: bytes, pack: bytes, hash_size: int) -> None:
        self._size = hash_size
        with open(index, "rb") as file:
            self._index = mmap(file.fileno(), 0, access=ACCESS_READ)
        self._is_old = self._index[:4] != b"\xfftOc"
        if not self._is_old and self._index[4:8] != b"\0\0\0\2":
            raise Broken("an index of another version")
        self._fan = 0 if self._is_old else 8
        self._count = self._fanout(255)
        self._pack = pack
        self._fd = -1

    def find(self, raw: bytes) -> int | None:
        """Return where an object begins, None where it is not in this pack."""
        low, high = self._fanout(raw[0] - 1) if raw[0] else 0, self._fanout(raw[0])
        while low < high:
            middle = (low + high) // 2
            name = self._name(middle)
            if name == raw:
                return self._offset(middle)
            low, high = (middle + 1, high) if name < raw else (low, middle)
        return None

    def kind_at(self, offset: int, read_elsewhere: ReadElsewhere) -> Kind:
        """Say what an object is without reading it."""
        for _ in range(_DEEPEST):
            number, _size, at = self._header(offset)
            if number in _KINDS:
                return _KINDS[number]
            base = self._base(number, offset, at)[0]
            if isinstance(base, bytes):
                inner = self.find(bytes.fromhex(base.decode()))
                if inner is None:
                    return read_elsewhere(base)[0]
                base = inner
            offset = base
        raise Broken("too many deltas")

    def read(self, offset: int, read_elsewhere: ReadElsewhere) -> tuple[Kind, bytes]:
        """Return kind and content of the object that begins there."""
        deltas: list[bytes] = []
        for _ in range(_DEEPEST):
            number, size, at = self._header(offset)
            if size > LARGEST_OBJECT:
                raise Broken("too large")
            if number in _KINDS:
                kind, content = _KINDS[number], self._inflate(at, size)
                break
            base, at = self._base(number, offset, at)
            deltas.append(self._inflate(at, size))
            if isinstance(base, bytes):
                inner = self.find(bytes.fromhex(base.decode()))
                if inner is None:
                    kind, content = read_elsewhere(base)
                    break
                base = inner
            offset = base
        else:
            raise Broken("too many deltas")
        for delta in reversed(deltas):
            content = apply_delta(content, delta)
        return kind, content

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the names of all objects, as hexadecimal."""
        for number in range(self._count):
            yield self._name(number).hex().encode()

    def _fanout(self, first: int) -> int:
        at = self._fan + 4 * first
        return int.from_bytes(self._index[at : at + 4], "big")

    def _name(self, number: int) -> bytes:
        if self._is_old:
            at = 1024 + (4 + self._size) * number + 4
        else:
            at = 8 + 1024 + self._size * number
        return self._index[at : at + self._size]

    def _offset(self, number: int) -> int:
        if self._is_old:
            at = 1024 + (4 + self._size) * number
            return int.from_bytes(self._index[at : at + 4], "big")
        table = 8 + 1024 + (self._size + 4) * self._count
        at = table + 4 * number
        offset = int.from_bytes(self._index[at : at + 4], "big")
        if not offset & 1 << 31:
            return offset
        at = table + 4 * self._count + 8 * (offset & (1 << 31) - 1)
        return int.from_bytes(self._index[at : at + 8], "big")

    def _bytes(self, at: int, count: int) -> bytes:
        if self._fd < 0:
            self._fd = os.open(self._pack, _FILE)
        return os.pread(self._fd, count, at)

    def _header(self, offset: int) -> tuple[int, int, int]:
        """Return the number of the kind, the size, and where the rest begins."""
        text = self._bytes(offset, 32)
        number, size, shift, used = text[0] >> 4 & 7, text[0] & 15, 4, 1
        while text[used - 1] & 0x80:
            size |= (text[used] & 0x7F) << shift
            shift += 7
            used += 1
        return number, size, offset + used

    def _base(self, number: int, offset: int, at: int) -> tuple[int | bytes, int]:
        """Return what a delta is against, an offset or a name, and where the delta itself begins."""
        text = self._bytes(at, 32)
        if number == _NAME_DELTA:
            return text[: self._size].hex().encode(), at + self._size
        if number != _OFFSET_DELTA:
            raise Broken("an object of an unknown kind")
        back, used = text[0] & 0x7F, 1
        while text[used - 1] & 0x80:
            back = (back + 1) << 7 | text[used] & 0x7F
            used += 1
        if not 0 < back <= offset:
            raise Broken("a delta against nothing")
        return offset - back, at + used

    def _inflate(self, at: int, size: int) -> bytes:
        stream, found = zlib.decompressobj(), b""
        while len(found) < size and not stream.eof:
            chunk = self._bytes(at, _CHUNK)
            if not chunk:
                break
            found += stream.decompress(chunk, size - len(found) + 1)
            at += len(chunk)
        if len(found) != size:
            raise Broken("not of the size that it says")
        return found


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Return the content that a delta makes of another.

    Raises:
        Broken: the delta is none for this content.
    """
    (wanted, at), at_size = _length(delta, 0), 0
    at_size, at = _length(delta, at)
    if wanted != len(base) or at_size > LARGEST_OBJECT:
        raise Broken("a delta for another content")
    parts: list[bytes] = []
    while at < len(delta):
        code = delta[at]
        at += 1
        if not code & 0x80:
            parts.append(delta[at : at + code])
            at += code
            continue
        numbers = [0] * 7
        for bit in range(7):
            if code & 1 << bit:
                numbers[bit] = delta[at]
                at += 1
        start = int.from_bytes(bytes(numbers[:4]), "little")
        parts.append(base[start : start + (int.from_bytes(bytes(numbers[4:]), "little") or 0x10000)])
    content = b"".join(parts)
    if len(content) != at_size:
        raise Broken("a delta that ends too early")
    return content


def _length(text: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (text[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not text[at - 1] & 0x80:
            return value, at


def open_packs(directories: Sequence[bytes], hash_size: int) -> Iterator[Pack]:
    """Yield the packs of object directories that have a readable index."""
    for top in directories:
        try:
            names = sorted(os.listdir(top + b"/pack"))
        except OSError:
            continue
        for name in names:
            if name.endswith(b".idx") and name.removesuffix(b".idx") + b".pack" in names:
                path = top + b"/pack/" + name.removesuffix(b".idx")
                try:
                    yield Pack(path + b".idx", path + b".pack", hash_size)
                except (OSError, ValueError, Broken):
                    continue
