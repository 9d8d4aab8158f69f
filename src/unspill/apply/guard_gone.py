# SPDX-License-Identifier: Apache-2.0
"""The verdict on directories that go: the marks of a project, and whatever in a directory is not deleted by itself.

A deleted or replaced directory is one change, so what is in it is looked at in the live tree: names only, a bounded
number of them, and not in trees of installed packages.
"""

from __future__ import annotations

import os

from unspill.apply.guard_git import ORDINARY, worst
from unspill.policy.git import GIT
from unspill.policy.held import INDEX, PACKAGE_TREES, package_top
from unspill.policy.held import GONE_WITH_IT, MODULE, PROJECT_MARK, REPOSITORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.apply.guard_git import Opinion
    from unspill.model.change import Change

MARKS_OF_A_PROJECT = frozenset((b".git", b".hg", b".jj"))
# Far fewer microseconds each than it took the command to delete them
MAX_LOOKS = 500_000
_MOST_DIRECTORIES = 10_000


class GoneGuard:
    """Judges what of one root is deleted, or has something else in its place."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._looks_left = MAX_LOOKS

    def judge(self, change: Change, parts: list[bytes]) -> Opinion:
        """Return the verdict on a change; `parts` is its folded path from the root on."""
        if change.kind != "deleted" and change.kind != "replaced":
            return ORDINARY
        if len(parts) == 1 and parts[0] in MARKS_OF_A_PROJECT:
            return PROJECT_MARK.opinion
        if change.base_kind != "dir" or package_top(parts):
            return ORDINARY
        if GIT in change.path.split(b"/"):
            is_module = b"/.git/modules" in b"/" + change.path and _has_repository(self._root + b"/" + change.path)
            return MODULE.opinion if is_module else ORDINARY
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
                            return GONE_WITH_IT.opinion
                        found = worst(found, opinion)
                        if is_open:
                            left.append((entry.path, [*above, INDEX.fold(entry.name)]))
            except FileNotFoundError:
                continue
            except OSError:
                return GONE_WITH_IT.opinion
        return found


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
        return (REPOSITORY.opinion if is_directory else ORDINARY), False
    if name in PACKAGE_TREES:
        return ORDINARY, False
    return (GONE_WITH_IT.opinion if INDEX.find_kept([*above, name]) else ORDINARY), is_directory
