# SPDX-License-Identifier: Apache-2.0
"""Which changes of a root run something: held, if looking at the project is enough; flagged, if it takes a build.

The table is in docs/held.md. Most paths are ordinary and cost one look at their name; contents are read of the few
whose content decides. Nothing is followed, nothing is written, no program runs.
"""

from __future__ import annotations

import itertools

from unspill.apply.guard_git import ORDINARY, GitGuard, join, worst
from unspill.apply.guard_places import PlaceGuard
from unspill.apply.guard_view import View
from unspill.changes.reader import Reader
from unspill.model.policy import Secrets
from unspill.model.record import Record
from unspill.policy.folding import is_odd
from unspill.policy.gitpaths import GIT, MARKS, is_object, is_object_directory
from unspill.policy.guarded import INDEX, gather, package_top
from unspill.policy.other_rows import EXECUTABLE, LINK_OUT, PACKAGES
from unspill.policy.pointers import climbs_after_a_name
from unspill.policy.secret_places import SecretPlaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unspill.apply.guard_git import Opinion
    from unspill.model.change import Change, RootChanges

DEFAULT_SECRETS = Secrets()
_INTERPRETERS = (b"python", b"pypy")


class Judged(Record):
    """The paths that need a person's consent and those to be shown first, each with the reason."""

    held: tuple[tuple[bytes, str], ...]
    flagged: tuple[tuple[bytes, str], ...]


def judge(part: RootChanges, below: Sequence[bytes] = (), secrets: Secrets = DEFAULT_SECRETS) -> Judged:
    """Return which changes of one root are held and which are flagged; all others are ordinary.

    A flagged path may be a directory that stands for many. `below` are the layers under those of the changes, the
    topmost first; `secrets` are those that the policy masks.
    """
    with Reader(part.root, below) as reader:
        return _Judge(part, View(part, reader), SecretPlaces(secrets)).run()


def still_held(judged: Judged, included: Sequence[bytes]) -> dict[bytes, str]:
    """Return what is held although a person includes some paths: neither those, nor what they need or contain."""
    return {
        path: reason
        for path, reason in judged.held
        if not any(lies_in(path, top) or lies_in(top, path) for top in included)
    }


def lies_in(path: bytes, directory: bytes) -> bool:
    """Tell whether a path is a directory or in it."""
    return path == directory or path.startswith(directory + b"/")


