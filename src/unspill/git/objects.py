# SPDX-License-Identifier: Apache-2.0
"""The objects of a repository, loose or packed: what one is, which others it needs, which a repository can be given.

Names are hexadecimal bytes. A content that comes from a command is checked by its own name and read up to a bound;
nothing of it is believed. Git never rewrites an object that it has, so a wrong one would stay for good; and an object
whose history is not there makes the repository a broken one.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from mmap import ACCESS_READ, mmap

from unspill.git.files import LARGEST_FILE, digest, is_object_name, without_caches
from unspill.git.state import ODD_FORMAT, ODD_INDEX, hash_size_of
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from typing import Literal

    from unspill.model.change import Change

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

_MOST_ALTERNATES = 16
_WORDS: dict[bytes, Kind] = {b"commit": "commit", b"tree": "tree", b"blob": "blob", b"tag": "tag"}
_SUBMODULE = b"160000"
_MOST = 2_000_000
WRONG = "one of its objects is not what its name says"


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


class Object(Record):
    """What an object is and which others it needs: a commit its tree and parents, a tree its entries.

    `content` is that of commits, trees and tags.
    """

    kind: Kind
    needs: tuple[bytes, ...] = ()
    content: bytes = b""


class Objects:
    """Object directories as one, the first with a name decides."""

    def __init__(
        self,
        directories: Iterable[bytes],
        hash_size: int = 20,
        *,
        written: Iterable[bytes] = (),
        checked: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Take the directories of the person, and those that a command has `written`.

        Of the latter only loose objects count, which their names prove, and `checked` packs, with the index that we
        made of each: its own index could say that a commit has other parents, and its alternates could lead anywhere.
        """
        self._size = hash_size
        self._packed = tuple(_with_alternates(directories))
        self._directories = (*written, *self._packed)
        self._checked = tuple(checked)
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
            self._packs = [*_open_checked(self._checked, self._size), *open_packs(self._packed, self._size)]
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


def _open_checked(packs: Iterable[tuple[bytes, bytes]], hash_size: int) -> Iterator[Pack]:
    for index, pack in packs:
        try:
            yield Pack(index, pack, hash_size)
        except (OSError, ValueError, Broken):
            continue


def _with_alternates(directories: Iterable[bytes]) -> Iterator[bytes]:
    """Yield object directories, and so many at most that they borrow from."""
    waiting: list[bytes] = list(dict.fromkeys(directories))
    seen, most = set(waiting), len(waiting) + _MOST_ALTERNATES
    for top in waiting:
        yield top
        try:
            with open(os.open(top + b"/info/alternates", _FILE), "rb") as file:
                lines = file.read(1 << 16).splitlines()
        except OSError:
            continue
        named = [line for line in lines if line and b"\0" not in line and not line.startswith((b"#", b'"'))]
        fresh = dict.fromkeys(path for line in named if (path := os.path.join(top, line)) not in seen)
        waiting += list(fresh)[: most - len(waiting)]
        seen.update(waiting)


class Transfer(Record):
    """What can be given: paths in the git directory of loose objects and packs. `names` are all objects in them.

    `refused` are paths of what is not what its name says.
    """

    paths: tuple[bytes, ...]
    names: frozenset[bytes]
    refused: tuple[bytes, ...] = ()


def choose_objects(
    live: Objects,
    loose: Mapping[bytes, bytes],
    packs: Mapping[bytes, tuple[bytes, bytes]],
    *,
    hash_size: int,
    may_lack: bool = False,
    ends: Iterable[bytes] = (),
) -> Transfer:
    """Choose what a repository is given.

    Args:
        live: The objects that it has.
        loose: By path in the git directory, where each loose object of the run lies.
        packs: By path in the git directory, where each pack of the run lies, and the index that we made of it.
        hash_size: How many bytes names have.
        may_lack: The repository gets what is missing from elsewhere when it is needed.
        ends: Commits whose parents nobody has: those at which a shallow history ends.
    """
    return _ObjectChooser(live, hash_size, may_lack=may_lack, ends=frozenset(ends)).choose(loose, packs)


