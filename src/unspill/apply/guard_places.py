# SPDX-License-Identifier: Apache-2.0
"""Ordinary places of a project that its live git settings make dangerous: hooks, included settings, filters in it.

A person whose `core.hooksPath` is `.husky` has made every file there a hook. The settings of the person and of the
machine count as well as the project's. They are read for names only; nothing in them is run or followed.
"""

from __future__ import annotations

import os
import stat

from unspill.apply.guard_git import ORDINARY, join, parse, worst
from unspill.apply.guard_view import MAX_CONTENT
from unspill.changes.reader import read_up_to
from unspill.model.record import Record
from unspill.policy.gitfiles import pointer_target
from unspill.policy.gitkeys import pattern_of
from unspill.policy.gitpaths import HOOKS
from unspill.policy.guarded import INDEX
from unspill.policy.other_rows import HOOK, PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from unspill.apply.guard_git import GitGuard, Opinion
    from unspill.apply.guard_view import View
    from unspill.model.change import Change

# Directories that hold hooks by convention; beside one there may be a repository of its own
_HOOK_DIRECTORIES = frozenset((b".husky", b".githooks", b".git-hooks"))
_PROGRAM_KEYS = frozenset(
    """
    core.fsmonitor core.pager core.editor core.sshcommand core.askpass core.gitproxy diff.external diff.*.command
    diff.*.textconv filter.*.clean filter.*.smudge filter.*.process merge.*.driver credential.helper
    credential.*.helper gpg.program gpg.*.program sequence.editor interactive.difffilter
    """.split()
)
# A configuration without any of these names no place
_WORTH_PARSING = (
    b"hookspath", b"include", b"attributesfile", b"fsmonitor", b"pager", b"editor", b"sshcommand", b"askpass",
    b"gitproxy", b"external", b"command", b"textconv", b"filter", b"driver", b"helper", b"program",
)  # fmt: skip


class Place(Record):
    """A folded path below the root, and what git takes it for."""

    path: bytes
    kind: Literal["hooks", "config", "attributes", "program"]


class PlaceGuard:
    """Judges the changes in places that settings name.

    `names` has a component of every such path, for the first look at many.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._places = set(_places_of(view, b""))
        self._tops = {b""}
        self.names = {name for place in self._places for name in _telling(place)}

    def judge(self, change: Change, parts: list[bytes], git: GitGuard) -> Opinion:
        """Return the verdict on a change whose folded path is `parts`."""
        if change.entry is None or change.entry.kind == "dir" or change.is_mere_touch:
            return ORDINARY
        if not _HOOK_DIRECTORIES.isdisjoint(parts):
            end = next(index for index, name in enumerate(parts) if name in _HOOK_DIRECTORIES)
            self._add_top(b"/".join(change.path.split(b"/")[:end]))
        path = b"/".join(parts)
        return worst(*(_opinion(change, place, git) for place in self._places if _is_in(path, place)))

    def _add_top(self, top: bytes) -> None:
        if top not in self._tops:
            self._tops.add(top)
            self._places.update(_places_of(self._view, top))


def _telling(place: Place) -> tuple[bytes, ...]:
    return (place.path.rpartition(b"/")[2],) if place.path else HOOKS


def _is_in(path: bytes, place: Place) -> bool:
    if place.kind != "hooks":
        return path == place.path
    if not place.path:
        return path in HOOKS
    return path == place.path or path.startswith(place.path + b"/")


def _opinion(change: Change, place: Place, git: GitGuard) -> Opinion:
    if place.kind == "hooks" or (change.entry is not None and change.entry.kind == "symlink"):
        return ORDINARY if change.path.endswith(b".sample") else HOOK.opinion
    if place.kind == "config":
        return git.config(change, change.path.rpartition(b"/")[0])
    return git.attributes(change) if place.kind == "attributes" else PROGRAM.opinion


def _places_of(view: View, top: bytes) -> Iterator[Place]:
    """Yield the places below the root that the settings for the repository at `top` name."""
    work_tree = join(view.root, top) if top else view.root
    for directory, content in _configurations(view, top, work_tree):
        lower = content.lower()
        settings = parse(content) if any(word in lower for word in _WORTH_PARSING) else None
        for key, value in settings or ():
            yield from _named(pattern_of(key), os.fsencode(value), directory, work_tree, view.root)


def _named(pattern: str, value: bytes, directory: bytes, work_tree: bytes, root: bytes) -> Iterator[Place]:
    if pattern == "core.hookspath":
        for path in _below(root, work_tree, value):
            # The scripts in `.husky/_` run those beside it
            yield Place(path=path.removesuffix(b"/_") if b".husky" in path else path, kind="hooks")
    elif pattern == "include.path" or pattern == "includeif.*.path":
        for path in _below(root, directory, value):
            yield Place(path=path, kind="config")
    elif pattern == "core.attributesfile":
        for path in _below(root, work_tree, value):
            yield Place(path=path, kind="attributes")
    elif pattern in _PROGRAM_KEYS or pattern.startswith("pager."):
        for word in value.replace(b'"', b" ").replace(b"'", b" ").replace(b";", b" ").split():
            for path in _below(root, work_tree, word.lstrip(b"!")):
                if path:
                    yield Place(path=path, kind="program")


def _below(root: bytes, start: bytes, path: bytes) -> set[bytes]:
    """Return a path as folded paths below the root: as it is written, and where it leads by the person's links."""
    if b"\0" in path:
        return set()
    whole = os.path.normpath(os.path.join(start, os.path.expanduser(path)))
    found = {whole, os.path.realpath(whole)}
    return {INDEX.fold(each[len(root) + 1 :]) for each in found if each == root or each.startswith(root + b"/")}


def _configurations(view: View, top: bytes, work_tree: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield each configuration that git would read there, with the directory that it lies in."""
    home = os.path.expanduser(b"~")
    for path in _git_directories(os.path.join(work_tree, b".git")):
        for name in (b"config", b"config.worktree"):
            yield path, _read(os.path.join(path, name))
    for name in (b".git/config", b".git/config.worktree"):
        change = view.find(join(top, name))
        if change is not None:
            yield os.path.join(work_tree, b".git"), view.after(change) or b""
    yield home, _read(os.path.join(home, b".gitconfig"))
    own = os.path.join(os.environb.get(b"XDG_CONFIG_HOME") or os.path.join(home, b".config"), b"git")
    yield own, _read(os.path.join(own, b"config"))
    yield b"/etc", _read(b"/etc/gitconfig")


def _git_directories(path: bytes) -> Iterator[bytes]:
    """Yield the git directory behind a live `.git` and the one it shares settings with."""
    if not os.path.isdir(path):
        target = pointer_target(_read(path))
        if target is None:
            return
        path = os.path.join(os.path.dirname(path), target)
    yield path
    common = _read(os.path.join(path, b"commondir")).strip()
    if common:
        yield os.path.join(path, common)


def _read(path: bytes) -> bytes:
    """Return the content of a regular file of the person, nothing where there is none that can be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return b""
    try:
        return read_up_to(fd, MAX_CONTENT)
    except OSError:
        return b""
