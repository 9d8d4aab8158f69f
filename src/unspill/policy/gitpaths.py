# SPDX-License-Identifier: Apache-2.0
"""What a path in a git directory is for: harmless, judged by its content, or unknown and therefore held.

Paths are folded and relative to the git directory. An allow table: what a later git adds is unknown here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    # What decides: nothing, its name (hook, unknown), or its content
    Place = Literal[
        "ordinary", "unknown", "hook", "config", "attributes", "pointer", "common", "module", "todo", "alternates",
        "replace", "grafts", "shallow",
    ]  # fmt: skip

GIT = b".git"
ATTRIBUTES, MODULES = b".gitattributes", b".gitmodules"
# A directory with these is a git directory, whatever its name
MARKS = frozenset(b"head objects refs commondir worktrees".split())
# With these names a file steers git if it lies in such a directory
STEERING = frozenset(b"config config.worktree".split())
_SHELVES = frozenset(b"hooks info".split())
NAMES = MARKS | STEERING | _SHELVES | {GIT, ATTRIBUTES, MODULES, b".hg", b".jj", b".tool-versions"}

_FILES = frozenset(
    b"""
    head orig_head fetch_head rebase_head cherry_pick_head revert_head bisect_head auto_merge squash_msg
    index packed-refs packed-refs.new description gc.log gc.pid renamed-ref add_edit.patch addp-hunk-edit.diff
    edit_description locked gitk.cache fsmonitor--daemon.ipc
    """.split()
)
_BEGINNINGS = (b"merge_", b"bisect_", b"notes_merge_", b"sharedindex.", b"index.stash.", b"next-index-", b"gitgui_")
_ENDINGS = (b"_editmsg",)
_STATE = frozenset(b"rebase-merge rebase-apply sequencer".split())
_TODO = frozenset(b"git-rebase-todo git-rebase-todo.backup todo".split())
_SHELF = frozenset(b"exclude refs sparse-checkout".split())
_LFS = frozenset(b"objects tmp cache incomplete".split())
_PACK_SUFFIXES = frozenset(b"pack idx rev bitmap keep promisor mtimes midx lock".split())
_STORES = frozenset(b"refs logs reftable lfs rr-cache fsmonitor--daemon objects".split()) | _STATE
_HEX = frozenset(b"0123456789abcdef")

# The hooks that git 2.39 knows; used where a directory of hooks is no directory of its own
HOOKS = tuple(
    b"""
    applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg post-commit
    pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive post-receive post-update
    reference-transaction push-to-checkout pre-auto-gc post-rewrite sendemail-validate fsmonitor-watchman
    post-index-change p4-changelist p4-prepare-changelist p4-post-changelist p4-pre-submit
    """.split()
)


def place_of(rest: list[bytes]) -> Place:
    """Say what the path `rest` in a git directory is for."""
    first = rest[0]
    if len(rest) == 1:
        return _place_of_file(first)
    if first == b"hooks":
        return "ordinary" if len(rest) == 2 and rest[1].endswith(b".sample") else "hook"
    if first == b"worktrees":
        return place_of(rest[2:]) if len(rest) > 2 else "unknown"
    if first == b"modules":
        return "module"
    if first == b"info":
        return _place_in_info(rest)
    if rest[:2] == [b"refs", b"replace"]:
        return "replace"
    if first in _STATE:
        return "todo" if rest[1] in _TODO else _known(len(rest) == 2)
    if rest == [b"objects", b"info", b"alternates"]:
        return "alternates"
    return _known(_is_stored(first, rest))


def _place_in_info(rest: list[bytes]) -> Place:
    if rest[1:] == [b"attributes"]:
        return "attributes"
    return "grafts" if rest[1:] == [b"grafts"] else _known(len(rest) == 2 and rest[1] in _SHELF)


def _place_of_file(name: bytes) -> Place:
    if name in STEERING:
        return "config"
    if name == b"shallow":
        return "shallow"
    if name == b"commondir":
        return "common"
    if name == b"gitdir":
        return "pointer"
    base = name.removesuffix(b".lock")
    return _known(base in _FILES or base.startswith(_BEGINNINGS) or base.endswith(_ENDINGS))


def _known(is_known: bool) -> Place:
    return "ordinary" if is_known else "unknown"


def _is_stored(first: bytes, rest: list[bytes]) -> bool:
    """Tell whether it is an object, a reference, a log, or a record of resolved conflicts."""
    if first == b"objects":
        return is_object(rest)
    if first == b"refs" or first == b"reftable":
        return True
    if first == b"logs":
        return rest[1] == b"refs" or rest == [b"logs", b"head"]
    if first == b"rr-cache":
        return len(rest) == 3 and _is_hex(rest[1])
    if first == b"fsmonitor--daemon":
        return rest[1] == b"cookies"
    return first == b"lfs" and rest[1] in _LFS


def could_steer(rest: list[bytes]) -> bool:
    """Tell whether a path that is harmless in a git directory would not be so in a second one that lies in there.

    References and their like may be called anything, so that whole repositories fit among them.
    """
    if rest[0] == b"worktrees":
        rest = rest[2:]
    if rest[:2] == [b"objects", b"info"]:
        rest = rest[1:]
    if len(rest) < 2:
        return False
    return rest[-1] in STEERING or rest[-1] == b"commondir" or not _SHELVES.isdisjoint(rest[1:-1])


def inside_store(parts: list[bytes]) -> list[bytes]:
    """Return what follows the directory of references, logs or the like that a path in a git directory is in."""
    start = parts.index(GIT)
    end = next((end for end, part in enumerate(parts[start:-1], start + 1) if part in _STORES), len(parts))
    return parts[end:]


def is_object(rest: list[bytes]) -> bool:
    """Tell whether a path that begins with `objects` is where git keeps objects."""
    if len(rest) == 2:
        return rest[1] == b"maintenance.lock" or rest[1].startswith(b"tmp_")
    kind, name = rest[1], rest[-1]
    if kind == b"pack":
        temporary = name.startswith((b"tmp_", b".tmp-", b"multi-pack-index"))
        return len(rest) == 3 and (temporary or name.rpartition(b".")[2] in _PACK_SUFFIXES)
    if kind == b"info":
        return rest[2] in (b"packs", b"http-alternates", b"commit-graph", b"commit-graphs", b"commit-graph.lock")
    if kind.startswith((b"incoming-", b"tmp_objdir-")):
        return is_object([b"objects", *rest[2:]])
    return len(rest) == 3 and len(kind) == 2 and _is_hex(kind) and (_is_hex(name) or name.startswith(b"tmp_obj_"))


def is_object_directory(parts: list[bytes]) -> bool:
    """Tell whether a directory is one of those that hold a repository's objects, the bulk of every change to it."""
    return parts[-3:-1] == [GIT, b"objects"] and parts.count(GIT) == 1


def _is_hex(name: bytes) -> bool:
    return _HEX.issuperset(name)


def homes_of(parts: list[bytes]) -> set[int]:
    """Return how many components lead to each directory that would make this path steer git if git owned it.

    Directories named `.git` are not among them: they need no second look.
    """
    ends = {index for index, part in enumerate(parts[:-1]) if part in _SHELVES}
    if parts[-1] in MARKS or parts[-1] in STEERING:
        ends.add(len(parts) - 1)
    if GIT in parts:
        top = parts.index(GIT)
        # The name of a module may have slashes in it, so only its shape tells where it begins
        if parts[top + 1 : top + 2] == [b"modules"]:
            ends.update(range(top + 3, len(parts)))
    return ends