class _ObjectChooser:
    def __init__(self, live: Objects, hash_size: int, *, may_lack: bool, ends: frozenset[bytes]) -> None:
        self._live = live
        self._size = hash_size
        self._may_lack = may_lack
        self._ends = ends
        # Of each new object what it needs, and the path that it comes with
        self._needs: dict[bytes, tuple[bytes, ...]] = {}
        self._source: dict[bytes, bytes] = {}
        self._refused: list[bytes] = []

    def choose(self, loose: Mapping[bytes, bytes], packs: Mapping[bytes, tuple[bytes, bytes]]) -> Transfer:
        for path, place in loose.items():
            self._add_loose(path, place)
        for path, (pack, index) in packs.items():
            self._add_pack(path, pack, index)
        if not self._may_lack:
            self._drop_what_lacks_something()
        paths = dict.fromkeys(self._source[name] for name in self._needs)
        return Transfer(paths=tuple(paths), names=frozenset(self._needs), refused=tuple(self._refused))

    def _add_loose(self, path: bytes, place: bytes) -> None:
        name = path[-2 * self._size - 1 :].replace(b"/", b"")
        if self._live.has(name):
            return
        try:
            found = check_loose(os.open(place, _FILE), name, self._size)
        except (Broken, OSError):
            self._refused.append(path)
            return
        self._add(name, found, path)

    def _add_pack(self, path: bytes, place: bytes, index: bytes) -> None:
        try:
            pack = Pack(index, place, self._size)
            objects = Objects((), self._size)
            for count, name in enumerate(pack):
                if count >= _MOST:
                    raise Broken("too many objects")
                if self._live.has(name) or name in self._needs:
                    continue
                offset = pack.find(bytes.fromhex(name.decode()))
                assert offset is not None
                kind = pack.kind_at(offset, objects.raw)
                content = b"" if kind == "blob" else pack.read(offset, objects.raw)[1]
                self._add(name, parse(kind, content, self._size), path)
        except (Broken, OSError, ValueError, IndexError, zlib.error):
            self._refused.append(path)
            for name in [name for name, source in self._source.items() if source == path]:
                self._needs.pop(name, None)

    def _add(self, name: bytes, found: Object, path: bytes) -> None:
        needs = found.needs[:1] if found.kind == "commit" and name in self._ends else found.needs
        self._needs[name] = needs
        self._source[name] = path

    def _drop_what_lacks_something(self) -> None:
        """Leave out what needs an object that is nowhere, and what needs that in turn; a pack goes as a whole."""
        needed_by: dict[bytes, list[bytes]] = {}
        for name, needs in self._needs.items():
            for need in needs:
                needed_by.setdefault(need, []).append(name)
        members: dict[bytes, list[bytes]] = {}
        for name, source in self._source.items():
            members.setdefault(source, []).append(name)
        missing = [need for need in needed_by if need not in self._needs and not self._live.has(need)]
        for name in missing:
            for user in needed_by.get(name, ()):
                if user in self._needs:
                    gone = [other for other in members[self._source[user]] if other in self._needs]
                    missing += gone
                    for other in gone:
                        del self._needs[other]


class NewRepository(Record):
    """What of a repository that comes as a whole is applied: `contents` has what is written anew instead.

    `problem` says why nothing of it is, where one of its objects is not what its name says.
    """

    changes: tuple[Change, ...]
    contents: dict[bytes, bytes]
    problem: str = ""


def check_new_repository(
    changes: Iterable[Change],
    place_of: Callable[[Change], bytes],
    indexes: Mapping[bytes, bytes],
    unchecked: str,
    hash_size: int,
) -> NewRepository:
    """Check the objects and the index of a repository that comes as a whole; leave out what git makes anew by itself.

    `unchecked` says why a pack has none of the indexes. `hash_size` is that of names, where no configuration comes with
    it.
    """
    kept: list[Change] = []
    contents: dict[bytes, bytes] = {}
    changes = tuple(changes)
    if problem := _index_problem(changes, place_of, hash_size):
        return NewRepository(changes=(), contents={}, problem=problem)
    size = max(_sizes_of(changes, place_of), default=hash_size)
    for change in changes:
        *_above, first, second, name = (b"", b"", *change.path.split(b"/"))
        if change.entry is None or change.entry.kind != "file":
            kept.append(change)
        elif name == b"index" and (content := _read(place_of(change))).startswith(b"DIRC"):
            contents[change.path] = without_caches(content, size)
            kept.append(change)
        elif first == b"objects" and is_object_name(second + name):
            try:
                check_loose(os.open(place_of(change), _FILE), second + name, len(second + name) // 2)
            except (Broken, OSError):
                return NewRepository(changes=(), contents={}, problem=f"{WRONG}: {(second + name)[:12].decode()}")
            kept.append(change)
        elif first == b"objects" and second == b"pack":
            pack = change.path.rpartition(b".")[0] + b".pack"
            if pack not in indexes:
                return NewRepository(changes=(), contents={}, problem=unchecked)
            if name.endswith(b".idx"):
                with open(indexes[pack], "rb") as file:
                    contents[change.path] = file.read()
            kept += [change] if name.endswith((b".pack", b".idx", b".promisor")) else []
        elif b"/objects/info/" not in change.path or change.path.endswith(b"/objects/info/alternates"):
            kept.append(change)
    return NewRepository(changes=tuple(kept), contents=contents)


def _index_problem(changes: Iterable[Change], place_of: Callable[[Change], bytes], hash_size: int) -> str:
    """Return why an index among the changes can't be applied, where one can't; submodules have theirs as well."""
    named = [(change, change.path.rpartition(b"/")[2]) for change in changes if change.layer is not None]
    sizes = _sizes_of(changes, place_of) or {hash_size}
    if len(sizes) > 1:
        return ODD_FORMAT
    is_refused = any(name == b"index" and _is_refused(change, place_of, max(sizes)) for change, name in named)
    return ODD_INDEX if is_refused else ""


def _sizes_of(changes: Iterable[Change], place_of: Callable[[Change], bytes]) -> set[int]:
    configs = [change for change in changes if change.path.endswith(b"/config") and _is_file(change)]
    return {hash_size_of(_read(place_of(change))) for change in configs if change.layer is not None}


def _is_refused(change: Change, place_of: Callable[[Change], bytes], hash_size: int) -> bool:
    if not _is_file(change):
        return change.entry is not None and change.entry.kind != "dir"
    content = _read(place_of(change))
    # A branch may have this name, too
    return content.startswith(b"DIRC") and (len(content) >= LARGEST_FILE or not digest(content, hash_size))


def _is_file(change: Change) -> bool:
    return change.entry is not None and change.entry.kind == "file"


def _read(place: bytes) -> bytes:
    with open(os.open(place, _FILE), "rb") as file:
        return file.read(LARGEST_FILE)
