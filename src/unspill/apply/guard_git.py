# SPDX-License-Identifier: Apache-2.0
"""Judge changes that git may act on: in git directories, in files that lead to them, in places that settings name.

A directory counts as git's own, under whatever name, as soon as it could become one by any part of the changes: a
person may apply some of them, and a command may make the rest in another run. Contents are parsed here; git itself
never runs.
"""

from __future__ import annotations

import itertools
import os
import stat

from unspill.changes.scan import read_up_to
from unspill.errors import UnspillError, UsageError
from unspill.git.frozen import git_directories_in
from unspill.model.change import Change
from unspill.plan.view import parse_gitconfig
from unspill.policy import held
from unspill.policy.git import (
    GIT,
    GIT_ATTRIBUTES,
    GIT_MARKS,
    GIT_MODULES,
    GIT_NAMES,
    HOOKS,
    changed_addresses,
    could_steer,
    driving_macros,
    has_commands,
    has_template,
    homes_of,
    is_inner_pointer,
    is_log,
    is_module_place,
    is_reference,
    is_repository_place,
    is_usual_common,
    new_drivers,
    pattern_of,
    place_of,
    pointer_target,
    strategies,
    unusual_keys,
    unusual_modules,
)
from unspill.policy.held import INDEX, ORDINARY, words_of_shell, worst
from unspill.policy.paths import contains, resolve_text
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Literal

    from unspill.changes.scan import Reader
    from unspill.model.change import EntryKind, RootChanges
    from unspill.policy.git import GitPlace, GitSettings
    from unspill.policy.held import GuardRow, Opinion

    # A directory of hooks, one of them, more settings, attributes, what is run unasked or when asked for, a work tree
    Kind = Literal["hooks", "hook", "config", "attributes", "program", "tool", "tree"]


# git's own files of this kind have a few hundred bytes
MAX_CONTENT = 256 * 1024
HOOK_GONE = "a hook that you had is gone"
# Files of other version control that lead to a repository, by their last components
_POINTERS = ([b".hg", b"sharedpath"], [b".jj", b"repo"], [b"store", b"git_target"])
_STEERING: frozenset[GitPlace] = frozenset(("config", "hook", "attributes", "common", "pointer"))
_SHAPE = (b"HEAD", b"objects", b"refs", b"commondir")
_PROGRAM_KEYS = frozenset(
    """
    core.fsmonitor core.pager core.editor core.sshcommand core.askpass core.gitproxy diff.external diff.*.command
    diff.*.textconv filter.*.clean filter.*.smudge filter.*.process merge.*.driver credential.helper
    credential.*.helper gpg.program gpg.*.program sequence.editor interactive.difffilter core.alternaterefscommand
    trailer.*.command trailer.*.cmd gpg.*.defaultkeycommand hook.*.command submodule.*.update remote.*.uploadpack
    remote.*.receivepack
    """.split()
)
_TOOL_KEYS = frozenset("difftool.*.cmd mergetool.*.cmd browser.*.cmd man.*.cmd guitool.*.cmd".split())
# A configuration without any of these names no place
_WORTH_PARSING = (
    b"hookspath", b"include", b"attributesfile", b"fsmonitor", b"pager", b"editor", b"sshcommand", b"askpass",
    b"gitproxy", b"external", b"command", b"textconv", b"filter", b"driver", b"helper", b"program", b"worktree",
    b"cmd", b"update", b"pack", b"alias", b"templatedir",
)  # fmt: skip
# More than this nobody has, and each costs a look at the disk
MAX_PLACES = 2000
_INCLUDES = frozenset(("include.path", "includeif.*.path"))
# As git itself
_DEEPEST_INCLUDE = 10
_MOST_LINKS = 40


