# SPDX-License-Identifier: Apache-2.0
"""The files of a git directory: what each is for, by its path, and what its index says.

`.git` itself, the directories of linked worktrees and those of submodules are laid out alike: paths here are relative
to one of them. What is not listed is `other`, and judged file by file.

The index is read without what git merely remembers in it. A plain `git status`, which editors and prompts run by
themselves, writes it anew with fresh times and inodes: to take that for somebody's work would make every undo of a
commit a conflict. Git checks a name when it stages a path, but believes an index that it reads: a checkout from one
with `.git/hooks/post-checkout` in it writes a hook and runs it, and `../x` leaves the project.
"""

from __future__ import annotations

import itertools
import os
import stat

from unspill.policy.git import pointer_target
from unspill.policy.paths import fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Literal

    # object, pack, promisor: added and never taken away. ref, file: say where the repository stands, and move together.
    # log: only grows. along: goes along with these, but decides nothing. derived: git makes it anew. scrap: locks and
    # what somebody did not finish.
    Part = Literal["object", "pack", "promisor", "ref", "file", "log", "along", "derived", "scrap", "other"]

    # Mode, object, flags and name
    IndexEntry = tuple[bytes, bytes, bytes, bytes]


GIT = b".git"
# No more than this is read of a file in a repository
LARGEST_FILE = 64 << 20
OWN_REFS = b"refs/unspill"
REPLACE = b"refs/replace/"
STASH_LOG = b"logs/refs/stash"
SPARSE = b"info/sparse-checkout"
STATE_FILES = tuple(
    b"""
    MERGE_HEAD MERGE_MSG MERGE_MODE MERGE_AUTOSTASH CHERRY_PICK_HEAD REVERT_HEAD REBASE_HEAD SQUASH_MSG BISECT_LOG
    BISECT_START BISECT_TERMS BISECT_NAMES BISECT_EXPECTED_REV BISECT_ANCESTORS_OK BISECT_RUN BISECT_HEAD
    BISECT_FIRST_PARENT
    """.split()
)
# References in another form, of which nothing is read here
REFTABLE = b"reftable"
STATE_DIRECTORIES = (b"rebase-merge", b"rebase-apply", b"sequencer")
LOCKS = (b"index.lock", b"HEAD.lock", b"packed-refs.lock", b"config.lock", b"gc.pid")
# Besides `index`
UNIT_FILES = frozenset((*STATE_FILES, SPARSE, STASH_LOG))

_ALONG = frozenset(b"ORIG_HEAD FETCH_HEAD AUTO_MERGE MERGE_RR gc.log rr-cache".split())
_SCRAP = frozenset(b"gc.pid packed-refs.new".split())
_UNFINISHED = (b"tmp_", b".tmp-", b"incoming-")
_HEX = frozenset(b"0123456789abcdef")
_NAME_LENGTHS = (40, 64)
# What no reference may have in its name
_FORBIDDEN = frozenset(b" ~^:?*[\\\x7f") | frozenset(range(32))

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
# In the first byte of the flags, and in the third, which only an extended entry has
_ASSUME_UNCHANGED, _SKIP_WORKTREE = 0x80, 0x40
_STAGE, _LENGTH = 0x3000, 0x0FFF
# Entries are sorted, and names with a dot are among the first
_FIRST_LOOK = 256 << 10
_LONGEST_NAME = 4096
# A command can write this file, and each run would read it
_MOST_ENTRIES = 250_000
_SMALL_FILE = 64 << 10
# Extensions in small letters change what the index says; `sdir` only marks that some entries are directories
_HARMLESS = frozenset({b"sdir"})
# What conflicts were before they were resolved
_KEPT = _HARMLESS | {b"REUC"}
_PRINTED = bytes(code for code in range(256) if code >= 32 and code != 127)
_END_OF_ENTRIES, _BLOCKS = b"EOIE", b"IEOT"


def part_of(path: bytes) -> Part:
    """Say what a path in a git directory is for."""
    names = path.split(b"/")
    first, last = names[0], names[-1]
    if last.endswith(b".lock") or first in _SCRAP or first.startswith((b"index.stash.", b"next-index-")):
        return "scrap"
    if first == b"objects":
        return _part_of_objects(names)
    if first in (b"HEAD", b"packed-refs", b"refs"):
        return "ref"
    if path == b"index" or path in UNIT_FILES or first in (REFTABLE, *STATE_DIRECTORIES):
        return "file"
    if first == b"logs":
        return "log"
    if first in _ALONG or (len(names) == 1 and last.endswith(b"_EDITMSG")):
        return "along"
    return "derived" if path == b"info/refs" else "other"


def _part_of_objects(names: list[bytes]) -> Part:
    if any(name.startswith(_UNFINISHED) for name in names[1:]):
        return "scrap"
    if len(names) == 3 and len(names[1]) == 2 and is_object_name(names[1] + names[2]):
        return "object"
    if len(names) == 3 and names[1] == b"pack" and names[2].startswith(b"pack-"):
        kind = names[2].rpartition(b".")[2]
        return "pack" if kind == b"pack" else "promisor" if kind == b"promisor" else "derived"
    if names[1:2] == [b"info"] and names[2:3] in ([b"alternates"], [b"http-alternates"]):
        return "other"
    return "derived"


def is_state(path: bytes) -> bool:
    """Tell whether a path, relative to a root, says where the root's repository stands; not so a hook or an object."""
    if not path.startswith(b".git/"):
        return False
    names = path.split(b"/")[1:]
    # Where the directory of a submodule begins can't be told from its path
    starts = range(1, len(names)) if names[0] in (b"modules", b"worktrees") else (0,)
    return any(part_of(b"/".join(names[start:])) in ("ref", "file") for start in starts)


