# SPDX-License-Identifier: Apache-2.0
"""Which directories git takes for its own by their shape, and what comes to life in one that only now gets it.

A directory has the shape as soon as it could get it by any part of the changes: a person may apply some of them, and a
command may make the rest in another run.
"""

from __future__ import annotations

import os

from unspill.errors import UsageError
from unspill.plan.gitconfig import parse_gitconfig
from unspill.policy.gitfiles import is_module_place, is_usual_common, new_drivers, pointer_target
from unspill.policy.gitkeys import unusual_keys
from unspill.policy.gitpaths import GIT, HOOKS
from unspill.policy.guarded import INDEX
from unspill.policy.pointers import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.apply.guard_view import View
    from unspill.policy.gitkeys import Settings

_SHAPE = (b"HEAD", b"objects", b"refs", b"commondir")


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
        found = None if target.startswith(b"/") else resolve(home, target, self._view.root)
        if not found or not is_module_place(home.split(b"/")):
            return False
        tree = b"/".join(found)
        if self._view.crosses_link(home) or self._view.crosses_link(tree):
            return False
        above = [b"/".join(found[:end]) for end in range(1, len(found) + 1)]
        if any(GIT in INDEX.fold(path).split(b"/") or self.has(path, INDEX.fold(path)) for path in above):
            return False
        return self._leads_back(join(tree, GIT), tree, home)

    def _leads_back(self, path: bytes, tree: bytes, home: bytes) -> bool:
        """Tell whether the `.git` file of a work tree leads to its repository: the one that comes, and any before."""
        change, kind = self._view.find(path), self._view.kind_before(path)
        contents = [] if change is None else [self._view.after(change)]
        contents += [] if kind is None else [self._view.before(path) if kind == "file" else None]
        targets = [None if content is None else pointer_target(content) for content in contents]
        places = [None if target is None else resolve(tree, target, self._view.root) for target in targets]
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
        if settings is None:
            return True
        return bool(unusual_keys(None, settings, lambda value: self.is_work_tree(home, value)))

    def _shares_unusual(self, home: bytes, content: bytes) -> bool:
        names = home.split(b"/")
        if not is_usual_common([*names, b"commondir"], content):
            return True
        return self.completes(b"/".join(names[:-2]))


def parse(content: bytes) -> Settings | None:
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
