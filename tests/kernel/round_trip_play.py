# SPDX-License-Identifier: Apache-2.0
"""Plays a sequence of steps for real and on the oracle at once, and tells where the two differ.

A step is drawn from seeds of its own and from what the oracle has at that moment, so leaving one out still leaves a
meaningful sequence.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.kernel.round_trip_draw import CLOSED_MODES, DIR_MODES, NAMES, draw, some_paths
from tests.kernel.round_trip_hands import Done
from tests.kernel.round_trip_inside import Operation
from tests.kernel.round_trip_oracle import Oracle
from tests.kernel.round_trip_stage import Stage
from tests.kernel.round_trip_tree import Tree
from unspill.errors import UnspillError, UsageError
from unspill.model.change import Selection
from unspill.model.operation import Operation as Recorded

KINDS = [
    *("person",) * 8, *("run, hold",) * 5, *("run, apply",) * 5, "run, discard", *("apply some",) * 4,
    *("apply",) * 3, *("overwrite",), *("undo",) * 4, *("redo",) * 3, *("discard some",) * 2, "discard",
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What is done, and the seeds of its parts."""

    kind: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Sequence:
    """The steps from an empty project on, with few names or many, perhaps with directories closed to their owner."""

    names: int
    has_closed: bool
    steps: tuple[Step, ...]

    @classmethod
    def drawn(cls, seed: int, kinds: list[str] = KINDS) -> "Sequence":
        chance = random.Random(seed)
        names = chance.randint(2, len(NAMES))
        steps = [cls._step(chance, "person", names, 4 * names)]
        for _ in range(chance.randint(4, 18)):
            steps.append(cls._step(chance, chance.choice(kinds), 1, 6))
        return cls(names, chance.random() < 0.3, tuple(steps))

    @staticmethod
    def _step(chance: random.Random, kind: str, least: int, most: int) -> Step:
        return Step(kind, tuple(chance.getrandbits(48) for _ in range(chance.randint(least, most))))

    def shorter(self) -> Iterator["Sequence"]:
        """Yield sequences that lack one step or one part of a step."""
        for at in reversed(range(len(self.steps))):
            yield replace(self, steps=self.steps[:at] + self.steps[at + 1 :])
        for at, step in enumerate(self.steps):
            for gone in range(len(step.seeds)):
                less = replace(step, seeds=step.seeds[:gone] + step.seeds[gone + 1 :])
                yield replace(self, steps=(*self.steps[:at], less, *self.steps[at + 1 :]))


