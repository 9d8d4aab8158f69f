# SPDX-License-Identifier: Apache-2.0
"""What each file of a git directory is for, by its path: an object, a reference, the state of a merge, a log.

`.git` itself, the directories of linked worktrees and those of submodules are laid out alike: paths here are relative
to one of them. What is not listed is `other`, and judged file by file.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    # object, pack, promisor: added and never taken away. ref, file: say where the repository stands, and move together.
    # log: only grows. along: goes along with these, but decides nothing. derived: git makes it anew. scrap: locks and
    # what somebody did not finish.
    Part = Literal["object", "pack", "promisor", "ref", "file", "log", "along", "derived", "scrap", "other"]

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
    if path == b"index" or path in UNIT_FILES or first in STATE_DIRECTORIES:
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