class View:
    """Both sides of the changes of one root: what exists before or afterwards, and small contents. Follows no link.

    A content that is too large or can't be read is None, which the guard takes for the worst.
    """

    def __init__(self, part: RootChanges, reader: Reader) -> None:
        self.root = part.root
        self._part = part
        self._reader = reader
        self._by_path: dict[bytes, Change] | None = None
        self._existed: dict[bytes, bool] = {}

    def find(self, path: bytes) -> Change | None:
        """Return the change of exactly this path."""
        if self._by_path is None:
            self._by_path = {change.path: change for change in self._part.changes}
        return self._by_path.get(path)

    def exists(self, path: bytes) -> bool:
        """Tell whether something is there before or afterwards.

        Either, because a person may apply a part of the changes and leave the rest.
        """
        if self.find(path) is not None:
            return True
        known = self._existed.get(path)
        if known is None:
            known = self._existed[path] = not self._is_in_new_directory(path) and self.kind_before(path) is not None
        return known

    def kind_before(self, path: bytes) -> EntryKind | None:
        """Say what was at a path before; None where there was nothing, special where nobody can tell."""
        try:
            return self._reader.kind_before(path)
        except OSError:
            return "special"

    def crosses_link(self, path: bytes) -> bool:
        """Tell whether a path leads through a link, or to one, before or afterwards."""
        names = path.split(b"/")
        for end in range(1, len(names) + 1):
            place = b"/".join(names[:end])
            change = self.find(place)
            if change is not None and change.entry is not None and change.entry.kind == "symlink":
                return True
            if self.kind_before(place) == "symlink":
                return True
        return False

    def _is_in_new_directory(self, path: bytes) -> bool:
        # What is in an added directory has a change of its own, so nothing beneath need be asked
        parent = self.find(path.rpartition(b"/")[0])
        return parent is not None and parent.kind == "added"

    def after(self, change: Change) -> bytes | None:
        """Return the content that a change leaves, None where it can't be told."""
        if change.entry is None or change.entry.kind != "file" or change.entry.size > MAX_CONTENT:
            return None
        try:
            return read_up_to(self._reader.open_after(change), MAX_CONTENT + 1)
        except (OSError, UnspillError):
            return None

    def before(self, path: bytes) -> bytes | None:
        """Return the content of an older file, None where there was none that can be read."""
        try:
            content = read_up_to(self._reader.open_before(Change(path=path, kind="modified")), MAX_CONTENT + 1)
        except (OSError, UnspillError):
            return None
        return content if len(content) <= MAX_CONTENT else None