class Game:
    """One sequence, played on both sides."""

    # Whether each content that is written is another one
    is_unique = False

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._oracle = Oracle(is_elsewhere=stage.is_elsewhere)
        self._names: list[bytes] = []
        self._modes: list[int] = []
        self._numbers: dict[int, int] = {}
        self.told: list[str] = []
        self.operations = 0

    def problems(self, sequence: Sequence) -> list[str]:
        """Play until something differs; return that, and what was done before."""
        self._names = NAMES[: sequence.names]
        self._modes = CLOSED_MODES if sequence.has_closed else DIR_MODES
        for step in sequence.steps:
            try:
                found = [*self._play(step), *self._differences()]
            except (OSError, UnspillError) as error:
                found = [f"{type(error).__name__}: {error}"]
            if found:
                return [*self.told, *(f"  {problem}" for problem in found)]
        return []

    def _play(self, step: Step) -> list[str]:
        chance = random.Random(repr(step.seeds))
        match step.kind.split(", "):
            case ["person"]:
                return self._person(step.seeds)
            case ["run", after]:
                return self._run(step.seeds, after)
            case ["apply"]:
                return self._apply(None)
            case ["apply some"]:
                return self._apply(self._some(chance))
            case ["overwrite"]:
                return self._apply(self._some(chance), must_win=True)
            case ["discard"]:
                self._say("discard")
                return self._compare(self._stage.sandbox.discard(), self._oracle.discard(None))
            case ["discard some"]:
                return self._discard(self._some(chance))
            case [how]:
                return self._reverse(chance, how)
        return []

    def _some(self, chance: random.Random) -> set[bytes]:
        changes = self._oracle.changes()
        return some_paths(chance, [change.path for change in changes], self._oracle.view())

    def _often(self) -> set[bytes]:
        """Return the paths of the last operations: what is done there again is where things go wrong."""
        return {hand.path for done in self._oracle.done[-2:] for hand in done.hands}

    def _person(self, seeds: tuple[int, ...]) -> list[str]:
        operations: list[Operation] = []
        for seed in seeds:
            drawn = draw(
                seed, self._oracle.live, self._names, self._modes, often=self._often(), is_unique=self.is_unique
            )
            self._oracle.edit(drawn)
            operations += drawn
        self._say(f"person: {operations}")
        self._stage.edit(operations)
        return []

    def _run(self, seeds: tuple[int, ...], after: str) -> list[str]:
        run, often = self._oracle.begin_run(), self._often()
        operations: list[Operation] = []
        for seed in seeds:
            drawn = draw(
                seed,
                run.view(),
                self._names,
                self._modes,
                often=often,
                inside=True,
                can_move=run.can_be_moved,
                is_unique=self.is_unique,
            )
            for operation in drawn:
                run.play(operation)
            operations += drawn
        self._say(f"run, {after}: {operations}")
        recorded = self._stage.run(operations, after)
        if after == "discard":
            return []
        if after == "apply":
            return self._compare(recorded, self._oracle.apply_run(run), has_lefts=False)
        self._oracle.hold(run)
        return []

    def _apply(self, chosen: set[bytes] | None, *, must_win: bool = False) -> list[str]:
        if chosen == set():
            return []
        overwrite = frozenset(chosen or ()) if must_win else frozenset()
        self._say(f"apply: {'everything' if chosen is None else sorted(chosen)}, overwrite: {sorted(overwrite)}")
        wanted = Selection(paths=tuple(chosen or ()), overwrite=tuple(overwrite))
        recorded = self._stage.sandbox.apply(wanted)
        return self._compare(recorded, self._oracle.apply(chosen, overwrite))

    def _discard(self, chosen: set[bytes]) -> list[str]:
        if not chosen:
            return []
        self._say(f"discard: {sorted(chosen)}")
        return self._compare(self._stage.sandbox.discard(sorted(chosen)), self._oracle.discard(chosen))

    def _reverse(self, chance: random.Random, how: str) -> list[str]:
        is_undone = how == "redo"
        there = [done for done in self._oracle.active() if done.is_undo == is_undone]
        if not there:
            return []
        done = chance.choice(there)
        number = self._numbers[done.number]
        self._say(f"{how} {number}")
        reverse = self._stage.sandbox.redo if is_undone else self._stage.sandbox.undo
        try:
            recorded = reverse(number)
        except UsageError as error:
            if "discarded since" not in error.message:
                raise
            recorded = None
        return self._compare(recorded, self._oracle.reverse(done), has_lefts=False)

    def _compare(self, recorded: Recorded | None, done: Done | None, *, has_lefts: bool = True) -> list[str]:
        left = set() if recorded is None else {one.path for one in recorded.left}
        self._say(f"  -> {recorded and recorded.number}, left {sorted(left)}")
        is_recorded = recorded is not None and recorded.number != 0
        if recorded is not None and done is not None:
            self.operations += 1
            self._numbers[done.number] = recorded.number
        if is_recorded != (done is not None):
            return [f"an operation was {'' if is_recorded else 'not '}recorded"]
        if has_lefts and done is not None and left != done.left:
            return [f"left {sorted(left)} instead of {sorted(done.left)}"]
        return []

    def _differences(self) -> list[str]:
        live, view = self._stage.look()
        return [
            *different("live", live, self._oracle.live),
            *different("view", view, self._oracle.view()),
        ]

    def _say(self, text: str) -> None:
        self.told.append(text)


def different(what: str, real: dict[bytes, Any], expected: Tree) -> list[str]:
    """Return where a picture is not the tree that it must be."""
    must = {path: node.look() for path, node in expected.items()}
    return [
        f"{what} {path!r}: is {real.get(path)}, must be {must.get(path)}"
        for path in sorted({*real, *must})
        if real.get(path) != must.get(path)
    ]
