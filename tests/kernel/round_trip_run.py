# SPDX-License-Identifier: Apache-2.0
"""What operations do to the model: a person's in a live tree, a command's in the top layer of a stack."""

from tests.kernel.round_trip_inside import Operation
from tests.kernel.round_trip_tree import ROOT, Layer, Node, Tree, ancestors, below, fold, parent


class LiveEdit:
    """A person who edits a live tree."""

    def __init__(self, live: Tree) -> None:
        self._live = live

    def play(self, operation: Operation) -> None:
        verb, path, *rest = operation
        live, old = self._live, self._live.get(path)
        match verb:
            case "write" if old is not None:
                self._edit(path, content=rest[0], mtime=rest[1])
            case "write" | "replace":
                self._put(path, Node("file", 0o644, rest[0], mtime=rest[1]))
            case "chmod":
                self._edit(path, mode=rest[0])
            case "touch":
                self._edit(path, mtime=rest[0])
            case "attribute" if live[path].attributes.get(rest[0]) == rest[1]:
                pass
            case "attribute":
                self._edit(path, attributes={**live[path].attributes, rest[0]: rest[1]})
            case "no attribute":
                attributes = dict(live[path].attributes)
                del attributes[rest[0]]
                self._edit(path, attributes=attributes)
            case "open":
                pass
            case "unlink" | "remove":
                self._remove(path)
            case "mkdir":
                self._put(path, Node("dir", rest[0]))
            case "symlink":
                self._put(path, Node("symlink", content=rest[0]))
            case "rename":
                self._rename(path, rest[0])
            case _:
                raise ValueError(verb)

    def _edit(self, path: bytes, **fields: object) -> None:
        self._live[path] = self._live[path].edited(**fields)

    def _put(self, path: bytes, node: Node) -> None:
        assert parent(path) in self._live
        self._live[path] = node

    def _rename(self, old: bytes, new: bytes) -> None:
        node = self._live[old]
        inside = {inner: self._live[inner] for inner in below(self._live, old)} if node.is_dir else {}
        self._remove(old)
        self._put(new, node.edited() if node.is_dir else node.copy())
        self._live |= {new + inner[len(old) :]: entry for inner, entry in inside.items()}

    def _remove(self, path: bytes) -> None:
        for inner in below(self._live, path) if self._live[path].is_dir else ():
            del self._live[inner]
        del self._live[path]


class RunEdit:
    """A command that runs on top of a stack: what it writes goes to a new layer, after a copy of what was there."""

    def __init__(self, stack: list[Layer], live: Tree) -> None:
        self._stack = stack
        self._live = live
        self._below = fold(stack, live)
        self.layer = Layer({ROOT: self._below[ROOT].copy()})

    def view(self) -> Tree:
        return fold([*self._stack, self.layer], self._live)

    def play(self, operation: Operation) -> None:
        verb, path, *rest = operation
        match verb:
            case "write" if path in self.view():
                node = self._copy_up(path)
                node.content, node.mtime = rest
            case "write" | "replace":
                self._put(path, Node("file", 0o644, rest[0], mtime=rest[1]))
            case "chmod":
                self._copy_up(path).mode = rest[0]
            case "touch":
                self._copy_up(path).mtime = rest[0]
            case "attribute":
                self._copy_up(path).attributes[rest[0]] = rest[1]
            case "no attribute":
                del self._copy_up(path).attributes[rest[0]]
            case "open":
                self._copy_up(path)
            case "unlink" | "remove":
                self._remove(path)
            case "mkdir":
                is_covered = path in self.layer.entries
                self._put(path, Node("dir", rest[0]))
                if is_covered:
                    # Made over a whiteout of this very layer, it must not let show what that hid.
                    self.layer.opaque.add(path)
            case "symlink":
                self._put(path, Node("symlink", content=rest[0]))
            case "fifo":
                self._put(path, Node("special", 0o644))
            case "link":
                self._put(rest[0], self._copy_up(path))
            case "rename":
                self._rename(path, rest[0])
            case _:
                raise ValueError(verb)

    def can_be_moved(self, path: bytes) -> bool:
        """Tell whether the kernel renames a directory: one that is of this layer alone."""
        return self.layer.entries.get(path) is not None and (path in self.layer.opaque or not self._is_below(path))

    def _copy_up(self, path: bytes) -> Node:
        view = self.view()
        for step in (*reversed(ancestors(path)), path):
            if step not in self.layer.entries:
                self.layer.entries[step] = view[step].copy()
        node = self.layer.entries[path]
        assert node is not None
        return node

    def _put(self, path: bytes, node: Node) -> None:
        if parent(path) != ROOT:
            self._copy_up(parent(path))
        self.layer.entries[path] = node
        self.layer.opaque.discard(path)

    def _remove(self, path: bytes) -> None:
        if parent(path) != ROOT:
            self._copy_up(parent(path))
        for inner in (path, *below(self.layer.entries, path)):
            self.layer.entries.pop(inner, None)
            self.layer.opaque.discard(inner)
        if self._is_below(path):
            self.layer.entries[path] = None

    def _rename(self, old: bytes, new: bytes) -> None:
        node = self._copy_up(old)
        inside = below(self.layer.entries, old) if node.is_dir else []
        moved = {inner: self.layer.entries[inner] for inner in inside}
        opaque = {inner for inner in inside if inner in self.layer.opaque}
        was_opaque = old in self.layer.opaque
        self._remove(old)
        self._put(new, node)
        for inner, entry in moved.items():
            self.layer.entries[new + inner[len(old) :]] = entry
        self.layer.opaque |= {new + inner[len(old) :] for inner in opaque}
        above = parent(new)
        is_merged = above == ROOT or (above not in self.layer.opaque and self._is_below(above))
        if node.is_dir and (was_opaque or is_merged):
            self.layer.opaque.add(new)

    def _is_below(self, path: bytes) -> bool:
        """Tell whether the layers beneath show something at a path."""
        return path in self._below and not any(self.layer.hides(above) for above in ancestors(path))
