# SPDX-License-Identifier: Apache-2.0
"""A ChangeSet in a few lines, the same for people and for models: what changed, and what deserves a look first.

Every name goes through `quote`; the number of lines is bounded; a mere touch is neither counted nor shown.

`to_plain` gives plain values for JSON, and `from_plain` takes them back. Names are bytes and JSON has none, so each
path comes twice: to be read (`path`) and exactly (`path_b64`). Only the exact one is read back, and nothing that could
point outside of its root is accepted.
"""

from __future__ import annotations

import binascii
import posixpath

from unspill.errors import UsageError
from unspill.model.change import Change, ChangeSet, Identity, RootChanges
from unspill.policy.paths import is_mixed_script, quote, show_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Never

    from unspill.model.change import ChangeKind
    from unspill.model.operation import Operation, Skipped, Why

LIMIT = 40
# Of the form for JSON
SCHEMA = 1

_LETTERS: dict[ChangeKind, str] = {
    "added": "A",
    "modified": "M",
    "deleted": "D",
    "replaced": "T",
    "metadata": "m",
}
_COLOURS: dict[ChangeKind, str] = {
    "added": "\033[32m",
    "modified": "\033[33m",
    "deleted": "\033[31m",
    "replaced": "\033[31m",
    "metadata": "\033[36m",
}
_END = "\033[0m"
WHYS: dict[Why, str] = {
    "conflict": "conflict",
    "held": "needs the user's approval",
    "refused": "refused",
    "stale": "changed",
    "earlier": "skipped",
}
_OF_GIT = frozenset(
    b"objects refs reftable logs index HEAD ORIG_HEAD FETCH_HEAD MERGE_HEAD MERGE_MSG MERGE_MODE COMMIT_EDITMSG"
    b" packed-refs AUTO_MERGE MERGE_RR CHERRY_PICK_HEAD REVERT_HEAD REBASE_HEAD SQUASH_MSG branches description".split()
)
_KINDS = {"file": "file", "dir": "directory", "symlink": "symlink", "special": "special file"}
_ENTRY_KINDS = frozenset({"file", "dir", "symlink", "special"})
_CHANGE_KINDS = frozenset({"added", "modified", "deleted", "replaced", "metadata"})
_ASPECTS = frozenset({"content", "mode", "mtime", "xattrs", "target"})
_BYTES = ("target", "base_target", "layer")
_NUMBERS = ("base_size", "base_mode")
_FLAGS = ("leads_out", "broke_link", "unreadable")
_IDENTITY = ("mode", "inode", "size", "ctime_ns")


def summary_lines(
    changes: ChangeSet,
    *,
    limit: int = LIMIT,
    colour: bool = False,
    renames: Mapping[bytes, bytes] | None = None,
    fold_git: bool = False,
    project: bytes | None = None,
    here: bytes = b"",
) -> list[str]:
    """Return a heading with the counts, at most `limit` lines of changes, and the findings; empty for no change.

    Args:
        changes: What is to be shown.
        limit: Lines of changes over all roots; findings have as many again.
        colour: Mark the kinds with terminal colours.
        renames: Old paths of renamed files by their new ones, as `find_renames` tells them.
        project: The root that need not be named where it is the only one.
        fold_git: Let one line stand for what git keeps for itself: a commit is many files.
        here: Where the person stands. Below a root, its paths are named as seen from there.
    """
    lines: list[str] = []
    shown = [(part.root, _worth_a_line(part.changes)) for part in changes.roots]
    if heading := count_changes(changes):
        lines.append(heading)
    left = limit
    for root, worth in shown:
        if not worth:
            continue
        if len(changes.roots) > 1 or project not in (None, root):
            lines.append(f"in {quote(root)}:")
        listed, git = _without_git(worth) if fold_git else (worth, {})
        base = _inside(root, here)
        part = _lines_of(listed, left, colour=colour, renames=renames or {}, base=base)
        part += [
            f"  . {_name(path, base)}/: {count} internal git file{'s'[: count > 1]}" for path, count in git.items()
        ]
        left = max(0, left - len(part))
        lines += part
    lines += [f"  ! {finding}" for finding in changes.findings[:limit]]
    if len(changes.findings) > limit:
        lines.append(f"  ! and {len(changes.findings) - limit} more findings")
    return lines