class GitGuard:
    """Judges the paths of one change set that git may act on."""

    def __init__(self, view: View, marks: set[bytes]) -> None:
        """Take the view and the folded paths of the changes that are named like the marks of a git directory."""
        self._view = view
        self._shapes = Shapes(view, marks)

    def judge(self, change: Change, parts: list[bytes], outer: int) -> Opinion:
        """Return the verdict on a change; `parts` is its folded path, behind `outer` components of the root's own."""
        if GIT_NAMES.isdisjoint(parts):
            return ORDINARY
        entry = change.entry
        if (change.base_kind if entry is None else entry.kind) == "dir":
            opinion = self._directory(change, parts)
            if change.kind != "replaced":
                return opinion
            # What a directory takes the place of is deleted
            return worst(opinion, self.judge(change.replace(kind="deleted", entry=None), parts, outer))
        content = self._by_content(change, parts)
        if content is not None:
            return content
        owners = self._owners(change, parts, outer)
        opinions = []
        for end in owners:
            place = place_of(parts[end:])
            if place == "module" and end != owners[-1]:
                continue
            is_named = GIT in parts[:end]
            if is_named and place == "ordinary" and could_steer(parts[end:]) and not self.is_record(change):
                opinions.append(held.UNKNOWN.opinion)
            elif is_named or place in _STEERING or parts[-1] in GIT_MARKS:
                opinions.append(self._owned(change, parts, end - outer, place, is_named=is_named))
        return worst(*opinions)

    def _by_content(self, change: Change, parts: list[bytes]) -> Opinion | None:
        """Judge the files that git looks for by name in a working tree; None where it is none of them."""
        name = parts[-1]
        if name == GIT:
            judge = self._pointer_file
        elif name == GIT_ATTRIBUTES:
            judge = self.attributes
        elif name == GIT_MODULES:
            judge = self._modules
        elif name == b".tool-versions":
            judge = self._versions
        elif parts[-2:] in _POINTERS:
            judge = self._pointer
        else:
            return None
        if change.entry is None or change.entry.kind == "special":
            return ORDINARY
        if change.entry.kind == "symlink":
            return held.GIT_LINK.opinion
        return ORDINARY if change.kind == "metadata" else judge(change)

    def _owners(self, change: Change, parts: list[bytes], outer: int) -> list[int]:
        """Return how many components lead to each git directory that the path is in, outermost first."""
        named = {end for end, part in enumerate(parts[:-1], 1) if part == GIT}
        real = change.path.split(b"/")
        shaped = {
            end
            for end in homes_of(parts) - named
            if end >= outer and self._shapes.has(b"/".join(real[: end - outer]), b"/".join(parts[:end]))
        }
        return sorted(named | shaped)

    def _owned(self, change: Change, parts: list[bytes], depth: int, place: GitPlace, *, is_named: bool) -> Opinion:
        """Judge a path in a git directory that is `depth` components below the root."""
        entry = change.entry
        home = b"/".join(change.path.split(b"/")[: max(0, depth)])
        if entry is None:
            return self._deleted(change, place, home)
        if entry.kind == "special" or change.is_mere_touch:
            return ORDINARY
        if parts[-1] in GIT_MARKS and not is_named and self._shapes.completes(home):
            return held.COMPLETES.opinion
        if entry.kind == "symlink":
            is_head = parts[-1] == b"head" and (change.target or b"").startswith(b"refs/")
            return ORDINARY if is_head or not (is_named or place in _STEERING) else held.GIT_LINK.opinion
        if place == "hook":
            return held.HOOK.opinion
        if place == "unknown" or place == "module":
            return held.UNKNOWN.opinion if is_named else ORDINARY
        if place == "ordinary" or change.kind == "metadata":
            return ORDINARY
        if place == "large":
            # Its name is the digest of its content, so nothing honest changes it
            return ORDINARY if change.base_kind is None else held.UNKNOWN.opinion
        return self._by_place(change, parts, place, home)

    def _by_place(self, change: Change, parts: list[bytes], place: GitPlace, home: bytes) -> Opinion:
        if place == "config":
            return self.config(change, home)
        if place == "attributes":
            return self.attributes(change)
        if place == "pointer":
            return self._pointer(change)
        content = self._view.after(change)
        if content is None:
            return held.UNREADABLE.opinion
        if place == "common":
            if not is_usual_common(parts, content):
                return held.LEADS_OUT.opinion
            return held.COMPLETES.opinion if self._shapes.completes(b"/".join(home.split(b"/")[:-2])) else ORDINARY
        if place == "autostash":
            return held.AUTOSTASH.opinion
        if place == "start":
            # The end of a bisection hands it to `git checkout`, which takes this for an option
            return held.UNKNOWN.opinion if content.lstrip().startswith(b"-") else ORDINARY
        if place == "strategy":
            # Git runs `git-merge-NAME`, which a slash makes a path in the project
            return held.TODO.opinion if any(b"/" in line for line in strategies(content)) else ORDINARY
        if place == "todo":
            return held.TODO.opinion if has_commands(content) else ORDINARY
        if place == "shallow":
            return self._shallow(change, home, content)
        return held.ALTERNATES.opinion if place == "alternates" else held.REPLACED_OBJECT.opinion

    def _shallow(self, change: Change, home: bytes, content: bytes) -> Opinion:
        """Judge where a history ends: a repository that is new may end where it likes."""
        if self._view.kind_before(join(home, b"HEAD")) is None:
            return ORDINARY
        before = self._view.before(change.path) or b""
        return held.SHALLOW.opinion if set(content.split()) - set(before.split()) else ORDINARY

    def _deleted(self, change: Change, place: GitPlace, home: bytes) -> Opinion:
        if place == "hook":
            return held.HOOK.deleted, HOOK_GONE
        return self.config(change, home) if place == "config" else ORDINARY

    def is_record(self, change: Change) -> bool:
        """Tell whether a file is a reference or its log by content, and so steers git under no name and in no place."""
        if change.entry is None:
            return True
        if change.entry.kind != "file":
            return False
        content = self._view.after(change)
        if content is None:
            return False
        # The text of a log may name a directory to share settings with
        return is_reference(content) or (is_log(content) and not change.path.lower().endswith(b"commondir"))

    def _directory(self, change: Change, parts: list[bytes]) -> Opinion:
        if change.entry is None and parts[-2:] == [GIT, b"hooks"]:
            had = any(self._view.exists(join(change.path, name)) for name in HOOKS)
            return (held.HOOK.deleted, HOOK_GONE) if had else ORDINARY
        if change.entry is None:
            return (held.REPOSITORY.deleted, held.REPOSITORY.reason) if parts[-1] == GIT else ORDINARY
        home = change.path.rpartition(b"/")[0]
        is_mark = parts[-1] in GIT_MARKS and change.base_kind != "dir" and GIT not in parts
        if is_mark and self._shapes.has(home, b"/".join(parts[:-1])) and self._shapes.completes(home):
            return held.COMPLETES.opinion
        return ORDINARY

    def config(self, change: Change, home: bytes, *, is_included: bool = False) -> Opinion:
        """Judge a configuration by the keys that change; `home` is the git directory from the root on, or what else it
        lies in if another one includes it.
        """
        before = self._view.before(change.path) if change.base_kind == "file" else None
        after = b"" if change.entry is None else self._view.after(change)
        if after is None or (before is None and change.base_kind == "file"):
            return held.UNREADABLE.opinion
        old, new = parse(before or b""), parse(after)
        if old is None or new is None:
            return held.UNREADABLE.opinion
        is_new = not is_included and self._is_new(home)
        keys = self._shapes.unusual_keys(home, None if before is None and is_new else old, new)
        if keys:
            return _with_keys(held.SETTINGS, keys)
        if is_new:
            return ORDINARY
        return _addresses((*self._known_modules(home, old), *old), new)

    def _is_new(self, home: bytes) -> bool:
        """Tell whether a repository is new: where it comes from is no change then. A worktree is as new as its own."""
        names = home.split(b"/")
        top = b"/".join(names[:-2]) if names[-2:-1] == [b"worktrees"] else home
        made = [self._view.find(path) for path in (top, join(top, b"HEAD"))]
        return any(change is not None and change.kind == "added" for change in made)

    def _known_modules(self, home: bytes, settings: GitSettings) -> GitSettings:
        """Return the addresses of modules that the project itself has, for modules that have none in the settings."""
        above, _, name = home.rpartition(b"/")
        if name != GIT:
            return ()
        listed = parse(self._view.before(join(above, GIT_MODULES)) or b"") or ()
        known = {key for key, _ in settings}
        return tuple((key, value) for key, value in listed if pattern_of(key) == "submodule.*.url" and key not in known)

    def _pointer_file(self, change: Change) -> Opinion:
        content = self._view.after(change)
        place = change.path.rpartition(b"/")[0]
        target = pointer_target(content) if content is not None else None
        if not is_inner_pointer(place, target, self._view.root):
            return held.LEADS_OUT.opinion
        found = resolve_text(place, target or b"", self._view.root) or []
        home = b"/".join(found)
        if self._view.crosses_link(home):
            return held.COMPLETES.opinion
        if any(part.lower() == GIT for part in found):
            return ORDINARY if is_repository_place(found) else held.COMPLETES.opinion
        return held.COMPLETES.opinion if self._shapes.steers(home) else ORDINARY

    def _pointer(self, change: Change) -> Opinion:
        content = self._view.after(change)
        target = content.rstrip(b"\r\n") if content is not None else None
        inner = is_inner_pointer(change.path.rpartition(b"/")[0], target, self._view.root)
        return ORDINARY if inner else held.LEADS_OUT.opinion

    def attributes(self, change: Change) -> Opinion:
        """Judge a file of attributes by the drivers that it newly names."""
        after = self._view.after(change)
        if after is None:
            return held.UNREADABLE.opinion
        before = self._view.before(change.path) if change.base_kind == "file" else b""
        drivers = new_drivers(before or b"", after, self._macros(change.path))
        return held.DRIVERS.opinion if drivers else ORDINARY

    def _macros(self, path: bytes) -> frozenset[bytes]:
        """Return the macros with a driver that the person's own attributes define where a path is."""
        names = path.split(b"/")[:-1]
        tops = [b"/".join(names[:end]) for end in range(len(names) + 1)]
        files = [join(top, name) for top in tops for name in (GIT_ATTRIBUTES, b".git/info/attributes")]
        own = os.environb.get(b"XDG_CONFIG_HOME") or os.path.expanduser(b"~/.config")
        return driving_macros(
            read_live(os.path.join(own, b"git/attributes")), *(self._view.before(file) or b"" for file in files)
        )

    def _modules(self, change: Change) -> Opinion:
        content = self._view.after(change)
        settings = parse(content) if content is not None else None
        if settings is None:
            return held.UNREADABLE.opinion
        before = parse(self._view.before(change.path) or b"") or ()
        home = join(change.path.rpartition(b"/")[0], GIT)
        keys = unusual_modules(before, settings, lambda path: self._shapes.is_inside(home, path))
        if keys:
            return _with_keys(held.MODULES, keys)
        return ORDINARY if self._is_new(home) else _addresses(before, settings)

    def _versions(self, change: Change) -> Opinion:
        content = self._view.after(change)
        return held.TEMPLATE.opinion if content is None or has_template(content) else ORDINARY


