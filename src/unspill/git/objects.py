# SPDX-License-Identifier: Apache-2.0
"""The objects of a repository: whether one is there, what it is, and which others it needs.

Reads loose objects and packs, also of a repository that this one borrows from. Names are hexadecimal bytes. A content
that comes from a command is checked by its own name and read up to a bound; nothing of it is believed.
"""

from __future__ import annotations

import hashlib
import os
import zlib

from unspill.git.packs import LARGEST_OBJECT, Broken, open_packs
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.git.packs import Kind, Pack

_CHUNK = 1 << 20
_DEEPEST = 4096
_MOST_ALTERNATES = 16
_WORDS: dict[bytes, Kind] = {b"commit": "commit", b"tree": "tree", b"blob": "blob", b"tag": "tag"}
_SUBMODULE = b"160000"
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Object(Record):
    """What an object is and which others it needs: a commit its tree and parents, a tree its entries.

    `content` is that of commits, trees and tags.
    """

    kind: Kind
    needs: tuple[bytes, ...] = ()
    content: bytes = b""


class Objects:
    """Object directories as one, the first with a name decides."""

    def __init__(self, directories: Iterable[bytes], hash_size: int = 20) -> None:
        self._size = hash_size
        self._directories = tuple(_with_alternates(directories))
        self._packs: list[Pack] | None = None
        self._known: dict[bytes, Object | None] = {}

    def has(self, name: bytes) -> bool:
        """Tell whether an object is there."""
        return any(os.path.lexists(_loose(top, name)) for top in self._directories) or self._in_pack(name) is not None

    def find(self, name: bytes) -> Object | None:
        """Return an object, None where there is none that can be read."""
        if name not in self._known:
            try:
                self._known[name] = self._read(name)
            except (Broken, OSError, ValueError, IndexError, zlib.error):
                self._known[name] = None
        return self._known[name]

    def tree_of(self, name: bytes) -> bytes | None:
        """Return the tree of a commit, or of the commit that a tag names."""
        for _ in range(_DEEPEST):
            found = self.find(name)
            if found is None or not found.needs:
                return None
            name = found.needs[0]
            if found.kind == "commit":
                return name
        return None

    def entry_at(self, tree: bytes, path: bytes) -> tuple[bytes, bytes] | None:
        """Return mode and name of what a tree has at a path, None where it has nothing."""
        *above, last = path.split(b"/")
        for part in above:
            found = self._entries(tree).get(part)
            if found is None:
                return None
            tree = found[1]
        return self._entries(tree).get(last)

    def is_ancestor(self, old: bytes, new: bytes, most: int = 500) -> bool:
        """Tell whether a commit is among the ancestors of another, as far as so many of these are read."""
        waiting, seen = [new], {new}
        for commit in waiting:
            if commit == old:
                return True
            found = self.find(commit)
            if found is None or found.kind not in ("commit", "tag"):
                continue
            parents = found.needs[1:] if found.kind == "commit" else found.needs
            fresh = [parent for parent in parents if parent not in seen]
            seen.update(fresh)
            waiting += fresh[: max(0, most - len(waiting))]
        return False

    def raw(self, name: bytes) -> tuple[Kind, bytes]:
        """Return kind and content of an object that a delta is against."""
        place = self._in_pack(name)
        if place is not None:
            return place[0].read(place[1], self.raw)
        for top in self._directories:
            try:
                fd = os.open(_loose(top, name), _FILE)
            except FileNotFoundError:
                continue
            with open(fd, "rb") as file:
                text = zlib.decompressobj().decompress(file.read(LARGEST_OBJECT), LARGEST_OBJECT)
            header, _, content = text.partition(b"\0")
            return _WORDS[header.partition(b" ")[0]], content
        raise Broken(f"{name.decode()} is missing")

    def _entries(self, tree: bytes) -> dict[bytes, tuple[bytes, bytes]]:
        found = self.find(tree)
        if found is None or found.kind != "tree":
            return {}
        return {name: (mode, oid) for mode, name, oid in tree_entries(found.content, self._size)}

    def _read(self, name: bytes) -> Object | None:
        for top in self._directories:
            try:
                fd = os.open(_loose(top, name), _FILE)
            except FileNotFoundError:
                continue
            return check_loose(fd, name, self._size)
        place = self._in_pack(name)
        if place is None:
            return None
        kind, content = place[0].read(place[1], self.raw)
        return parse(kind, content, self._size)

    def _in_pack(self, name: bytes) -> tuple[Pack, int] | None:
        raw = bytes.fromhex(name.decode("ascii"))
        if self._packs is None:
            self._packs = list(open_packs(self._directories, self._size))
        for pack in self._packs:
            offset = pack.find(raw)
            if offset is not None:
                return pack, offset
        return None


