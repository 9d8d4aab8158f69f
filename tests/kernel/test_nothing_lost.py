# SPDX-License-Identifier: Apache-2.0
"""Nothing is lost: runs, holds, applies, discards, undos, redos, Ctrl-C and kills in any order, each version followed.

`pytest --full` plays 2,000 sequences. A failure names its seed and the shortest sequence found that still fails.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.nothing_lost_play import KINDS, InterruptedStage, VersionGame
from tests.kernel.round_trip_play import Sequence, Step
from tests.kernel.round_trip_player import Player, inside, play
from tests.kernel.round_trip_stage import Inside
from tests.support import Ground
from unspill.layers.lifecycle import discard_stacks, end_processes, remove_run
from unspill.model.operation import Operation, OperationId

__all__ = ["inside"]

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(6 * 3600)]

WHOLE = 2_000


class VersionPlayer(Player):
    """Plays games that follow versions, and counts how each was got back."""

    def __init__(self, ground: Ground, inside: Inside, kind: type[InterruptedStage] = InterruptedStage) -> None:
        super().__init__(ground, inside, kind)
        self.versions = 0
        self.reached: Counter[str] = Counter()

    def make_game(self, stage: InterruptedStage) -> VersionGame:
        return VersionGame(stage)

    def note(self, game: VersionGame) -> None:
        super().note(game)
        self.versions += game.versions
        self.reached.update(game.reached)


def drawn(seeds: range) -> Iterator[tuple[int, Sequence]]:
    # A real command can't change what is closed to it, as the oracle's can
    for seed in seeds:
        yield seed, replace(Sequence.drawn(seed, KINDS), has_closed=False)


def test_every_version_can_be_got_back_until_its_retention_ends(ground: Ground, inside: Inside, full: bool) -> None:
    fresh = random.SystemRandom().randrange(1 << 32)
    count = WHOLE if full else 25
    player = VersionPlayer(ground, inside)
    play(player, drawn(range(fresh, fresh + count)))
    ways = ", ".join(f"{way} {number}" for way, number in player.reached.items())
    record_figure(
        "nothing lost",
        f"0 of {player.versions} versions lost",
        f"{count} random sequences with Ctrl-C and kills, {player.operations} operations; got back by: {ways}",
    )


def old_discard(project: Any, asked_by: str) -> Operation:
    """Drop what is held at once."""
    discard_stacks(project.store, project.row.id)
    return Operation(
        id=OperationId(""),
        number=0,
        kind="discard",
        sandbox="",
        project=project.path,
        roots=(),
        at_ns=0,
        asked_by=asked_by,
    )


def old_sweep(project: Any, _sandbox: object, left: Any) -> list[object]:
    """Remove what a killed run has written."""
    end_processes(project.store, left.id)
    remove_run(project.store, left.id)
    return []


# The last steps of a short sequence, and how they were done before
OLD_RULES: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "a discard drops at once": (("run, hold", "discard"), {"unspill.sandbox.apply.discard_all": old_discard}),
    "a cancelled run is dropped": (
        ("run, cancel",),
        {"tests.kernel.nothing_lost_play.InterruptedStage.after_cancel": "discard"},
    ),
    "a killed run is swept": (("run, kill",), {"unspill.sandbox.scan._try_hold": old_sweep}),
}


@pytest.mark.parametrize("rule", OLD_RULES)
def test_versions_were_lost_when(ground: Ground, inside: Inside, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: by today's rules nothing of the same sequence is lost."""
    kinds, patches = OLD_RULES[rule]
    steps = (Step("person", (1, 2, 3, 4)), *(Step(kind, tuple(range(100, 140))) for kind in kinds))
    sequence = Sequence(names=4, has_closed=False, steps=steps)
    player = VersionPlayer(ground, inside)
    assert player.problems(sequence) == []
    for what, old in patches.items():
        monkeypatch.setattr(what, old)
    assert any(problem.startswith("  lost: ") for problem in player.problems(sequence))
