# SPDX-License-Identifier: Apache-2.0
"""What undo and apply once broke in repositories: objects that later commits need, and a unit applied in parts."""

import os
from dataclasses import dataclass

import pytest

from tests.kernel.twin_world import World, lines, sh
from tests.support import printed, run_cli
from unspill.apply.git_move import remove_own_refs
from unspill.errors import UsageError
from unspill.model.change import Selection

pytestmark = pytest.mark.kernel

COMMIT = "echo agent >> base1; git commit -qam agent"


@dataclass(frozen=True)
class Variant:
    """What the agent does in an applied run, what the person does then, and the subjects that their branch has."""

    agent: str
    person: str
    subjects: tuple[str, ...]


VARIANTS = {
    "a commit of what the agent staged": Variant(
        "echo agent >> base1; git add base1", "git commit -qm person", ("person",)
    ),
    "a commit on top of the agent's": Variant(
        COMMIT, "echo mine > mine; git add mine; git commit -qm person", ("person", "agent")
    ),
    "a merge of the agent's branch": Variant(
        f"git checkout -q -b work; {COMMIT}",
        "git checkout -q main; git merge -q --no-ff -m person work",
        ("person", "agent"),
    ),
    "an amended commit of the agent": Variant(
        COMMIT, "echo mine > mine; git add mine; git commit -q --amend -m person", ("person",)
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_u1_an_undo_leaves_the_objects_that_a_later_commit_needs(beside: World, name: str) -> None:
    variant = VARIANTS[name]
    assert beside.sandbox.run(variant.agent).operation is not None
    sh(beside.project, variant.person)
    tip = lines(beside.project, "rev-parse", "HEAD")

    undone = beside.sandbox.undo()

    assert lines(beside.project, "rev-parse", "HEAD") == tip
    assert set(variant.subjects) <= set(lines(beside.project, "log", "--format=%s"))
    assert sh(beside.project, "git fsck --full --strict --no-dangling").stdout == ""
    sh(beside.top, "git clone -q --no-local project cloned && git -C cloned fsck --full")
    assert [(left.path, left.why) for left in undone.left if left.path.startswith(b".git")] == [(b".git", "conflict")]
    # Also after git has removed everything that nothing leads to
    sh(beside.project, "git reflog expire --expire=now --all; git gc -q --prune=now; git fsck --full")
    assert printed(beside.sandbox.run("git fsck --full --no-dangling 2>&1; git log -1 --format=%s")) == "person\n"


def test_u1_a_chain_of_undos_takes_everything_back(beside: World) -> None:
    first = lines(beside.project, "rev-parse", "HEAD")
    for number in range(3):
        assert beside.sandbox.run(f"echo {number} >> base1; git commit -qam {number}").operation is not None
    for _ in range(3):
        assert beside.sandbox.undo().left == ()
    assert lines(beside.project, "rev-parse", "HEAD") == first
    assert sh(beside.project, "git fsck --full --no-dangling; git status --short").stdout == ""


def commit_beside(beside: World) -> None:
    """Have the agent commit in a run in which the person commits too."""
    mine = "echo mine > mine; git add mine; git commit -qm person"
    result = beside.run(
        "echo agent >> base1; git add base1",
        "git commit -qm agent",
        meanwhile=lambda: beside.person(mine),
        then="apply",
    )
    assert result.operation is not None
    assert result.operation.left == ()


def test_u2_commits_of_both_sides_at_once_are_both_kept(beside: World) -> None:
    commit_beside(beside)
    assert lines(beside.project, "log", "--format=%s", "-2") == ["person", "deep"]
    (arrived,) = lines(beside.project, "for-each-ref", "--format=%(refname)", "refs/unspill")
    assert lines(beside.project, "log", "--format=%s", "-2", arrived) == ["agent", "deep"]
    assert sh(beside.project, "git status --short; git fsck --full --no-dangling").stdout == ""
    # The sandbox has no `main` of its own from then on
    assert printed(beside.sandbox.run("git log --format=%s -1; git status --short")) == "person\n"
    assert not beside.sandbox.changes()
    sh(beside.project, f"git merge -q {arrived.removeprefix('refs/')}")
    assert "agent" in (beside.project / "base1").read_text()
    assert (beside.project / "mine").exists()


def test_u2_git_is_told_of_in_one_line_with_what_to_do(beside: World) -> None:
    assert beside.sandbox.run("git commit -q --allow-empty -m agent", after="hold").held
    sh(beside.project, "git commit -q --allow-empty -m person")
    done = run_cli("apply", cwd=beside.project)
    assert done.returncode == 0, done
    told = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in told if ".git/" in line] == []
    assert [line.strip() for line in told if "unspill/run-1" in line] == [
        "git log --oneline HEAD..unspill/run-1/heads/main",
        "git merge unspill/run-1/heads/main",
    ]
    assert len(told) <= 5, told


def test_u2_overwriting_drops_no_commit_of_the_person(beside: World) -> None:
    assert beside.sandbox.run("git commit -q --allow-empty -m agent", after="hold").held
    sh(beside.project, "git commit -q --allow-empty -m person")
    (tip,) = lines(beside.project, "rev-parse", "HEAD")
    beside.sandbox.apply(Selection(overwrite=(b".git",)))
    assert lines(beside.project, "log", "--format=%s", "-1") == ["agent"]
    sh(beside.project, "git reflog expire --expire=now --all; git gc -q --prune=now; git fsck --full")
    assert tip in lines(beside.project, "rev-list", "--all")
    assert beside.sandbox.undo().left == ()
    assert lines(beside.project, "rev-parse", "HEAD") == [tip]


def test_u10_looking_is_no_undo_step(beside: World) -> None:
    assert beside.sandbox.run("git commit -q --allow-empty -m agent").operation is not None
    # Git writes the index anew where the times of a file differ
    os.utime(beside.project / "base1", (1, 1))
    looked = beside.sandbox.run("git status; git log --oneline; git gc -q")
    assert looked.operation is None or not looked.operation.number
    undone = beside.sandbox.undo()
    assert undone.left == ()
    assert lines(beside.project, "log", "--format=%s", "-1") == ["deep"]


def test_a_branch_with_a_name_like_ours_stays_when_its_operation_is_forgotten(beside: World) -> None:
    operation = beside.sandbox.run("git branch refs/unspill/mine").operation
    assert operation is not None
    assert operation.notes == ("git: new refs/unspill/mine",)
    assert remove_own_refs(os.fsencode(beside.ground.state), operation.id)
    assert "refs/heads/refs/unspill/mine" in lines(beside.project, "for-each-ref", "--format=%(refname)")


def test_a_run_does_not_switch_to_a_branch_that_the_person_deleted_meanwhile(beside: World) -> None:
    sh(beside.project, "git branch doomed")
    result = beside.run(
        "git checkout -q doomed", "", meanwhile=lambda: sh(beside.project, "git branch -q -D doomed"), then="apply"
    )
    assert lines(beside.project, "symbolic-ref", "HEAD") == ["refs/heads/main"]
    assert result.operation is not None
    assert result.operation.notes == (
        "git: you changed it during the run, so HEAD and the index stay as you left them",
    )
    sh(beside.project, "git checkout -q -b mine")
    assert lines(beside.project, "rev-parse", "mine") == lines(beside.project, "rev-parse", "main")


def test_a_stash_whose_log_a_run_expired_is_still_there_after_the_next_one(beside: World) -> None:
    sh(beside.project, "echo one > base1; git stash push -q -m first")
    assert beside.sandbox.run("git reflog expire --expire=now --all").operation is not None
    sh(beside.project, "echo two > base1; git stash push -q -m second; git gc -q --prune=now")
    assert {"On main: first", "On main: second"} <= set(lines(beside.project, "log", "--all", "--format=%s"))


def fill_every_directory(world: World) -> None:
    """Give the repository so many objects that there is a directory for any other one, which a cleaning removes."""
    for number in range(1500):
        (world.top / f"blob{number}").write_text(str(number))
    sh(world.project, f"ls {world.top}/blob* | git hash-object -w --stdin-paths > /dev/null")


def test_a_held_run_sees_no_log_of_what_came_after_it(beside: World) -> None:
    """Such a log may name commits that are hidden from it, which git calls an error."""
    fill_every_directory(beside)
    assert beside.sandbox.run(f"{COMMIT}; git gc -q --prune=now", after="hold").held
    sh(beside.project, "git checkout -q -b later; git commit -q --allow-empty -m mine")
    found = beside.sandbox.run("git fsck --full --no-dangling 2>&1; git reflog --format=%gs -1", after="discard")
    assert printed(found) == "commit: agent\n"


def test_a_held_cleaning_hides_no_object_that_comes_later(beside: World) -> None:
    fill_every_directory(beside)
    assert beside.sandbox.run(f"{COMMIT}; git gc -q --prune=now", after="hold").held
    sh(beside.project, "git commit -q --allow-empty -m mine")
    (tip,) = lines(beside.project, "rev-parse", "HEAD")
    assert printed(beside.sandbox.run(f"git cat-file -t {tip} 2>&1", after="discard")) == "commit\n"


def test_a_log_line_that_the_person_expired_meanwhile_does_not_come_back(beside: World) -> None:
    assert beside.sandbox.run(COMMIT, after="hold").held
    sh(beside.project, "git reflog expire --expire=now --all")
    beside.sandbox.apply()
    assert lines(beside.project, "reflog", "--format=%gs") == ["commit: agent"]


def test_a_discard_is_not_redone_below_a_run_that_built_on_it(beside: World) -> None:
    assert beside.sandbox.run(COMMIT, after="hold").held
    beside.sandbox.discard()
    undone = beside.sandbox.undo()
    assert beside.sandbox.run("git branch later", after="hold").held
    with pytest.raises(UsageError, match="a later run built on"):
        beside.sandbox.redo(undone.number)
    assert printed(beside.sandbox.run("git fsck --full --no-dangling 2>&1; git log -1 --format=%s later")) == "agent\n"
    beside.sandbox.discard()
    assert printed(beside.sandbox.run("git log -1 --format=%s; git branch --list later")) == "deep\n"


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "kept"])
def test_a_commit_is_pinned_when_the_person_deletes_the_only_other_branch_that_led_to_it(
    beside: World, is_deleted: bool
) -> None:
    sh(beside.project, "echo mine > mine; git add mine; git commit -qm mine; git branch feature")
    tip = lines(beside.project, "rev-parse", "HEAD")
    assert beside.sandbox.run("git reset -q --hard HEAD~1", after="hold").held
    if is_deleted:
        sh(beside.project, "git branch -D feature")
    assert beside.sandbox.apply().left == ()
    refs = lines(beside.project, "for-each-ref", "--format=%(refname)", f"--contains={tip[0]}")
    assert refs == (["refs/unspill/op-1/0"] if is_deleted else ["refs/heads/feature"])
