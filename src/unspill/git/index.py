# SPDX-License-Identifier: Apache-2.0
"""What an index of git says, without what git merely remembers in it, and which names it may have.

A plain `git status`, which editors and prompts run by themselves, writes the index anew with fresh times and inodes. To
take that for somebody's work would make every undo of a commit a conflict.

Git checks a name when it stages a path, but believes an index that it reads: a checkout from one with
`.git/hooks/post-checkout` in it writes a hook and runs it, and `../x` leaves the project.
"""

from __future__ import annotations

import itertools
import os
import stat

from unspill.git.layout import LARGEST_FILE
from unspill.policy.paths import fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    # Mode, object, flags and name
    IndexEntry = tuple[bytes, bytes, bytes, bytes]


# In the third of the four bytes of a mode
_TREE, _LINK = 0x40, 0xA0
_ENDS = (b"", b"/", b".")
# Short names that some filesystems give to `.git` and `.gitmodules`
_ALIASES = {"git": ".git", "gitmod": ".gitmodules", "gi7eba": ".gitmodules"}
_BEGINNINGS = (b".git", b"git~", b"gitmod~", b"gi7eba~")
_NOT_ASCII = bytes(range(0x80, 0x100))

SHA1, SHA256 = 20, 32
_HEADER = 12
# Times, device, inode, mode, owner and size are 4 bytes each but for the times; then the name of the object
_MODE, _OBJECT = 24, 40
_EXTENDED = 0x4000
_STAGE, _LENGTH = 0x3000, 0x0FFF
# Entries are sorted, and names with a dot are among the first
_FIRST_LOOK = 256 << 10
_LONGEST_NAME = 4096
# A command can write this file, and each run would read it
_MOST_ENTRIES = 250_000
# Extensions in small letters change what the index says; `sdir` only marks that some entries are directories
_HARMLESS = frozenset({b"sdir"})
_END_OF_ENTRIES, _BLOCKS = b"EOIE", b"IEOT"


def is_link(mode: bytes) -> bool:
    """Tell whether an entry of this mode is a symbolic link."""
    return mode[2] & 0xF0 == _LINK


def is_refused(name: bytes, mode: bytes) -> bool:
    """Tell whether git would refuse to stage a path of this name."""
    if mode[2] & 0xF0 == _TREE:
        # A directory of a sparse index
        name = name.removesuffix(b"/")
    # Nearly all names are told at a glance
    is_plain = name.isascii() and not (b"/." in name or b"~" in name or b"//" in name or b"\\" in name)
    if is_plain and name[:1] not in _ENDS and name[-1:] != b"/":
        return False
    return any(_is_refused_part(part, mode) for part in name.split(b"/"))


def lie_in_links(directories: Iterable[bytes], links: set[bytes]) -> bool:
    """Tell whether one of the directories is, or is in, one of the links."""
    if not links:
        return False
    known: set[bytes] = set()
    for directory in directories:
        here = directory
        while here and here not in known:
            known.add(here)
            here = here.rpartition(b"/")[0]
    return not links.isdisjoint(known)


def _is_refused_part(part: bytes, mode: bytes) -> bool:
    if part in (b"", b"."):
        return True
    # A backslash divides names, too, where such a project may be checked out
    return any(piece == b".." or _is_own(piece, mode) for piece in part.split(b"\\"))


def _is_own(piece: bytes, mode: bytes) -> bool:
    """Tell whether some filesystem takes a name for `.git`; a link is not let be `.gitmodules` either."""
    if not piece.translate(None, _NOT_ASCII).lower().startswith(_BEGINNINGS):
        return False
    folded = fold(piece, _ALIASES)
    return folded == b".git" or (is_link(mode) and folded == b".gitmodules")


def is_index(path: bytes) -> bool:
    """Tell whether a path of a project is an index of git, by its name and place."""
    return path.endswith(b"/index") and b".git" in path.split(b"/")[:-1]


