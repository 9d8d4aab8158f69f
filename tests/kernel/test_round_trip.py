# SPDX-License-Identifier: Apache-2.0
"""Round trips: runs, applies, undos, redos, discards and a person's edits in any order, against full copies.

After every step the live tree and the sandbox's view are what the oracle says, in all fields. `pytest --full -k
round_trip` plays 5,000 sequences. A failure names its seed and the shortest sequence found that still fails.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.figures import record_figure
from tests.kernel.round_trip_play import Sequence, Step
from tests.kernel.round_trip_player import Player, inside, play
from tests.kernel.round_trip_stage import Inside, Stage, WholeStage
from tests.support import Ground
from unspill.layers.trees import remove_tree

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
}


def test_round_trips_end_as_full_copies_say(ground: Ground, inside: Inside, full: bool) -> None:
    count = WHOLE if full else 100
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
    count = 200 if full else 15
    player = Player(ground, inside, WholeStage)
    # A real command can't change what is closed to it, as the oracle's can
    play(player, drawn(range(WHOLE, WHOLE + count), may_close=False))
    record_figure(
        "round trip, whole runs", "0 differences", f"{count} random sequences, {player.operations} operations"
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
    count = 500 if full else 40
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
        {"unspill.sandbox.apply.carry_over": lambda *_, **__: {}},
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
