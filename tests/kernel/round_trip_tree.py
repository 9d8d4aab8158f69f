# SPDX-License-Identifier: Apache-2.0
"""A model of live trees, layers and the view that they make, in plain dictionaries of whole copies.

Says what the kernel's overlay does, in its own words, and knows nothing of unspill. The root is called `.`.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Any

ROOT = b"."
_inodes = itertools.count(1)


class _AnyTime(int):
    """The time of a file that was merged: that of the merge, which nobody foresees."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    def __hash__(self) -> int:
        return 0


ANY_TIME = _AnyTime()


@dataclass(eq=False, slots=True)
class Node:
    """One entry with everything that counts. A live one is never written: an edit puts another object in its place.

    Directories keep their `inode` when they are edited.
    """

    kind: str
    mode: int = 0
    content: bytes = b""
    attributes: dict[str, bytes] = field(default_factory=dict)
    mtime: int = 0
    inode: int = field(default_factory=lambda: next(_inodes))

    @property
    def is_dir(self) -> bool:
        return self.kind == "dir"

    def look(self) -> tuple[Any, ...]:
        """Return the fields that are compared."""
        match self.kind:
            case "file":
                return "file", self.mode, self.attributes, self.content, self.mtime
            case "dir":
                return "dir", self.mode, self.attributes
            case "symlink":
                return "symlink", self.content
        return "special", self.mode

    def copy(self, **fields: Any) -> "Node":
        """Return another inode that looks like this one."""
        return replaced(self, **{"attributes": dict(self.attributes), "inode": next(_inodes), **fields})

    def edited(self, **fields: Any) -> "Node":
        """Return what the same inode is after an edit."""
        return replaced(self, **{"attributes": dict(self.attributes), **fields})


Tree = dict[bytes, Node]


def are_same(one: Node | None, other: Node | None) -> bool:
    """Tell whether two entries are the same to a person: whatever the time of a file, and whoever wrote it."""
    if one is None or other is None:
        return one is other
    return one.look()[:4] == other.look()[:4]


@dataclass(eq=False, slots=True)
class Layer:
    """What a run wrote: entries, None for whiteouts, and the directories that hide all beneath them.

    `place` is among all layers: higher ones lie above.
    """

    entries: dict[bytes, Node | None]
    opaque: set[bytes] = field(default_factory=set)
    place: float = 0.0

    def hides(self, path: bytes) -> bool:
        """Tell whether an entry of this layer lets nothing beneath show."""
        if path not in self.entries:
            return False
        node = self.entries[path]
        return node is None or not node.is_dir or path in self.opaque

    def remove(self, path: bytes) -> None:
        """Take an entry out of the layer, with all in it."""
        for inner in (path, *below(self.entries, path)):
            self.entries.pop(inner, None)
            self.opaque.discard(inner)


Source = tuple[Mapping[bytes, Node | None], set[bytes]]


def fold(layers: Iterable[Layer], live: Tree) -> Tree:
    """Return the view of layers, the oldest first, over a live tree."""
    sources: list[Source] = [(live, set())]
    for layer in layers:
        sources.insert(0, (layer.entries, layer.opaque))
    children: dict[bytes, set[bytes]] = {}
    for entries, _ in sources:
        for path in entries:
            if path != ROOT:
                children.setdefault(parent(path), set()).add(path)
    top = sources[0][0][ROOT]
    assert top is not None
    view: Tree = {ROOT: top}
    waiting = [(ROOT, sources)]
    while waiting:
        here, having = waiting.pop()
        for path in children.get(here, ()):
            found, inner = _look_up(path, having)
            if found is not None:
                view[path] = found
                waiting.append((path, inner))
    return view


def _look_up(path: bytes, having: list[Source]) -> tuple[Node | None, list[Source]]:
    """Return what is seen at a path, and where the entries of a directory come from."""
    found: Node | None = None
    inner: list[Source] = []
    for source in having:
        entries, opaque = source
        if path not in entries:
            continue
        node = entries[path]
        if node is None or (not node.is_dir and found is not None):
            break
        found = found or node
        if not node.is_dir:
            break
        inner.append(source)
        if path in opaque:
            break
    return found, inner


@dataclass(frozen=True)
class Difference:
    """One change of a live tree: the old entry, the new one, and what that is called."""

    path: bytes
    kind: str
    old: Node | None
    new: Node | None


def differences(old: Tree, new: Tree) -> list[Difference]:
    """Return how two trees differ; a directory that goes stands for all in it."""
    found: list[Difference] = []
    gone: set[bytes] = set()
    for path in sorted({*old, *new}, key=order):
        was, now = old.get(path), new.get(path)
        if parent(path) in gone:
            if was is not None:
                gone.add(path)
            if now is None:
                continue
            was = None
        if was is None or now is None:
            if now is None:
                gone.add(path)
            found.append(Difference(path, "added" if was is None else "deleted", was, now))
        elif was.kind != now.kind:
            if was.is_dir:
                gone.add(path)
            found.append(Difference(path, "replaced", was, now))
        elif was.look() != now.look():
            same = (was.content, was.kind) == (now.content, now.kind)
            found.append(Difference(path, "metadata" if same else "modified", was, now))
    return found


def parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0] or ROOT if path != ROOT else b""


def join(above: bytes, name: bytes) -> bytes:
    return name if above == ROOT else above + b"/" + name


def ancestors(path: bytes) -> list[bytes]:
    """Return the directories above a path, the nearest first, without the root."""
    found = []
    while (path := path.rpartition(b"/")[0]) != b"":
        found.append(path)
    return found


def below(tree: Iterable[bytes], path: bytes) -> list[bytes]:
    """Return what is in a directory, all the way down; children after their parents."""
    prefix = b"" if path == ROOT else path + b"/"
    return sorted((other for other in tree if other != ROOT and other.startswith(prefix)), key=order)


def order(path: bytes) -> list[bytes]:
    return [] if path == ROOT else path.split(b"/")