class PlaceGuard:
    """Judges the changes in ordinary places of a project that live git settings name: hooks, filters, more settings.

    A person whose `core.hooksPath` is `.husky` has made every file there a hook. The settings of the person and of the
    machine count as well as the project's; they are read for names only.

    `names` has a component of every such path, for the first look at many. `is_overfull` if there are more than
    anybody has, so that not all are known: then each path may be one.
    """

    def __init__(self, view: View, directories: Iterable[bytes] = ()) -> None:
        """Take the view and directories, by their whole paths, whose repositories count besides the root's own."""
        self._view = view
        self._places: dict[bytes, list[NamedPlace]] = {}
        self._above: set[bytes] = set()
        self._trees: set[bytes] = set()
        self._hook_depths: set[int] = set()
        self._settings = LiveSettings()
        self.names: set[bytes] = set()
        self.is_overfull = False
        for directory in dict.fromkeys((view.root, *directories)):
            if directory == view.root or os.path.lexists(join(directory, GIT)):
                self._add(_RepositoryPlaces(view, self._settings, directory))

    def judge(self, change: Change, parts: list[bytes], git: GitGuard) -> Opinion:
        """Return the verdict on a change whose folded path is `parts`."""
        if change.entry is None or change.entry.kind == "dir" or change.is_mere_touch:
            return ORDINARY
        if self.is_overfull:
            return held.PROGRAM.opinion
        return worst(self.judge_link(change, parts), *(_opinion(change, place, git) for place in self._around(parts)))

    def judge_link(self, change: Change, parts: list[bytes]) -> Opinion:
        """Return the verdict on a change that may put a link above such a place, and so another one there."""
        if change.target is None or change.kind == "metadata":
            return ORDINARY
        path = b"/".join(parts)
        return (
            held.PROGRAM.opinion if path in self._above else held.GIT_LINK.opinion if path in self._trees else ORDINARY
        )

    def _around(self, parts: list[bytes]) -> Iterator[NamedPlace]:
        """Yield the places that a path is, or is in."""
        path = b"/".join(parts)
        yield from self._places.get(path, ())
        for end in self._hook_depths:
            if end < len(parts):
                for place in self._places.get(b"/".join(parts[:end]), ()):
                    if place.kind == "hooks" and (end or path in HOOKS):
                        yield place

    def _add(self, repository: Iterable[list[NamedPlace]]) -> None:
        found = tuple(itertools.islice(repository, MAX_PLACES + 1))
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


