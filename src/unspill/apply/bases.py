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
from collections import deque
from hashlib import blake2b
from itertools import islice

from unspill.changes.diff import is_binary
from unspill.changes.merge import LARGEST_TEXT, digest_of_merge
from unspill.host.dirfd import Beneath, digest_of, read_unchanged
from unspill.host.libc import Statx
from unspill.host.overlay import FORMAT, KINDS, hides_below, list_attributes, user_attributes, was_copied_up
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Protocol

    from unspill.model.change import Change, EntryKind, Resolution, Side
    from unspill.model.run import LayerId, Stack, TakenAway
    from unspill.store.db import Store

    class Explains(Protocol):
        """Says whether we made an entry newer than a mark; with `names`, whether only we put or took names in it."""

        def __call__(self, path: bytes, status: os.stat_result, mark: int, *, names: bool = False) -> bool: ...

    class LayerMarks(Protocol):
        """Says of a path which layer of a stack was the first to change it."""

        def first(self, path: bytes) -> int: ...


# Of one layer, or of what one operation puts
MOST_TEXTS = 500
MOST_BYTES = 8 << 20
_MOST_DIGESTS = 2000
_MOST_DIGESTED = 64 << 20
LARGEST_DIGESTED = 16 << 20
# So many files that a run took away are looked at
_MOST_GONE = 10_000
_ACCESS_LIST = "system.posix_acl_access"
# Before the digest that is kept instead of a text; no packed text begins so
_DIGEST = b"digest "
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

    def is_unread(self, path: bytes) -> bool:
        """Tell whether the live entry was looked at when its run had ended, and its content was not read."""
        base = self.of(path)
        return base is not None and bool(base.mode) and not base.digest

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
        self._room_to_digest = _MOST_DIGESTED

    def has_room(self, size: int) -> bool:
        """Tell whether a file of a size may be kept as well."""
        return size <= min(LARGEST_TEXT, self._room) and len(self.kept) < MOST_TEXTS

    def add(self, root: bytes, path: bytes, content: bytes | None) -> None:
        """Keep what is a text."""
        if content is not None and not is_binary(content):
            self.add_packed(root, path, pack(content), len(content))

    def add_file(self, root: bytes, path: bytes, dir_fd: int, name: bytes) -> None:
        """Keep the text of a file, or a digest of what is no text, or too large."""
        status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if self.has_room(status.st_size):
            self.add(root, path, read_unchanged(dir_fd, name, status, LARGEST_TEXT))
        if (root, path) not in self.kept and status.st_size <= self._room_to_digest:
            self._room_to_digest -= status.st_size
            if digest := _digest_content(dir_fd, name, status):
                self.kept[root, path] = _DIGEST + digest

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


def is_kept_content(kept: bytes | None, dir_fd: int, name: bytes, status: os.stat_result) -> bool:
    """Tell whether a file has the content of which the text or a digest was kept."""
    text = unpack(kept)
    if text is not None:
        return read_unchanged(dir_fd, name, status, len(text)) == text
    return kept is not None and kept == _DIGEST + _digest_content(dir_fd, name, status)


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


class Moves:
    """What some changes take away: a file that looks like one of those may have been moved."""

    def __init__(self, changes: Iterable[Change], *trees: bytes) -> None:
        """`trees` are the live tree and the layers beneath that of the changes."""
        self._gone = [change for change in changes if change.kind in ("deleted", "replaced")]
        self._trees = trees
        # Sizes and times, read when they are first needed
        self._known: set[tuple[int, int]] | None = None

    def may_bring(self, place: bytes) -> bool:
        """Tell whether the file of a layer may have come from a path where it is gone."""
        if not self._gone:
            return False
        if self._known is None:
            # Files first: a large directory may exhaust the bound
            gone = sorted(self._gone, key=lambda change: change.base_kind == "dir")
            sizes = (size for tree in self._trees for size in _sizes_below(tree, [change.path for change in gone]))
            self._known = set(islice(sizes, _MOST_GONE))
        try:
            found = os.lstat(place)
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) in self._known


