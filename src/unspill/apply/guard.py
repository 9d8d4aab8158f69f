# SPDX-License-Identifier: Apache-2.0
"""Judge which changes of a root are held and which are flagged, just before they would be applied.

The table is `policy.held`, in words docs/held.md. Most paths are ordinary and cost one look at their name; contents are
read of the few whose content decides. Nothing is written, no program runs.
"""

from __future__ import annotations

import itertools
import os

from unspill.apply.guard_git import GitGuard, PlaceGuard, View, join, places_below, read_live
from unspill.changes.scan import Reader
from unspill.model.policy import Secrets
from unspill.policy import held
from unspill.policy.git import (
    GIT,
    GIT_MARKS,
    ignore_rules,
    inside_store,
    is_object,
    is_object_directory,
)
from unspill.policy.held import (
    INDEX,
    MOST_WORDS,
    ORDINARY,
    PACKAGE_TREES,
    gather,
    package_top,
    words_of_mise,
    words_of_nix,
    words_of_shell,
    worst,
)
from unspill.policy.paths import climbs_after_a_name, contains, fold, glob_matches, is_odd
from unspill.policy.secrets import masked_names
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unspill.model.change import Change, RootChanges
    from unspill.policy.git import IgnoreRule
    from unspill.policy.held import GuardRow, Opinion


DEFAULT_SECRETS = Secrets()
_INTERPRETERS = (b"python", b"pypy")
MARKS_OF_A_PROJECT = frozenset((b".git", b".hg", b".jj"))
# Far fewer microseconds each than it took the command to delete them
MAX_LOOKS = 500_000
_MOST_DIRECTORIES = 10_000
# Flagged as long as git does not ignore them: a build makes them again and again
_BUILT = frozenset((held.EXECUTABLE.reason, held.IN_PROGRAMS.reason))
_MOST_IGNORED = 500
_ENVRC = b".envrc"
_MISE_FILES = tuple(
    b"""
    mise.toml .mise.toml mise.local.toml .mise.local.toml mise/config.toml .mise/config.toml .config/mise.toml
    .config/mise/config.toml
    """.split()
)
_MOST_SOURCED = 1000
# As many as the kernel follows
_MOST_LINKS = 40


class Judged(Record):
    """The paths that need a person's consent and those to be shown first, each with the reason."""

    held: tuple[tuple[bytes, str], ...]
    flagged: tuple[tuple[bytes, str], ...]


def judge(
    part: RootChanges,
    below: Sequence[bytes] = (),
    secrets: Secrets = DEFAULT_SECRETS,
    hidden: Sequence[bytes] = (),
) -> Judged:
    """Return which changes of one root are held and which are flagged; all others are ordinary.

    A flagged path may be a directory that stands for many. `below` are the layers under those of the changes, the
    topmost first; `secrets` are those that the policy masks, `hidden` the paths of those that were found deeper down.
    """
    with Reader(part.root, below) as reader:
        return _RootJudge(part, View(part, reader), SecretPlaces(secrets, part.root, hidden)).run()


def still_held(judged: Judged, included: Sequence[bytes]) -> dict[bytes, str]:
    """Return what is held although a person includes some paths: neither those, nor what they need or contain."""
    return {
        path: reason
        for path, reason in judged.held
        if not any(lies_in(path, top) or lies_in(top, path) for top in included)
    }


def lies_in(path: bytes, directory: bytes) -> bool:
    """Tell whether a relative path is a directory or in it. Nothing lies in `/`: to include that includes nothing."""
    return path == directory or path.startswith(directory + b"/")


