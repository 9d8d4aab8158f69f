# SPDX-License-Identifier: Apache-2.0
"""Which changes a Selection means, and what is left without them.

A chosen path brings the directories above it along that do not exist yet; it never brings what else happened to a
directory above it. Decides by paths alone: no file is looked at.
"""

from __future__ import annotations

import os
import posixpath

from unspill.changes.render import name_here
from unspill.errors import UsageError
from unspill.policy.paths import closest, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from unspill.model.change import Change, ChangeSet, Hunks, RootChanges, Selection

    # Tells which characters one place of a pattern accepts.
    Accepts = Callable[[str], bool]

    # Paths by root
    Chosen = dict[bytes, set[bytes]]

_CUT = "Discard everything that is held, then make the command write less or write elsewhere."
_MOST_COMPARED = 2000
LIST = "See `unspill changes` for what can be chosen."


def select(changes: ChangeSet, selection: Selection, *, parents: bool = True) -> ChangeSet:
    """Return what is chosen, with the same roots.

    A path means all at or below it; a glob means the very paths that it matches; a file of which hunks are chosen is
    in the result whole. Relative paths count from every root, absolute ones from theirs.

    Args:
        changes: What there is.
        selection: What is wanted of it; an empty one wants all.
        parents: Bring along what a chosen path needs above it.

    Raises:
        UsageError: a part of the selection chooses nothing, or the changes are not all known.
    """
    if changes.is_cut:
        raise UsageError("there are more changes than unspill can list, so you can't choose among them", remedy=_CUT)
    if selection.is_everything:
        return changes
    chosen: Chosen = {part.root: set() for part in changes.roots}
    _choose_paths(changes, selection.chosen_paths, chosen, selection.here)
    for pattern in selection.globs:
        _choose_glob(changes, pattern, chosen)
    for hunks in selection.hunks:
        _choose_file(changes, hunks, chosen, selection.here)
    return _keep(changes, with_parents(changes, chosen) if parents else chosen)


def rest(changes: ChangeSet, chosen: ChangeSet, hunks: Iterable[Hunks] = ()) -> ChangeSet:
    """Return what is left of `changes` without the chosen ones; files of which only hunks were chosen stay in it."""
    partial = {posixpath.normpath(some.path) for some in hunks}
    gone = {part.root: {change.path for change in part.changes} - _of_root(part.root, partial) for part in chosen.roots}
    return _filtered(changes, lambda root, path: path not in gone.get(root, ()))


def without(changes: ChangeSet, dropped: ChangeSet, hunks: Iterable[Hunks] = ()) -> ChangeSet:
    """Return what can stay when the `dropped` changes go: the rest, and the new directories that the rest lies in."""
    kept = rest(changes, dropped, hunks)
    paths = {part.root: {change.path for change in part.changes} for part in kept.roots}
    return _keep(changes, with_parents(changes, paths))


def with_parents(changes: ChangeSet, chosen: Chosen) -> Chosen:
    """Add to chosen paths, by root, the directories above them that are new or replace something else."""
    result: Chosen = {}
    for part in changes.roots:
        paths = chosen.get(part.root, set())
        made = {change.path for change in part.changes if change.kind in ("added", "replaced")}
        result[part.root] = paths | ancestors(paths if made else ()) & made
    return result


