# SPDX-License-Identifier: Apache-2.0
"""What happens inside, on the merged view: take a picture, perform random operations, take another picture.

Stands alone: it is also sent into sandboxes as the text of a command. Each operation is drawn from its own seed and
from what lies there at that moment, so leaving one out still leaves a meaningful sequence.
"""

import hashlib
import json
import mmap
import os
import random
import shutil
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any, Final

HOSTILE: Final = [
    b"line\nbreak",
    b"\xff\xfe not utf-8",
    b"-rf",
    b" spaces ",
    b"a:b,c\\d",
    b"x" * 255,
    b"esc\x1b[2J",
    "bidi\u202etxt".encode(),
    b".wh.file",
    b"..data",
]
PLAIN: Final = [b"a", b"b", b"c", b"d", b"a.b", b"a-b", b"A"]
ATTRIBUTES: Final = ["user.note", "user.overlay.opaque", "user.overlay.foo", "user.overlay.overlay.metacopy"]
CONTENTS: Final = [b"", b"one\n", b"two\n", b"longer content\n" * 20, bytes(range(256))]


def picture(root: bytes) -> dict[str, list[Any]]:
    """Return every entry below and including `root` in the fields that count."""
    found: dict[str, list[Any]] = {".": _describe(root)}
    pending = [b""]
    while pending:
        prefix = pending.pop()
        for name in os.listdir(os.path.join(root, prefix)):
            path = os.path.join(prefix, name)
            entry = found[path.decode("latin-1")] = _describe(os.path.join(root, path))
            if entry[0] == "dir":
                pending.append(path)
    return found


def _describe(path: bytes) -> list[Any]:
    status = os.lstat(path)
    mode = stat.S_IMODE(status.st_mode)
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFREG:
            with open(path, "rb") as file:
                digest = hashlib.blake2b(file.read(), digest_size=16).hexdigest()
            return ["file", mode, _attributes(path), [status.st_size, digest], status.st_mtime_ns]
        case stat.S_IFDIR:
            return ["dir", mode, _attributes(path)]
        case stat.S_IFLNK:
            return ["symlink", os.readlink(path).decode("latin-1")]
        case kind:
            return ["special", mode, kind, status.st_rdev]


def _attributes(path: bytes) -> dict[str, str]:
    names = [name for name in os.listxattr(path) if name.startswith("user.")]
    return {name: os.getxattr(path, name).hex() for name in sorted(names)}


class Tree:
    """The entries there are, and a source of chance to choose among them; IndexError where there are none."""

    def __init__(self, chance: random.Random, *, closed: bool) -> None:
        self.chance = chance
        self.closed = closed
        self.files: list[bytes] = []
        self.dirs: list[bytes] = [b"."]
        self.others: list[bytes] = []
        for here, dirs, names in os.walk(b"."):
            dirs.sort()
            for name in sorted((*dirs, *names)):
                path = os.path.join(here, name)
                kind = stat.S_IFMT(os.lstat(path).st_mode)
                {stat.S_IFREG: self.files, stat.S_IFDIR: self.dirs}.get(kind, self.others).append(path)

    def file(self) -> bytes:
        return self.chance.choice(self.files)

    def directory(self) -> bytes:
        return self.chance.choice(self.dirs[1:])

    def entry(self) -> bytes:
        return self.chance.choice([*self.files, *self.dirs[1:], *self.others])

    def new(self) -> bytes:
        name = self.chance.choice(HOSTILE if self.chance.random() < 0.15 else PLAIN)
        return os.path.join(self.chance.choice(self.dirs), name)

    def content(self) -> bytes:
        return self.chance.choice(CONTENTS)

    def mode(self) -> int:
        modes = [0o644, 0o600, 0o755, 0o700, 0o777, 0o1777, 0o2755, 0o4755]
        return self.chance.choice([*modes, 0o000, 0o200, 0o111, 0o444] if self.closed else modes)


def create(tree: Tree) -> None:
    write(tree.new(), tree.content())


def rewrite(tree: Tree) -> None:
    write(tree.file(), tree.content())


def rewrite_alike(tree: Tree) -> None:
    path = tree.file()
    write(path, read(path))


def append(tree: Tree) -> None:
    with open(tree.file(), "ab") as file:
        file.write(b"appended\n")


