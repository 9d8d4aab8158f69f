# SPDX-License-Identifier: Apache-2.0
"""What is done every day in a repository is applied with no question, and an undo takes all of it back.

All of it is: every file of the project, and where each repository stands. Objects stay, and logs get longer.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.kernel.git_cases import CASES, Case
from tests.support import Ground, printed
from unspill import Sandbox
from unspill.apply.guard import judge
from unspill.changes.scan import MergedTree
from unspill.git.files import part_of, repository_of
from unspill.git.state import GitState, owner_of, read_state

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

IDENTITY = "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"


# Looking must not write: an index that git has refreshed is not the one that was applied
QUIET = {"GIT_OPTIONAL_LOCKS": "0", "PYTHONDONTWRITEBYTECODE": "1", "npm_config_cache": "/tmp/npm"}


def do(script: str, where: Path) -> str:
    """Run a script outside, as the person, and return what it prints."""
    variables = {**os.environ, **QUIET}
    result = subprocess.run(
        ["sh", "-ec", script], cwd=where, env=variables, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, (script, result.stdout, result.stderr)
    return result.stdout


def tree_of(project: Path) -> dict[str, tuple[object, ...]]:
    """Return every entry of a project: type, mode, content or target, and the mtime of files.

    Of git's own files those that do not move by repository, and where each repository stands.
    """
    found: dict[str, tuple[object, ...]] = {}
    states: dict[bytes, GitState] = {}
    with MergedTree(os.fsencode(project)) as tree:
        for path in sorted(project.rglob(".git")):
            state = read_state(tree, os.fsencode(path.relative_to(project)))
            if state is not None:
                states[os.fsencode(path.relative_to(project))] = state
    for top, state in states.items():
        refs = {name: value for name, value in state.refs.items() if b"refs/unspill/" not in name}
        found[f"{top!r} stands at"] = (refs, state.files)
    for path in sorted(project.rglob("*")):
        status = path.lstat()
        name = os.fspath(path.relative_to(project))
        if is_of_git(os.fsencode(name), states):
            continue
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("directory", status.st_mode)
        else:
            found[name] = ("file", status.st_mode, path.read_bytes(), status.st_mtime_ns)
    return found


def is_of_git(name: bytes, states: dict[bytes, GitState]) -> bool:
    """Tell whether a file moves with its repository, not by itself."""
    top = repository_of(name)
    if top is None or top not in states:
        return False
    inner = name[len(top) + 1 :]
    return part_of(inner[len(owner_of(inner + b"/", states[top].members)) :]) != "other"


def repositories(project: Path) -> list[Path]:
    """Return every directory of a project in which git works."""
    found = {path.parent for path in project.rglob(".git")} | set(project.glob("*.git"))
    return sorted(path for path in found if path.name != ".git")


def check(project: Path) -> None:
    """Have git check every repository of a project."""
    for repository in repositories(project):
        do("git fsck --no-progress --no-dangling", repository)


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project under git with a text and a build file."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    ground.write("a.txt", "one\n")
    ground.write("Makefile", "all:\n")
    do("git init -q && git add -A && git commit -qm first", ground.project)
    return ground


def work(repository: Ground, case: Case) -> Sandbox:
    """Do the work of a case inside, and hold it."""
    do(case.before, repository.project)
    sandbox = repository.sandbox(after="hold")
    result = sandbox.run(case.inside, env=QUIET)
    assert result.ok, result.stderr.kept()
    return sandbox


# What is made on one side names the project as it is seen there
NOT_IN_ROOTFS = {
    "worktree add": "git writes the absolute path of a worktree, which is held where it leads out of the project",
    "worktree removed": "git writes the absolute path of a worktree, which is not that inside",
    "submodule update": "git writes the absolute path of a local submodule, which is not that inside",
    "pip install into .venv": "pip installs to /workspace/.packages; test_rootfs_view.py has that",
}
PARAMETERS = [
    pytest.param(case, id=str(case), marks=pytest.mark.view("sealed", "host", reason=NOT_IN_ROOTFS[str(case)]))
    if str(case) in NOT_IN_ROOTFS
    else pytest.param(case, id=str(case))
    for case in CASES
]


@pytest.mark.parametrize("case", PARAMETERS)
def test_nothing_of_it_is_held(repository: Ground, case: Case) -> None:
    (part,) = work(repository, case).changes().roots
    judged = judge(part)
    assert judged.held == ()
    assert {os.fsdecode(path) for path, _reason in judged.flagged} == set(case.flags)


@pytest.mark.parametrize("case", PARAMETERS)
def test_it_is_applied_with_no_question_and_undone(repository: Ground, case: Case) -> None:
    sandbox = work(repository, case)
    before = tree_of(repository.project)
    inside = printed(sandbox.run(case.shows, env=QUIET, after="discard"))
    assert sandbox.apply().left == ()
    after = tree_of(repository.project)
    assert do(case.shows, repository.project) == inside
    check(repository.project)
    assert not sandbox.changes()

    assert sandbox.undo().left == ()
    assert tree_of(repository.project) == before
    check(repository.project)

    assert sandbox.redo().left == ()
    assert tree_of(repository.project) == after
    check(repository.project)


def test_looking_at_the_repository_does_not_stand_in_the_way_of_an_undo(repository: Ground) -> None:
    sandbox = repository.sandbox(after="apply")
    assert sandbox.run("echo two > a.txt && git commit -qam second && touch Makefile").ok
    applied = (repository.project / ".git/index").read_bytes()
    subprocess.run(["git", "status"], cwd=repository.project, check=True, capture_output=True)
    assert (repository.project / ".git/index").read_bytes() != applied, "git had nothing to refresh"

    assert sandbox.undo().left == ()
    assert do("git log --format=%s; git status --short", repository.project) == "first\n"
    assert sandbox.redo().left == ()
    assert do("git log --format=%s; git status --short", repository.project) == "second\nfirst\n"


def test_what_the_person_staged_since_is_a_conflict(repository: Ground) -> None:
    sandbox = repository.sandbox(after="apply")
    assert sandbox.run("echo two > a.txt && git commit -qam second").ok
    (repository.project / "mine").write_text("mine")
    subprocess.run(["git", "add", "mine"], cwd=repository.project, check=True, capture_output=True)
    assert [left.path for left in sandbox.undo().left] == [b".git"]
    assert do("git log --format=%s", repository.project) == "second\nfirst\n"
    assert "A  mine" in do("git status --short", repository.project)