def is_object_name(text: bytes) -> bool:
    """Tell whether this is the name of an object."""
    return len(text) in _NAME_LENGTHS and _HEX.issuperset(text)


def is_ref_name(name: bytes) -> bool:
    """Tell whether git takes this for the name of a reference: `HEAD`, or a path below `refs`."""
    if name == b"HEAD":
        return True
    parts = name.split(b"/")
    if len(parts) < 2 or parts[0] != b"refs" or b".." in name or b"@{" in name or name.endswith(b"."):
        return False
    return _FORBIDDEN.isdisjoint(name) and all(
        part and not part.startswith(b".") and not part.endswith(b".lock") for part in parts
    )


def short_ref(name: bytes) -> bytes:
    """Return what git itself shows of a reference: a branch by its name, anything else below `refs`."""
    branch = name.removeprefix(b"refs/heads/")
    return name.removeprefix(b"refs/") if branch == name else branch


def repository_of(path: bytes) -> bytes | None:
    """Return the part of a path that ends with the first `.git`, None where there is none or it is the path itself."""
    if b"/.git/" not in b"/" + path:
        return None
    parts = path.split(b"/")
    return b"/".join(parts[: parts.index(GIT) + 1])


def is_object(path: bytes) -> bool:
    """Tell whether a path, relative to a root, is one of git's objects, a pack, or what git makes of these."""
    top = repository_of(path)
    return top is not None and part_of(path[len(top) + 1 :]) in ("object", "pack", "derived")


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
    found = _new_digest("blake2b", digest_size=16)
    try:
        for mode, oid, flags, name in _entries(text, hash_size):
            found.update(b"%b%b%b%b\0" % (mode, oid, flags, name))
    except (IndexError, ValueError):
        return b""
    return found.digest()


def _new_digest(name: str, **options: Any) -> hashlib._Hash:
    import hashlib  # lazy: git

    return hashlib.new(name, usedforsecurity=False, **options)


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


def overlooked(text: bytes, hash_size: int = SHA1) -> set[bytes]:
    """Return the paths that an index has marked so that git does not look for changes of them in the work tree."""
    found = set()
    try:
        for _mode, _oid, flags, name in _entries(text, hash_size):
            if flags[0] & _ASSUME_UNCHANGED or (len(flags) > 2 and flags[2] & _SKIP_WORKTREE):
                found.add(name)
    except (IndexError, ValueError):
        # Such an index is not applied
        return set()
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


def find_outside(top: bytes) -> bytes | None:
    """Return the repository of a worktree or module that lies outside of it, None where there is none.

    Only one that says itself that this is its worktree: a `.git` file alone can name any directory of the person's.
    """
    target = pointer_target(_small_file(top + b"/.git"))
    if target is None or b"\0" in target:
        return None
    git = os.path.realpath(os.path.join(top, target))
    if git == top or git.startswith(top + b"/"):
        return None
    back = _small_file(git + b"/gitdir").rstrip(b"\r\n")
    if back and os.path.realpath(os.path.join(git, back)) == top + b"/.git":
        return os.path.realpath(os.path.join(git, _small_file(git + b"/commondir").rstrip(b"\r\n")))
    for line in _small_file(git + b"/config").splitlines():
        name, _, value = line.partition(b"=")
        if name.strip().lower() == b"worktree" and os.path.realpath(os.path.join(git, value.strip())) == top:
            return git
    return None


def _small_file(path: bytes) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(fd, "rb", buffering=0) as file:
        return file.read(_SMALL_FILE) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def find_by_name(fd: int, names: frozenset[bytes], hash_size: int = SHA1) -> dict[bytes, bytes]:
    """Return the objects that an open index has for all paths, at any depth, whose last component is one of `names`."""
    found: dict[bytes, bytes] = {}
    try:
        for _mode, oid, _flags, path in itertools.islice(_entries(_read(fd, LARGEST_FILE), hash_size), _MOST_ENTRIES):
            if path[path.rfind(b"/") + 1 :] in names:
                found[path] = oid
    except (IndexError, ValueError):
        return {}
    return found


def _read(fd: int, size: int) -> bytes:
    text = b""
    while len(text) < size and (chunk := os.pread(fd, size - len(text), len(text))):
        text += chunk
    return text


def without_caches(text: bytes, hash_size: int = SHA1) -> bytes:
    """Return an index without what git merely remembers in it and believes, such as the trees that it would commit.

    Git finds that out again. One that can't be read is returned as it is.
    """
    ends: list[int] = []
    try:
        for _ in _entries(text, hash_size, ends):
            pass
    except (IndexError, ValueError):
        return text
    at = ends[0]
    kept = text[:at]
    while at + 8 <= len(text) - hash_size:
        end = at + 8 + _number(text, at + 4)
        kept += text[at:end] if text[at : at + 4] in _KEPT else b""
        at = end
    found = _new_digest("sha1" if hash_size == SHA1 else "sha256")
    found.update(kept)
    return kept + found.digest()


def is_log_line(line: bytes) -> bool:
    """Tell whether this is a whole line of a log as git writes it: what is no line would swallow the next one."""
    head, _, message = line.removesuffix(b"\n").partition(b"\t")
    words = head.split(b" ")
    is_whole = line.endswith(b"\n") and len(words) > 4 and all(map(is_object_name, words[:2]))
    is_dated = is_whole and words[-3].endswith(b">") and words[-2].isdigit() and words[-1][1:].isdigit()
    return is_dated and not (head + message).translate(None, _PRINTED)


def _entries(text: bytes, hash_size: int, ends: list[int] | None = None) -> Iterator[IndexEntry]:
    """Yield the entries in order; `ends` gets where they end.

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
    if ends is not None:
        ends.append(at)
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
