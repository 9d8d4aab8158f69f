# SPDX-License-Identifier: Apache-2.0
"""A repository that is left when a held run is applied: no file of the run's commit is lost with it."""

import os
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kernel.twin_world import World, lines, sh
from unspill.layers.lifecycle import Swept, sweep
from unspill.runner.perform import perform
from unspill.sandbox import apply
from unspill.store.db import Store

pytestmark = pytest.mark.kernel

COMMIT = "echo work > made; rm base2; git add -A; git commit -qm agent; echo loose > loose"
PERSON = "echo mine > mine; git add mine; git commit -qm person"
SPOIL = "object=.git/objects/$(git rev-parse HEAD:made | sed 's,..,&/,'); chmod u+w $object; echo spoilt > $object"


@dataclass(frozen=True)
class Case:
    """What the run does, what the person does then, why the repository is left, and what else stays held."""

    agent: str
    person: str
    reason: str
    held: frozenset[bytes] = frozenset()


CASES = {
    "it is not there": Case(COMMIT, "mv .git ../gone", "no longer exists"),
    "an object is not what its name says": Case(f"{COMMIT}; {SPOIL}", PERSON, "not what its name says"),
    "no reference can be made": Case(
        COMMIT, f"{PERSON}; chmod 500 .git/refs", "permission", frozenset({b"made", b"base2"})
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_files_of_a_commit_are_applied_or_held_and_named_when_its_repository_is_left(
    beside: World, name: str
) -> None:
    case = CASES[name]
    assert beside.sandbox.run(case.agent, after="hold").held
    sh(beside.project, case.person)

    operation = beside.sandbox.apply()

    assert {left.path for left in operation.left} == {b".git", *case.held}
    assert case.reason in operation.left[0].reason
    assert (beside.project / "loose").exists()
    assert (beside.project / "made").exists() == (b"made" not in case.held)
    assert (beside.project / "base2").exists() == (b"base2" in case.held)
    held = {change.path for part in beside.sandbox.changes().roots for change in part.changes}
    assert {path for path in held if not path.startswith(b".git/")} - {b"."} == case.held

    assert beside.sandbox.undo().left == ()
    assert not (beside.project / "made").exists()
    assert (beside.project / "base2").exists()
    assert {b"made", b"base2", b"loose"} <= {
        change.path for part in beside.sandbox.changes().roots for change in part.changes
    }


def test_a_file_that_git_does_not_track_is_deleted_though_the_commit_only_arrives(beside: World) -> None:
    (beside.project / "notes").write_text("junk")
    assert beside.sandbox.run(f"rm notes; {COMMIT}", after="hold").held
    sh(beside.project, PERSON)
    assert beside.sandbox.apply().left == ()
    assert not (beside.project / "notes").exists()
    # What the commit deletes is gone once it is merged
    assert (beside.project / "base2").exists()
    assert lines(beside.project, "for-each-ref", "--format=%(refname)", "refs/unspill") != []


def test_a_pack_is_checked_and_applied_while_others_sweep(beside: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert beside.sandbox.run(f"{COMMIT}; git repack -q -d", after="hold").held
    swept = []

    def perform_after_a_sweep(*rest: Any) -> object:
        with Store.open(os.fsencode(beside.ground.state)) as store:
            swept.append(sweep(store))
        return perform(*rest)

    monkeypatch.setattr(apply, "perform", perform_after_a_sweep)
    assert beside.sandbox.apply().left == ()
    assert swept == [Swept()]
    assert lines(beside.project, "log", "--format=%s", "-1") == ["agent"]
    assert os.listdir(beside.ground.state / "work") == []
