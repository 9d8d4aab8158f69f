# SPDX-License-Identifier: Apache-2.0
"""Nothing missed, nothing invented: random operations in stacks of runs against whole pictures of the merged view.

`pytest --full -k exactness` plays 10,000 sequences on every engine. A failure names its seed and the shortest
sequence found that still fails.
"""

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.exactness_engines import Engine, Mounts, Played, Sandboxes
from tests.kernel.exactness_oracle import Picture, expected
from tests.kernel.shortening import shortened
from tests.support import Ground
from unspill.layers.trees import remove_tree
from unspill.model.change import ChangeSet

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(6 * 3600)]

WHOLE = 10_000
ATTEMPTS = 150


@dataclass(frozen=True)
class Sequence:
    """Seeds of the operations that make the live tree, and of those of each run."""

    live: tuple[int, ...]
    runs: tuple[tuple[int, ...], ...]

    @classmethod
    def drawn(cls, seed: int) -> "Sequence":
        chance = random.Random(seed)

        def some(least: int, most: int) -> tuple[int, ...]:
            return tuple(chance.getrandbits(48) for _ in range(chance.randint(least, most)))

        return cls(some(5, 40), tuple(some(0, 14) for _ in range(chance.randint(1, 5))))

    def shorter(self) -> Iterator["Sequence"]:
        """Yield sequences that lack one run or one operation."""
        for at in range(len(self.runs)):
            if len(self.runs) > 1:
                yield replace(self, runs=self.runs[:at] + self.runs[at + 1 :])
        for at, run in enumerate(self.runs):
            for gone in range(len(run)):
                less = run[:gone] + run[gone + 1 :]
                yield replace(self, runs=(*self.runs[:at], less, *self.runs[at + 1 :]))
        for gone in range(len(self.live)):
            yield replace(self, live=self.live[:gone] + self.live[gone + 1 :])


class Player:
    """Plays sequences on one engine, each in a directory of its own that is removed afterwards."""

    def __init__(self, engine: Engine, top: Path) -> None:
        self._engine = engine
        self._places = (top / f"sequence{number}" for number in itertools.count())

    def problems(self, sequence: Sequence) -> list[str]:
        """Return what the scan missed or invented in a sequence."""
        place = next(self._places)
        place.mkdir()
        stage = self._engine.stage(place, list(sequence.live))
        try:
            played = [stage.play(list(seeds)) for seeds in sequence.runs]
            found = [
                problem
                for number, run in enumerate(played)
                for problem in wrong(f"run {number}", run.before, run.after, run.changes, played)
            ]
            found += wrong("all runs", played[0].before, played[-1].after, stage.whole(), played)
        finally:
            stage.leave()
        remove_tree(os.fsencode(place))
        return found


def wrong(what: str, before: Picture, after: Picture, changes: ChangeSet, played: list[Played]) -> list[str]:
    """Return the differences between what is told and what has to be, and any finding."""
    must = expected(before, after)
    told = [(change.path.decode("latin-1"), change.kind, change.aspects) for change in changes]
    problems = [f"{what}: missed {change}" for change in must if change not in told]
    problems += [f"{what}: invented {change}" for change in told if change not in must]
    if not problems and told != must:
        problems.append(f"{what}: out of order: {told}")
    problems += [f"{what}: finding: {finding}" for finding in changes.findings]
    return [*problems, f"done: {[run.done for run in played]}"] if problems else []


def play(player: Player, seeds: range) -> None:
    """Play the sequences of these seeds; stop at the first that is told wrong."""
    for seed in seeds:
        sequence = Sequence.drawn(seed)
        problems = player.problems(sequence)
        if problems:
            least = shortened(sequence, player.problems, ATTEMPTS)
            shown = "\n".join(player.problems(least) or problems)
            pytest.fail(f"seed {seed}, shortened to {least}:\n{shown}", pytrace=False)


@pytest.fixture
def mounts() -> Iterator[Mounts]:
    started = Mounts()
    yield started
    started.close()


def test_exactness_on_overlay_mounts(mounts: Mounts, tmp_path: Path, full: bool) -> None:
    """The time buys 75 random sequences on real overlay mounts, and many more with `--full`."""
    count = WHOLE if full else 75
    play(Player(mounts, tmp_path), range(count))
    record_figure("exactness, overlay mounts", "0 missed, 0 invented", f"{count} random sequences, 1 to 5 runs each")


@pytest.mark.rootfs_view
def test_exactness_through_sandboxes(ground: Ground, engine: str, full: bool) -> None:
    """The time buys 12 random sequences through whole sandboxes, and many more with `--full`."""
    count = WHOLE if full else 12
    top = ground.home / "sequences"
    top.mkdir()
    play(Player(Sandboxes(ground), top), range(WHOLE, WHOLE + count))
    record_figure(f"exactness, engine {engine}", "0 missed, 0 invented", f"{count} random sequences, 1 to 5 runs each")


def test_exactness_is_not_met_by_a_scan_that_trusts_names_and_times(mounts: Mounts, tmp_path: Path) -> None:
    """The control: what looks the same by size and time must sometimes be different, or the suite proves nothing."""
    player = Player(mounts, tmp_path)
    assert not any(player.problems(Sequence.drawn(seed)) for seed in range(20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unspill.changes.scan.have_same_content", lambda *_: True)
        assert any(player.problems(Sequence.drawn(seed)) for seed in range(60))