class Shapes:
    """The directories of one change set that have the shape of a git directory."""

    def __init__(self, view: View, marks: set[bytes]) -> None:
        """Take the view and the folded paths of the changes that are named like the marks of a git directory."""
        self._view = view
        self._marks = marks
        self._known: dict[bytes, bool] = {}
        self._completed: dict[bytes, bool] = {}

    def has(self, real: bytes, folded: bytes) -> bool:
        """Tell whether a directory is git's, or would be by any part of the changes; its path, and folded."""
        known = self._known.get(real)
        if known is None:
            # The directory that worktrees share settings with need have no HEAD of its own
            known = (self._has(real, folded, b"HEAD") or self._has(real, folded, b"worktrees")) and (
                self._has(real, folded, b"commondir")
                or (self._has(real, folded, b"objects") and self._has(real, folded, b"refs"))
            )
            self._known[real] = known
        return known

    def _has(self, real: bytes, folded: bytes, name: bytes) -> bool:
        return join(folded, name.lower()) in self._marks or self._view.exists(join(real, name))

    def completes(self, home: bytes) -> bool:
        """Tell whether settings or hooks lie in a directory that come to life because only now it becomes git's."""
        known = self._completed.get(home)
        if known is None:
            known = self._completed[home] = not self._was_shaped(home) and self.steers(home)
        return known

    def _was_shaped(self, home: bytes) -> bool:
        had = {name for name in _SHAPE if self._view.kind_before(join(home, name)) is not None}
        return had >= {b"HEAD", b"commondir"} or had >= {b"HEAD", b"objects", b"refs"}

    def is_work_tree(self, home: bytes, value: str) -> bool:
        """Tell whether a setting leads from the repository of a module to its work tree, as git itself writes it.

        In any other directory, in one of git's own above all, a checkout would write what git or somebody else runs.
        """
        target = os.fsencode(value)
        found = None if target.startswith(b"/") else resolve_text(home, target, self._view.root)
        if not found or not is_module_place(home.split(b"/")):
            return False
        tree = b"/".join(found)
        if self._view.crosses_link(home) or self._view.crosses_link(tree):
            return False
        above = [b"/".join(found[:end]) for end in range(1, len(found) + 1)]
        if any(GIT in INDEX.fold(path).split(b"/") or self.has(path, INDEX.fold(path)) for path in above):
            return False
        return self._leads_back(join(tree, GIT), tree, home)

    def unusual_keys(self, home: bytes, before: GitSettings | None, after: GitSettings) -> list[str]:
        """Return the patterns of the changed settings of a repository that are not ordinary."""
        return unusual_keys(
            before, after, lambda value: self.is_work_tree(home, value), lambda path: self.is_inside(home, path)
        )

    def is_inside(self, home: bytes, path: str) -> bool:
        """Tell whether a path in the settings of a repository leads to a place in the root.

        A push runs the hooks of the repository there. In the root they are held, elsewhere a command may have put them.
        """
        above, _, name = home.rpartition(b"/")
        # Which directory git starts from is told by a directory called `.git` alone
        found = resolve_text(above if name == GIT else b"", os.fsencode(path), self._view.root)
        return found is not None and not (found and self._view.crosses_link(b"/".join(found)))

    def _leads_back(self, path: bytes, tree: bytes, home: bytes) -> bool:
        """Tell whether the `.git` file of a work tree leads to its repository: the one that comes, and any before."""
        change, kind = self._view.find(path), self._view.kind_before(path)
        contents = [] if change is None else [self._view.after(change)]
        contents += [] if kind is None else [self._view.before(path) if kind == "file" else None]
        targets = [None if content is None else pointer_target(content) for content in contents]
        places = [None if target is None else resolve_text(tree, target, self._view.root) for target in targets]
        return bool(places) and all(place == home.split(b"/") for place in places)

    def steers(self, home: bytes) -> bool:
        """Tell whether anything lies unchanged in a directory that makes git run something where it is git's."""
        made = self._view.find(home)
        if made is not None and made.kind == "added":
            return False
        hooks = (join(home, b"hooks/" + name) for name in HOOKS)
        shelves = (join(home, name) for name in (b"hooks", b"info"))
        return (
            any(self._view.find(path) is None and self._view.kind_before(path) == "symlink" for path in shelves)
            or self._lies(home, b"config", self._is_unusual)
            or self._lies(home, b"config.worktree", self._is_unusual)
            or self._lies(home, b"info/attributes", lambda _, content: bool(new_drivers(b"", content)))
            or self._lies(home, b"commondir", self._shares_unusual)
            or any(self._view.find(path) is None and self._view.exists(path) for path in hooks)
        )

    def _lies(self, home: bytes, name: bytes, test: Callable[[bytes, bytes], bool]) -> bool:
        """Tell whether a file lies unchanged in a directory that a test is true of, or that can't be read."""
        path = join(home, name)
        if self._view.find(path) is not None or self._view.kind_before(path) in (None, "dir"):
            return False
        content = self._view.before(path)
        return content is None or test(home, content)

    def _is_unusual(self, home: bytes, content: bytes) -> bool:
        settings = parse(content)
        return settings is None or bool(self.unusual_keys(home, None, settings))

    def _shares_unusual(self, home: bytes, content: bytes) -> bool:
        names = home.split(b"/")
        if not is_usual_common([*names, b"commondir"], content):
            return True
        return self.completes(b"/".join(names[:-2]))