class _RootJudge:
    """One look at all changes of a root, then a closer one at those whose names may matter."""

    def __init__(self, part: RootChanges, view: View, secrets: SecretPlaces) -> None:
        self._part = part
        self._view = view
        self._secrets = secrets
        self._gone = GoneGuard(part.root)
        self._linked = LinkedNames(part.root)
        self._sourced = SourcedFiles(part)
        self._ignored = IgnoredFiles(view)
        self._held: dict[bytes, str] = {}
        self._flags: list[tuple[bytes, str]] = []
        self._packages: dict[bytes, None] = {}
        # A root inside a git directory, as a worktree's other root is: its paths go on from there
        own = INDEX.fold(part.root.strip(b"/")).split(b"/")
        self._outer = own[own.index(GIT) :] if GIT in own else []

    def run(self) -> Judged:
        places = PlaceGuard(self._view, _tops_of(self._part))
        names = INDEX.parts | places.names | self._secrets.names | self._linked.names | self._sourced.names
        suspects = self._first_look(names, places)
        git = GitGuard(self._view, {b"/".join(parts) for _, parts in suspects if parts[-1] in GIT_MARKS})
        for change, parts in suspects:
            opinions = git.judge(change, parts, len(self._outer)), self._by_name(change, parts, git)
            placed = places.judge(change, parts, git) if not self._outer else ORDINARY
            inner = parts[len(self._outer) :]
            other = self._linked.other_name(inner)
            linked = self._by_name(change, other, git) if other is not None else ORDINARY
            gone, sourced = self._gone.judge(change, inner), self._sourced.judge(change, inner)
            secret = self._secrets.judge(change, inner)
            self._note(change, parts, worst(*opinions, placed, linked, secret, gone, sourced))
        if self._held:
            self._hold_what_is_in_held_directories()
            self._hold_new_directories()
        packages = [(path, held.PACKAGES.reason) for path in self._packages]
        flags = [flag for flag in self._flags if flag[0] not in self._held]
        return Judged(
            held=tuple((path, self._held[path]) for path in sorted(self._held, key=_order)),
            flagged=(*gather(flags), *packages),
        )

    def _first_look(self, names: frozenset[bytes], places: PlaceGuard) -> list[tuple[Change, list[bytes]]]:
        """Return the changes whose names may matter, and judge all others by their kind."""
        suspects = []
        outer, suffixes, stems, beginnings = self._outer, INDEX.suffixes, INDEX.stems, INDEX.beginnings
        is_anywhere = places.is_overfull or self._sourced.is_anywhere
        known: bytes | None = None
        for change in self._part.changes:
            directory, _, name = change.path.rpartition(b"/")
            if directory != known:
                # Files of one directory follow one another, so this is done once for most
                known = directory
                above = [*outer, *INDEX.fold(directory).split(b"/")] if directory else outer
                is_near = is_anywhere or not names.isdisjoint(above)
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
                or name.startswith(beginnings)
            ):
                if not (is_store and _is_plain(change) and is_object([b"objects", above[-1], name])):
                    suspects.append((change, [*above, name]))
            elif (
                change.base_kind == "dir"
                if (entry := change.entry) is None
                else change.kind == "replaced" or change.target is not None or entry.mode & 0o6113 or name == b"."
            ):
                parts = [*above, name]
                linked = places.judge_link(change, parts) if change.target is not None and not outer else ORDINARY
                inner = parts[len(outer) :]
                others = self._gone.judge(change, inner), self._sourced.judge(change, inner)
                self._note(change, parts, worst(_by_kind(change, parts, self._view), linked, *others))
        return suspects

    def _by_name(self, change: Change, parts: list[bytes], git: GitGuard) -> Opinion:
        """Judge by the tables of names, and by kind."""
        by_kind = _by_kind(change, parts, self._view)
        row = self._row_of(change, parts, git)
        if row is None or change.is_mere_touch:
            return by_kind
        # Editors and agents read these of the project that is opened, and nobody opens an installed package
        is_package = package_top(parts) > 0
        gone: Opinion = ("flagged" if is_package and row.deleted == "held" else row.deleted, row.reason)
        if change.entry is None:
            return gone
        if change.entry.kind == "dir":
            return worst(gone, by_kind) if change.kind == "replaced" else by_kind
        return worst(("flagged" if is_package else row.verdict, row.reason), by_kind)

    def _row_of(self, change: Change, parts: list[bytes], git: GitGuard) -> GuardRow | None:
        is_real_git = bool(self._outer) or GIT in change.path.split(b"/")[:-1]
        if is_real_git and GIT in parts[:-1]:
            # A branch may be called bin or mise.toml, but not .envrc; what is none by its content has no business there
            inner = inside_store(parts)
            row = INDEX.find(inner) if inner else None
            if row is None or row.verdict != "held" or change.entry is None:
                return None
            is_branch = not any(part.startswith(b".") for part in inner) and git.is_record(change)
            return None if is_branch else row
        below = INDEX.find_below(parts) if change.target is not None and change.kind != "metadata" else None
        return below if below is not None and below.verdict == "held" else INDEX.find(parts) or below

    def _note(self, change: Change, parts: list[bytes], opinion: Opinion) -> None:
        verdict, reason = opinion
        if verdict == "held":
            self._held.setdefault(change.path, reason)
        elif verdict == "flagged":
            top = package_top(parts)
            if top:
                tree = change.path.split(b"/")[: top - len(self._outer)]
                if self._is_news_of_packages(change, tree, reason):
                    self._packages[b"/".join(tree)] = None
            elif reason not in _BUILT or self._sourced.is_on_path(parts) or not self._ignored.has(change.path):
                self._flags.append((change.path, reason))

    def _is_news_of_packages(self, change: Change, tree: list[bytes], reason: str) -> bool:
        """Tell whether a change in a tree of packages is more than an install into one that git ignores."""
        if reason == held.OPEN_TO_ALL.reason or not self._ignored.has_directory(tree):
            return True
        is_new = change.base_kind is None and reason != held.PYTHON_START.reason
        return not is_new and self._view.kind_before(b"/".join(tree)) is not None

    def _hold_what_is_in_held_directories(self) -> None:
        """Hold what needs a directory that is held itself: such changes follow its own."""
        top, reason = b"", ""
        for change in self._part.changes:
            if top and change.path.startswith(top + b"/"):
                self._held.setdefault(change.path, reason)
            elif change.path in self._held and _makes_directory(change):
                top, reason = change.path, self._held[change.path]

    def _hold_new_directories(self) -> None:
        """Hold the added directories in which everything is held, so that none is left empty in the project."""
        # By directory: the reason of the first in it, empty if anything in it is not held
        inside: dict[bytes, str] = {}
        for change in reversed(self._part.changes):
            path = change.path
            if change.kind == "added" and _makes_directory(change) and inside.get(path):
                self._held.setdefault(path, inside[path])
            above = path.rpartition(b"/")[0]
            inside[above] = self._held.get(path, "") if inside.get(above, path) else ""


