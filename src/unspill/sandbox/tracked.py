# SPDX-License-Identifier: Apache-2.0
"""Which files of a directory the person has git track. Read as data; git itself is never run.

That a path is in the index says nothing alone: a command may have put it there for a file that it has never seen, and
an apply would bring that index into the project. What commands made an index say is told from the rest by `claims`.
"""

from __future__ import annotations

import os
import stat

from unspill.git.index import find_objects
from unspill.policy.git import pointer_target
from unspill.sandbox.claims import repository_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.sandbox.claims import Claims

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LARGEST_POINTER = 4096
# Secrets are small; what is not is taken for one that git does not have
_LARGEST_FILE = 4 << 20
_MOST_LEVELS = 64


def find_tracked(directory: bytes, names: Sequence[bytes], claims: Claims) -> dict[bytes, bool]:
    """Return the names in a directory that are in the index of its repository, and whether the person is why.

    If that is known, what the file has by now does not matter.
    """
    entries, repositories = _find_entries(directory, names)
    found = {
        name: not claims.has(name, known)
        and (
            claims.trusts(name)
            or not claims.may_be_made(name, known, repositories)
            # It is in the repository, where a command can read it
            or _is_object(directory + b"/" + name, known)
        )
        for name, known in entries.items()
    }
    claims.trust(
        names, [name for name, is_shown in found.items() if is_shown and not claims.doubts(name, entries[name])]
    )
    return found


def find_entries(directory: bytes, names: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the digests that the index of a directory's repository has for some names in it."""
    return _find_entries(directory, names)[0]


def _find_entries(directory: bytes, names: Sequence[bytes]) -> tuple[dict[bytes, bytes], tuple[bytes, ...]]:
    """Return these digests, and the repositories that they are of: none where that is not known."""
    index, prefix, repositories = _find_index(directory)
    if index is None:
        return {}, ()
    try:
        objects = find_objects(index, [prefix + name for name in names])
    finally:
        os.close(index)
    return {name: objects[prefix + name] for name in names if prefix + name in objects}, repositories


def _find_index(directory: bytes) -> tuple[int | None, bytes, tuple[bytes, ...]]:
    """Return the open index of the nearest repository upwards, what its paths to the directory begin with, and `.git`.

    Where that is a file, it is two: the file, and the directory that it belongs to.
    """
    prefix = b""
    for _ in range(_MOST_LEVELS):
        git = os.path.join(directory, b".git")
        try:
            status = os.lstat(git)
        except OSError:
            above, name = os.path.split(directory)
            if above == directory:
                break
            directory, prefix = above, name + b"/" + prefix
            continue
        repositories: tuple[bytes, ...] = (git,)
        if not stat.S_ISDIR(status.st_mode):
            # Of a worktree or a module. Wherever it leads: nothing comes of it but whether a digest is there.
            target = pointer_target(_read(git, _LARGEST_POINTER) or b"")
            if target is None or b"\0" in target:
                break
            git = os.path.join(directory, target)
            owner = repository_of(git)
            repositories = () if owner is None else (*repositories, owner)
        return _open(os.path.join(git, b"index")), prefix, repositories
    return None, b"", ()


def _is_object(path: bytes, known: bytes) -> bool:
    content = _read(path, _LARGEST_FILE)
    if content is None:
        return False
    import hashlib

    # Git's own name for a content, nothing that anybody relies on for safety alone
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest() == known


def _open(path: bytes) -> int | None:
    try:
        fd = os.open(path, _FILE)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _read(path: bytes, largest: int) -> bytes | None:
    """Return the content of a regular file that is not too large; of a link, which git tracks too, where it leads."""
    fd = _open(path)
    if fd is None:
        try:
            return os.readlink(path)
        except OSError:
            return None
    with open(fd, "rb") as file:
        content = file.read(largest + 1)
    return content if len(content) <= largest else None
