# SPDX-License-Identifier: Apache-2.0
"""A project of its own for each technique about changes, and the ways to lay changes into it.

The naive ways are the controls: by path, or by `cp -a` of the layer.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.attack.arena import Arena
from tests.attack.techniques.record import Listed
from tests.kernel.laying import lay
from unspill import UnspillError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from unspill import ChangeSet, Sandbox


@dataclass(frozen=True)
class Case:
    """A project of its own, a sandbox over it, and a place outside that nobody may reach."""

    arena: Arena
    sandbox: Sandbox
    project: Path
    outside: Path

    def hold(self, script: str) -> ChangeSet:
        """Let a command change the project; return what is held."""
        result = self.sandbox.run(script, after="hold")
        assert result.ok, result
        return self.sandbox.changes()


def case(arena: Arena, **settings: Any) -> Case:
    """Make a new project with a few files in it."""
    number = len(arena.ground.opened)
    project, outside = arena.ground.home / f"project-{number}", arena.ground.top / f"outside-{number}"
    for directory in (project / "d/e", outside / "e"):
        directory.mkdir(parents=True)
        (directory / "f").write_text("base\n")
    for path in (project / "d/f", project / "file", outside / "f", outside / "secret"):
        path.write_text("base\n")
    return Case(arena, arena.ground.sandbox(project=project, **settings), project, outside)


def ours(one: Case, changes: ChangeSet) -> None:
    try:
        one.sandbox.apply(reviewed=changes)
    except UnspillError:
        return


def by_path(one: Case, changes: ChangeSet) -> None:
    lay(changes, one.project)


def copied(one: Case, changes: ChangeSet) -> None:
    for layer in changes.layers:
        subprocess.run(["cp", "-a", os.fsdecode(layer) + "/.", one.project], check=True)


def listed(
    to: Listed,
    row: str,
    tries: str,
    scenario: Callable[[Case, Any], object],
    naive: Callable[[Case, ChangeSet], None] = by_path,
) -> None:
    """Add a scenario that takes the way in which changes are laid into the project."""
    how = "by `cp -a` of the layer" if naive is copied else "by laying the changes by path"
    to.add_pair(row, tries, lambda arena: scenario(case(arena), ours), how, lambda arena: scenario(case(arena), naive))
