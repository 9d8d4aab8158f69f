# SPDX-License-Identifier: Apache-2.0
"""A person and an agent on one repository, at random, beside a twin that gets the person's commands alone.

After every step git finds nothing broken, neither in the project nor in the sandbox; what the person committed is where
they committed it; nothing that the twin can reach is unreachable; and no commit of a run is lost.
"""

import functools
import itertools
import multiprocessing
import os
import random
import shutil
import sys
from collections import Counter
from dataclasses import replace

import pytest

from tests.figures import record_figure
from tests.kernel.shortening import shortened
from tests.kernel.twin_arms import ARMS
from tests.kernel.twin_draw import PIECES, Sequence, Step, every_action
from tests.kernel.twin_play import Game
from tests.kernel.twin_world import IDENTITY, world
from tests.support import Ground
from unspill.git import frozen
from unspill.layers.trees import remove_tree

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(8 * 3600)]

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


def test_nothing_of_a_person_is_lost_beside_an_agent(repository_ground: Ground, full: bool) -> None:
    # The fresh share finds what the fixed one does not; a failure names its seed
    fresh = PIECES * random.SystemRandom().randrange(1 << 32)
    fixed = WHOLE // 2 if full else 3
    seeds = [*range(fixed), *range(fresh, fresh + (WHOLE - fixed if full else 5))]
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


@pytest.mark.parametrize("case", VANISHED)
def test_what_held_work_builds_on_outlives_gits_cleaning(repository_ground: Ground, case: str) -> None:
    steps = (*VANISHED[case], *CLEANED, Step(("apply",)), Step(("undo",)), Step(("redo",)))
    assert problems(repository_ground, Sequence("plain", steps), Counter()) == []


def test_held_work_breaks_in_gits_cleaning_where_no_objects_are_kept(
    repository_ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "keep_objects", lambda root, layer: None)
    for case in ("the commit below a held one", "what was staged"):
        found = problems(repository_ground, Sequence("plain", (*VANISHED[case], *CLEANED)), Counter())
        assert "sandbox default: " in "\n".join(found)