def check_loose(fd: int, name: bytes, hash_size: int) -> Object:
    """Return the loose object that is open, which is closed then.

    Raises:
        Broken: it is not what its name says.
        OSError: it can't be read.
    """
    digest = hashlib.sha1(usedforsecurity=False) if hash_size == 20 else hashlib.sha256()
    stream = zlib.decompressobj()
    kept, size, header = b"", 0, b""
    try:
        with open(fd, "rb", buffering=0) as file:
            while not stream.eof and (chunk := file.read(_CHUNK)):
                while chunk and not stream.eof:
                    text = stream.decompress(chunk, _CHUNK)
                    chunk = stream.unconsumed_tail
                    digest.update(text)
                    size += len(text)
                    header = header or text[:32]
                    if not header.startswith(b"blob"):
                        kept += text
                    if len(kept) > LARGEST_OBJECT:
                        raise Broken("too large")
            rest = stream.unused_data or file.read(1)
    except zlib.error as error:
        raise Broken(str(error)) from error
    if not stream.eof or rest or digest.hexdigest().encode() != name:
        raise Broken("not what its name says")
    word, _, length = header.partition(b"\0")[0].partition(b" ")
    if word not in _WORDS or not length.isdigit() or size != len(word) + len(length) + 2 + int(length):
        raise Broken("not an object")
    return parse(_WORDS[word], kept.partition(b"\0")[2], hash_size)


def parse(kind: Kind, content: bytes, hash_size: int) -> Object:
    """Return what an object needs.

    Raises:
        Broken: it is malformed.
    """
    if kind == "blob":
        return Object(kind=kind)
    if kind == "tree":
        needs = tuple(oid for mode, _name, oid in tree_entries(content, hash_size) if mode != _SUBMODULE)
        return Object(kind=kind, needs=needs, content=content)
    wanted = (b"tree", b"parent") if kind == "commit" else (b"object",)
    needs = tuple(value for word, value in _header_lines(content) if word in wanted)
    if not needs or any(len(name) != 2 * hash_size for name in needs):
        raise Broken(f"a {kind} without what it needs")
    return Object(kind=kind, needs=needs, content=content)


def _header_lines(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in content.partition(b"\n\n")[0].split(b"\n"):
        word, _, value = line.partition(b" ")
        # What a signature continues begins with a space, and the author comes after all that is needed
        if word in (b"author", b"type"):
            return
        yield word, value


def tree_entries(content: bytes, hash_size: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield mode, name and object of each entry of a tree.

    Raises:
        Broken: it ends too early.
    """
    at = 0
    while at < len(content):
        end = content.find(b"\0", at)
        mode, _, name = content[at:end].partition(b" ")
        oid = content[end + 1 : end + 1 + hash_size]
        if end < 0 or len(oid) != hash_size:
            raise Broken("a tree that ends too early")
        yield mode, name, oid.hex().encode()
        at = end + 1 + hash_size


def make_object(kind: Kind, content: bytes, hash_size: int) -> tuple[bytes, bytes]:
    """Return the name of an object and its loose form."""
    text = b"%b %d\0%b" % (kind.encode(), len(content), content)
    digest = hashlib.sha1(text, usedforsecurity=False) if hash_size == 20 else hashlib.sha256(text)
    return digest.hexdigest().encode(), zlib.compress(text)


def blob_name(fd: int, size: int, hash_size: int) -> bytes:
    """Return the name that git gives to the content of an open file, which is closed then."""
    digest = hashlib.sha1(usedforsecurity=False) if hash_size == 20 else hashlib.sha256()
    digest.update(b"blob %d\0" % size)
    with open(fd, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest().encode()


def _loose(directory: bytes, name: bytes) -> bytes:
    return b"%b/%b/%b" % (directory, name[:2], name[2:])


def _with_alternates(directories: Iterable[bytes]) -> Iterator[bytes]:
    """Yield object directories and those that they borrow from."""
    waiting: list[bytes] = list(directories)
    seen: set[bytes] = set()
    while waiting and len(seen) < _MOST_ALTERNATES:
        top = waiting.pop(0)
        if top in seen:
            continue
        seen.add(top)
        yield top
        try:
            with open(top + b"/info/alternates", "rb") as file:
                lines = file.read(1 << 16).splitlines()
        except OSError:
            continue
        waiting += [os.path.join(top, line) for line in lines if line and not line.startswith((b"#", b'"'))]