def says_at(dir_fd: int, name: bytes, hash_size: int = SHA1) -> bytes:
    """Return a digest of what the index of that name says, nothing where there is none that can be read."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return b""
    try:
        return index_digest(fd, hash_size) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def index_digest(fd: int, hash_size: int = SHA1) -> bytes:
    """Return a digest of what an open index says, nothing where it is none that can be read."""
    size = os.fstat(fd).st_size
    if not _HEADER < size <= LARGEST_FILE:
        return b""
    return digest(_read(fd, size), hash_size)


def digest(text: bytes, hash_size: int = SHA1) -> bytes:
    """Return a digest of what an index says, nothing where it is of a form that is not read here."""
    import hashlib  # lazy: git

    found = hashlib.blake2b(digest_size=16)
    try:
        for mode, oid, flags, name in _entries(text, hash_size):
            found.update(b"%b%b%b%b\0" % (mode, oid, flags, name))
    except (IndexError, ValueError):
        return b""
    return found.digest()


def staged_objects(text: bytes, hash_size: int = SHA1) -> dict[bytes, set[bytes]] | None:
    """Return the objects that an index has for each path, as hexadecimal names; None where it can't be read.

    Submodules are left out: what they name is no object of this repository.
    """
    found: dict[bytes, set[bytes]] = {}
    try:
        for mode, oid, _flags, name in _entries(text, hash_size):
            if mode != b"\0\0\xe0\0":
                found.setdefault(name, set()).add(oid.hex().encode())
    except (IndexError, ValueError):
        return None
    return found


def find_objects(fd: int, paths: Sequence[bytes], hash_size: int = SHA1) -> dict[bytes, bytes]:
    """Return the object that an open index has for each of some paths, as far as it has one; no further than needed."""
    wanted, last = set(paths), max(paths)
    for size in (_FIRST_LOOK, LARGEST_FILE):
        text = _read(fd, size)
        found: dict[bytes, bytes] = {}
        try:
            for _mode, oid, _flags, name in itertools.islice(_entries(text, hash_size), _MOST_ENTRIES):
                if name in wanted:
                    found[name] = oid
                if name >= last:
                    break
        except (IndexError, ValueError):
            if len(text) == size:
                continue
            return {}
        return found
    return {}


def _read(fd: int, size: int) -> bytes:
    text = b""
    while len(text) < size and (chunk := os.pread(fd, size - len(text), len(text))):
        text += chunk
    return text


def _entries(text: bytes, hash_size: int) -> Iterator[IndexEntry]:
    """Yield the entries in order.

    Raises:
        IndexError: it ends too early.
        ValueError: it is of a form that is not read here, or has a name that git would refuse to stage.
    """
    version, count = _number(text, 4), _number(text, 8)
    if text[:4] != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    at, name = _HEADER, b""
    starts: list[int] = []
    links: set[bytes] = set()
    directories: set[bytes] = set()
    for _ in range(count):
        start, flags_at = at, at + _OBJECT + hash_size
        flags = int.from_bytes(text[flags_at : flags_at + 2], "big")
        at = flags_at + (4 if flags & _EXTENDED else 2)
        mode, oid, known = text[start + _MODE : start + _MODE + 4], text[start + _OBJECT : flags_at], text[flags_at:at]
        if version == 4:
            dropped, at = _varint(text, at)
            end = text.index(b"\0", at)
            if dropped > len(name) or len(name) - dropped + end - at > _LONGEST_NAME:
                raise ValueError("not a name that git writes")
            starts.append(start if dropped == len(name) else -1)
            name = name[: len(name) - dropped] + text[at:end]
            at = end + 1
        else:
            starts.append(start)
            end = text.index(b"\0", at)
            name = text[at:end]
            at = start + (end - start + 8) // 8 * 8
        # Git goes by the length in the flags, not by where the name ends
        if flags & _LENGTH != (len(name) if len(name) < _LENGTH else _LENGTH) or is_refused(name, mode):
            raise ValueError("a name that git would refuse")
        # Only while a merge is under way can there be both a link and what is in a directory of its name
        if not flags & _STAGE:
            directories.add(name.rpartition(b"/")[0])
            if is_link(mode):
                links.add(name)
        yield mode, oid, known, name
    if lie_in_links(directories, links):
        raise ValueError("an entry is in a link")
    _refuse_extensions(text, at, hash_size, starts)


def _refuse_extensions(text: bytes, at: int, hash_size: int, starts: Sequence[int]) -> None:
    """Stop at an index that says more than its entries do, or elsewhere: git would not read what was read here."""
    for size in {SHA1, hash_size}:
        # Git looks at this place for where the extensions begin
        place = len(text) - hash_size - size - _HEADER
        if text[place : place + 4] == _END_OF_ENTRIES and place >= at and _number(text, place + 8) != at:
            raise ValueError("entries that end elsewhere")
    while at + 8 <= len(text) - hash_size:
        name, size = text[at : at + 4], _number(text, at + 4)
        if name[:1].islower() and name not in _HARMLESS:
            raise ValueError("an extension that changes what the entries say")
        if name == _BLOCKS and not _are_blocks(text[at + 12 : at + 8 + size], starts):
            raise ValueError("blocks of entries that are elsewhere")
        at += 8 + size


def _are_blocks(table: bytes, starts: Sequence[int]) -> bool:
    """Tell whether a table, by which git reads a large index in several threads, has all entries where they are."""
    count = 0
    for place in range(0, len(table), 8):
        if count >= len(starts) or _number(table, place) != starts[count]:
            return False
        count += _number(table, place + 4)
    return count == len(starts)


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
