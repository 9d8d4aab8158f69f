# SPDX-License-Identifier: Apache-2.0
"""What held changes were made from: their bases.

A held change is a base and a result. The layer has the result; here is what the run saw at the path: nothing, or an
entry with its kind, mode, a digest of its content, and for a text the text itself. So an apply knows whether the person
changed a file, deleted it or only wrote it again, and a merge knows where both sides started from. A layer that is made
from others gets their bases. Of a file that the person edited during the run only the kind is known: its base has no
digest. Digests and texts have bounds; beyond them times decide, and an edited file is a conflict.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from hashlib import blake2b

from unspill.changes.diff import is_binary
from unspill.changes.merge import LARGEST_TEXT, digest_of_merge
from unspill.host.dirfd import Beneath, digest_of, read_unchanged
from unspill.host.overlay import FORMAT, KINDS, hides_below, list_attributes, user_attributes, was_copied_up
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Protocol

    from unspill.model.change import Change, EntryKind, Resolution, Side
    from unspill.model.run import LayerId, Stack
    from unspill.store.db import Store

    class LayerMarks(Protocol):
        """Says of a path which layer of a stack was the first to change it."""

        def first(self, path: bytes) -> int: ...


# Of one layer, or of what one operation puts
MOST_TEXTS = 500
MOST_BYTES = 8 << 20
_MOST_DIGESTS = 2000
_MOST_DIGESTED = 64 << 20
LARGEST_DIGESTED = 16 << 20
_ACCESS_LIST = "system.posix_acl_access"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Base(Record):
    """An entry as a run saw it; `kind` is None where there was none.

    `mode` is 0 if only the kind is known. `digest` is that of the content and the attributes, empty where nobody read
    them. A directory `is_listed` if all that was in it has a base too.
    """

    kind: EntryKind | None
    mode: int = 0
    digest: bytes = b""
    is_listed: bool = False

    def is_at(self, tree: Beneath, path: bytes, status: os.stat_result) -> bool:
        """Tell whether the entry at a path is this one: the same bits, and byte for byte the same content."""
        is_alike = KINDS.get(status.st_mode & FORMAT) == self.kind and stat.S_IMODE(status.st_mode) == self.mode
        return is_alike and self.has_content_of(tree, path, status)

    def has_content_of(self, tree: Beneath, path: bytes, status: os.stat_result) -> bool:
        """Tell whether the entry at a path has the same content and attributes, whatever its bits are."""
        return bool(self.digest) and digest_at(tree, path, status) == self.digest


ABSENT = Base(kind=None)


class Bases:
    """The bases of one root, and what becomes of lines that the person has changed as well."""

    def __init__(
        self,
        known: LayerBases,
        find_text: Callable[[bytes], bytes | None],
        sides: Mapping[bytes, Side],
        resolutions: Mapping[bytes, Resolution] | None = None,
    ) -> None:
        """`find_text` returns the text that a merge starts from; `sides` has a path for all below it."""
        self.of = known.of
        self.text = find_text
        self._sides = sides
        self._resolutions = resolutions or {}

    def resolve(self, path: bytes, texts: tuple[bytes, bytes, bytes], clashes: int) -> Side | tuple[Side, ...] | None:
        """Return whose lines count in each conflict between three texts, or in all; None where nobody said so."""
        found = self._resolutions.get(path)
        if found is None:
            return self.side_of(path)
        return found.sides if found.digest == digest_of_merge(*texts) and len(found.sides) == clashes else None

    def side_of(self, path: bytes) -> Side | None:
        """Return whose lines count in a file, where somebody said so; the nearest word for it."""
        found = [top for top in self._sides if top in (b".", path) or path.startswith(top + b"/")]
        return self._sides[max(found, key=lambda top: (top != b".", len(top)))] if found else None


class LayerBases:
    """The bases of what some layers over one root change, oldest layer first: the oldest that knows a base gives it."""

    def __init__(self, store: Store, root: bytes, layers: Sequence[str], marks: LayerMarks) -> None:
        self._store = store
        self._root = root
        self._layers = layers
        self._marks = marks
        self._known: dict[str, dict[bytes, Base]] = {}
        self._texts: dict[str, dict[bytes, bytes]] = {}

    def of(self, path: bytes) -> Base | None:
        """Return the base of a path; None where it is not known."""
        for layer in self._layers[self._marks.first(path) :]:
            # The first may have a directory only on the way to something else
            found = self._in_layer(layer, path)
            if found is not None:
                return found
        return None

    def _in_layer(self, layer: str, path: bytes) -> Base | None:
        known = self._of_layer(layer)
        if path in known:
            return known[path]
        above = path.rpartition(b"/")[0]
        while above and above not in known:
            above = above.rpartition(b"/")[0]
        # All that was in it is known, and this is not
        return ABSENT if above in known and known[above].is_listed else None

    def below(self, path: bytes) -> dict[bytes, Base]:
        """Return the bases that are known of what was in a directory."""
        found: dict[bytes, Base] = {}
        for layer in reversed(self._layers):
            found |= {inner: base for inner, base in self._of_layer(layer).items() if inner.startswith(path + b"/")}
        return found

    def text(self, path: bytes) -> bytes | None:
        """Return the text of a path; None where none was kept."""
        return unpack(self.packed(path))

    def packed(self, path: bytes) -> bytes | None:
        """Return the text of a path as it is kept."""
        layer = self._layers[self._marks.first(path)]
        if layer not in self._texts:
            self._texts[layer] = self._store.texts.of_root(layer, self._root)
        return self._texts[layer].get(path)

    def _of_layer(self, layer: str) -> dict[bytes, Base]:
        if layer not in self._known:
            self._known[layer] = find_bases(self._store, layer)
        return self._known[layer]


class KeptTexts:
    """Texts that are kept together, packed and within the bounds."""

    def __init__(self) -> None:
        self.kept: dict[tuple[bytes, bytes], bytes] = {}
        self._room = MOST_BYTES

    def has_room(self, size: int) -> bool:
        """Tell whether a file of a size may be kept as well."""
        return size <= min(LARGEST_TEXT, self._room) and len(self.kept) < MOST_TEXTS

    def add(self, root: bytes, path: bytes, content: bytes | None) -> None:
        """Keep what is a text."""
        if content is not None and not is_binary(content):
            self.add_packed(root, path, pack(content), len(content))

    def add_packed(self, root: bytes, path: bytes, packed: bytes, size: int) -> None:
        """Keep what was packed before."""
        self.kept[root, path] = packed
        self._room -= size


def pack(text: bytes) -> bytes:
    """Return a text as it is kept."""
    return zlib.compress(text, 1)


def unpack(packed: bytes | None) -> bytes | None:
    """Return a text that was kept; None where there is none, or none that is whole."""
    try:
        return None if packed is None else zlib.decompress(packed)
    except zlib.error:
        return None


def find_text(store: Store, owner: str, root: bytes, path: bytes) -> bytes | None:
    """Return a text that was kept for a layer or for an operation; None where there is none, or none that is whole."""
    return unpack(store.texts.find(owner, root, path))


def put_bases(store: Store, layer: LayerId, bases: Mapping[bytes, Base]) -> None:
    """Keep the bases of a layer."""
    rows = [
        (os.fsdecode(path), base.kind, base.mode, base.digest.hex(), base.is_listed) for path, base in bases.items()
    ]
    if rows:
        store.bases.put(layer, zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1))


def find_bases(store: Store, layer: str) -> dict[bytes, Base]:
    """Return the bases of a layer by path."""
    packed = store.bases.find(layer)
    try:
        rows = json.loads(zlib.decompress(packed)) if packed is not None else ()
    except (zlib.error, ValueError):
        return {}
    return {
        os.fsencode(path): Base(kind=kind, mode=mode, digest=bytes.fromhex(digest), is_listed=is_listed)
        for path, kind, mode, digest, is_listed in rows
    }


def may_move_files(changes: Iterable[Change]) -> bool:
    """Tell whether some file may have come from another path: then that one is gone."""
    return any(change.kind in ("deleted", "replaced") for change in changes)


def digest_at(tree: Beneath, path: bytes, status: os.stat_result) -> bytes:
    """Return a digest of the content and attributes of an entry; nothing if it is too large or can't be read."""
    try:
        fd, name = tree.parent(path)
        kind = KINDS.get(status.st_mode & FORMAT)
        content = b""
        if kind == "symlink":
            content = os.readlink(name, dir_fd=fd)
        elif kind == "file":
            if status.st_size > LARGEST_DIGESTED:
                return b""
            content = _digest_unchanged(fd, name, status)
        place = b"/proc/self/fd/%d/%b" % (fd, name)
        names = list_attributes(place)
        attributes = user_attributes(place, names)
        if _ACCESS_LIST in names:
            attributes[_ACCESS_LIST] = os.getxattr(place, _ACCESS_LIST, follow_symlinks=False)
    except OSError:
        return b""
    return blake2b(repr((kind, content, sorted(attributes.items()))).encode(), digest_size=16).digest()


