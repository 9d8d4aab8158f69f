# SPDX-License-Identifier: Apache-2.0
"""Random steps through all verbs do what the model says: on files, with git, in the background, by the command line.

A plain run plays the same sequences each time. With `--full` new ones are played; the long slices are played by
`python -m tests.model`.
"""

import os
import random
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.model.driver import Case
from tests.model.shrink import Shrinker
from tests.model.slices import Played, machine, make_world, play_seeds

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(3 * 3600), pytest.mark.any_bwrap]

# Slices by mode: how many there are, and how many sequences are in one, plainly and with `--full`
SLICES = {"files": (6, 12, 100), "git": (2, 6, 40), "command line": (2, 8, 40), "background": (1, 4, 20)}


@pytest.mark.parametrize(("mode", "part"), [(mode, part) for mode, sizes in SLICES.items() for part in range(sizes[0])])
def test_random_steps_do_what_the_model_says(mode: str, part: int, tmp_path: Path, full: bool) -> None:
    """The time buys a few hundred steps in each slice."""
    _count, short, long = SLICES[mode]
    many = long if full else short
    first = random.SystemRandom().randrange(1 << 40) if full else part * many
    steps = 0
    for played in play_seeds(range(first, first + many), mode, os.fspath(tmp_path)):
        steps += len(played.steps)
        if played.failure is not None:
            pytest.fail(script_of(played, mode, tmp_path), pytrace=False)
    record_figure(
        f"model, {mode}, slice {part + 1}", "0 differences", f"{many} random sequences from seed {first}, {steps} steps"
    )


def script_of(played: Played, mode: str, where: Path) -> str:
    """Return a failing sequence as the shortest script that fails in the same way."""
    assert played.failure is not None
    with machine(os.fspath(where)) as home:
        small = Shrinker(played.steps, played.failure.rule, Case(mode, home), make_world)
        if small.shrink():
            return f"seed {played.seed}, {mode}: {small.failure}\n{small.script}"
    return f"seed {played.seed}, {mode}, not seen again: {played.failure}\n{played.steps}"