class NamedPlace(Record):
    """A folded path below the root, and what git takes it for."""

    path: bytes
    kind: Kind


def parse(content: bytes) -> GitSettings | None:
    """Return the settings of a configuration, None where nobody can tell what git would make of it."""
    if b"\0" in content:
        return None
    try:
        return parse_gitconfig(content.decode("utf-8", "surrogateescape"))
    except UsageError:
        return None


def join(directory: bytes, name: bytes) -> bytes:
    """Return the path of a name in a directory, which may be the root."""
    return directory + b"/" + name if directory else name


def _addresses(before: GitSettings, after: GitSettings) -> Opinion:
    changed = changed_addresses(before, after)
    return _with_keys(held.ADDRESS, changed, "; ") if changed else ORDINARY


def _with_keys(row: GuardRow, keys: list[str], between: str = ", ") -> Opinion:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return row.verdict, f"{row.reason}: {between.join(keys[:3])}{more}"


def _telling(place: NamedPlace) -> tuple[bytes, ...]:
    return (place.path.rpartition(b"/")[2],) if place.path else HOOKS


def _opinion(change: Change, place: NamedPlace, git: GitGuard) -> Opinion:
    if place.kind == "tool":
        return held.TOOL.opinion
    if place.kind in ("hooks", "hook") or (change.entry is not None and change.entry.kind == "symlink"):
        is_sample = place.kind == "hooks" and change.path.endswith(b".sample")
        return ORDINARY if is_sample else held.HOOK.opinion
    if place.kind == "config":
        return git.config(change, change.path.rpartition(b"/")[0], is_included=True)
    return git.attributes(change) if place.kind == "attributes" else held.PROGRAM.opinion


