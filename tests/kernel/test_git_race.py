# SPDX-License-Identifier: Apache-2.0
"""A person and an agent on one repository, in the same moment or at random beside a twin: neither work is lost."""

import functools
import itertools
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.shortening import shortened
from tests.kernel.twin_arms import ARMS
from tests.kernel.twin_draw import PIECES, Sequence, Step, every_action
from tests.kernel.twin_play import Game
from tests.kernel.twin_world import FIXED, IDENTITY, World, lines, sh, world
from tests.support import Ground, printed
from unspill.apply.git_draft import GitDraft
from unspill.apply.git_move import RepositoryWriter
from unspill.apply.reverse import _MoveReversal
from unspill.git import frozen
from unspill.layers.trees import remove_tree

pytestmark = pytest.mark.kernel

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


@pytest.mark.timeout(3600)
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


@pytest.mark.timeout(3600)
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


@pytest.mark.timeout(3600)
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


@pytest.mark.timeout(3600)
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


WHOLE = 3000
# The whole game goes on after a failure, so that one long run shows what there is
MOST_FAILURES = 5
_names = itertools.count()


def problems(ground: Ground, sequence: Sequence, pairs: Counter[tuple[str, str]]) -> list[str]:
    """Play a sequence in a world and a state directory of its own: commits of two worlds have the same names."""
    name = f"{os.getpid()}.{next(_names)}"
    own = replace(ground, state=ground.top / f"state-{name}", opened=[])
    shutil.copytree(ground.state, own.state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNSPILL_STATE_DIR", os.fspath(own.state))
        with world(own, f"w{name}", sequence.kind) as made:
            game = Game(made)
            found = game.problems(sequence)
            pairs.update(game.pairs)
    remove_tree(os.fsencode(own.state))
    return found


def play(ground: Ground, seed: int) -> tuple[Counter[tuple[str, str]], str]:
    """Play the sequence of a seed; return the pairs of actions in it, and what went wrong."""
    pairs: Counter[tuple[str, str]] = Counter()
    sequence = Sequence.drawn(seed)
    found = problems(ground, sequence, pairs)
    if not found:
        return pairs, ""
    least = shortened(sequence, lambda other: problems(ground, other, Counter()), 40)
    shown = "\n".join(problems(ground, least, Counter()) or found)
    return pairs, f"seed {seed}, shortened to {least}:\n{shown}"


@pytest.fixture
def repository_ground(ground: Ground) -> Ground:
    (ground.home / ".gitconfig").write_text(IDENTITY)
    return ground


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
def test_nothing_of_a_person_is_lost_beside_an_agent(repository_ground: Ground, full: bool) -> None:
    """The time buys random games with the real git, always the same; with `--full` many, half of them new."""
    # The fresh share finds what the fixed one does not; a failure names its seed
    fresh = PIECES * random.SystemRandom().randrange(1 << 32)
    seeds = [*range(WHOLE // 2), *range(fresh, fresh + WHOLE // 2)] if full else [*range(3)]
    pairs: Counter[tuple[str, str]] = Counter()
    failures = []
    with multiprocessing.get_context("fork").Pool(os.cpu_count() if full else 1) as pool:
        for played, failure in pool.imap_unordered(functools.partial(play, repository_ground), seeds):
            pairs += played
            if failure:
                failures.append(failure)
                # At once: a long run that is ended early has told what it found
                print(failure, file=sys.__stderr__, flush=True)
                assert len(failures) < MOST_FAILURES, "\n\n".join(failures)
    assert not failures, "\n\n".join(failures)
    actions = [*every_action()]
    rarest = min(pairs[pair] for pair in itertools.product(actions, actions))
    assert not full or rarest >= 20
    record_figure(
        "git beside a person",
        "0 broken, 0 lost",
        f"{len(seeds)} random sequences, {sum(pairs.values())} actions, each of {len(actions) ** 2} pairs of actions at"
        f" least {rarest} times",
    )


# For each rule a sequence that does harm without it
HARM = {
    "object rule": Sequence("plain", (Step(("agent: add",), then="apply"), Step(("person: commit",)), Step(("undo",)))),
    # A branch stays and an index moves, so that the person's next commit takes back what they have committed before
    "unit rule": Sequence(
        "plain",
        (
            Step(("agent: detached",), then="apply"),
            Step(("person: commit",)),
            Step(("agent: checkout",), then="hold"),
            Step(("person: new branch",)),
            Step(("apply",)),
            Step(("person: commit",)),
        ),
    ),
    "compare": Sequence("plain", (Step(("agent: commit",), then="hold"), Step(("person: commit",)), Step(("apply",)))),
    "pins": Sequence("plain", (Step(("person: commit",)), Step(("agent: amend",), then="apply"))),
    "freeze": Sequence(
        "plain",
        (Step(("agent: add", "person: commit", "agent: commit"), then="apply"), Step(("person: merge arrived",))),
    ),
}


SHOWN_BY = {
    "object rule": "missing blob",
    "unit rule": "is not in the tip of refs/heads/person/4",
    "compare": "is not in the tip of refs/heads/main",
    "pins": "not reachable any more: person",
    "freeze": "is not in the tip of refs/heads/main",
}


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("rule", HARM)
def test_a_rule_keeps_a_repository_whole_that_breaks_without_it(
    repository_ground: Ground, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    assert problems(repository_ground, HARM[rule], Counter()) == []
    ARMS[rule](monkeypatch)
    assert SHOWN_BY[rule] in "\n".join(problems(repository_ground, HARM[rule], Counter()))


CLEANED = (Step(("person: expire",)), Step(("person: gc now",)))
# What a run built on is nobody's any more when git removes everything that nothing leads to
VANISHED = {
    "the commit below a held one": (
        Step(("person: commit",)),
        Step(("agent: commit",), then="hold"),
        Step(("person: amend",)),
    ),
    "what was staged": (Step(("person: add",)), Step(("agent: add",), then="hold"), Step(("person: reset",))),
    "a stash": (Step(("person: stash",)), Step(("agent: add",), then="hold"), Step(("person: pop",))),
    "a tip that moved while it ran": (
        Step(("person: commit",)),
        Step(("agent: commit", "person: amend", "person: expire", "agent: commit"), then="hold"),
    ),
    "the commit below a discarded one": (
        Step(("person: commit",)),
        Step(("agent: commit",), then="hold"),
        Step(("discard",)),
        Step(("person: amend",)),
        *CLEANED,
        Step(("undo",)),
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("case", VANISHED)
def test_what_held_work_builds_on_outlives_gits_cleaning(repository_ground: Ground, case: str) -> None:
    steps = (*VANISHED[case], *CLEANED, Step(("apply",)), Step(("undo",)), Step(("redo",)))
    assert problems(repository_ground, Sequence("plain", steps), Counter()) == []


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
def test_held_work_breaks_in_gits_cleaning_where_no_objects_are_kept(
    repository_ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "keep_objects", lambda root, layer: None)
    for case in ("the commit below a held one", "what was staged"):
        found = problems(repository_ground, Sequence("plain", (*VANISHED[case], *CLEANED)), Counter())
        assert "sandbox default: " in "\n".join(found)
