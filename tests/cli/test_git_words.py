# SPDX-License-Identifier: Apache-2.0
"""What a person reads about a repository that they and a run both moved: branches by name, commands that work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel

IDENTITY = "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"
LEFT = 6


def person(ground: Ground, script: str) -> str:
    """Run a script outside, as the person."""
    done = subprocess.run(["sh", "-ec", script], cwd=ground.project, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project with two branches, in which a run has committed to `main`."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    ground.write("a", "1\n")
    ground.write("b", "1\n")
    person(ground, "git init -q; git add -A; git commit -qm Begin; git branch old")
    return ground


def commit_inside(ground: Ground) -> None:
    done = run_cli("run", "-c", "echo 2 >> a; git commit -qam Agent", cwd=ground.project)
    assert done.returncode == 0, done.stderr


def undo(ground: Ground, code: int = LEFT) -> str:
    done = run_cli("undo", cwd=ground.project)
    assert done.returncode == code, done.stderr
    return done.stdout.decode() + done.stderr.decode()


def test_an_undo_after_your_own_commit_names_the_branch_and_a_command_that_undoes_the_runs_commit(
    repository: Ground,
) -> None:
    commit_inside(repository)
    person(repository, "echo 2 >> b; git commit -qam Mine")
    said = undo(repository)
    (line,) = [line for line in said.splitlines() if ".git" in line]
    assert line.startswith("  ! .git: conflict: you moved main since, so git stays as it is; to undo its commits: git ")
    command = line.rpartition(": ")[2]
    assert re.fullmatch(r"git revert [0-9a-f]{7}\.\.[0-9a-f]{7}", command)
    person(repository, f"git checkout -q -- a && {command} --no-edit")
    assert person(repository, "cat a b") == "1\n1\n2\n"
    assert person(repository, "git status --porcelain") == ""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("git switch -q old", "you switched to another branch since, so git stays as it is"),
        ("echo x > c; git add c", "you staged something since, so git stays as it is"),
    ],
)
def test_an_undo_that_leaves_git_says_what_you_did_and_is_possible_afterwards(
    repository: Ground, script: str, words: str
) -> None:
    done = run_cli("run", "-c", "git commit -q --allow-empty -m Agent", cwd=repository.project)
    assert done.returncode == 0, done.stderr
    person(repository, script)
    assert undo(repository).splitlines() == [
        "Did not undo op 1.",
        "unspill: 1 path was skipped:",
        f"  ! .git: conflict: {words}",
    ]
    person(repository, "git reset -q; git switch -q main")
    assert "git: main" in undo(repository, code=0)
    assert person(repository, "git log --format=%s") == "Begin\n"


def test_a_branch_that_a_run_deleted_is_named_where_it_stays(repository: Ground) -> None:
    script = "git branch -D old >&2; git tag made; echo ready; read line"
    program = [os.fspath(Path(sys.executable).with_name("unspill")), "run", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, cwd=repository.project, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        person(repository, "echo 2 >> a; git commit -qam Mine")
        _stdout, stderr = running.communicate("go on\n", timeout=30)
    lines = [line.strip() for line in stderr.splitlines()]
    assert "git: the run deleted old. You still have it; to delete it too:" in lines
    command = lines[lines.index("git: the run deleted old. You still have it; to delete it too:") + 1]
    assert command == "git branch -D old"
    person(repository, command)
    assert person(repository, "git branch --format='%(refname:short)'") == "main\n"
