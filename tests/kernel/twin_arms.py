# SPDX-License-Identifier: Apache-2.0
"""The rules that keep a repository whole beside unspill, each of which can be switched off here, and here alone."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from unspill.apply import git_draft, git_move, reverse
from unspill.git import frozen


def remove_objects(patch: pytest.MonkeyPatch) -> None:
    """Have an undo take away the objects that the operation brought."""
    draft = reverse.draft_reversal

    def draft_and_remove(drafted: Any, dirs: Any, step: Any, *rest: Any) -> None:
        draft(drafted, dirs, step, *rest)
        for path, _place in step.objects:
            fd, name = dirs.roots[step.root].parent(path)
            if os.access(name, os.F_OK, dir_fd=fd):
                os.unlink(name, dir_fd=fd)

    patch.setattr(reverse, "draft_reversal", draft_and_remove)


def move_parts(patch: pytest.MonkeyPatch) -> None:
    """Have each reference and file moved that only the run moved, whatever the person did to the others."""
    make = git_draft.GitDraft._make_move

    def make_of_parts(self: Any, transfer: Any) -> Any:
        live = self._live.state
        self._moved = tuple(name for name in self._moved if live.value(name) == self._base.value(name))
        return make(self, transfer)

    patch.setattr(git_draft.GitDraft, "_find_divergence", lambda self: False)
    patch.setattr(git_draft.GitDraft, "_make_move", make_of_parts)


def compare_nothing(patch: pytest.MonkeyPatch) -> None:
    """Have a repository moved although it is not where it was."""
    patch.setattr(git_draft.GitDraft, "_find_divergence", lambda self: False)
    patch.setattr(git_move.RepositoryWriter, "_compare", lambda self, move: None)


def compare_before_locks(patch: pytest.MonkeyPatch) -> None:
    """Have nothing compared once more under the locks."""
    patch.setattr(git_move.RepositoryWriter, "_compare", lambda self, move: None)


def take_no_locks(patch: pytest.MonkeyPatch) -> None:
    """Have a repository moved without a lock of git."""
    patch.setattr(git_move.RepositoryWriter, "_lock", lambda self, names: None)


def pin_nothing(patch: pytest.MonkeyPatch) -> None:
    """Have nothing lead to what an operation displaced."""
    patch.setattr(git_draft.LiveRepository, "pins", lambda self, *rest: [])


def freeze_nothing(patch: pytest.MonkeyPatch) -> None:
    """Have a run see what the person does meanwhile."""
    patch.setattr(frozen, "find_frozen", lambda state, root: None)


ARMS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "object rule": remove_objects,
    "unit rule": move_parts,
    "compare": compare_nothing,
    "compare under locks": compare_before_locks,
    "locks": take_no_locks,
    "pins": pin_nothing,
    "freeze": freeze_nothing,
}