class _Judge:
    def __init__(self, part: RootChanges, view: View, secrets: SecretPlaces) -> None:
        self._part = part
        self._view = view
        self._secrets = secrets
        self._held: dict[bytes, str] = {}
        self._flags: list[tuple[bytes, str]] = []
        self._packages: dict[bytes, None] = {}
        # A root inside a git directory, as a worktree's other root is: its paths go on from there
        own = INDEX.fold(part.root.strip(b"/")).split(b"/")
        self._outer = own[own.index(GIT) :] if GIT in own else []

    def run(self) -> Judged:
        places = PlaceGuard(self._view)
        suspects = self._first_look(INDEX.parts | places.names | self._secrets.names)
        git = GitGuard(self._view, {b"/".join(parts) for _, parts in suspects if parts[-1] in MARKS})
        for change, parts in suspects:
            opinions = git.judge(change, parts, len(self._outer)), self._by_name(change, parts)
            placed = places.judge(change, parts, git) if not self._outer else ORDINARY
            secret = self._secrets.judge(change, parts[len(self._outer) :])
            self._note(change, parts, worst(*opinions, placed, secret))
        if self._held:
            self._hold_new_directories()
        packages = [(path, PACKAGES.reason) for path in self._packages]
        held = tuple((path, self._held[path]) for path in sorted(self._held, key=_order))
        flags = [flag for flag in self._flags if flag[0] not in self._held]
        return Judged(held=held, flagged=(*gather(flags), *packages))

    def _first_look(self, names: frozenset[bytes]) -> list[tuple[Change, list[bytes]]]:
        """Return the changes whose names may matter, and judge all others by their kind."""
        suspects = []
        outer, suffixes, stems = self._outer, INDEX.suffixes, INDEX.stems
        known: bytes | None = None
        for change in self._part.changes:
            directory, _, name = change.path.rpartition(b"/")
            if directory != known:
                # Files of one directory follow one another, so this is done once for most
                known = directory
                above = [*outer, *INDEX.fold(directory).split(b"/")] if directory else outer
                is_near = not names.isdisjoint(above)
                is_store = is_object_directory(above)
            name = name.lower()
            if is_odd(name):
                name = INDEX.fold(change.path.rpartition(b"/")[2])
            if (
                is_near
                or name in names
                or name.partition(b".")[0] in stems
                or name.rpartition(b".")[2] in suffixes
                or b".config." in name
            ):
                if not (is_store and change.target is None and is_object([b"objects", above[-1], name])):
                    suspects.append((change, [*above, name]))
            elif change.entry is not None and (change.target is not None or change.entry.mode & 0o111):
                self._note(change, [*above, name], _by_kind(change, [*above, name], self._view))
        return suspects

    def _by_name(self, change: Change, parts: list[bytes]) -> Opinion:
        """Judge by the tables of names, and by kind."""
        by_kind = _by_kind(change, parts, self._view)
        # What is in a git directory is never looked up by name: a branch may be called bin
        row = None if GIT in parts[:-1] else INDEX.find(parts)
        if row is None or change.is_mere_touch:
            return by_kind
        if change.entry is None:
            return row.deleted, row.reason
        if change.entry.kind == "dir":
            return by_kind
        # Editors and agents read these of the project that is opened, and nobody opens an installed package
        verdict = "flagged" if package_top(parts) else row.verdict
        return worst((verdict, row.reason), by_kind)

    def _note(self, change: Change, parts: list[bytes], opinion: Opinion) -> None:
        verdict, reason = opinion
        if verdict == "held":
            self._held.setdefault(change.path, reason)
        elif verdict == "flagged":
            top = package_top(parts)
            if top:
                self._packages[b"/".join(change.path.split(b"/")[: top - len(self._outer)])] = None
            else:
                self._flags.append((change.path, reason))

    def _hold_new_directories(self) -> None:
        """Hold the added directories in which everything is held, so that none is left empty in the project."""
        changes = self._part.changes
        for index in range(len(changes) - 1, -1, -1):
            change = changes[index]
            if change.kind == "added" and change.entry is not None and change.entry.kind == "dir":
                inside = _inside(changes, index)
                first = next(inside, b"")
                if first in self._held and all(path in self._held for path in inside):
                    self._held[change.path] = self._held[first]


def _inside(changes: Sequence[Change], index: int) -> Iterator[bytes]:
    """Yield the paths of the changes in a directory: they follow its own."""
    prefix = changes[index].path + b"/"
    for change in itertools.islice(changes, index + 1, None):
        if not change.path.startswith(prefix):
            return
        yield change.path


def _order(path: bytes) -> list[bytes]:
    return path.split(b"/")


def _by_kind(change: Change, parts: list[bytes], view: View) -> Opinion:
    """Judge links and executables, whatever they are called."""
    entry = change.entry
    if entry is None:
        return ORDINARY
    if entry.kind == "symlink":
        target = change.target or b""
        leads_out = change.leads_out or climbs_after_a_name(target)
        is_new = change.kind != "metadata"
        return LINK_OUT.opinion if is_new and leads_out and not _is_interpreter(change, view) else ORDINARY
    if entry.kind == "file" and entry.mode & 0o111 and not (change.base_kind == "file" and change.base_mode & 0o111):
        is_sample = parts[-2:-1] == [b"hooks"] and parts[-1].endswith(b".sample")
        return ORDINARY if is_sample or GIT in parts else EXECUTABLE.opinion
    return ORDINARY


def _is_interpreter(change: Change, view: View) -> bool:
    """Tell whether a link is the one that a virtual Python leads to its interpreter with."""
    directory, _, name = change.path.rpartition(b"/")
    home, _, shelf = directory.rpartition(b"/")
    original = (change.target or b"").rpartition(b"/")[2]
    is_pair = name.startswith(_INTERPRETERS) and original.startswith(_INTERPRETERS)
    return is_pair and shelf == b"bin" and view.exists(join(home, b"pyvenv.cfg"))