def shorten(tree: Tree) -> None:
    path = tree.file()
    os.truncate(path, os.stat(path).st_size // 2)


def map_and_write(tree: Tree) -> None:
    with open(tree.file(), "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] ^= 1


def change_in_secret(tree: Tree) -> None:
    """Change a byte, then put size and mtime back."""
    path = tree.file()
    before = os.stat(path)
    content = bytearray(read(path))
    content[-1] ^= 0xFF
    write(path, bytes(content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def make_sparse(tree: Tree) -> None:
    path = tree.file()
    os.truncate(path, 3 << 20)
    if tree.chance.random() < 0.5:
        with open(path, "r+b") as file:
            file.seek(tree.chance.choice([0, 1 << 20, (3 << 20) - 1]))
            file.write(b"!")


def open_only(tree: Tree) -> None:
    os.close(os.open(tree.file(), os.O_RDWR))


def change_mode(tree: Tree) -> None:
    path = tree.chance.choice([tree.file(), tree.directory(), tree.entry()])
    if not os.path.islink(path):
        os.chmod(path, tree.mode() | (0o500 if os.path.isdir(path) and not tree.closed else 0))


def change_mode_and_back(tree: Tree) -> None:
    path = tree.file()
    mode = os.stat(path).st_mode
    os.chmod(path, 0o640)
    os.chmod(path, stat.S_IMODE(mode))


def change_root(tree: Tree) -> None:
    if tree.chance.random() < 0.5:
        os.chmod(b".", tree.chance.choice([0o700, 0o755, 0o775]))
    else:
        os.setxattr(b".", "user.root", tree.content()[:4])


def touch(tree: Tree) -> None:
    stamp = tree.chance.choice([0, 1_500_000_000_123_456_789, 4_000_000_000_000_000_001])
    os.utime(tree.chance.choice([tree.file(), tree.directory()]), ns=(stamp, stamp))


def set_attribute(tree: Tree) -> None:
    path = tree.chance.choice([tree.file(), tree.directory()])
    os.setxattr(path, tree.chance.choice(ATTRIBUTES), tree.chance.choice([b"y", b"", b"value"]))


def remove_attribute(tree: Tree) -> None:
    path = tree.chance.choice([tree.file(), tree.directory()])
    names = [name for name in os.listxattr(path) if name.startswith("user.")]
    os.removexattr(path, tree.chance.choice(names or ["user.note"]))


def make_link(tree: Tree) -> None:
    os.link(tree.file(), tree.new(), follow_symlinks=False)


def make_symlink(tree: Tree) -> None:
    targets = [b"a", b"../b", b"/etc/passwd", b"../../../..", b"d/../../x", b"\xff\n", tree.entry()]
    os.symlink(tree.chance.choice(targets), tree.new())


def replace_symlink(tree: Tree) -> None:
    path = tree.chance.choice(tree.others)
    os.unlink(path)
    os.symlink(tree.chance.choice([b"a", b"elsewhere"]), path)


def rename(tree: Tree) -> None:
    os.rename(tree.entry(), tree.new())


def rename_over(tree: Tree) -> None:
    os.replace(tree.file(), tree.chance.choice([tree.file(), tree.entry()]))


def rename_directory(tree: Tree) -> None:
    """Rename as the kernel allows it, else copy and delete as `mv` does."""
    old, new = tree.directory(), tree.new()
    try:
        os.rename(old, new)
    except OSError:
        if not os.path.lexists(new) and not new.startswith(old + b"/"):
            shutil.copytree(os.fsdecode(old), os.fsdecode(new), symlinks=True)
            shutil.rmtree(old)


def edit_like_an_editor(tree: Tree) -> None:
    path = tree.file()
    write(path + b"~", read(path) + b"edited\n")
    os.replace(path + b"~", path)


def delete(tree: Tree) -> None:
    path = tree.chance.choice([tree.file(), tree.entry()])
    os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def delete_tree(tree: Tree) -> None:
    shutil.rmtree(tree.directory())


def make_directory(tree: Tree) -> None:
    os.mkdir(tree.new(), tree.chance.choice([0o755, 0o700]))


def make_special(tree: Tree) -> None:
    path = tree.new()
    if tree.chance.random() < 0.7:
        os.mkfifo(path)
    elif len(path) < 100:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)


def become_another_kind(tree: Tree) -> None:
    path = tree.entry()
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    match tree.chance.randrange(5):
        case 0:
            write(path, tree.content())
        case 1:
            os.symlink(b"target", path)
        case 2:
            os.mkfifo(path)
        case 3:
            os.mkdir(path)
        case _:
            os.mkdir(path)
            write(os.path.join(path, tree.chance.choice(PLAIN)), tree.content())


def empty_directory(tree: Tree) -> None:
    """Delete a directory and make it again, so that it hides what was there."""
    path = tree.directory()
    mode = os.stat(path).st_mode
    shutil.rmtree(path)
    os.mkdir(path)
    if tree.chance.random() < 0.7:
        os.chmod(path, stat.S_IMODE(mode))
    if tree.chance.random() < 0.5:
        write(os.path.join(path, tree.chance.choice(PLAIN)), tree.content())


def create_and_delete(tree: Tree) -> None:
    path = tree.new()
    if not os.path.lexists(path):
        write(path, b"gone soon")
        os.unlink(path)


def read(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write(path: bytes, content: bytes) -> None:
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isfile(path)):
        raise FileExistsError(path)
    with open(path, "wb") as file:
        file.write(content)


OPERATIONS: Final[list[Callable[[Tree], None]]] = [
    create, create, rewrite, rewrite_alike, append, shorten, map_and_write, change_in_secret, make_sparse,
    open_only, change_mode, change_mode_and_back, change_root, touch, set_attribute, remove_attribute, make_link,
    make_symlink, replace_symlink, rename, rename_over, rename_directory, edit_like_an_editor, delete, delete_tree,
    make_directory, make_directory, make_special, become_another_kind, empty_directory, create_and_delete,
]  # fmt: skip


def perform(seeds: list[int], *, closed: bool) -> list[str]:
    """Perform one operation per seed in the working directory; return what was done, for a report of a failure."""
    done = []
    for seed in seeds:
        chance = random.Random(seed)
        operation = chance.choice(OPERATIONS)
        try:
            operation(Tree(chance, closed=closed))
            done.append(operation.__name__)
        except (OSError, ValueError, shutil.Error, IndexError) as error:
            done.append(f"{operation.__name__}: {type(error).__name__}")
    return done


def serve_once(request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked in the working directory: pictures before and after, operations between them."""
    before = picture(b".")
    done = perform(request["seeds"], closed=request["closed"])
    return {"before": before, "after": picture(b"."), "done": done}


if __name__ == "__main__":
    json.dump(serve_once(json.load(sys.stdin)), sys.stdout)
