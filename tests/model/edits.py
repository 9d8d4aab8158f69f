# SPDX-License-Identifier: Apache-2.0
"""Edits, the same ones for the person and for commands: in a tree of the model, as text for a shell, and for real.

An edit is a list: its kind, its path, and what else it needs, so that a sequence of steps is plain JSON.
"""

import os
import shlex
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.model.model import Node, Tree, above, is_dir, put

Edit = list[Any]
# They put one line into a text
LINE_EDITS = ("replace-line", "replace-line-in-place", "insert-line", "append-in-place")


class Senseless(Exception):
    """This can't be done here; leave it out."""


def to_shell(edit: Edit) -> str:
    """Return an edit as a shell command."""
    kind, path, *rest = edit
    at = shlex.quote(path)
    match kind:
        case "replace-line":
            return f"sed -i '{rest[0]}s/.*/{rest[1]}/' {at}"
        case "replace-line-in-place":
            return f"sed '{rest[0]}s/.*/{rest[1]}/' {at} > /tmp/made.$$; cat /tmp/made.$$ > {at}; rm /tmp/made.$$"
        case "insert-line":
            return f"sed -i '{rest[0]}i{rest[1]}' {at}"
        case "append-in-place":
            return f"echo {rest[1]} >> {at}"
        case "delete-line":
            return f"sed -i '{rest[0]}d' {at}"
        case "same-content":
            return f"cp -p {at} {at}.new; mv {at}.new {at}"
        case "same-in-place":
            return f"cp {at} /tmp/same.$$; cat /tmp/same.$$ > {at}; rm /tmp/same.$$"
        case "write":
            folder = os.path.dirname(path)
            made = f"mkdir -p {shlex.quote(folder)}; " if folder else ""
            return f"{made}rm -f {at}; printf '{rest[0]}' > {at}"
        case "delete":
            return f"rm -f {at}"
        case "delete-all":
            return f"rm -rf {at}"
        case "chmod":
            return f"chmod {rest[0]} {at}"
        case "move":
            return f"mv -fT {at} {shlex.quote(rest[0])}"
        case "link":
            return f"ln -sfnT {rest[0]} {at}"
        case "mkdir":
            return f"mkdir -m {rest[0]} {at}"
    raise AssertionError(kind)


def content_of(text: str) -> bytes:
    """Return what `printf` makes of a text."""
    return text.replace("\\n", "\n").replace("\\0", "\0").encode()


def do_in_model(tree: Tree, edit: Edit) -> None:
    """Do an edit in a tree of the model.

    Raises:
        Senseless: there is nothing to edit, or no place for what is made.
    """
    kind, path, *rest = edit
    node = tree.get(path)
    if any(not is_dir(tree.get(one)) and (kind != "write" or one in tree) for one in above(path)):
        raise Senseless
    if kind in ("write", "link", "mkdir"):
        _make(tree, edit)
    elif node is None or (kind == "delete" and is_dir(node)) or (kind == "delete-all" and not is_dir(node)):
        raise Senseless
    elif kind in ("delete", "delete-all"):
        for one in [one for one in tree if path in (one, *above(one))]:
            del tree[one]
    elif kind == "chmod":
        if node.kind == "link" or node.mode == int(rest[0], 8):
            raise Senseless
        tree[path] = node._replace(mode=int(rest[0], 8))
    elif kind == "move":
        _move(tree, path, rest[0])
    else:
        tree[path] = node._replace(data=_edit_text(node, kind, rest))


def _make(tree: Tree, edit: Edit) -> None:
    kind, path, *rest = edit
    if is_dir(tree.get(path)) or (kind == "mkdir" and path in tree):
        raise Senseless
    if kind == "write":
        for one in above(path):
            tree.setdefault(one, Node("dir", 0o755))
        tree[path] = Node("file", 0o644, content_of(rest[0]))
    elif kind == "link":
        tree[path] = Node("link", 0o777, rest[0].encode())
    else:
        tree[path] = Node("dir", int(rest[0], 8))


def _move(tree: Tree, path: str, to: str) -> None:
    moved = {one: tree[one] for one in tree if path in (one, *above(one))}
    if to == path or path in above(to) or any(not is_dir(tree.get(one)) for one in above(to)):
        raise Senseless
    if is_dir(tree.get(to)) or (is_dir(tree[path]) and to in tree):
        raise Senseless
    for one, node in moved.items():
        put(tree, one, None)
        tree[to + one[len(path) :]] = node


def _edit_text(node: Node, kind: str, rest: list[Any]) -> bytes:
    if node.kind != "file" or b"\0" in node.data:
        raise Senseless
    if kind.startswith("same"):
        return node.data
    lines = node.data.splitlines(keepends=True)
    if rest[0] > len(lines):
        raise Senseless
    at = rest[0] - 1
    match kind:
        case "append-in-place":
            lines.append(rest[1].encode() + b"\n")
        case "insert-line":
            lines.insert(at, rest[1].encode() + b"\n")
        case "delete-line":
            del lines[at]
        case _:
            lines[at] = rest[1].encode() + b"\n"
    return b"".join(lines)


def do_for_real(top: Path, edit: Edit) -> None:
    """Do an edit as a person's programs do, without a shell."""
    kind, name, *rest = edit
    path = top / name
    match kind:
        case "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(content_of(rest[0]))
        case "delete":
            path.unlink()
        case "delete-all":
            shutil.rmtree(path)
        case "chmod":
            path.chmod(int(rest[0], 8))
        case "move":
            path.rename(top / rest[0])
        case "link":
            path.unlink(missing_ok=True)
            path.symlink_to(rest[0])
        case "mkdir":
            path.mkdir()
            path.chmod(int(rest[0], 8))
        case _:
            _save(path, lambda node: _edit_text(node, kind, rest), in_place=kind.endswith("in-place"))


def _save(path: Path, edited: Callable[[Node], bytes], *, in_place: bool) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    data = edited(Node("file", mode, path.read_bytes()))
    if in_place:
        path.write_bytes(data)
        return
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.chmod(mode)
    new.rename(path)


def read_tree(top: str) -> Tree:
    """Read a project, but for its `.git`."""
    tree: Tree = {}
    waiting = [("", top)]
    while waiting:
        prefix, where = waiting.pop()
        with os.scandir(where) as entries:
            for entry in entries:
                name = prefix + entry.name
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISLNK(found.st_mode):
                    tree[name] = Node("link", 0o777, os.readlink(os.fsencode(entry.path)))
                elif not stat.S_ISDIR(found.st_mode):
                    with open(entry.path, "rb") as file:
                        tree[name] = Node("file", stat.S_IMODE(found.st_mode), file.read())
                elif name != ".git":
                    tree[name] = Node("dir", stat.S_IMODE(found.st_mode))
                    waiting.append((name + "/", entry.path))
    return tree
