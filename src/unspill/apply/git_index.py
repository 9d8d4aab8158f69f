# SPDX-License-Identifier: Apache-2.0
"""What an index of git says, without what git merely remembers in it.

A plain `git status`, which editors and prompts run by themselves, writes the index anew with fresh times and inodes. To
take that for somebody's work would make every undo of a commit a conflict. Read as data; git itself is never run.
"""

from __future__ import annotations

import itertools
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LARGEST = 64 << 20

_HEADER = 12
# Times, device, inode, mode, owner and size are 4 bytes each but for the times; then the name of the object
_MODE, _OBJECT, _HASH = 24, 40, 20
_EXTENDED = 0x4000
# Entries are sorted, and names with a dot are among the first
_FIRST_LOOK = 256 << 10
_LONGEST_NAME = 4096
# A command can write this file, and each run would read it
_MOST_ENTRIES = 250_000


def is_index(path: bytes) -> bool:
    """Tell whether a path of a project is an index of git, by its name and place."""
    return path.endswith(b"/index") and b".git" in path.split(b"/")[:-1]


def says_at(dir_fd: int, name: bytes) -> bytes:
    """Return a digest of what the index of that name says, nothing where there is none that can be read."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return b""
    try:
        return index_digest(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def index_digest(fd: int) -> bytes:
    """Return a digest of what an open index says, nothing where it is none that can be read."""
    size = os.fstat(fd).st_size
    if not _HEADER < size <= LARGEST:
        return b""
    text = b""
    while len(text) < size and (chunk := os.pread(fd, size - len(text), len(text))):
        text += chunk
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    try:
        for entry in _entries(text):
            digest.update(entry)
    except (IndexError, ValueError):
        return b""
    return digest.digest()


def find_objects(fd: int, paths: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the object that an open index has for each of some paths, as far as it has one; no further than needed."""
    wanted, last = set(paths), max(paths)
    for size in (_FIRST_LOOK, LARGEST):
        text = b""
        while len(text) < size and (chunk := os.pread(fd, size - len(text), len(text))):
            text += chunk
        found: dict[bytes, bytes] = {}
        try:
            for entry in itertools.islice(_entries(text), _MOST_ENTRIES):
                extended = entry[4 + _HASH] & _EXTENDED >> 8
                name = entry[4 + _HASH + (4 if extended else 2) : -1]
                if name in wanted:
                    found[name] = entry[4 : 4 + _HASH]
                if name >= last:
                    break
        except (IndexError, ValueError):
            if len(text) == size:
                continue
            return {}
        return found
    return {}


def _entries(text: bytes) -> Iterator[bytes]:
    """Yield mode, object, flags and name of each entry.

    Raises:
        IndexError: it ends too early.
        ValueError: it is of a form that is not read here.
    """
    version, count = _number(text, 4), _number(text, 8)
    if text[:4] != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    at, name = _HEADER, b""
    for _ in range(count):
        start, flags_at = at, at + _OBJECT + _HASH
        flags = int.from_bytes(text[flags_at : flags_at + 2], "big")
        at = flags_at + (4 if flags & _EXTENDED else 2)
        fields = text[start + _MODE : start + _MODE + 4] + text[start + _OBJECT : at]
        if version == 4:
            dropped, at = _varint(text, at)
            end = text.index(b"\0", at)
            if dropped > len(name) or len(name) - dropped + end - at > _LONGEST_NAME:
                raise ValueError("not a name that git writes")
            name = name[: len(name) - dropped] + text[at:end]
            at = end + 1
        else:
            end = text.index(b"\0", at)
            name = text[at:end]
            at = start + (end - start + 8) // 8 * 8
        yield fields + name + b"\0"
    _refuse_split(text, at)


def _refuse_split(text: bytes, at: int) -> None:
    """Stop at an index whose entries are in another file as well."""
    while at + 8 <= len(text) - _HASH:
        if text[at : at + 4] == b"link":
            raise ValueError("a split index")
        at += 8 + _number(text, at + 4)


def _number(text: bytes, at: int) -> int:
    if at + 4 > len(text):
        raise IndexError(at)
    return int.from_bytes(text[at : at + 4], "big")


def _varint(text: bytes, at: int) -> tuple[int, int]:
    value = text[at] & 0x7F
    while text[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | text[at] & 0x7F
        # A command can write this file: without an end, numbers of millions of digits would be added up
        if value > _LONGEST_NAME:
            raise ValueError("drops more than a name has")
    return value, at + 1
