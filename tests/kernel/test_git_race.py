# SPDX-License-Identifier: Apache-2.0
"""A person commits with git in the very moment in which a run's commit is applied: neither of both is lost."""

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.twin_arms import ARMS
from tests.kernel.twin_world import FIXED, World, lines, sh
from tests.support import printed
from unspill.apply.git_draft import GitDraft
from unspill.apply.git_move import RepositoryWriter
from unspill.apply.reverse import _MoveReversal

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(3600)]

# As somebody does whom git told that another git is at work
COMMITS = """
while read -r number; do
    echo "$number" > "person-$number"
    until git add "person-$number" 2>/dev/null; do :; done
    until git commit -qm "person $number" 2>/dev/null; do :; done
    echo "done $number"
done
"""
# Moves nothing but the branch, so that nothing else of an apply stumbles over it
EMPTY = """
while read -r number; do
    until git commit -q --allow-empty -m "person $number" 2>/dev/null; do :; done
    echo "done $number"
done
"""
AGENT = "echo {0} > agent-{0}; git add agent-{0}; git commit -qm 'agent {0}'; git rev-parse HEAD"
AGENT_EMPTY = "git commit -q --allow-empty -m agent; git rev-parse HEAD"


class Person:
    """Somebody who commits when they are told to."""

    def __init__(self, project: Path, script: str = COMMITS) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=project,
            env={**os.environ, **FIXED},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def begin(self, number: int) -> None:
        """Have them commit; does not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % number)

    def wait(self, number: int) -> None:
        """Wait until they have."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"done %d\n" % number

    def close(self) -> None:
        self._process.communicate(timeout=60)


def off_their_branch(project: Path, numbers: Iterable[int]) -> set[int]:
    """Return the commits of the person that their branch does not lead to."""
    subjects = set(lines(project, "log", "--format=%s", "main"))
    return {number for number in numbers if f"person {number}" not in subjects}


def not_in_the_tip(project: Path, numbers: Iterable[int]) -> set[int]:
    """Return the commits of the person whose content their branch does not have."""
    files = set(lines(project, "ls-tree", "--name-only", "main"))
    return {number for number in numbers if f"person-{number}" not in files}


def test_commits_raced_against_applies_stay_on_their_branch(beside: World, full: bool) -> None:
    rounds = 1000 if full else 25
    chance = random.Random(13)
    person, agents = Person(beside.project), set()
    arrived, lasted_s = 0, 0.1
    for number in range(rounds):
        result = beside.sandbox.run(AGENT.format(number), after="hold")
        agents.add(printed(result).strip())
        # At any moment of an apply, as long as they take on this machine right now
        timer = threading.Timer(chance.uniform(0, 1.5 * lasted_s), person.begin, [number])
        timer.start()
        begun = time.monotonic()
        operation = beside.sandbox.apply()
        lasted_s = time.monotonic() - begun
        timer.join()
        person.wait(number)
        assert operation.left == (), operation.left
        arrived += any("your branches stay" in note for note in operation.notes)
    person.close()
    assert off_their_branch(beside.project, range(rounds)) == set()
    assert not_in_the_tip(beside.project, range(rounds)) == set()
    assert agents <= set(lines(beside.project, "rev-list", "--all"))
    assert sh(beside.project, "git fsck --full --no-dangling; git status --short").stdout == ""
    assert 0 < arrived < rounds, arrived
    record_figure(
        "commits raced against applies",
        f"0 of {rounds} off their branch",
        f"{rounds} applies of a run's commit: {rounds - arrived} moved the branch, {arrived} arrived beside it",
    )


def commit_in(monkeypatch: pytest.MonkeyPatch, method: str, commit: Callable[[], None]) -> None:
    """Have the person begin to commit right before a method of an apply, which goes on when git has ended or waits."""
    inner = getattr(RepositoryWriter, method)

    def outer(self: RepositoryWriter, *rest: object) -> object:
        commit()
        time.sleep(0.2)
        return inner(self, *rest)

    monkeypatch.setattr(RepositoryWriter, method, outer)


# In which moment the person commits, and what keeps that commit on its branch
MOMENTS = {"locks": "_do", "compare under locks": "move"}


@pytest.mark.parametrize("rule", MOMENTS)
@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_a_commit_in_the_middle_of_an_apply_is_lost_without_the_rule(
    beside: World, monkeypatch: pytest.MonkeyPatch, rule: str, is_on: bool
) -> None:
    agent = printed(beside.sandbox.run(AGENT_EMPTY, after="hold")).strip()
    person = Person(beside.project, EMPTY)
    commit_in(monkeypatch, MOMENTS[rule], lambda: person.begin(1))
    if not is_on:
        ARMS[rule](monkeypatch)
    beside.sandbox.apply()
    person.wait(1)
    person.close()
    assert off_their_branch(beside.project, [1]) == (set() if is_on else {1})
    assert agent in lines(beside.project, "rev-list", "--all")


def test_the_files_of_a_commit_that_arrives_after_all_stay_in_it(
    beside: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert beside.sandbox.run(f"echo loose > loose; {AGENT.format(1)}", after="hold").held
    person = Person(beside.project)
    commit_in(monkeypatch, "move", lambda: person.begin(1))
    assert beside.sandbox.apply().left == ()
    person.wait(1)
    person.close()
    assert sh(beside.project, "git status --short").stdout == "?? loose\n"
    sh(beside.project, "git merge -q unspill/run-1/heads/main")
    assert {"agent-1", "person-1"} <= set(os.listdir(beside.project))


# Where each of both has read the repository, and has not looked at the index that it replaces
READ = {"apply": (GitDraft, "_make_move"), "undo": (_MoveReversal, "_invert")}


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
@pytest.mark.parametrize("verb", READ)
def test_what_the_person_stages_after_the_repository_was_read_stays_staged(
    beside: World, monkeypatch: pytest.MonkeyPatch, verb: str, is_on: bool
) -> None:
    printed(beside.sandbox.run(AGENT.format(1), after="hold" if verb == "apply" else "apply"))
    sh(beside.project, "echo mine > mine")
    owner, method = READ[verb]
    inner = getattr(owner, method)

    def outer(self: object, *rest: object) -> object:
        sh(beside.project, "git add mine")
        return inner(self, *rest)

    monkeypatch.setattr(owner, method, outer)
    if not is_on:
        ARMS["compare under locks"](monkeypatch)
    getattr(beside.sandbox, verb)()
    assert ("A  mine" in lines(beside.project, "status", "--short")) == is_on