class SecretPlaces:
    """Judges changes of one root where a secret belongs, or above a directory that may have some.

    Such a change needs a person's consent, whether or not there is a secret now.
    `names` has a component of every path that may matter, folded, for the first look at many.
    """

    def __init__(self, secrets: Secrets, root: bytes = b"", hidden: Sequence[bytes] = ()) -> None:
        self._names = frozenset(fold(name, {}) for name in masked_names(secrets))
        self._directories = frozenset(fold(path, {}) for path in secrets.directories if secrets.mask)
        self._hidden = frozenset(fold(path, {}) for path in hidden)
        above = {os.path.dirname(path) for path in hidden if os.path.lexists(os.path.join(root, path))}
        self._above = self._directories | {fold(path, {}) for path in above}
        self.names = self._names | {part for path in self._above for part in path.split(b"/")}

    def judge(self, change: Change, parts: list[bytes]) -> Opinion:
        """Return the verdict on a change whose folded path is `parts`."""
        path = b"/".join(parts)
        directory, _, name = path.rpartition(b"/")
        is_place = not directory or directory in self._directories or path in self._hidden
        entry = change.entry
        # A directory of that name, such as a virtual Python called .env, is no secret
        if is_place and name in self._names and (change.base_kind if entry is None else entry.kind) != "dir":
            return held.SECRET.opinion
        if change.takes_directory and any(contains(path, other) for other in self._above):
            return held.SECRET_BELOW.opinion
        return ORDINARY


