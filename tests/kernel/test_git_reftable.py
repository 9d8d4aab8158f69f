# SPDX-License-Identifier: Apache-2.0
"""A repository whose references are in a reftable: nothing of it moves without the rest, so it is held whole and said.

The git of most machines can't write one yet: what it would write is in a fixture.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support import Ground, run_cli
from unspill.git import files, state
from unspill.model.change import Selection

pytestmark = pytest.mark.kernel

FIXTURE: Final = Path(__file__).parents[1] / "fixtures" / "reftable.tar.xz"
# As git does it: new tables come, merged ones go
COMMITS: Final = """
echo two > file; echo two > tree/file
cp -a after/. .git/
for place in reftable worktrees/tree/reftable; do
    for table in .git/$place/*.ref; do test -e "after/$place/${table##*/}" || rm "$table"; done
done
"""
REASON: Final = "its references are in a reftable, which unspill can't update yet: commit outside the sandbox"


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project under git with a linked worktree, and its repository as it is after two commits beside it."""
    ground.write("file", "one\n")
    ground.write("tree/file", "one\n")
    subprocess.run(["tar", "-xf", FIXTURE], cwd=ground.project, check=True)
    (ground.project / "before").rename(ground.project / ".git")
    return ground


def contents(project: Path) -> dict[str, bytes]:
    """Return every file of the repository."""
    return {os.fspath(path): path.read_bytes() for path in (project / ".git").rglob("*") if path.is_file()}


def test_the_commits_of_a_run_are_held_whole_and_its_files_are_applied(repository: Ground) -> None:
    before = contents(repository.project)
    done = run_cli("run", "-c", COMMITS, cwd=repository.project)
    assert done.stderr.decode().splitlines()[-2:] == [f"  ! .git: refused: {REASON}", "      unspill discard .git"]
    assert contents(repository.project) == before
    assert (repository.project / "file").read_text() == (repository.project / "tree/file").read_text() == "two\n"
    held = {change.path for change in repository.sandbox().changes()}
    assert {b".git/reftable/tables.list", b".git/worktrees/tree/reftable/tables.list", b".git/index"} <= held


CHOICES: Final = {
    "everything": Selection(),
    "all of git's files": Selection(paths=(b".git",)),
    "consent": Selection(included=(b".git",)),
    "the run's in conflicts": Selection(overwrite=(b".git", b".git/reftable/tables.list")),
    "one file": Selection(paths=(b".git/reftable/tables.list",), overwrite=(b".git/reftable/tables.list",)),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_no_choice_and_no_consent_applies_a_part_of_it(repository: Ground, choice: str) -> None:
    sandbox = repository.sandbox()
    assert sandbox.run(COMMITS).held
    # The person commits as well
    (repository.project / ".git/reftable/tables.list").write_text("another\n")
    before = contents(repository.project)
    left = sandbox.apply(CHOICES[choice]).left
    assert {(one.path, one.why, one.reason) for one in left} == {(b".git", "refused", REASON)}
    assert contents(repository.project) == before


def test_a_second_run_says_nothing_else_of_it(repository: Ground) -> None:
    sandbox = repository.sandbox(after="apply")
    sandbox.run(COMMITS)
    result = sandbox.run("echo more >> .git/reftable/tables.list")
    assert result.operation is not None
    assert [(one.path, one.reason) for one in result.operation.left] == [(b".git", REASON)]


def test_an_index_that_git_only_refreshed_is_no_change(repository: Ground) -> None:
    result = repository.sandbox().run("cp .git/index copy; mv copy .git/index")
    assert not result.held


def test_without_reftables_among_its_parts_references_come_without_what_they_name(
    repository: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_of = files.part_of
    monkeypatch.setattr(state, "part_of", lambda path: "other" if b"reftable" in path else part_of(path))
    before = contents(repository.project)
    repository.sandbox().run(COMMITS, after="apply")
    changed = {path for path, content in contents(repository.project).items() if before.get(path) != content}
    assert changed
    assert all("/reftable/" in path for path in changed)