class LiveSettings:
    """The settings of the person and of the machine, with what they include under whatever condition."""

    def __init__(self) -> None:
        self._known: dict[bytes, GitSettings] = {}
        home = os.path.expanduser(b"~")
        own = os.path.join(os.environb.get(b"XDG_CONFIG_HOME") or os.path.join(home, b".config"), b"git/config")
        named = os.environb.get(b"GIT_CONFIG_GLOBAL")
        self._shared = (
            *((named,) if named else (os.path.join(home, b".gitconfig"), own)),
            os.environb.get(b"GIT_CONFIG_SYSTEM") or b"/etc/gitconfig",
        )

    def of(self, path: bytes) -> Iterator[tuple[bytes, str, str]]:
        """Yield what a live configuration says: the directory of the file, key and value of each setting."""
        waiting, seen = [(path, 0)], {path}
        for file, depth in waiting:
            directory = os.path.dirname(file)
            for key, value in self._read(file):
                yield directory, key, value
                if pattern_of(key) in _INCLUDES and depth < _DEEPEST_INCLUDE and "\0" not in value:
                    included = os.path.normpath(os.path.join(directory, os.path.expanduser(os.fsencode(value))))
                    if included not in seen:
                        seen.add(included)
                        waiting.append((included, depth + 1))

    def shared(self) -> Iterator[tuple[bytes, str, str]]:
        """Yield the settings that count in every repository."""
        for path in self._shared:
            yield from self.of(path)

    def _read(self, path: bytes) -> GitSettings:
        if path not in self._known:
            self._known[path] = _settings_in(read_live(path))
        return self._known[path]


def _settings_in(content: bytes) -> GitSettings:
    lower = content.lower()
    return parse(content) or () if any(word in lower for word in _WORTH_PARSING) else ()


class _RepositoryPlaces:
    """The places below the root that the settings of one repository name, of its worktrees and of its submodules."""

    def __init__(self, view: View, settings: LiveSettings, work_tree: bytes) -> None:
        self._view = view
        self._settings = settings
        self._work_tree = work_tree

    def __iter__(self) -> Iterator[list[NamedPlace]]:
        """Yield the places that each word of a setting names, and those that live hooks lead to."""
        pointed = list(_git_directories(os.path.join(self._work_tree, GIT)))
        yield from self._of_members(pointed, self._work_tree)
        for top in pointed[-1:]:
            for member in _members_of(top):
                yield from self._of_members([member, top], _work_tree_of(member, self._settings))
        for name in (b".git/config", b".git/config.worktree"):
            change = self._proposed(name)
            if change is not None:
                home = os.path.join(self._work_tree, GIT)
                for key, value in _settings_in(self._view.after(change) or b""):
                    yield from self._named(home, self._work_tree, key, value, is_live=False)

    def _proposed(self, name: bytes) -> Change | None:
        if self._work_tree == self._view.root:
            return self._view.find(name)
        top = self._work_tree.removeprefix(self._view.root + b"/")
        return self._view.find(join(top, name)) if top != self._work_tree else None

    def _of_members(self, directories: list[bytes], work_tree: bytes) -> Iterator[list[NamedPlace]]:
        """Yield the places of a git directory and of the one that it shares settings with."""
        files = [join(directory, name) for directory in directories for name in (b"config", b"config.worktree")]
        own = itertools.chain.from_iterable(map(self._settings.of, files))
        for directory, key, value in itertools.chain(own, self._settings.shared()):
            yield from self._named(directory, work_tree, key, value, is_live=True)
        for directory in directories:
            yield from self._linked_hooks(join(directory, b"hooks"))

    def _named(
        self, directory: bytes, work_tree: bytes, key: str, value: str, *, is_live: bool
    ) -> Iterator[list[NamedPlace]]:
        root = self._view.root
        for kind, start, path in _named(pattern_of(key), os.fsencode(value), directory, work_tree):
            found = places_below(root, start, path, is_live=is_live)
            # The scripts in `.husky/_` run those beside it
            husky = {name.removesuffix(b"/_") if b".husky" in name else name for name in found}
            yield [NamedPlace(path=name, kind=kind) for name in (husky if kind == "hooks" else found)]
            if kind == "hooks" and is_live and b"\0" not in path:
                yield from self._linked_hooks(os.path.join(start, os.path.expanduser(path)))

    def _linked_hooks(self, hooks: bytes) -> Iterator[list[NamedPlace]]:
        """Yield the places below the root that a live directory of hooks, and the hooks in it, are links to."""
        try:
            with os.scandir(hooks) as entries:
                links = [entry.path for entry in entries if entry.is_symlink()]
        except OSError:
            return
        found_links: list[tuple[bytes, Kind]] = [(link, "hook") for link in links]
        if os.path.islink(hooks):
            found_links.append((hooks, "hooks"))
        for link, kind in found_links:
            found = places_below(self._view.root, b"/", link, is_live=True)
            yield [NamedPlace(path=path, kind=kind) for path in found]


