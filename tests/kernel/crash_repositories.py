# SPDX-License-Identifier: Apache-2.0
"""Where the repositories of a project stand, as git itself says it, and what may not be in them after a crash."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.crash_scene import REPOSITORIES

_OWN = "refs/unspill/"


@dataclass(frozen=True)
class Repository:
    """What moves together: where HEAD leads, every reference with its value, and what is staged."""

    head: str
    refs: dict[str, str]
    index: str

    def without_own(self) -> "Repository":
        """Return it without the references that unspill made: their names have the numbers of operations."""
        return Repository(
            self.head, {name: value for name, value in self.refs.items() if not name.startswith(_OWN)}, self.index
        )


Repositories = dict[str, Repository]


def read_repositories(project: Path) -> Repositories:
    """Return where each repository of a project stands."""
    return {where: _read(project / where) for where in REPOSITORIES}


def _read(where: Path) -> Repository:
    listed = _git(where, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    refs = {name: value for name, _, value in (line.partition(" ") for line in listed)}
    return Repository((where / ".git" / "HEAD").read_text(), refs, _git(where, "ls-files", "--stage"))


def repository_problems(project: Path, wanted: Repositories, *, exactly: bool = True) -> list[str]:
    """Return what is wrong with the repositories: where they stand, what was left in them, and what git finds.

    If it is not to be told exactly, references of ours do not count, and git does not look.
    """
    problems = []
    for where, found in read_repositories(project).items():
        must = wanted[where]
        if found != must if exactly else found.without_own() != must.without_own():
            problems.append(f"mixed state of git in {where}: {found} instead of {must}")
        if exactly and (told := _git(project / where, "fsck", "--full", "--no-dangling", "--no-progress")):
            problems.append(f"git fsck in {where}: {told}")
        top = project / where / ".git"
        left = [name for _, _, names in os.walk(top) for name in names if name.endswith(".lock") or "unspill" in name]
        if left:
            problems.append(f"left behind in {top}: {left}")
    return problems


def _git(where: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", os.fspath(where), *words], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr
