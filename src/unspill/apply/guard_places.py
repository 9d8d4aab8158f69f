# SPDX-License-Identifier: Apache-2.0
"""Ordinary places of a project that its live git settings make dangerous: hooks, included settings, filters in it.

A person whose `core.hooksPath` is `.husky` has made every file there a hook. The settings of the person and of the
machine count as well as the project's. They are read for names only; nothing in them is run or followed.
"""

from __future__ import annotations

import itertools
import os
import stat

from unspill.apply.guard_git import ORDINARY, worst
from unspill.apply.guard_shape import join, parse
from unspill.apply.guard_view import MAX_CONTENT
from unspill.changes.reader import read_up_to
from unspill.model.record import Record
from unspill.policy.git import pointer_target
from unspill.policy.git import pattern_of
from unspill.policy.git import HOOKS
from unspill.policy.held import INDEX
from unspill.policy.held import GIT_LINK, HOOK, PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from unspill.apply.guard_git import GitGuard, Opinion
    from unspill.apply.guard_view import View
    from unspill.model.change import Change

    Kind = Literal["hooks", "config", "attributes", "program", "tree"]

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
    b"gitproxy", b"external", b"command", b"textconv", b"filter", b"driver", b"helper", b"program", b"worktree",
)  # fmt: skip


# More than this nobody has, and each costs a look at the disk
MAX_PLACES = 2000


class Place(Record):
    """A folded path below the root, and what git takes it for."""

    path: bytes
    kind: Kind


