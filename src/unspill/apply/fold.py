# SPDX-License-Identifier: Apache-2.0
"""What stays held, folded into one layer: the entries of several layers, each with what it was made from.

An operation that takes layers makes one new layer of what remains of them. Entries are linked, not copied. A base goes
along with its entry. The new layer has a new time mark; a path whose live entry is not its base keeps the older one.
"""

from __future__ import annotations

import os
import stat

from unspill.apply.bases import BaseReader, KeptTexts, LayerBases, Moves, find_directory, find_moved, put_bases, unpack
from unspill.apply.draft import Marks
from unspill.apply.journal import Residue, residue_dir
from unspill.apply.steps import matches
from unspill.changes.select import ancestors
from unspill.host.dirfd import Beneath
from unspill.host.overlay import was_copied_up
from unspill.layers.lifecycle import new_id, renew, stat_root, take_mark
from unspill.layers.residue import build_residue
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from unspill.apply.bases import Base
    from unspill.model.change import Change
    from unspill.model.operation import Entry, OperationId
    from unspill.model.run import LayerId, OpenLayer, SealedLayer, Stack
    from unspill.store.db import Store


class HeldEntry(Record):
    """A change that stays held: where its entry lies, what it was made from, and the mark that counts for it.

    Without a mark the live entry is the base right now. `packed` is the text of the base, and `inner` are the bases of
    what is in a directory that goes. `is_on_the_way` is a directory that no run changed: it only leads to changes.
    """

    change: Change
    place: bytes
    base: Base | None = None
    packed: bytes | None = None
    mark_ns: int | None = None
    inner: tuple[tuple[bytes, Base], ...] = ()
    is_on_the_way: bool = False

    @property
    def text(self) -> bytes | None:
        """The text of the base, where it is known."""
        return unpack(self.packed)

    @property
    def inode(self) -> int:
        """What identifies the entry, however often it is linked."""
        return inode_of(self.change)


def inode_of(change: Change) -> int:
    """Return what identifies the entry of a change in its layer; deletions are alike, and directories by their bits."""
    if change.entry is None:
        return -1
    has_attributes = "xattrs" in change.aspects
    return -2 - change.entry.mode - 0o10000 * has_attributes if change.entry.kind == "dir" else change.entry.inode