def base_at(tree: Beneath, path: bytes) -> Base:
    """Return an entry as it is now as a base; without a digest where it can't be read."""
    try:
        status = tree.find(path)
    except NotADirectoryError:
        status = None
    if status is None:
        return ABSENT
    kind, mode = KINDS.get(status.st_mode & FORMAT, "special"), stat.S_IMODE(status.st_mode)
    return Base(kind=kind, mode=mode, digest=digest_at(tree, path, status))


def read_live(tree: Beneath, path: bytes) -> bytes | None:
    """Return the content of a file that may be a text; None where it can't be read."""
    try:
        status = tree.find(path)
        return None if status is None else read_unchanged(*tree.parent(path), status, LARGEST_TEXT)
    except OSError:
        return None


def is_directory(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _is_changed_in(upper: bytes, path: bytes) -> bool:
    """Tell whether a layer changes what it has at a path; a directory may have been made again as it was."""
    place = upper + b"/" + path
    return hides_below(place) and not (is_directory(place) and was_copied_up((upper,), path))


def _digest_unchanged(dir_fd: int, name: bytes, status: os.stat_result) -> bytes:
    fd = os.open(name, _READ, dir_fd=dir_fd)
    try:
        digest = digest_of(fd, status.st_size)
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if (found.st_ino, found.st_size, found.st_ctime_ns) != (status.st_ino, status.st_size, status.st_ctime_ns):
        raise BlockingIOError
    return b"%d %b" % (status.st_size, digest)


class BaseReader:
    """Reads what changes were made from, within the bounds, as far as nobody has changed it since."""

    def __init__(self, root: bytes, mask: bytes | None, lower: Sequence[bytes] = ()) -> None:
        """`lower` are the layers beneath that of the changes."""
        self.bases: dict[bytes, Base] = {}
        self.texts = KeptTexts()
        # For look-ups only: the operation itself may have closed the project to its owner
        self.live = Beneath(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        self._root = root
        self._mask = mask
        self._lower = lower
        self._digests = _MOST_DIGESTS
        self._room = _MOST_DIGESTED

    def add(self, change: Change, mark_ns: int, *, may_have_moved: bool) -> None:
        """Read the base of a change, and its text."""
        path = change.path
        if change.base_kind is None:
            # What was deleted while the run wrote to it is not new
            kind = "file" if change.entry is None else change.entry.kind
            # A file may have come from another path; a directory can't
            may_have_moved = kind != "dir" and (may_have_moved or not self._is_emptied(path, mark_ns))
            layers = () if change.layer is None or may_have_moved else (change.layer,)
            is_deleted = was_copied_up(layers, path)
            self.bases[path] = Base(kind=kind) if is_deleted else ABSENT
            return
        gives_way = change.base_kind == "dir" and change.kind in ("deleted", "replaced")
        is_listed = gives_way and self._list(path, mark_ns)
        status = self._find(path, mark_ns)
        if status is None and change.base_kind != "dir":
            # The run may have seen another entry. Keep its kind: if it is gone later, the person deleted it
            self.bases.setdefault(path, Base(kind=change.base_kind))
        if status is None:
            return
        base = self._base_of(path, status)
        self.bases[path] = base.replace(is_listed=True) if is_listed else base
        if base.kind == "file" and self.texts.has_room(status.st_size):
            self.texts.add(self._root, path, read_unchanged(*self.live.parent(path), status, LARGEST_TEXT))

    def is_changed_below(self, path: bytes) -> bool:
        """Return whether a lower layer changes a path.

        A directory that only leads to other changes doesn't count, unless the person has put a file in its place: the
        directory hides that file.
        """
        layers = [upper for upper in self._lower if os.path.lexists(upper + b"/" + path)]
        live = self._root + b"/" + path
        if layers and os.path.lexists(live) and not is_directory(live):
            return True
        return any(_is_changed_in(upper, path) for upper in self._lower)

    def _is_emptied(self, path: bytes, mark_ns: int) -> bool:
        """Tell whether something may have gone from the live directory of a path since a moment."""
        above = path.rpartition(b"/")[0]
        if self.bases.get(above) == ABSENT:
            # The run made it
            return False
        try:
            return os.fstat(self.live.directory(above)).st_mtime_ns >= mark_ns
        except NotADirectoryError:
            # Held runs have put a directory there
            return False
        except OSError:
            return True

    def _find(self, path: bytes, mark_ns: int) -> os.stat_result | None:
        """Look at the live entry; None if the run may have seen another."""
        place = b"" if self._mask is None else self._mask + b"/" + path
        if place and os.path.lexists(place) and not os.path.isdir(place):
            self.bases[path] = ABSENT
            return None
        try:
            status = os.fstat(self.live.root_fd) if path == b"." else self.live.find(path)
        except OSError:
            return None
        return None if status is None or status.st_ctime_ns >= mark_ns else status

    def _base_of(self, path: bytes, status: os.stat_result) -> Base:
        kind = KINDS.get(status.st_mode & FORMAT, "special")
        size = status.st_size if kind == "file" else 0
        self._digests -= 1
        digest = b""
        if self._digests >= 0 and size <= self._room:
            digest = digest_at(self.live, path, status)
            self._room -= size
        return Base(kind=kind, mode=stat.S_IMODE(status.st_mode), digest=digest)

    def _list(self, top: bytes, mark_ns: int) -> bool:
        """Read the bases of what is in a directory; tell whether those of all could be read."""
        waiting, is_whole = [top], True
        while waiting:
            above = waiting.pop()
            try:
                with os.scandir(self.live.directory(above)) as entries:
                    names = [os.fsencode(entry.name) for entry in entries]
            except OSError:
                is_whole = False
                continue
            for name in names:
                path = above + b"/" + name
                if self._digests <= 0:
                    return False
                if self.is_changed_below(path):
                    # That layer knows it
                    continue
                status = self._find(path, mark_ns)
                if status is None:
                    is_whole = False
                    continue
                self.bases[path] = self._base_of(path, status)
                if self.bases[path].kind == "dir":
                    waiting.append(path)
        return is_whole

    def __enter__(self) -> BaseReader:
        return self

    def __exit__(self, *_details: object) -> None:
        self.live.close()


def keep_seen_bases(store: Store, stack: Stack, layer: LayerId, mark_ns: int, changes: Iterable[Change]) -> None:
    """Keep for the layer of a run what it saw where it changed something, as far as nobody has changed that since.

    Of what lower layers change, those keep it. What is masked no run has seen.
    """
    lower = [sealed.upper for sealed in stack.sealed if sealed.id != layer]
    changes = tuple(changes)
    may_have_moved = may_move_files(changes)
    with BaseReader(stack.live, stack.mask, lower) as reader:
        for change in changes:
            if b".git/" not in change.path and not reader.is_changed_below(change.path):
                reader.add(change, mark_ns, may_have_moved=may_have_moved)
    put_bases(store, layer, reader.bases)
    store.texts.put(layer, reader.texts.kept)