class GoneGuard:
    """Judges what of one root is deleted, or has something else in its place.

    A deleted directory is one change, so what is in it is looked at in the live tree: names only, a bounded number of
    them, and not in trees of installed packages.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._looks_left = MAX_LOOKS

    def judge(self, change: Change, parts: list[bytes]) -> Opinion:
        """Return the verdict on a change; `parts` is its folded path from the root on."""
        if change.kind != "deleted" and change.kind != "replaced":
            return ORDINARY
        if len(parts) == 1 and parts[0] in MARKS_OF_A_PROJECT:
            return held.PROJECT_MARK.opinion
        if change.base_kind != "dir" or package_top(parts):
            return ORDINARY
        if GIT in change.path.split(b"/"):
            is_module = b"/.git/modules" in b"/" + change.path and _has_repository(self._root + b"/" + change.path)
            return held.MODULE.opinion if is_module else ORDINARY
        return self._inside(os.path.join(self._root, change.path), parts)

    def _inside(self, top: bytes, parts: list[bytes]) -> Opinion:
        """Judge what lies in a live directory."""
        found = ORDINARY
        left = [(top, parts)]
        while left:
            path, above = left.pop()
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        self._looks_left -= 1
                        opinion, is_open = _look(entry, above)
                        if opinion[0] == "held" or self._looks_left < 0:
                            return held.GONE_WITH_IT.opinion
                        found = worst(found, opinion)
                        if is_open:
                            left.append((entry.path, [*above, INDEX.fold(entry.name)]))
            except FileNotFoundError:
                continue
            except OSError:
                return held.GONE_WITH_IT.opinion
        return found


class LinkedNames:
    """The files of one root that have another name in the table, by a live link of the person's own.

    What `.vscode` leads to counts as being in `.vscode`. Only links in the top directory of a root and in its
    directories that are in the table count; a command can't add any, for such a link is held.
    `names` has a component of every such path, for the first look at many.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._links: dict[bytes, list[bytes]] = {}
        for link, path in _links_in(root, []):
            for target in _ways_to(path):
                if target.startswith(root + b"/"):
                    self._links.setdefault(INDEX.fold(target[len(root) + 1 :]), link)
        self._depths = {path.count(b"/") + 1 for path in self._links}
        self.names = {path.rpartition(b"/")[2] for path in self._links}

    def other_name(self, parts: list[bytes]) -> list[bytes] | None:
        """Return the folded path by which a link leads to this folded one."""
        for end in self._depths:
            link = self._links.get(b"/".join(parts[:end])) if end <= len(parts) else None
            if link is not None:
                return [*link, *parts[end:]]
        return None


class SourcedFiles:
    """The files of one root that live environment files name: `.envrc` of direnv, and the settings of mise.

    Both tools ask the person about the environment file alone; what it reads besides runs unasked at the next prompt.
    Words are read, nothing is run. `names` has a component of every such path, for the first look at many;
    `is_anywhere` if a pattern names files in no directory of its own, so that each path may be one.
    """

    def __init__(self, part: RootChanges) -> None:
        self._root = part.root
        self._places: set[bytes] = set()
        self._above: set[bytes] = set()
        self._globs: set[tuple[bytes, ...]] = set()
        self._directories: set[bytes] = set()
        self.names: set[bytes] = set()
        # Files to read, and the directories that their words start from
        self._waiting: list[tuple[bytes, tuple[bytes, ...]]] = [(join(top, _ENVRC), (top,)) for top in _tops_of(part)]
        self._waiting += [(join(part.root, name), (part.root,)) for name in _MISE_FILES]
        self._read_all()
        self.is_anywhere = any(len(glob) == 1 for glob in self._globs)

    def judge(self, change: Change, parts: list[bytes]) -> Opinion:
        """Return the verdict on a change; `parts` is its folded path from the root on."""
        if change.entry is None or change.entry.kind == "dir" or change.is_mere_touch:
            return ORDINARY
        path = b"/".join(parts)
        is_link_above = change.target is not None and path in self._above
        is_named = path in self._places or any(glob_matches(parts, glob) for glob in self._globs)
        return held.SOURCED.opinion if is_named or is_link_above else ORDINARY

    def is_on_path(self, parts: list[bytes]) -> bool:
        """Tell whether a folded path lies in a directory that an environment file names, to run programs from it."""
        return any(b"/".join(parts[:end]) in self._directories for end in range(1, len(parts)))

    def _read_all(self) -> None:
        known: set[bytes] = set()
        read = 0
        for path, starts in self._waiting:
            content = b"" if path in known or read >= _MOST_SOURCED else read_live(path)
            known.add(path)
            if content:
                read += 1
                words = words_of_nix if path.endswith(b".nix") else words_of_shell
                words = words_of_mise if path.endswith(b".toml") else words
                for word, is_sourced in itertools.islice(words(content), MOST_WORDS):
                    for start in starts:
                        self._add(start, word, is_sourced=is_sourced)

    def _add(self, start: bytes, word: bytes, *, is_sourced: bool) -> None:
        path = os.path.join(start, os.path.expanduser(word) if word.startswith(b"~/") else word)
        is_like_path = is_sourced or b"." in word or b"/" in word
        if b"\0" in word or not (is_like_path or os.path.lexists(path)):
            return
        found = places_below(self._root, start, word, is_live=True)
        if os.path.isdir(path):
            self._directories |= found
            found, path = set(), join(path, _ENVRC)
        if is_sourced:
            self._waiting.append((os.path.normpath(path), (start, os.path.dirname(os.path.normpath(path)))))
        for place in found:
            parts = place.split(b"/")
            is_wild = any(mark in word for mark in (b"*", b"?", b"["))
            if is_wild:
                self._globs.add(tuple(parts))
                self.names.update(parts[-2:-1])
            else:
                self._places.add(place)
                self.names.add(parts[-1])
            self._above.update(b"/".join(parts[:end]) for end in range(1, len(parts)))