def count_changes(changes: Iterable[Change]) -> str:
    """Return how many changes of each kind there are, such as `2 added, 1 modified`; empty for none."""
    counts = dict.fromkeys(_LETTERS, 0)
    for change in changes:
        counts[change.kind] += not change.is_mere_touch
    words = {"metadata": "with changed metadata"}
    return ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in counts.items() if count)


def remarks(change: Change) -> list[str]:
    """Return what deserves a look about a change, the gravest first."""
    notes = []
    entry = change.entry
    if change.leads_out:
        notes.append("points outside the project")
    if change.unreadable:
        notes.append("not readable")
    if change.kind == "replaced" and entry is not None and change.base_kind is not None:
        notes.append(f"was a {_KINDS[change.base_kind]}, is a {_KINDS[entry.kind]}")
    elif entry is not None and entry.kind == "special":
        notes.append("special file")
    if entry is not None and entry.kind != "symlink":
        notes += _mode_remarks(change, entry.mode)
    if "xattrs" in change.aspects:
        notes.append("attributes")
    if change.broke_link:
        notes.append("was a hard link, now a separate file")
    if is_mixed_script(change.path):
        notes.append("mixed scripts in the name")
    return notes


def skipped_lines(operation: Operation, *, limit: int = LIMIT) -> list[str]:
    """Return what an operation skipped, a line each with the reason, at most `limit` and a count of the rest."""
    groups = group_skipped(operation)
    lines = [f"  ! {skipped_name(operation, left, inside)}: {skipped_reason(left)}" for left, inside in groups[:limit]]
    if len(groups) > limit:
        lines.append(f"  ! and {len(groups) - limit} more")
    return lines


def group_skipped(operation: Operation) -> list[tuple[Skipped, int]]:
    """Return what was skipped; a directory stands for all in it with the same reason, with the number of these."""
    found: list[tuple[Skipped, int]] = []
    for left in operation.left:
        outer, inside = found[-1] if found else (None, 0)
        if (
            outer is not None
            and (outer.root, outer.why, outer.reason) == (left.root, left.why, left.reason)
            and left.path.startswith(outer.path + b"/")
        ):
            found[-1] = outer, inside + 1
        else:
            found.append((left, 0))
    return found


def skipped_name(operation: Operation, left: Skipped, inside: int = 0, *, here: bytes = b"") -> str:
    """Return a path that was skipped as it is shown: relative in the project, absolute in another root."""
    root = operation.roots[left.root]
    base = _inside(root, here)
    name = _name(left.path, base) if base or root == operation.project else quote(root + b"/" + left.path)
    return f"{name} and {inside} in it" if inside else name


def skipped_reason(left: Skipped) -> str:
    """Return why a path was skipped, in words; a reason may name what a stranger wrote."""
    return f"{WHYS[left.why]}: {safe_text(left.reason)}"


def safe_text(text: str) -> str:
    """Return a sentence of ours that may have a stranger's words in it, safe to show on one line."""
    return show_line(text.encode("utf-8", "surrogateescape"))


def applied_part(changes: ChangeSet, operation: Operation) -> ChangeSet:
    """Return the changes that an operation did not leave alone."""
    left = {(operation.roots[one.root], one.path) for one in operation.left}
    # A repository that was left stands for all in it that moves with it
    repositories = tuple(root + b"/" + path + b"/" for root, path in left if path.endswith(b".git"))
    # So do the new worktrees and submodules of one
    members = tuple(place + name for place in repositories for name in (b"worktrees/", b"modules/"))
    parts = []
    for part in changes.roots:
        # What is in a new directory can't be where that directory is not
        outer = tuple(c.path + b"/" for c in part.changes if c.kind == "added" and (part.root, c.path) in left)
        kept = [c for c in part.changes if (part.root, c.path) not in left and not c.path.startswith(outer)]
        own = [
            c
            for c in kept
            if (part.root + b"/" + c.path).startswith(repositories)
            and (
                not without_own_files([c])
                or (c.kind == "added" and (part.root + b"/" + c.path + b"/").startswith(members))
            )
        ]
        parts.append(part.replace(changes=tuple(c for c in kept if c not in own) if own else tuple(kept)))
    return changes.replace(roots=tuple(parts))


