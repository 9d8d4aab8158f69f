# SPDX-License-Identifier: Apache-2.0
"""Which contents of git's other files are ordinary: attributes, pointers to git directories, lists of steps.

Pure: bytes in, the reason why it is held or flagged out, None where it is neither.
"""

from __future__ import annotations

from unspill.policy.pointers import resolve

_DRIVEN = (b"filter=", b"diff=", b"merge=")
# Known to git itself or, for lfs, a program that does not run what is in the files
BUILT_IN = frozenset(
    b"""
    filter=lfs diff=lfs merge=lfs merge=text merge=binary merge=union
    """.split()
) | frozenset(
    b"diff=" + name
    for name in b"""
    default ada bash bibtex cpp csharp css dts elixir fortran fountain golang html java kotlin markdown matlab objc
    pascal perl php python ruby rust scheme tex
    """.split()
)
# What the name of a reference may be made of without meaning anything to another program; few have more
_PLAIN = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+@"
_STEPS = (b"exec ", b"x ", b"exec\t", b"x\t")


def new_drivers(before: bytes, after: bytes) -> list[bytes]:
    """Return the drivers that lines of an attributes file name which it did not have before."""
    known = set(before.split(b"\n"))
    return [word for line in after.split(b"\n") if line not in known for word in _drivers_of(line)]


def _drivers_of(line: bytes) -> list[bytes]:
    if line.lstrip(b" \t\r").startswith(b"#"):
        return []
    return [word for word in line.split() if word.startswith(_DRIVEN) and word not in BUILT_IN]


def pointer_target(content: bytes) -> bytes | None:
    """Return where the `.git` file of a worktree or module points, None where it is no such file."""
    if not content.startswith(b"gitdir: "):
        return None
    target = content.removeprefix(b"gitdir: ").rstrip(b"\r\n")
    return target if target and b"\n" not in target else None


def is_inner_pointer(place: bytes, target: bytes | None, root: bytes) -> bool:
    """Tell whether a pointer leads to somewhere inside the root."""
    return bool(target) and resolve(place, target or b"", root) is not None


def is_repository_place(parts: list[bytes]) -> bool:
    """Tell whether a path leads to where `.git` keeps repositories: itself, those of modules and of worktrees."""
    names = [part.lower() for part in parts]
    if b".git" not in names:
        return False
    inner = names[len(names) - names[::-1].index(b".git") :]
    return not inner or (len(inner) > 1 and inner[0] in (b"modules", b"worktrees"))


def is_module_place(parts: list[bytes]) -> bool:
    """Tell whether a path leads to where `.git` keeps the repository of a module."""
    names = [part.lower() for part in parts]
    return is_repository_place(parts) and names[len(names) - names[::-1].index(b".git") :][:1] == [b"modules"]


def is_usual_common(parts: list[bytes], content: bytes) -> bool:
    """Tell whether a `commondir` is that of a worktree, which leads to the repository it belongs to."""
    return parts[-3:-2] == [b"worktrees"] and content.rstrip(b"\r\n") == b"../.."


def is_reference(content: bytes) -> bool:
    """Tell whether a content is that of a reference: an object's name, or the name of another reference."""
    line = content.removesuffix(b"\n")
    name = line.removeprefix(b"ref: refs/")
    return _is_object_name(line) or (name != line and not name.translate(None, _PLAIN))


def is_log(content: bytes) -> bool:
    """Tell whether a content is that of a reference's log, which is no configuration to git, nor a path."""
    beginnings = (line.split(b" ", 2) for line in content.removesuffix(b"\n").split(b"\n"))
    return all(len(words) == 3 and all(map(_is_object_name, words[:2])) for words in beginnings)


def _is_object_name(word: bytes) -> bool:
    return len(word) in (40, 64) and not word.translate(None, b"0123456789abcdef")


def has_commands(todo: bytes) -> bool:
    """Tell whether the steps of a rebase run commands when it goes on."""
    return any(line.lstrip().startswith(_STEPS) for line in todo.split(b"\n"))


def has_template(content: bytes) -> bool:
    """Tell whether mise would run what a template in a file of versions says."""
    return b"{{" in content or b"{%" in content