class PlaceGuard:
    """Judges the changes in places that settings name.

    `names` has a component of every such path, for the first look at many. `is_overfull` if there are more than
    anybody has, so that not all are known: then each path may be one.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._places: dict[bytes, list[Place]] = {}
        self._above: set[bytes] = set()
        self._trees: set[bytes] = set()
        self._hook_depths: set[int] = set()
        self._tops: set[bytes] = set()
        self.names: set[bytes] = set()
        self.is_overfull = False
        self._add_top(b"")

    def judge(self, change: Change, parts: list[bytes], git: GitGuard) -> Opinion:
        """Return the verdict on a change whose folded path is `parts`."""
        if change.entry is None or change.entry.kind == "dir" or change.is_mere_touch:
            return ORDINARY
        if self.is_overfull:
            return PROGRAM.opinion
        if not _HOOK_DIRECTORIES.isdisjoint(parts):
            end = next(index for index, name in enumerate(parts) if name in _HOOK_DIRECTORIES)
            self._add_top(b"/".join(change.path.split(b"/")[:end]))
        return worst(self.judge_link(change, parts), *(_opinion(change, place, git) for place in self._around(parts)))

    def judge_link(self, change: Change, parts: list[bytes]) -> Opinion:
        """Return the verdict on a change that may put a link above such a place, and so another one there."""
        if change.target is None or change.kind == "metadata":
            return ORDINARY
        path = b"/".join(parts)
        return PROGRAM.opinion if path in self._above else GIT_LINK.opinion if path in self._trees else ORDINARY

    def _around(self, parts: list[bytes]) -> Iterator[Place]:
        """Yield the places that a path is, or is in."""
        path = b"/".join(parts)
        yield from self._places.get(path, ())
        for end in self._hook_depths:
            if end < len(parts):
                for place in self._places.get(b"/".join(parts[:end]), ()):
                    if place.kind == "hooks" and (end or path in HOOKS):
                        yield place

    def _add_top(self, top: bytes) -> None:
        if top in self._tops:
            return
        self._tops.add(top)
        named = itertools.chain(_places_of(self._view, top), _linked_hooks(self._view, top))
        found = tuple(itertools.islice(named, MAX_PLACES + 1))
        self.is_overfull = self.is_overfull or len(found) > MAX_PLACES
        for place in dict.fromkeys(place for places in found for place in places):
            if place.kind == "tree":
                names = place.path.split(b"/")
                self._trees.update(b"/".join(names[:end]) for end in range(1, len(names) + 1))
                continue
            self._places.setdefault(place.path, []).append(place)
            self.names.update(_telling(place))
            names = place.path.split(b"/") if place.path else []
            if place.kind == "hooks":
                self._hook_depths.add(len(names))
            self._above.update(b"/".join(names[:end]) for end in range(1, len(names)))


def _telling(place: Place) -> tuple[bytes, ...]:
    return (place.path.rpartition(b"/")[2],) if place.path else HOOKS


def _opinion(change: Change, place: Place, git: GitGuard) -> Opinion:
    if place.kind == "hooks" or (change.entry is not None and change.entry.kind == "symlink"):
        return ORDINARY if change.path.endswith(b".sample") else HOOK.opinion
    if place.kind == "config":
        return git.config(change, change.path.rpartition(b"/")[0])
    return git.attributes(change) if place.kind == "attributes" else PROGRAM.opinion


def _places_of(view: View, top: bytes) -> Iterator[list[Place]]:
    """Yield the places that each word of the settings for the repository at `top` names below the root, if any."""
    work_tree = join(view.root, top) if top else view.root
    for directory, content, is_live in _configurations(view, top, work_tree):
        lower = content.lower()
        settings = parse(content) if any(word in lower for word in _WORTH_PARSING) else None
        for key, value in settings or ():
            for kind, start, path in _named(pattern_of(key), os.fsencode(value), directory, work_tree):
                found = _below(view.root, start, path, is_live=is_live)
                # The scripts in `.husky/_` run those beside it
                husky = {name.removesuffix(b"/_") if b".husky" in name else name for name in found}
                yield [Place(path=name, kind=kind) for name in (husky if kind == "hooks" else found)]


def _linked_hooks(view: View, top: bytes) -> Iterator[list[Place]]:
    """Yield the places below the root that the live hooks of the repository at `top` are links to."""
    work_tree = join(view.root, top) if top else view.root
    for home in _git_directories(os.path.join(work_tree, b".git")):
        hooks = os.path.join(home, b"hooks")
        try:
            with os.scandir(hooks) as entries:
                links = [entry.path for entry in entries if entry.is_symlink()]
        except OSError:
            continue
        if os.path.islink(hooks):
            yield [Place(path=path, kind="hooks") for path in _below(view.root, home, hooks, is_live=True)]
        for link in links:
            yield [Place(path=path, kind="hooks") for path in _below(view.root, hooks, link, is_live=True)]


def _named(pattern: str, value: bytes, directory: bytes, work_tree: bytes) -> Iterator[tuple[Kind, bytes, bytes]]:
    """Yield what a setting may name: what git takes it for, where it starts from, and its text."""
    if pattern == "core.hookspath":
        yield "hooks", work_tree, value
    elif pattern == "include.path" or pattern == "includeif.*.path":
        yield "config", directory, value
    elif pattern == "core.worktree":
        yield "tree", directory, value
    elif pattern == "core.attributesfile":
        yield "attributes", work_tree, value
    elif pattern in _PROGRAM_KEYS or pattern.startswith("pager."):
        for word in value.replace(b'"', b" ").replace(b"'", b" ").replace(b";", b" ").split():
            yield "program", work_tree, word.lstrip(b"!")


def _below(root: bytes, start: bytes, path: bytes, *, is_live: bool) -> set[bytes]:
    """Return a path as folded paths below the root: as it is written, and where it leads by the person's links."""
    if b"\0" in path:
        return set()
    if is_live or path.startswith(b"~/"):
        path = os.path.expanduser(path)
    whole = os.path.normpath(os.path.join(start, path))
    # What a command proposes must not make this side ask a network for a user or a directory
    found = {whole, os.path.realpath(whole)} if is_live or _lies_in(whole, root) else {whole}
    return {INDEX.fold(each[len(root) + 1 :]) for each in found if _lies_in(each, root)}


def _lies_in(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root + b"/")


def _configurations(view: View, top: bytes, work_tree: bytes) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield each configuration that git would read there, the directory that it lies in, and whether it is live."""
    home = os.path.expanduser(b"~")
    for path in _git_directories(os.path.join(work_tree, b".git")):
        for name in (b"config", b"config.worktree"):
            yield path, _read(os.path.join(path, name)), True
    yield home, _read(os.path.join(home, b".gitconfig")), True
    own = os.path.join(os.environb.get(b"XDG_CONFIG_HOME") or os.path.join(home, b".config"), b"git")
    yield own, _read(os.path.join(own, b"config")), True
    yield b"/etc", _read(b"/etc/gitconfig"), True
    for name in (b".git/config", b".git/config.worktree"):
        change = view.find(join(top, name))
        if change is not None:
            yield os.path.join(work_tree, b".git"), view.after(change) or b"", False


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
