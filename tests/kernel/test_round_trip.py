# SPDX-License-Identifier: Apache-2.0
"""Runs, applies, undos, redos, discards, edits and kills in any order, against full copies: nothing is lost."""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.nothing_lost_play import KINDS, InterruptedStage, VersionGame
from tests.kernel.round_trip_play import Sequence, Step
from tests.kernel.round_trip_player import Player, inside, play
from tests.kernel.round_trip_stage import Inside, LiveStage, Stage, WholeStage
from tests.support import Ground
from unspill.layers.lifecycle import discard_stacks, end_processes, remove_run
from unspill.layers.trees import remove_tree
from unspill.model.operation import Operation, OperationId

__all__ = ["inside"]

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(6 * 3600)]

WHOLE = 5_000
# What went wrong once, with the seed that it was found by
FOUND = {
    # A root that is closed to its owner is opened for an apply: an undo held its bits again, though they were left
    1029: Sequence(
        names=6,
        has_closed=True,
        steps=(
            Step("run, hold", (226645453086734,)),
            Step("person", (176485066324396,)),
            Step("apply", ()),
            Step("undo", ()),
        ),
    ),
    # So is any other directory, though nobody chose its bits
    3324: Sequence.drawn(3324),
    # But bits that a run gave to a directory are held again, though special ones are not applied
    914: Sequence.drawn(914),
    # Directories that a person made, or gave other bits, since the run; and one that an apply opened and closed
    1000441: Sequence.drawn(1000441),
    1000505: Sequence.drawn(1000505),
    1000652: Sequence.drawn(1000652),
}


def test_round_trips_end_as_full_copies_say(ground: Ground, inside: Inside, full: bool) -> None:
    """The time buys 60 random sequences, each compared with full copies, and many more with `--full`."""
    count = WHOLE if full else 60
    player = Player(ground, inside, Stage)
    play(player, drawn(range(count), may_close=True))
    record_figure(
        "round trip", "0 differences", f"{count} random sequences, {player.operations} applies, undos and redos"
    )


def drawn(seeds: range, *, may_close: bool) -> Iterator[tuple[int, Sequence]]:
    """Yield the sequences of these seeds, perhaps without directories that are closed to their owner."""
    for seed in seeds:
        sequence = Sequence.drawn(seed)
        yield seed, sequence if may_close else replace(sequence, has_closed=False)


@pytest.mark.parametrize("seed", FOUND)
def test_what_went_wrong_once_goes_right(ground: Ground, inside: Inside, seed: int) -> None:
    assert Player(ground, inside, Stage).problems(FOUND[seed]) == []


def test_round_trips_with_whole_runs_end_as_full_copies_say(ground: Ground, inside: Inside, full: bool) -> None:
    """The time buys 8 random sequences of whole runs, and 200 with `--full`."""
    count = 200 if full else 8
    player = Player(ground, inside, WholeStage)
    # A real command can't change what is closed to it, as the oracle's can
    play(player, drawn(range(WHOLE, WHOLE + count), may_close=False))
    record_figure(
        "round trip, whole runs", "0 differences", f"{count} random sequences, {player.operations} operations"
    )


def test_round_trips_in_a_live_sandbox_end_as_full_copies_say(ground: Ground, inside: Inside, full: bool) -> None:
    """The time buys 6 random sequences, each in one live sandbox, and 1,000 with `--full`."""
    count = 1_000 if full else 6
    player = Player(ground, inside, LiveStage)
    play(player, drawn(range(WHOLE, WHOLE + count), may_close=False))
    record_figure(
        "round trip, live sandboxes", "0 differences", f"{count} random sequences, {player.operations} operations"
    )


@pytest.fixture
def state_in_memory(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A state directory that nothing can be renamed to from the project."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="unspill-test-") as state:
        assert os.stat(state).st_dev != ground.project.stat().st_dev
        monkeypatch.setenv("UNSPILL_STATE_DIR", state)
        yield
        # Layers may have directories that are closed to their owner
        remove_tree(os.fsencode(state))
        os.mkdir(state)


@pytest.mark.usefixtures("state_in_memory")
def test_round_trips_of_a_project_on_another_mount_end_as_full_copies_say(
    ground: Ground, inside: Inside, full: bool
) -> None:
    """The time buys 24 random sequences across two mounts, and 500 with `--full`."""
    count = 500 if full else 24
    player = Player(ground, inside, Stage)
    # A root that is closed to its owner can't have what is to be staged in it
    play(player, drawn(range(count), may_close=False))
    record_figure(
        "round trip, project on another mount",
        "0 differences",
        f"{count} random sequences, {player.operations} applies, undos and redos",
    )


@pytest.mark.parametrize(
    "defences",
    [
        {"unspill.apply.draft.Marks.of": lambda *_: 1 << 62},
        {
            "unspill.apply.reverse.Reversal._is_ours": lambda *_: True,
            "unspill.apply.perform.matches": lambda *_: True,
        },
        {
            "unspill.apply.fold._is_edited": lambda *_, **__: False,
            "unspill.apply.fold.BaseReader.add": lambda *_, **__: None,
        },
    ],
    ids=["a look at the moments", "a look at what an undo displaces", "the older marks of conflicts"],
)
def test_round_trips_go_wrong_without(
    ground: Ground, inside: Inside, monkeypatch: pytest.MonkeyPatch, defences: dict[str, Callable[..., object]]
) -> None:
    """The control: each of these is needed, or the suite proves nothing."""
    player = Player(ground, inside, Stage)
    for defence, without in defences.items():
        monkeypatch.setattr(defence, without)
    assert any(player.problems(Sequence.drawn(seed)) for seed in range(300))


WHOLE_GAMES = 2_000


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


def drawn_games(seeds: range) -> Iterator[tuple[int, Sequence]]:
    # A real command can't change what is closed to it, as the oracle's can
    for seed in seeds:
        yield seed, replace(Sequence.drawn(seed, KINDS), has_closed=False)


def test_every_version_can_be_got_back_until_its_retention_ends(ground: Ground, inside: Inside, full: bool) -> None:
    """The time buys 12 sequences with Ctrl-C and kills, and 2,000 with `--full`, new ones each time."""
    first = random.SystemRandom().randrange(1 << 32) if full else 0
    count = WHOLE_GAMES if full else 12
    player = VersionPlayer(ground, inside)
    play(player, drawn_games(range(first, first + count)))
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