def without_own_files(changes: Iterable[Change]) -> list[Change]:
    """Return changes without those of the files that git keeps for itself."""
    return _without_git(list(changes))[0]


def to_plain(changes: ChangeSet) -> dict[str, Any]:
    """Return a ChangeSet as dictionaries, lists, strings and numbers; fields at their default are left out."""
    return {
        "schema": SCHEMA,
        "roots": [
            {**named("root", part.root), "changes": [_change_to_plain(change) for change in part.changes]}
            for part in changes.roots
        ],
        "findings": list(changes.findings),
    }


def from_plain(plain: object) -> ChangeSet:
    """Return the ChangeSet that `to_plain` was given.

    Raises:
        UsageError: It is not one, or one of a newer unspill.
    """
    try:
        return _read(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"this is not an unspill change set: {error}") from None


def named(field: str, raw: bytes) -> dict[str, str]:
    """Return a name twice: to be read, and exactly."""
    return {field: quote(raw), f"{field}_b64": binascii.b2a_base64(raw, newline=False).decode("ascii")}


def _worth_a_line(changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if not change.is_mere_touch]


def _lines_of(
    changes: Sequence[Change], limit: int, *, colour: bool, renames: Mapping[bytes, bytes], base: bytes
) -> list[str]:
    gone = {renames[change.path] for change in changes if change.path in renames}
    changes = [change for change in changes if change.kind != "deleted" or change.path not in gone]
    inside: dict[bytes, int] = {}
    if len(changes) > limit:
        changes, inside = _folded(changes)
    left_out = len(changes) - limit
    if left_out > 0:
        changes = sorted(changes, key=lambda change: not change.leads_out)[:limit]
    lines = []
    for change in changes:
        line = _change_line(change, colour=colour, old=renames.get(change.path), base=base)
        if number := inside.get(change.path):
            line += f" and {number} in it"
        lines.append(line)
    if left_out > 0:
        lines.append(f"  ... and {left_out} more")
    return lines


def _change_line(change: Change, *, colour: bool = False, old: bytes | None = None, base: bytes = b"") -> str:
    """Return one change as one line: a letter, the name and what is remarkable about it."""
    letter = "R" if old is not None else _LETTERS[change.kind]
    if colour:
        letter = f"{_COLOURS[change.kind]}{letter}{_END}"
    kind = change.entry.kind if change.entry is not None else change.base_kind
    name = _name(change.path, base) + ("/" if kind == "dir" else "")
    if old is not None:
        name = f"{_name(old, base)} => {name}"
    if change.target is not None:
        name += f" -> {quote(change.target)}"
    notes = remarks(change)
    return f"  {letter} {name}" + (f"  [{'; '.join(notes)}]" if notes else "")


def name_here(root: bytes, path: bytes, here: bytes) -> str:
    """Return a path of a root as it is shown to a person: as seen from where they stand in it, else from the root."""
    return _name(path, _inside(root, here))


def _inside(root: bytes, here: bytes) -> bytes:
    """Return the path of a directory in a root; nothing for one that is not below it."""
    return here[len(root) + 1 :] if here.startswith(root + b"/") else b""


def _name(path: bytes, base: bytes) -> str:
    """Return a path as it is shown: as seen from a directory of its root, or from the root."""
    return quote(posixpath.relpath(path, base) if base else path)


def _mode_remarks(change: Change, mode: int) -> list[str]:
    if "mode" in change.aspects:
        return [f"mode {change.base_mode:o} to {mode:o}"]
    if mode & 0o7000 and change.base_kind is None:
        return [f"mode {mode:o}"]
    return []


def _folded(changes: Sequence[Change]) -> tuple[list[Change], dict[bytes, int]]:
    """Let an added directory stand for what is in it, except for what leads out."""
    kept: list[Change] = []
    inside: dict[bytes, int] = {}
    outer: bytes | None = None
    for change in changes:
        if outer is not None and change.path.startswith(outer + b"/"):
            inside[outer] = inside.get(outer, 0) + 1
            if not change.leads_out:
                continue
        elif change.kind == "added" and change.entry is not None and change.entry.kind == "dir":
            outer = change.path
        kept.append(change)
    return kept, inside


