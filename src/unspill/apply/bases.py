# SPDX-License-Identifier: Apache-2.0
"""Texts as the runs saw them that changed them: what a merge with the person's edits starts from.

They are kept with a layer that is held, in the store, up to a bound; those of a layer that is made from others are
carried along. A file that the person edited while the run went on has none: nobody knows what the run saw of it.
"""

from __future__ import annotations

import os
import zlib

from unspill.changes.diff import is_binary
from unspill.changes.merge import LARGEST_TEXT, digest_of_merge
from unspill.host.dirfd import Beneath, read_unchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol

    from unspill.model.change import Change, Resolution, Side
    from unspill.model.run import LayerId, Stack
    from unspill.store.db import Store

    class LayerMarks(Protocol):
        """Says of a path which layer of a stack was the first to change it, and the mark that counts for it."""

        def first(self, path: bytes) -> int: ...
        def of(self, path: bytes) -> int: ...


# Of one layer, or of what one operation puts
MOST_TEXTS = 500
MOST_BYTES = 8 << 20
# Behind the id of an operation: what its merges started from
_MERGED = "m"


class Bases:
    """The texts of one root that runs have seen, and what becomes of lines that the person has changed as well."""

    def __init__(
        self,
        find: Callable[[bytes], bytes | None],
        sides: Mapping[bytes, Side],
        resolutions: Mapping[bytes, Resolution] | None = None,
    ) -> None:
        """`find` returns the text at a path, None where nobody knows it; `sides` has a path for all below it."""
        self.find = find
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


class KeptTexts:
    """Texts that are kept together, within the bounds."""

    def __init__(self) -> None:
        self.texts: dict[tuple[bytes, bytes], bytes] = {}
        self._room = MOST_BYTES

    def has_room(self, size: int) -> bool:
        """Tell whether a file of a size may be kept as well."""
        return size <= min(LARGEST_TEXT, self._room) and len(self.texts) < MOST_TEXTS

    def add(self, root: bytes, path: bytes, content: bytes | None) -> None:
        """Keep what is a text."""
        if content is not None and not is_binary(content):
            self.texts[root, path] = content
            self._room -= len(content)


def put_texts(store: Store, owner: str, texts: Mapping[tuple[bytes, bytes], bytes]) -> None:
    """Keep texts, by root and path, for a layer or for an operation."""
    if texts:
        store.texts.put(owner, {place: zlib.compress(text, 1) for place, text in texts.items()})


def find_text(store: Store, owner: str, root: bytes, path: bytes) -> bytes | None:
    """Return a text that was kept for a layer or for an operation; None where there is none, or none that is whole."""
    packed = store.texts.find(owner, root, path)
    try:
        return None if packed is None else zlib.decompress(packed)
    except zlib.error:
        return None


def keep_texts(store: Store, stack: Stack, layer: LayerId, mark_ns: int, changes: Iterable[Change]) -> None:
    """Keep for the layer of a run the texts that it saw and changed, as far as nobody else has touched them since.

    Of what lower layers hold, those keep it. What is masked no run has seen.
    """
    lower = [sealed.upper for sealed in stack.sealed if sealed.id != layer]
    files = [change for change in changes if _is_text(change)]
    wanted = [change for change in files if not any(os.path.lexists(upper + b"/" + change.path) for upper in lower)]
    put_texts(store, layer, _read_texts(stack, wanted, lambda _path: mark_ns, KeptTexts()).texts)


def carry_texts(
    store: Store,
    stack: Stack,
    marks: LayerMarks,
    layer: LayerId,
    remaining: Iterable[Change],
    rebase: Callable[[bytes, bytes], bytes | None] = lambda _path, text: text,
) -> None:
    """Keep for a layer, which has what remains of a stack, the texts that were kept for those that it was made from.

    `rebase` is told a path and its text, and returns what the rest of a file starts from of which a part was chosen.
    """
    kept = KeptTexts()
    others = []
    for change in filter(_is_text, remaining):
        owner = stack.sealed[marks.first(change.path)].id
        text = find_text(store, owner, stack.live, change.path)
        if text is None:
            others.append(change)
        elif kept.has_room(len(text)):
            kept.add(stack.live, change.path, rebase(change.path, text))
    put_texts(store, layer, _read_texts(stack, others, marks.of, kept).texts)


def carry_again(
    store: Store, root: bytes, taken_by: str, owners: Iterable[str], layer: LayerId, changes: Iterable[Change]
) -> set[bytes]:
    """Keep for a layer, which has what is held again, the texts of those that an operation has taken.

    Return the paths at which the live text is not what the runs saw: it was merged with what is held again, or is
    another by now.
    """
    texts: dict[tuple[bytes, bytes], bytes] = {}
    edited: set[bytes] = set()
    with Beneath(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as live:
        for change in filter(_is_text, changes):
            merged_from = find_text(store, taken_by + _MERGED, root, change.path)
            found = (find_text(store, owner, root, change.path) for owner in owners)
            text = next((text for text in found if text is not None), None) if merged_from is None else merged_from
            if text is None:
                continue
            texts[root, change.path] = text
            if merged_from is not None or _read_unedited(live, change.path) != text:
                edited.add(change.path)
    put_texts(store, layer, texts)
    return edited


def remember_merged(store: Store, operation: str, root: bytes, texts: Mapping[bytes, bytes]) -> None:
    """Keep, before an operation changes anything, what its merges start from: what it displaces is no such text."""
    put_texts(store, operation + _MERGED, {(root, path): text for path, text in texts.items()})


def _read_texts(stack: Stack, files: list[Change], mark_of: Callable[[bytes], int], kept: KeptTexts) -> KeptTexts:
    """Add the texts of changed files that nobody has edited; to read very many would take longer than all else."""
    with Beneath(os.open(stack.live, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as live:
        for change in files if len(files) <= MOST_TEXTS else ():
            if not kept.has_room(change.base_size):
                continue
            if stack.mask is None or not os.path.lexists(stack.mask + b"/" + change.path):
                kept.add(stack.live, change.path, _read_unedited(live, change.path, mark_of(change.path)))
    return kept


def _is_text(change: Change) -> bool:
    """Tell whether a change is of a file that may be a text."""
    return change.kind == "modified" and change.base_kind == "file" and b".git/" not in change.path


def _read_unedited(live: Beneath, path: bytes, mark_ns: int | None = None) -> bytes | None:
    try:
        found = live.find(path)
        if found is None or (mark_ns is not None and found.st_ctime_ns >= mark_ns):
            return None
        return read_unchanged(*live.parent(path), found, LARGEST_TEXT)
    except OSError:
        return None
