# SPDX-License-Identifier: Apache-2.0
"""A directory tree as a value: taken once with all its fields, made again as often as needed, compared exactly.

Times of directories are no part of it. What its owner may not read is opened for a moment by `capture` alone; `look`
changes nothing, not even a ctime, and passes over what it can't read.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from unspill.layers.trees import remove_tree

Image = dict[bytes, "Node"]
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFCHR: "device"}


@dataclass(frozen=True)
class Node:
    """One entry; `content` is a link's target, `twin` the first path that is the same file."""

    kind: str
    mode: int
    content: bytes
    attributes: tuple[tuple[str, bytes], ...]
    mtime_ns: int
    twin: bytes | None = None


def capture(top: bytes) -> Image:
    """Return everything below a directory and itself, as b"."; changes ctimes of what is closed to its owner."""
    return _read(top, opens=True)


def look(top: bytes) -> Image:
    """Return what can be seen of a directory without touching it."""
    return _read(top, opens=False)


def visible(image: Image) -> Image:
    """Return what `look` shows of a tree."""
    closed = {path for path, node in image.items() if node.kind == "dir" and node.mode & 0o500 != 0o500}
    shown = {path: node for path, node in image.items() if not any(above in closed for above in _above(path))}
    return {path: _veiled(node) for path, node in shown.items()}


def _veiled(node: Node) -> Node:
    return node if node.mode & 0o400 else replace(node, content=b"", attributes=())


def without_twins(image: Image) -> Image:
    """Return a tree as if no file had two names."""
    return {path: replace(node, twin=None) for path, node in image.items()}


def differences(found: Image, wanted: Image) -> list[str]:
    """Return in words how two trees differ."""
    return [
        f"{path!r}: {found.get(path)} instead of {wanted.get(path)}"
        for path in sorted({*found, *wanted})
        if found.get(path) != wanted.get(path)
    ]


def with_others(image: Image, others: Image, paths: Iterable[bytes]) -> Image:
    """Return a tree that at some paths, and below them, is as another one."""
    tops = tuple(paths)

    def is_theirs(path: bytes) -> bool:
        return any(path == top or path.startswith(top + b"/") for top in tops)

    kept = {path: node for path, node in image.items() if not is_theirs(path)}
    return kept | {path: node for path, node in others.items() if is_theirs(path)}


def contents(top: bytes) -> set[bytes]:
    """Return the contents of all files below a directory, as far as they can be read."""
    return {node.content for node in look(top).values() if node.kind == "file"}


def rebuild(top: bytes, image: Image) -> None:
    """Make a directory what an image says; the directory itself stays the same one."""
    os.chmod(top, 0o700)
    for name in os.listdir(top):
        assert remove_tree(os.path.join(top, name))
    for attribute in os.listxattr(top):
        os.removexattr(top, attribute)
    for path in sorted(image):
        if path != b".":
            _make(top, path, image[path])
    for path in sorted(image, reverse=True):
        _dress(os.path.join(top, path), image[path])


def _make(top: bytes, path: bytes, node: Node) -> None:
    full = os.path.join(top, path)
    if node.twin is not None:
        os.link(os.path.join(top, node.twin), full, follow_symlinks=False)
    elif node.kind == "dir":
        os.mkdir(full, 0o700)
    elif node.kind == "symlink":
        os.symlink(node.content, full)
    elif node.kind == "device":
        os.mknod(full, stat.S_IFCHR, 0)
    else:
        with open(full, "xb") as file:
            file.write(node.content)


def _dress(full: bytes, node: Node) -> None:
    if node.twin is not None:
        return
    for name, value in node.attributes:
        os.setxattr(full, name, value, follow_symlinks=False)
    os.utime(full, ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)
    if node.kind != "symlink":
        os.chmod(full, node.mode)


def _read(top: bytes, *, opens: bool) -> Image:
    image: Image = {}
    names: dict[tuple[int, int], bytes] = {}
    waiting = [b"."]
    while waiting:
        path = waiting.pop()
        full = os.path.join(top, path)
        status = os.lstat(full)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
        with _opened(full, status, is_wanted=opens):
            image[path] = _node(full, kind, status)
            if kind == "dir":
                waiting += [name if path == b"." else path + b"/" + name for name in _names(full)]
        if kind in ("file", "symlink") and status.st_nlink > 1:
            names[status.st_dev, status.st_ino] = min(path, names.get((status.st_dev, status.st_ino), path))
            image[path] = replace(image[path], twin=b"%d" % status.st_ino)
    return {path: _with_twin(top, path, node, names) for path, node in sorted(image.items())}


def _with_twin(top: bytes, path: bytes, node: Node, names: dict[tuple[int, int], bytes]) -> Node:
    if node.twin is None:
        return node
    status = os.lstat(os.path.join(top, path))
    first = names[status.st_dev, status.st_ino]
    return replace(node, twin=None if first == path else first)


def _node(full: bytes, kind: str, status: os.stat_result) -> Node:
    mode = stat.S_IMODE(status.st_mode)
    try:
        content = _content(full, kind)
        found = [name for name in os.listxattr(full, follow_symlinks=False) if name.startswith("user.")]
        attributes = tuple((name, os.getxattr(full, name, follow_symlinks=False)) for name in sorted(found))
    except PermissionError:
        content, attributes = b"", ()
    return Node(kind, mode, content, attributes, 0 if kind == "dir" else status.st_mtime_ns)


def _content(full: bytes, kind: str) -> bytes:
    if kind == "symlink":
        return os.readlink(full)
    if kind != "file":
        return b""
    with open(full, "rb") as file:
        return file.read()


def _names(full: bytes) -> list[bytes]:
    try:
        names = os.listdir(full)
        return names if os.access(full, os.X_OK) else []
    except PermissionError:
        return []


@contextmanager
def _opened(full: bytes, status: os.stat_result, *, is_wanted: bool) -> Iterator[None]:
    """Let the owner read a file for a moment; a directory stays open, because what is in it is read later."""
    mode = stat.S_IMODE(status.st_mode)
    is_closed = is_wanted and not stat.S_ISLNK(status.st_mode) and mode & 0o500 != 0o500
    if not is_closed or (not stat.S_ISDIR(status.st_mode) and mode & 0o400):
        yield
        return
    os.chmod(full, mode | 0o500)
    yield
    if not stat.S_ISDIR(status.st_mode):
        os.chmod(full, mode)


def _above(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path
