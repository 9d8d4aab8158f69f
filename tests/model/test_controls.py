# SPDX-License-Identifier: Apache-2.0
"""The control of the model: with one mend taken back, random steps come out otherwise, within few sequences."""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.figures import record_figure
from tests.model.driver import Case, play
from tests.model.shrink import Shrinker
from tests.model.slices import Played, machine, make_world, play_seeds
from unspill.apply.draft import RootDraft
from unspill.sandbox.apply import _Apply
from unspill.sandbox.history import HeldReversal

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.any_bwrap]

# So many sequences are played before the model counts as blind
MOST = 300
_may_displace, _held_after, _changed_at = RootDraft._may_displace, _Apply._held_after, HeldReversal._changed_at
_rebased = _Apply._rebased


def rebased_as_a_whole(self: Any, root: bytes, entry: Any) -> object:
    return _rebased(self, root, entry) or entry


def displaces_what_is_gone(self: Any, change: Any, found: os.stat_result | None) -> bool:
    return found is None or _may_displace(self, change, found)


def held_after_what_is_asked_for(self: Any, *arguments: Any) -> Iterable[Any]:
    return iter(()) if self._request.automatic else _held_after(self, *arguments)


def changed_by_steps(self: Any, root: bytes, before: Any) -> Iterator[tuple[bytes, int]]:
    return (found for found in _changed_at(self, root, before) if (root, found[0]) in self._steps)


class Mend(NamedTuple):
    """Which function is what it was before, in which mode that is found, and the first seed that is played."""

    function: str
    before: Callable[..., object]
    mode: str = "files"
    first: int = 0


MENDS = {
    "N1, what the rest of a file is made from": Mend(
        "sandbox.apply._Apply._rebased", lambda _self, _root, rest: rest, first=124
    ),
    "N2, files whose commits arrived beside the branch": Mend(
        "sandbox.history.HeldReversal._changed_at", changed_by_steps, "git", first=1
    ),
    "N18, the last hunk of a file": Mend("sandbox.apply._Apply._rebased", rebased_as_a_whole, first=32),
    "N19, a file that the person deleted": Mend("apply.draft.RootDraft._may_displace", displaces_what_is_gone, first=5),
    "N20, content decides": Mend("apply.draft.RootDraft._is_base", lambda *_: False, first=55),
    "N21 and G11, the last link of undo and redo, of a session too": Mend(
        "sandbox.history._newest_of", lambda wanted, _done: wanted, first=4
    ),
    "N22, what a run left held": Mend("sandbox.apply._Apply._held_after", held_after_what_is_asked_for, first=2),
    "N23, permissions merge on their own": Mend(
        "apply.draft.RootDraft._merged_mode",
        lambda _self, _path, ours, theirs: ours if ours == theirs & 0o777 else None,
    ),
}


@pytest.mark.parametrize("name", MENDS)
def test_random_steps_come_out_otherwise_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """A plain run begins at the first seed that finds it."""
    mend, where = MENDS[name], os.fspath(tmp_path)
    first = 0 if full else mend.first
    monkeypatch.setattr(f"unspill.{mend.function}", mend.before)
    played = list(islice(failing(range(first, first + MOST), mend.mode, where), 1))
    assert played
    if full:
        needed, steps = played[0].seed + 1, shrunk_steps(played[0], mend.mode, where)
        record_figure(f"model without {name}", f"{needed} sequences", f"a script of {steps} steps, {mend.mode}")
    monkeypatch.undo()
    assert is_right(played[0], mend.mode, where)


def failing(seeds: range, mode: str, where: str) -> Iterator[Played]:
    return (played for played in play_seeds(seeds, mode, where) if played.failure is not None)


def is_right(played: Played, mode: str, where: str) -> bool:
    """Tell whether the same steps come out as the model says."""
    with machine(where) as home:
        world = make_world(Case(mode, home))
        try:
            return play(world, played.steps) is None
        finally:
            world.close()


def shrunk_steps(failing: Played, mode: str, where: str) -> int:
    """Return how many steps the shortest sequence has that fails in the same way."""
    assert failing.failure is not None
    with machine(where) as home:
        small = Shrinker(failing.steps, failing.failure.rule, Case(mode, home), make_world)
        small.shrink()
    return len(small.steps)
