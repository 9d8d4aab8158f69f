# SPDX-License-Identifier: Apache-2.0
"""Plays many random sequences in one process, each in a project of its own that is removed afterwards.

A record is a file of JSON lines: which seeds of which mode were played at which commit, and what differed. A slice goes
on where its record ends.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.model.chooser import Chooser, drive
from tests.model.driver import Case, Step, World
from tests.model.observed import ObservedWorld
from tests.model.verbs import Failure
from unspill.layers.trees import remove_tree

# After so many sequences a new state directory is used
RENEWED = 25
IDENTITY = "[user]\nname = Person\nemail = person@example.org\n"
VARIABLES = ("HOME", "UNSPILL_STATE_DIR", "UNSPILL_NO_STANDBY")


class Played(NamedTuple):
    """One sequence: the steps that made sense, and how the last one failed."""

    seed: int
    steps: list[Step]
    failure: Failure | None


@contextmanager
def machine(where: str | None = None) -> Iterator[Path]:
    """A home for projects and a state directory, for this process and those that it starts."""
    top = Path(tempfile.mkdtemp(prefix="model-", dir=where))
    home, before = top / "home", {name: os.environ.get(name) for name in VARIABLES}
    home.mkdir()
    (home / ".gitconfig").write_text(IDENTITY)
    os.environ.update(HOME=os.fspath(home), UNSPILL_STATE_DIR=os.fspath(top / "state"), UNSPILL_NO_STANDBY="1")
    try:
        yield home
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        remove_tree(os.fsencode(top / "state"))
        shutil.rmtree(top)


def make_world(case: Case) -> World:
    """Return a new project for this mode."""
    return ObservedWorld(case) if case.mode in ("git", "background") else World(case)


def play_seed(seed: int, case: Case) -> Played:
    world = make_world(case)
    try:
        steps, failure = drive(seed, world, Chooser(seed, world))
        return Played(seed, steps, failure)
    finally:
        world.close()


def play_seeds(seeds: Iterable[int], mode: str, where: str | None = None) -> Iterator[Played]:
    """Play sequences one after the other; the state directory is renewed now and then."""
    waiting = list(seeds)
    while waiting:
        with machine(where) as home:
            for seed in waiting[:RENEWED]:
                yield play_seed(seed, Case(mode, home))
        waiting = waiting[RENEWED:]


class SliceRecord:
    """What was played of one mode, at one commit, in a file that can be added to."""

    def __init__(self, file: Path, mode: str) -> None:
        self._file, self._mode, self._commit = file, mode, commit_of_this()
        self.seeds: set[int] = set()
        self.steps = 0
        self.different: list[dict[str, Any]] = []
        for line in file.read_text().splitlines() if file.exists() else ():
            found = json.loads(line)
            if (found["commit"], found["mode"]) == (self._commit, mode):
                self._count(found)

    def _count(self, found: dict[str, Any]) -> None:
        self.seeds.add(found["seed"])
        self.steps += found["steps"]
        self.different += [found] if "rule" in found else []

    def add(self, played: Played) -> None:
        found = {"commit": self._commit, "mode": self._mode, "seed": played.seed, "steps": len(played.steps)}
        if played.failure is not None:
            found |= {"rule": played.failure.rule, "text": str(played.failure), "played": played.steps}
        self._count(found)
        with self._file.open("a") as file:
            file.write(json.dumps(found) + "\n")

    @property
    def told(self) -> str:
        """What was played, in a line."""
        return f"{len(self.seeds)} random sequences, {self.steps} steps, at commit {self._commit[:12]}"


def commit_of_this() -> str:
    """Return the commit that is tried; `+` follows if something of it is changed."""
    here = Path(__file__).parent
    git = ["git", "-c", f"safe.directory={here.parents[1]}", "-C", os.fspath(here)]
    done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../../src"], check=False).returncode == 1
    return (done.stdout.strip() or "unknown") + ("+" if changed else "")


def play_slice(record: SliceRecord, seeds: range, mode: str, seconds: float, where: str | None) -> Iterator[Played]:
    """Play what a slice has not played yet, as long as there is time."""
    begun = time.monotonic()
    for played in play_seeds((seed for seed in seeds if seed not in record.seeds), mode, where):
        record.add(played)
        yield played
        if time.monotonic() - begun > seconds:
            return
