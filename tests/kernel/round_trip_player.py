# SPDX-License-Identifier: Apache-2.0
"""Plays sequences, each in a project of its own, and finds the shortest one that still fails."""

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.kernel.round_trip_play import Game, Sequence
from tests.kernel.round_trip_stage import Inside, Stage
from tests.kernel.shortening import shortened
from tests.support import Ground
from unspill.layers.trees import remove_tree

ATTEMPTS = 150


@pytest.fixture
def inside() -> Iterator[Inside]:
    """A process that may mount and read everything."""
    started = Inside()
    yield started
    started.close()


class Player:
    """Plays sequences, each in a project of its own that is removed afterwards."""

    def __init__(self, ground: Ground, inside: Inside, kind: type[Stage]) -> None:
        self._ground = ground
        self._inside = inside
        self._kind = kind
        self._projects = (ground.home / f"project{number}" for number in itertools.count(1))
        self._dest = ground.top / "view"
        self._dest.mkdir()
        self.operations = 0

    def problems(self, sequence: Sequence) -> list[str]:
        """Play a sequence; return what went wrong."""
        project = next(self._projects)
        stage = self._kind(self._ground, self._inside, project, self._dest)
        try:
            game = self.make_game(stage)
            found = game.problems(sequence)
            self.note(game)
        finally:
            stage.sandbox.discard()
            stage.close()
        remove_tree(os.fsencode(project))
        return found

    def make_game(self, stage: Any) -> Game:
        return Game(stage)

    def note(self, game: Any) -> None:
        """Count what was done."""
        self.operations += game.operations


def play(player: Player, sequences: Iterable[tuple[int, Sequence]]) -> None:
    """Play sequences, each with its seed; stop at the first that comes out otherwise."""
    for seed, sequence in sequences:
        problems = player.problems(sequence)
        if problems:
            least = shortened(sequence, player.problems, ATTEMPTS)
            shown = "\n".join(player.problems(least) or problems)
            pytest.fail(f"seed {seed}, shortened to {least}:\n{shown}", pytrace=False)