class FoldedLayers:
    """Layers over one root, oldest first, of which something stays held."""

    def __init__(
        self,
        store: Store,
        root: bytes,
        layers: Sequence[tuple[str, bytes, int, Mapping[bytes, int]]],
        mask: bytes | None = None,
    ) -> None:
        """Take of each layer its id, where it lies, its mark, and the marks of single paths."""
        self._root = root
        self._mask = mask
        self._single = [one for _layer, _upper, _mark, single in layers for one in single.items()]
        self.uppers = tuple(upper for _layer, upper, _mark, _single in reversed(layers))
        self.marks = Marks([(upper, mark_ns, single) for _layer, upper, mark_ns, single in layers])
        self.bases = LayerBases(store, root, [layer for layer, *_rest in layers], self.marks)

    def entries(
        self,
        changes: Sequence[Change],
        places: Mapping[bytes, bytes] | None = None,
        moved: Mapping[bytes, bool] | None = None,
        known: Mapping[bytes, Base] | None = None,
        returned: Mapping[bytes, Entry] | None = None,
        put: Container[bytes] = (),
    ) -> list[HeldEntry]:
        """Return the changes that stay held.

        Left out are directories that only lead to changes, and what the project has already or a later run put back.

        `places` has where layers lie now, by where they were when they were scanned.

        `moved` are paths in directories that are not those that the runs saw, where that was looked at before, and
        `known` are bases that were read before. `returned` are live entries that the operation displaced and put back.

        `put` are paths to which the operation gave back what the lower layers made: what a later run took back of that
        is a change again.
        """
        found: list[HeldEntry] = []
        leading = ancestors(change.path for change in changes)
        with BaseReader(self._root, self._mask) as reader:
            if moved is None:
                moved = find_moved(reader.live, changes, self.marks.of_change)
            reader.moved = moved
            for change in changes:
                is_on_the_way = self._is_on_the_way(change)
                if is_on_the_way and (change.kind == "added" or change.path not in leading):
                    continue
                place = places.get(change.layer or b"") if places else None
                there = change if place is None else change.replace(layer=place)
                base = known.get(change.path) if known else None
                came_back = returned.get(change.path) if returned else None
                entry = self._entry(reader, there, base, came_back, is_moved=change.path in moved)
                if is_on_the_way:
                    # What the person put in its place is not what it was made from
                    found.append(entry.replace(change=change, base=None, packed=None, inner=(), is_on_the_way=True))
                elif not self._is_nothing(entry, there, is_put=change.path in put):
                    found.append(entry.replace(change=change))
        return found

    def _is_nothing(self, entry: HeldEntry, change: Change, *, is_put: bool) -> bool:
        """Tell whether a change need not be held: the project has it, or a later run has put back what was before."""
        if b".git/" in change.path:
            return False
        return change.is_mere_touch or (len(self.uppers) > 1 and not is_put and _is_back(entry.base, change))

    def taken_back(self, changes: Iterable[Change]) -> Iterator[bytes]:
        """Yield the paths at which the later layers have made again what was there before the first."""
        for change in changes if len(self.uppers) > 1 else ():
            if b".git/" not in change.path and _is_back(self.bases.of(change.path), change):
                yield change.path

    def _is_on_the_way(self, change: Change) -> bool:
        """Tell whether a directory that the person has taken away only leads to changes: no run changed it itself.

        Where the person has put something else, it stays with what it leads to: that is a conflict.
        """
        is_new = change.kind in ("added", "replaced") and change.entry is not None and change.entry.kind == "dir"
        return is_new and self.bases.of(change.path) is None and was_copied_up(self.uppers[::-1], change.path)

    def _entry(
        self, reader: BaseReader, change: Change, known: Base | None, returned: Entry | None, *, is_moved: bool
    ) -> HeldEntry:
        path = change.path
        # A run that took the directory away saw it only if it is still one: earlier layers hide a file in its place
        is_directory = find_directory(reader.live, path) is not None
        mark = self.marks.of_change(change) if is_directory else self.marks.of(path)
        base, packed = self.bases.of(path) or known, self.bases.packed(path)
        if change.takes_directory:
            # What is in it may have been edited before the directory was changed itself
            mark = min([mark, *(mark_ns for inner, mark_ns in self._single if inner.startswith(path + b"/"))])
        inner = self.bases.below(path) if change.takes_directory else {}
        if base is None and b".git/" not in path:
            reader.add(change, mark)
            base = reader.bases.get(path)
            packed = packed or reader.texts.kept.get((self._root, path))
            if change.takes_directory:
                inner = {one: base for one, base in reader.bases.items() if one.startswith(path + b"/")} | inner
        is_edited = _is_edited(reader.live, change, base, mark, returned, is_moved=is_moved)
        return HeldEntry(
            change=change,
            place=(change.layer or b"") + b"/" + path,
            base=base,
            packed=packed,
            mark_ns=mark if is_edited else None,
            inner=tuple(inner.items()),
        )

    def read_bases(self, changes: Sequence[Change], places: Mapping[bytes, bytes]) -> dict[bytes, Base]:
        """Return the bases that can't be read after an operation: of directories that get other bits, and of new files.

        `places` has where layers lie now. What seems new, the person may have deleted.
        """
        moves = Moves(changes, self._root, *self.uppers)
        with BaseReader(self._root, self._mask) as reader:
            for change in changes:
                path = change.path
                has_other_bits = change.kind == "metadata" and change.base_kind == "dir"
                is_new = change.base_kind is None and b".git/" not in path and self.bases.of(path) is None
                if has_other_bits or is_new:
                    there = change.replace(layer=places.get(change.layer or b""))
                    reader.add(there, self.marks.of(path), moves)
        return reader.bases