def _without_git(changes: list[Change]) -> tuple[list[Change], dict[bytes, int]]:
    """Take away what git keeps for itself, and count it by git directory; settings, hooks and the like stay."""
    kept: list[Change] = []
    counts: dict[bytes, int] = {}
    for change in changes:
        above, mark, inner = change.path.rpartition(b".git/")
        is_known = inner.partition(b"/")[0] in _OF_GIT and not _is_new_program(change)
        # Whether a file of git's own had a second name says nothing: the layer that shows it frozen may have one
        is_own = mark and (not above or above.endswith(b"/")) and not remarks(change.replace(broke_link=False))
        if is_own and (is_known or inner.endswith(b".sample")):
            counts[above + b".git"] = counts.get(above + b".git", 0) + 1
        else:
            kept.append(change)
    return kept, counts


def _is_new_program(change: Change) -> bool:
    entry = change.entry
    return entry is not None and entry.kind == "file" and bool(entry.mode & ~change.base_mode & 0o111)


def _change_to_plain(change: Change) -> dict[str, Any]:
    plain: dict[str, Any] = {**named("path", change.path), "kind": change.kind}
    if change.entry is not None:
        plain["entry"] = change.entry.as_dict()
    if change.base_kind is not None:
        plain["base_kind"] = change.base_kind
    if change.aspects:
        plain["aspects"] = list(change.aspects)
    for field in (*_NUMBERS, *_FLAGS):
        if value := getattr(change, field):
            plain[field] = value
    for field in _BYTES:
        if (raw := getattr(change, field)) is not None:
            plain |= named(field, raw)
    return plain


def _read(plain: Any) -> ChangeSet:
    if plain["schema"] != SCHEMA:
        _refuse(f"schema {plain['schema']!r} is not {SCHEMA}")
    roots = tuple(
        RootChanges(root=_raw(part, "root"), changes=tuple(_read_change(change) for change in part["changes"]))
        for part in plain["roots"]
    )
    return ChangeSet(roots=roots, findings=tuple(_checked(text, str) for text in plain["findings"]))


def _read_change(plain: Any) -> Change:
    path = _raw(plain, "path")
    if path != b"." and not {b"", b".", b".."}.isdisjoint(path.split(b"/")):
        _refuse(f"the path {quote(path)} is not below a root")
    entry = plain.get("entry")
    base_kind = plain.get("base_kind")
    others: dict[str, Any] = {field: _raw(plain, field) for field in _BYTES if f"{field}_b64" in plain}
    others |= {field: _checked(plain[field], int) for field in _NUMBERS if field in plain}
    others |= {field: _checked(plain[field], bool) for field in _FLAGS if field in plain}
    return Change(
        path=path,
        kind=_one_of(plain["kind"], _CHANGE_KINDS),
        entry=None if entry is None else _read_identity(entry),
        base_kind=None if base_kind is None else _one_of(base_kind, _ENTRY_KINDS),
        aspects=tuple(_one_of(aspect, _ASPECTS) for aspect in plain.get("aspects", ())),
        **others,
    )


def _read_identity(plain: Any) -> Identity:
    numbers = {field: _checked(plain[field], int) for field in _IDENTITY}
    return Identity(kind=_one_of(plain["kind"], _ENTRY_KINDS), **numbers)


def _raw(plain: Any, field: str) -> bytes:
    raw = binascii.a2b_base64(_checked(plain[f"{field}_b64"], str), strict_mode=True)
    if b"\0" in raw:
        _refuse(f"{field} holds a zero byte")
    return raw


def _one_of(value: Any, allowed: frozenset[str]) -> Any:
    return value if value in allowed else _refuse(f"{value!r} is unknown")


def _checked(value: Any, kind: type) -> Any:
    return value if type(value) is kind else _refuse(f"{value!r} is not of type {kind.__name__}")


def _refuse(why: str) -> Never:
    raise ValueError(why)
