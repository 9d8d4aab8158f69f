# SPDX-License-Identifier: Apache-2.0
"""Directory trees written as data, layers with their marks included, and the scan of them in short."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unspill.changes.scan import scan
from unspill.model.change import Change, ChangeSet

STAMP = 1_600_000_000_123_456_789


@dataclass(frozen=True, kw_only=True)
class Node:
    """One entry: how it is made, its mode, mtime and attributes."""

    content: bytes = b""
    mode: int | None = None
    mtime_ns: int = STAMP
    attributes: Mapping[str, bytes] = field(default_factory=dict)
    target: bytes | None = None
    kind: str = "file"


def File(content: bytes = b"content\n", **fields: Any) -> Node:
    return Node(content=content, **fields)


def Dir(**fields: Any) -> Node:
    return Node(kind="dir", **fields)


def Opaque(**fields: Any) -> Node:
    return Node(kind="dir", attributes={"user.overlay.opaque": b"y"}, **fields)


def Symlink(target: bytes) -> Node:
    return Node(kind="symlink", target=target)


def Fifo(**fields: Any) -> Node:
    return Node(kind="fifo", **fields)


WHITEOUT = Node(kind="whiteout")

Tree = Mapping[str | bytes, Node]


def build(root: Path, tree: Tree) -> bytes:
    """Make `root` and what is in it; parents that are not listed are plain directories."""
    top = os.fsencode(root)
    os.makedirs(top, exist_ok=True)
    os.chmod(top, 0o755)
    nodes = {os.fsencode(name): node for name, node in tree.items()}
    for name in sorted(nodes):
        os.makedirs(os.path.dirname(os.path.join(top, name)), 0o755, exist_ok=True)
        _make(os.path.join(top, name), nodes[name])
    for name in sorted(nodes, reverse=True):
        _finish(os.path.join(top, name), nodes[name])
    return top


def _make(path: bytes, node: Node) -> None:
    match node.kind:
        case "file":
            Path(os.fsdecode(path)).write_bytes(node.content)
        case "dir":
            os.makedirs(path, 0o755, exist_ok=True)
        case "symlink":
            assert node.target is not None
            os.symlink(node.target, path)
        case "fifo":
            os.mkfifo(path)
        case "whiteout":
            os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def _finish(path: bytes, node: Node) -> None:
    for name, value in node.attributes.items():
        os.setxattr(path, name, value)
    if node.kind == "file":
        os.utime(path, ns=(node.mtime_ns, node.mtime_ns))
    if node.kind not in ("symlink", "whiteout"):
        os.chmod(path, node.mode if node.mode is not None else 0o755 if node.kind == "dir" else 0o644)


@dataclass(frozen=True)
class Stack:
    """Layers, the topmost first, and a live tree below one directory."""

    base: Path

    def live(self, tree: Tree) -> bytes:
        return build(self.base / "live", tree)

    def scan(self, live: Tree, *layers: Tree, below: tuple[Tree, ...] = (), **options: int) -> ChangeSet:
        """Build everything and scan the `layers` over `below` and `live`."""
        uppers = [build(self.base / f"layer{number}", layer) for number, layer in enumerate(layers)]
        beneath = [build(self.base / f"below{number}", layer) for number, layer in enumerate(below)]
        return scan(uppers, beneath, self.live(live), **options)


def told(changes: ChangeSet) -> list[str]:
    """Return each change as `kind path aspects`, in order."""
    return [_told(change) for change in changes]


def _told(change: Change) -> str:
    return " ".join([change.kind, os.fsdecode(change.path), *change.aspects])