def _sizes_below(root: bytes, paths: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the size and time of each file at or below some paths of a tree."""
    waiting = deque(paths)
    with Beneath(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as tree:
        while waiting:
            path = waiting.popleft()
            try:
                status = tree.find(path)
                if status is None:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    with os.scandir(tree.directory(path)) as entries:
                        waiting += [path + b"/" + os.fsencode(entry.name) for entry in entries]
                else:
                    yield status.st_size, status.st_mtime_ns
            except OSError:
                continue


def has_moved(live: Beneath, path: bytes, status: os.stat_result, mark: int, statx: Statx | None = None) -> bool:
    """Tell whether a directory that is not older than a mark came to its place since, as far as its times tell.

    To rename a directory changes its ctime alone; what is put into it changes both times alike.
    """
    if status.st_ctime_ns != status.st_mtime_ns:
        return True
    return ((statx or Statx()).born_ns(*live.parent(path)) or 0) >= mark


def find_moved(
    live: Beneath, changes: Iterable[Change], mark_of: Callable[[Change], int], explains: Explains | None = None
) -> dict[bytes, bool]:
    """Return the paths of changes that lie in a live directory, or are one, that may not be the one their run saw.

    Where times prove that it is another the path has True. Where somebody changed names in the directory and in the one
    above it, it may have been exchanged and filled, and the path has False. An operation asks before its first step,
    which may change the times of directories itself.
    """
    known: dict[tuple[bytes, int], bool | None] = {}
    moved: dict[bytes, bool] = {}
    statx = Statx()

    def look(path: bytes, mark: int) -> bool | None:
        found = find_directory(live, path)
        if found is None or found.st_ctime_ns < mark or (explains is not None and explains(path, found, mark)):
            return None
        if has_moved(live, path, found, mark, statx):
            return True
        # Names come and go in a repository all the time; that it is another one its own state tells
        is_git = b".git" in path.split(b"/")
        return False if not is_git and has_other_names(live, path.rpartition(b"/")[0], mark, explains) else None

    for change in changes:
        mark = mark_of(change)
        path = change.path if change.base_kind == "dir" else change.path.rpartition(b"/")[0]
        for directory in upwards(path):
            if directory in (b"", b"."):
                break
            if (directory, mark) not in known:
                known[directory, mark] = look(directory, mark)
            is_sure = known[directory, mark]
            if is_sure is not None:
                moved[change.path] = is_sure or moved.get(change.path, False)
            if is_sure:
                break
    return moved


def has_other_names(live: Beneath, directory: bytes, mark: int, explains: Explains | None = None) -> bool:
    """Tell whether something may have come or gone in a live directory since a mark."""
    found = os.fstat(live.root_fd) if not directory else find_directory(live, directory)
    if found is None or found.st_mtime_ns < mark:
        return False
    return explains is None or not explains(directory, found, mark, names=True)


def find_directory(live: Beneath, path: bytes) -> os.stat_result | None:
    """Return the lstat of a live directory; None where there is none."""
    try:
        found = live.find(path)
    except OSError:
        return None
    return found if found is not None and stat.S_ISDIR(found.st_mode) else None


def upwards(directory: bytes) -> Iterator[bytes]:
    """Yield a directory and those above it, the root last as b""."""
    while directory:
        yield directory
        directory = directory.rpartition(b"/")[0]
    yield b""


def digest_at(tree: Beneath, path: bytes, status: os.stat_result) -> bytes:
    """Return a digest of the content and attributes of an entry; nothing if it is too large or can't be read."""
    try:
        fd, name = tree.parent(path)
        kind = KINDS.get(status.st_mode & FORMAT)
        content = b""
        if kind == "symlink":
            content = os.readlink(name, dir_fd=fd)
        elif kind == "file":
            content = _digest_content(fd, name, status)
            if not content:
                return b""
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
        return None if status is None else read_unchanged(*tree.parent(path), status, LARGEST_DIGESTED)
    except OSError:
        return None


def is_directory(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _is_changed_in(upper: bytes, path: bytes) -> bool:
    """Tell whether a layer changes what it has at a path; a directory may have been made again as it was."""
    place = upper + b"/" + path
    return hides_below(place) and not (is_directory(place) and was_copied_up((upper,), path))


def _seen_by(change: Change) -> Base:
    """Return the base of a change of which nothing but the kind is known."""
    return Base(kind="file" if change.entry is None else change.entry.kind)


def _digest_content(dir_fd: int, name: bytes, status: os.stat_result) -> bytes:
    """Return a digest of a file's content; nothing if it is too large, can't be read, or is changed meanwhile."""
    if status.st_size > LARGEST_DIGESTED:
        return b""
    try:
        with open(os.open(name, _READ, dir_fd=dir_fd), "rb", buffering=0) as file:
            digest = digest_of(file.fileno(), status.st_size)
            found = os.fstat(file.fileno())
    except OSError:
        return b""
    is_same = (found.st_ino, found.st_size, found.st_ctime_ns) == (status.st_ino, status.st_size, status.st_ctime_ns)
    return b"%d %b" % (status.st_size, digest) if is_same else b""


class BaseReader:
    """Reads what changes were made from, within the bounds, as far as nobody has changed it since."""

    def __init__(
        self,
        root: bytes,
        mask: bytes | None,
        lower: Sequence[bytes] = (),
        explains: Explains | None = None,
        *,
        may_read: bool = True,
    ) -> None:
        """`lower` are the layers beneath that of the changes. Unless it `may_read`, no content is read."""
        self.bases: dict[bytes, Base] = {}
        self.texts = KeptTexts()
        # For look-ups only: the operation itself may have closed the project to its owner
        self.live = Beneath(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        self._root = root
        self._mask = mask
        self._lower = lower
        self._explains = explains
        # Paths at which, or above which, another directory may be than the run saw
        self.moved: Mapping[bytes, bool] = {}
        self._may_read = may_read
        self._digests = _MOST_DIGESTS if may_read else 0
        self._room = _MOST_DIGESTED

    def add(self, change: Change, mark_ns: int, moves: Moves | None = None) -> None:
        """Read the base of a change, and its text. `moves` says what may have come from elsewhere, by default all."""
        path = change.path
        if change.base_kind is None:
            # What was deleted while the run wrote to it is not new
            is_deleted = self._is_deleted(change, mark_ns, moves)
            self.bases[path] = _seen_by(change) if is_deleted else ABSENT
            return
        is_listed = change.takes_directory and path not in self.moved and self._list(path, mark_ns)
        status = None if path in self.moved else self._find(path, mark_ns)
        if status is None and (change.base_kind != "dir" or change.kind == "replaced"):
            # The run may have seen another entry. Keep its kind: if it is gone later, the person deleted it
            self.bases.setdefault(path, Base(kind=change.base_kind))
        if status is None:
            return
        base = self._base_of(path, status)
        self.bases[path] = base.replace(is_listed=True) if is_listed else base
        if self._may_read and base.kind == "file" and self.texts.has_room(status.st_size):
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

    def _is_deleted(self, change: Change, mark_ns: int, moves: Moves | None) -> bool:
        """Tell whether somebody took away what a run has changed, if there is nothing at its path."""
        if change.layer is None or change.entry is None:
            return False
        # A file may have come from another path; a directory can't
        if change.entry.kind != "dir" and not self._is_emptied(change.path, mark_ns):
            return False
        if change.entry.kind != "dir" and (moves is None or moves.may_bring(change.layer + b"/" + change.path)):
            return False
        return was_copied_up((change.layer,), change.path)

    def _is_emptied(self, path: bytes, mark_ns: int) -> bool:
        """Tell whether something may have gone from a live directory above a path since a moment."""
        for above in upwards(path.rpartition(b"/")[0]):
            if self.bases.get(above) == ABSENT:
                # The run made it
                return False
            try:
                self.live.directory(above)
            except NotADirectoryError:
                # Held runs have put a directory there
                return False
            except OSError:
                continue
            if has_other_names(self.live, above, mark_ns, self._explains):
                return True
        return False

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
        if is_whole:
            # Each of them may be another change later: a run may have made again what was above
            inner = {path: base for path, base in self.bases.items() if path.startswith(top + b"/")}
            self.bases |= {path: base.replace(is_listed=True) for path, base in inner.items() if base.kind == "dir"}
        return is_whole

    def __enter__(self) -> BaseReader:
        return self

    def __exit__(self, *_details: object) -> None:
        self.live.close()


def keep_seen_bases(
    store: Store,
    stack: Stack,
    layer: LayerId,
    mark_ns: int,
    changes: Iterable[Change],
    taken_away: TakenAway | None = None,
    explains: Explains | None = None,
    *,
    may_read: bool = True,
) -> None:
    """Keep for the layer of a run what it saw where it changed something, as far as nobody has changed that since.

    Of what lower layers change, those keep it. What is masked no run has seen. Where somebody watched the live tree, it
    is known which names were `taken_away`, and that directories were not exchanged. What an operation of ours changed
    there, `explains` knows.
    """
    lower = [sealed.upper for sealed in stack.sealed if sealed.id != layer]
    changes = tuple(changes)
    moves = Moves(changes, stack.live, *lower)
    with BaseReader(stack.live, stack.mask, lower, explains, may_read=may_read) as reader:
        moved = find_moved(reader.live, changes, lambda _change: mark_ns, explains)
        covered = {one.path for one in changes if taken_away is not None and taken_away.covers(one.path)}
        if not (may_read or moved or covered):
            # What times tell at the apply is all there is to know
            return
        if taken_away is not None:
            moved = {path: is_sure for path, is_sure in moved.items() if is_sure or not taken_away.has_watched(path)}
        moved |= dict.fromkeys(covered, True)
        reader.moved = moved
        for change in changes:
            if b".git/" in change.path or reader.is_changed_below(change.path):
                continue
            if change.base_kind is None and change.path in covered:
                reader.bases[change.path] = _seen_by(change)
            else:
                reader.add(change, mark_ns, moves)
    put_bases(store, layer, reader.bases)
    store.texts.put(layer, reader.texts.kept)