def _is_back(base: Base | None, change: Change) -> bool:
    """Tell whether a change in a layer is what it was made from, so that there is nothing to hold."""
    if base is None or change.layer is None or change.entry is None or change.entry.kind == "dir":
        return base is not None and change.entry is None and base.kind is None
    if (base.kind, base.mode) != (change.entry.kind, change.entry.mode):
        return False
    try:
        with Beneath(os.open(change.layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as tree:
            status = tree.find(change.path)
            return status is not None and base.has_content_of(tree, change.path, status)
    except OSError:
        return False


def fold_entries(
    store: Store,
    operation: OperationId,
    root: bytes,
    entries: Iterable[HeldEntry],
    sources: tuple[bytes, ...],
    rest: Residue,
    beneath: Sequence[bytes] = (),
) -> Residue:
    """Make one layer of entries, in the order of a scan; `rest` says what else the layer is like.

    `beneath` are the layers that it will lie on, the topmost first.
    """
    held = sorted(entries, key=lambda entry: (entry.change.path != b".", entry.change.path.split(b"/")))
    layer = new_id()
    dest = residue_dir(store.state, operation, layer)
    os.makedirs(os.path.dirname(dest), 0o700, exist_ok=True)
    places = {entry.change.path: entry.place for entry in held}
    build_residue(dest, sources, [entry.change for entry in held], lambda change: places[change.path], root, beneath)
    _keep_bases(store, layer, root, held)
    older = {entry.change.path: min(entry.mark_ns, rest.mark_ns) for entry in held if entry.mark_ns is not None}
    return rest.replace(layer=layer, root=root, overrides=tuple(older.items()))


def layers_of(store: Store, stack: Stack) -> list[tuple[LayerId, bytes, int, dict[bytes, int]]]:
    """Return of each layer of a stack its id, its upper directory, its mark, and the marks of single paths."""
    layers: tuple[SealedLayer | OpenLayer, ...] = stack.sealed if stack.open is None else (*stack.sealed, stack.open)
    return [(layer.id, layer.upper, layer.mark.ctime_ns, store.marks.of(layer.id)) for layer in layers]


def carry_bases(store: Store, stack: Stack, changes: Sequence[Change]) -> None:
    """Keep for the open layer of a stack, which is about to leave it, what those beneath keep of the same paths.

    `changes` are those of this layer alone over the live tree.
    """
    assert stack.open is not None
    layers = FoldedLayers(store, stack.live, layers_of(store, stack), stack.mask)
    # What earlier runs made and this one took back is a change where theirs are not
    held = layers.entries(changes, put={change.path for change in changes})
    _keep_bases(store, stack.open.id, stack.live, held)
    marks = {entry.change.path: entry.mark_ns for entry in held if entry.mark_ns is not None}
    store.marks.put(stack.open.id, marks)


def take_moment(store: Store, operation: OperationId, root: bytes) -> int:
    """Return a moment of a root's filesystem: what changes from now on is not older."""
    top = os.path.dirname(residue_dir(store.state, operation, "x"))
    os.makedirs(top, 0o700, exist_ok=True)
    return take_mark(root, stat_root(root), renew(top, os.lstat(top))).ctime_ns


def _keep_bases(store: Store, layer: LayerId, root: bytes, held: Sequence[HeldEntry]) -> None:
    bases: dict[bytes, Base] = {}
    texts = KeptTexts()
    for entry in held:
        if entry.base is not None:
            bases[entry.change.path] = entry.base
        bases.update(entry.inner)
        if entry.packed is not None and texts.has_room(len(entry.packed)):
            texts.add_packed(root, entry.change.path, entry.packed, len(entry.packed))
    put_bases(store, layer, bases)
    store.texts.put(layer, texts.kept)


def _is_edited(
    live: Beneath, change: Change, base: Base | None, mark: int, returned: Entry | None, *, is_moved: bool
) -> bool:
    """Tell whether a live entry may be another than the run saw, so that its mark must stay."""
    try:
        found = os.fstat(live.root_fd) if change.path == b"." else live.find(change.path)
    except OSError:
        # Nobody can tell, so the older mark it is
        return True
    if found is None:
        return False
    # A live directory is to give way: what is in it was not looked at
    is_merged = change.entry is not None and change.entry.kind == "dir" and change.kind != "replaced"
    if stat.S_ISDIR(found.st_mode) and not is_merged:
        return True
    is_known = found.st_ctime_ns < mark or (returned is not None and matches(found, returned))
    if is_known and not is_moved:
        return False
    return base is None or not base.is_at(live, change.path, found)
