# SPDX-License-Identifier: Apache-2.0
"""What git would run when a person looks is held: each way is made inside and fires where nothing holds it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernel.git_vectors import FAKE, VECTORS, Vector
from tests.kernel.laying import lay
from tests.support import Ground
from unspill.apply.guard import judge
from unspill.model.change import ChangeSet, Selection

pytestmark = pytest.mark.kernel

IDENTITY = "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"


def do(ground: Ground, script: str, where: Path) -> None:
    """Run a script outside, as the person."""
    variables = {**os.environ, "CANARY": os.fspath(canary(ground))}
    subprocess.run(["sh", "-c", FAKE + script], cwd=where, env=variables, check=False, capture_output=True, timeout=30)


def canary(ground: Ground) -> Path:
    return ground.top / "canary"


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project under git with one file, older than the index so that nobody has to read it."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    os.utime(ground.write("a.txt", "one\n"), (1_000_000_000, 1_000_000_000))
    do(ground, "git init -q && git add -A && git commit -qm first", ground.project)
    return ground


def changed_by(repository: Ground, vector: Vector) -> ChangeSet:
    """Let a command make the changes inside, and see that they are there and did nothing yet."""
    do(repository, vector.before, repository.project)
    canary(repository).unlink(missing_ok=True)
    sandbox = repository.sandbox(after="hold")
    result = sandbox.run(FAKE + vector.inside, env={"CANARY": os.fspath(canary(repository))})
    assert result.ok, result.stderr.kept()
    assert not canary(repository).exists()
    return sandbox.changes()


def fires(repository: Ground, vector: Vector, changes: ChangeSet, leave_out: list[bytes]) -> bool:
    """Tell whether looking runs something in a copy that has the changes, and those left out are not among them."""
    copy = repository.home / "copy"
    shutil.copytree(repository.project, copy, symlinks=True)
    lay(changes, copy, leave_out)
    # Nobody can enter what was left out as a whole
    (copy / vector.where).mkdir(parents=True, exist_ok=True)
    do(repository, vector.looks, copy / vector.where)
    return canary(repository).exists()


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_it_is_held_and_nothing_else_of_the_change_fires(repository: Ground, vector: Vector) -> None:
    changes = changed_by(repository, vector)
    held = dict(judge(changes.roots[0]).held)
    assert {path.encode() for path in vector.decides} <= held.keys()
    assert b"a.txt" not in held
    assert not fires(repository, vector, changes, list(held))


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_the_control_arm_fires_where_nothing_is_held(repository: Ground, vector: Vector) -> None:
    assert fires(repository, vector, changed_by(repository, vector), [])


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_an_apply_leaves_it_until_it_is_included(repository: Ground, vector: Vector) -> None:
    changed_by(repository, vector)
    sandbox = repository.sandbox()
    held = {one.path for one in sandbox.apply().left if one.why == "held"}
    assert {path.encode() for path in vector.decides} <= held
    place = repository.project / vector.where
    if place.is_dir():
        do(repository, vector.looks, place)
    assert not canary(repository).exists()
    # Looking may have refreshed the index, which is then a conflict; the rest arrives
    left = {one.path for one in sandbox.apply(Selection(included=tuple(held))).left}
    assert left <= {b".git/index"}
    assert not {path.encode() for path in vector.decides} & {change.path for change in sandbox.changes()}