class IgnoredFiles:
    """The files of one root that its own `.gitignore` and `info/exclude` covered before the changes.

    What a person ignores for all repositories does not count, nor whether a file is tracked all the same.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        # By directory: whether it is ignored, and the rules for what is in it: where they start from, and each
        self._known: dict[bytes, tuple[bool, list[tuple[int, IgnoreRule]]]] = {}
        self._left = _MOST_IGNORED

    def has(self, path: bytes) -> bool:
        """Tell whether git ignored a file of this path. After a bounded number of looks the answer is no."""
        parts = path.split(b"/")
        is_ignored, rules = self._directory(parts[:-1])
        if is_ignored or not rules:
            return is_ignored
        self._left -= 1
        return self._left >= 0 and _is_ignored(parts, rules, is_directory=False)

    def has_directory(self, parts: list[bytes]) -> bool:
        """Tell whether git ignored a directory, or one above it."""
        return self._directory(parts)[0]

    def top_of(self, path: bytes) -> bytes | None:
        """Return the uppermost directory above a path that git ignored, None if it ignored none."""
        parts = path.split(b"/")[:-1]
        return next(
            (b"/".join(parts[:end]) for end in range(1, len(parts) + 1) if self.has_directory(parts[:end])), None
        )

    def _directory(self, parts: list[bytes]) -> tuple[bool, list[tuple[int, IgnoreRule]]]:
        path = b"/".join(parts)
        known = self._known.get(path)
        if known is not None:
            return known
        is_ignored, rules = self._directory(parts[:-1]) if parts else (False, [])
        is_ignored = is_ignored or (bool(parts) and _is_ignored(parts, rules, is_directory=True))
        if not is_ignored:
            if not parts or self._view.kind_before(join(path, GIT)) is not None:
                # A repository inside another has rules of its own only
                rules = self._rules(join(path, b".git/info/exclude"), len(parts))
            rules = rules + self._rules(join(path, b".gitignore"), len(parts))
        self._known[path] = is_ignored, rules
        return is_ignored, rules

    def _rules(self, path: bytes, depth: int) -> list[tuple[int, IgnoreRule]]:
        return [(depth, rule) for rule in ignore_rules(self._view.before(path) or b"")]


def _is_ignored(parts: list[bytes], rules: list[tuple[int, IgnoreRule]], *, is_directory: bool) -> bool:
    """Tell whether the last rule that means a path ignores it."""
    meant = (rule for depth, rule in reversed(rules) if rule.matches(parts[depth:], is_directory=is_directory))
    return not next((rule.is_negated for rule in meant), True)


def _tops_of(part: RootChanges) -> Iterator[bytes]:
    """Yield the directories that something changes in, and all above them: a `.envrc` there may name what changes."""
    known: set[bytes] = set()
    for change in part.changes:
        directory = change.path.rpartition(b"/")[0]
        while directory and directory not in known:
            known.add(directory)
            parts = directory.split(b"/")
            if GIT not in parts and not package_top(parts):
                yield join(part.root, directory)
            directory = directory.rpartition(b"/")[0]
    above = part.root
    while True:
        yield above
        if above in (b"/", b""):
            return
        above = os.path.dirname(above)


def _is_plain(change: Change) -> bool:
    """Tell whether it is no link and nothing about its mode matters."""
    return change.target is None and (change.entry is None or not change.entry.mode & 0o6113)


def _makes_directory(change: Change) -> bool:
    return change.entry is not None and change.entry.kind == "dir" and change.base_kind != "dir"


def _order(path: bytes) -> list[bytes]:
    return path.split(b"/")


def _by_kind(change: Change, parts: list[bytes], view: View) -> Opinion:
    """Judge links and executables, whatever they are called."""
    entry = change.entry
    if entry is None or entry.kind == "special":
        return ORDINARY
    if entry.kind == "symlink":
        target = change.target or b""
        leads_out = change.leads_out or climbs_after_a_name(target)
        is_new = change.kind != "metadata"
        return held.LINK_OUT.opinion if is_new and leads_out and not _is_interpreter(change, view) else ORDINARY
    if change.path == b"." and ~entry.mode & change.base_mode & 0o500:
        return held.CLOSED_ROOT.opinion
    added = entry.mode & ~change.base_mode if change.base_kind == entry.kind else entry.mode
    if added & 0o002:
        if change.base_kind is not None and (GIT in parts or change.path == b"."):
            return held.OPEN_GIT.opinion
        if entry.kind != "dir" or not entry.mode & 0o1000:
            return held.OPEN_TO_ALL.opinion
    if entry.kind == "file" and entry.mode & 0o111:
        if added & 0o111 or change.base_kind != "file":
            is_sample = parts[-2:-1] == [b"hooks"] and parts[-1].endswith(b".sample")
            if is_sample or GIT in parts[:-1]:
                return ORDINARY if is_sample else held.UNKNOWN.opinion
            return held.OPEN_TO_ALL.opinion if added & 0o6000 else held.EXECUTABLE.opinion
        return held.OPEN_TO_ALL.opinion if added & 0o6000 else ORDINARY
    return ORDINARY


def _is_interpreter(change: Change, view: View) -> bool:
    """Tell whether a link is the one that a virtual Python leads to its interpreter with."""
    directory, _, name = change.path.rpartition(b"/")
    home, _, shelf = directory.rpartition(b"/")
    original = (change.target or b"").rpartition(b"/")[2]
    is_pair = name.startswith(_INTERPRETERS) and original.startswith(_INTERPRETERS)
    return is_pair and shelf == b"bin" and view.exists(join(home, b"pyvenv.cfg"))


def _has_repository(top: bytes) -> bool:
    """Tell whether a directory of `.git/modules` is the repository of a submodule, or has one below."""
    waiting = [top]
    for path in waiting:
        if os.path.lexists(path + b"/HEAD") and os.path.lexists(path + b"/objects"):
            return True
        try:
            with os.scandir(path) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return True
        if len(waiting) > _MOST_DIRECTORIES:
            return True
    return False


def _look(entry: os.DirEntry[bytes], above: list[bytes]) -> tuple[Opinion, bool]:
    """Return the verdict on one entry that goes with its directory, and whether to look into it."""
    name = INDEX.fold(entry.name)
    is_directory = entry.is_dir(follow_symlinks=False)
    if entry.name == GIT:
        return (held.REPOSITORY.opinion if is_directory else ORDINARY), False
    if name in PACKAGE_TREES:
        return ORDINARY, False
    return (held.GONE_WITH_IT.opinion if INDEX.find_kept([*above, name]) else ORDINARY), is_directory


def _ways_to(path: bytes) -> Iterator[bytes]:
    """Yield where a link leads, and the other links on its way there: who changes one of these changes the end."""
    yield os.path.realpath(path)
    for _ in range(_MOST_LINKS):
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        yield path


def _links_in(directory: bytes, above: list[bytes]) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield the links of a directory and of those in it that the table names: their folded path, and their own."""
    try:
        with os.scandir(directory) as entries:
            found = [entry for entry in entries if entry.is_symlink() or entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in found:
        name = INDEX.fold(entry.name)
        if above or name in INDEX.parts:
            if entry.is_symlink():
                yield [*above, name], entry.path
            elif not above and name != b".git":
                yield from _links_in(entry.path, [name])