def ancestors(paths: Iterable[bytes]) -> set[bytes]:
    """Return every directory above the paths."""
    found: set[bytes] = set()
    for path in paths:
        above = path.rpartition(b"/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition(b"/")[0]
    return found


class Glob:
    """A pattern for paths: `*` and `?` within a name, `**` across names, `[a-z]` and `[!a-z]`.

    All places of the pattern that a path may have reached are followed at once, as the bits of one number: so the time
    grows with the length of the path, whatever the pattern. Characters are compared, not bytes; a leading dot is one of
    them.
    """

    __slots__ = ("_end", "_forks", "_loops", "_masks", "_places", "_prefix")

    def __init__(self, pattern: bytes) -> None:
        text = pattern.decode("utf-8", "surrogateescape")
        self._places: list[Accepts] = []
        # Bits of the places that accept any number of characters, and of those that are before a `**/`
        self._loops = 0
        self._forks = 0
        self._masks: dict[str, int] = {}
        cut = min((text.find(mark) for mark in "*?[" if mark in text), default=len(text))
        self._prefix = text[:cut].encode("utf-8", "surrogateescape")
        self._compile(text)
        self._end = 1 << len(self._places)

    def matches(self, path: bytes) -> bool:
        """Tell whether the pattern matches a whole path."""
        if not path.startswith(self._prefix):
            return False
        reached = self._passed(1)
        for character in path.decode("utf-8", "surrogateescape"):
            mask = self._masks.get(character)
            if mask is None:
                mask = self._masks[character] = self._accepting(character)
            reached &= mask
            if not reached:
                return False
            reached = self._passed(reached & self._loops | (reached & ~self._loops) << 1)
        return bool(reached & self._end)

    def _compile(self, text: str) -> None:
        at = 0
        while at < len(text):
            if text[at] != "*":
                accepts, at = _place(text, at)
                self._places.append(accepts)
                continue
            start = at
            while at < len(text) and text[at] == "*":
                at += 1
            crosses, is_whole = at - start > 1, start == 0 or text[start - 1] == "/"
            if crosses and is_whole and text[at : at + 1] == "/":
                # It may also stand for no directory at all, so before it is a place that leads into it and past it.
                self._forks |= 1 << len(self._places)
                self._places.append(_nothing)
            self._loops |= 1 << len(self._places)
            self._places.append(_anything if crosses else _in_a_name)

    def _accepting(self, character: str) -> int:
        return sum(1 << at for at, accepts in enumerate(self._places) if accepts(character))

    def _passed(self, reached: int) -> int:
        """Add the places that are reached without another character."""
        while True:
            forks = reached & self._forks
            more = reached | (reached & self._loops) << 1 | forks << 1 | forks << 3
            if more == reached:
                return reached
            reached = more


def _choose_paths(changes: ChangeSet, given: tuple[bytes, ...], chosen: Chosen, here: bytes) -> None:
    wanted: dict[bytes, dict[bytes, bytes]] = {part.root: {} for part in changes.roots}
    for name in given:
        for part, path in _in_roots(changes, name):
            wanted[part.root][path] = name
    used: set[bytes] = set()
    for part in changes.roots:
        tops = wanted[part.root]
        known = {b"": b"." if b"." in tops else None}
        found = {change.path: top for change in part.changes if (top := _top_of(change.path, tops, known)) is not None}
        chosen[part.root] |= found.keys()
        # One that lies below another has its changes taken by the nearer one.
        nearest = set(found.values())
        named = nearest | ancestors(nearest) | ({b"."} if nearest else set())
        used |= {name for top, name in tops.items() if top in named}
    for name in given:
        if name not in used:
            _refuse_part_of_another(changes, name, here)
            raise _no_changes(changes, name, here)


def _top_of(path: bytes, tops: Container[bytes], known: dict[bytes, bytes | None]) -> bytes | None:
    """Return which of the chosen paths is nearest above a path; `known` spares asking twice for a directory."""
    asked = []
    while path not in known and path not in tops:
        asked.append(path)
        path = path.rpartition(b"/")[0]
    found = known[path] = path if path in tops else known[path]
    for below in asked:
        known[below] = found
    return found


def _refuse_part_of_another(changes: ChangeSet, given: bytes, here: bytes) -> None:
    """Name the change that a path without one of its own belongs to."""
    for part, path in _in_roots(changes, given):
        for change in part.changes:
            hides = change.kind == "deleted" or (change.kind == "replaced" and change.base_kind == "dir")
            if hides and path.startswith(change.path + b"/"):
                name = name_here(part.root, change.path, here)
                raise UsageError(
                    f"{_shown(changes, given, here)} can't be chosen alone: {name} was {change.kind} as a whole",
                    remedy=f"Choose {name}.",
                )


def _choose_glob(changes: ChangeSet, pattern: bytes, chosen: Chosen) -> None:
    found = False
    for part, relative in _in_roots(changes, pattern):
        glob = Glob(relative)
        # The root itself only by its name: no pattern is meant to change its bits
        is_root = relative == b"."
        paths = {
            change.path for change in part.changes if (change.path == b".") == is_root and glob.matches(change.path)
        }
        chosen[part.root] |= paths
        found = found or bool(paths)
    if not found:
        raise UsageError(f"no change matches {quote(pattern)}", remedy=LIST)


def _choose_file(changes: ChangeSet, hunks: Hunks, chosen: Chosen, here: bytes) -> None:
    for part, path in _in_roots(changes, hunks.path):
        for change in part.changes:
            if change.path == path:
                _refuse_hunks(change)
                chosen[part.root].add(path)
                return
    _refuse_part_of_another(changes, hunks.path, here)
    raise _no_changes(changes, hunks.path, here)


def _no_changes(changes: ChangeSet, given: bytes, here: bytes) -> UsageError:
    remedy = did_you_mean(changes, given, here) or LIST
    return UsageError(f"{_shown(changes, given, here)} has no changes", remedy=remedy)


def _refuse_hunks(change: Change) -> None:
    if change.kind != "modified" or change.base_kind != "file":
        raise UsageError(
            f"{quote(change.path)} has no hunks to choose from: it was {change.kind} as a whole",
            remedy="Choose its path.",
        )


def _in_roots(changes: ChangeSet, given: bytes) -> list[tuple[RootChanges, bytes]]:
    """Return the roots that a path or pattern may be in, and what it is called there."""
    if b".." in given.split(b"/"):
        raise UsageError(f"{quote(given)}: a path must not contain `..`", remedy="Write the path without it.")
    if not given:
        raise UsageError("the path is empty", remedy="Write `.` for everything.")
    path = posixpath.normpath(given)
    if not path.startswith(b"/"):
        return [(part, path) for part in changes.roots]
    path = b"/" + path.lstrip(b"/")
    found = []
    for part in changes.roots:
        if path == part.root or path.startswith(part.root + b"/"):
            found.append((part, path[len(part.root) + 1 :] or b"."))
    return found


def _shown(changes: ChangeSet, given: bytes, here: bytes) -> str:
    """Return a path for a message, relative where it is in the first root: to where the person stands, or to it."""
    first = changes.roots[0].root if changes.roots else b""
    path = posixpath.join(first, given)
    is_inside = first and path.startswith(first + b"/")
    return name_here(first, path[len(first) + 1 :], here) if is_inside else quote(given)


def did_you_mean(changes: ChangeSet, given: bytes, here: bytes = b"") -> str:
    """Return a question about a path that changed and is spelt nearly so; nothing if there is none."""
    known = {
        posixpath.join(part.root, change.path) for part in changes.roots for change in part.changes[:_MOST_COMPARED]
    }
    found = closest(os.fsdecode(_absolute(changes, given)), [os.fsdecode(path) for path in known])
    return f"Did you mean {_shown(changes, os.fsencode(found), here)}?" if found else ""


def _absolute(changes: ChangeSet, given: bytes) -> bytes:
    return posixpath.join(changes.roots[0].root, given) if changes.roots else given


def _of_root(root: bytes, paths: set[bytes]) -> set[bytes]:
    return paths | {path[len(root) + 1 :] for path in paths if path.startswith(root + b"/")}


def _keep(changes: ChangeSet, chosen: Chosen) -> ChangeSet:
    return _filtered(changes, lambda root, path: path in chosen.get(root, ()))


def _filtered(changes: ChangeSet, wanted: Callable[[bytes, bytes], bool]) -> ChangeSet:
    return changes.replace(
        roots=tuple(
            part.replace(changes=tuple(change for change in part.changes if wanted(part.root, change.path)))
            for part in changes.roots
        )
    )


def _place(text: str, at: int) -> tuple[Accepts, int]:
    """Return what the pattern accepts at a position that is no star, and the position after it."""
    if text[at] == "?":
        return _in_a_name, at + 1
    if text[at] == "[" and (end := text.find("]", at + 2 + (text[at + 1 : at + 2] in ("!", "^")))) > 0:
        return _one_of(text[at + 1 : end]), end + 1
    return text[at].__eq__, at + 1


def _one_of(body: str) -> Accepts:
    is_negated = body[:1] in ("!", "^")
    rest = body[is_negated:]
    ranges: list[tuple[str, str]] = []
    while rest:
        size = 3 if len(rest) > 2 and rest[1] == "-" else 1
        ranges.append((rest[0], rest[size - 1]))
        rest = rest[size:]

    def accepts(character: str) -> bool:
        return character != "/" and any(low <= character <= high for low, high in ranges) != is_negated

    return accepts


def _in_a_name(character: str) -> bool:
    return character != "/"


def _nothing(_character: str) -> bool:
    return False


def _anything(_character: str) -> bool:
    return True