def _named(pattern: str, value: bytes, directory: bytes, work_tree: bytes) -> Iterator[tuple[Kind, bytes, bytes]]:
    """Yield what a setting may name: what git takes it for, where it starts from, and its text."""
    if pattern == "core.hookspath" or pattern == "init.templatedir":
        yield "hooks", work_tree, value
    elif pattern in _INCLUDES:
        yield "config", directory, value
    elif pattern == "core.worktree":
        yield "tree", directory, value
    elif pattern == "core.attributesfile":
        yield "attributes", work_tree, value
    elif pattern == "submodule.*.update" and not value.startswith(b"!"):
        return
    elif pattern in _PROGRAM_KEYS or pattern.startswith("pager."):
        for word, _ in words_of_shell(value):
            yield "program", work_tree, word.lstrip(b"!")
    elif pattern in _TOOL_KEYS or (pattern.startswith("alias.") and value.startswith(b"!")):
        for word, _ in words_of_shell(value):
            yield "tool", work_tree, word.lstrip(b"!")


def places_below(root: bytes, start: bytes, path: bytes, *, is_live: bool) -> set[bytes]:
    """Return a path as folded paths below the root: as it is written, and on each way by the person's links."""
    if b"\0" in path:
        return set()
    if is_live or path.startswith(b"~/"):
        path = os.path.expanduser(path)
    whole = os.path.normpath(os.path.join(start, path))
    # What a command proposes must not make this side ask a network for a user or a directory
    found = {whole, *_stages(whole)} if is_live or contains(root, whole) else {whole}
    return {INDEX.fold(each[len(root) + 1 :]) for each in found if contains(root, each)}


def _stages(path: bytes) -> Iterator[bytes]:
    """Yield what a path becomes by each link on its way, the last of which has none.

    Whoever replaces one of the links decides what is found there.
    """
    here, left = b"/", path.split(b"/")
    for _ in range(_MOST_LINKS):
        while left:
            name = left.pop(0)
            if name == b"..":
                here = os.path.dirname(here)
            elif name not in (b"", b"."):
                try:
                    target = os.readlink(os.path.join(here, name))
                except OSError:
                    here = os.path.join(here, name)
                    continue
                here = b"/" if target.startswith(b"/") else here
                left = [*target.split(b"/"), *left]
                break
        yield os.path.normpath(os.path.join(here, *filter(None, left)))
        if not left:
            return


def _git_directories(path: bytes) -> Iterator[bytes]:
    """Yield the git directory behind a live `.git` and the one it shares settings with."""
    if not os.path.isdir(path):
        target = pointer_target(read_live(path))
        if target is None:
            return
        path = os.path.join(os.path.dirname(path), target)
    yield path
    common = read_live(os.path.join(path, b"commondir")).strip()
    if common:
        yield os.path.join(path, common)


def _members_of(top: bytes) -> list[bytes]:
    """Return the git directories of the worktrees and submodules of a repository."""
    try:
        return list(itertools.islice(git_directories_in(top), 1, MAX_PLACES))
    except OSError:
        return []


def _work_tree_of(member: bytes, settings: LiveSettings) -> bytes:
    """Return the work tree of a worktree or submodule, its git directory where it says of none."""
    pointer = read_live(join(member, b"gitdir")).strip()
    if pointer:
        return os.path.dirname(os.path.join(member, pointer))
    trees = [value for _, key, value in settings.of(join(member, b"config")) if key == "core.worktree"]
    return os.path.normpath(os.path.join(member, os.fsencode(trees[-1]))) if trees else member


def read_live(path: bytes) -> bytes:
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
