# SPDX-License-Identifier: Apache-2.0
"""`unspill log PATH` against an oracle: random histories of runs, applies, discards, undos and redos.

The oracle knows what each run was told to change; it reads no store and no journal.
"""

import json
import os
from random import Random

import pytest

from tests.support import Ground
from unspill import Sandbox
from unspill.cli.main import run_words

pytestmark = pytest.mark.kernel

FILES = ("a", "b", "d/one", "d/two", "d/e/deep", "f/only")
PLACES = (*FILES, "d", "d/e", "f", "nothing")
PLAIN, FULL = 15, 500


class History:
    """One random history, played in a real sandbox and noted by the oracle."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self.draw = Random(seed)
        self.project = ground.home / f"history{seed}"
        self.project.mkdir()
        # What is in the project, and what held runs have changed over it: None for a file that they deleted
        self.live: dict[str, int] = {}
        self.held: dict[str, int | None] = {}
        # By run: what it changed; and what it may have changed, where layers of several were folded into one
        self.changed: dict[int, set[str]] = {}
        self.possible: dict[int, set[str]] = {}
        self.holding: set[int] = set()
        self.steps: list[str] = []
        for path in self.draw.sample(FILES, 3):
            self.live[path] = 0
            (self.project / path).parent.mkdir(parents=True, exist_ok=True)
            (self.project / path).write_text("0\n")

    def play(self, sandbox: Sandbox) -> None:
        for number in range(1, self.draw.randint(4, 9)):
            self.run(sandbox, number)
            if self.held and self.draw.random() < 0.4:
                self.settle(sandbox)

    def run(self, sandbox: Sandbox, number: int) -> None:
        """Have a run change some files; one that is applied changes none of which something is held."""
        after = self.draw.choice(("apply", "apply", "hold", "hold", "discard"))
        seen = {**self.live, **self.held}
        usable = FILES if after != "apply" else [path for path in FILES if path not in self.held]
        words, made = [], {}
        for path in self.draw.sample(usable, min(len(usable), self.draw.randint(1, 3))):
            is_deleted = seen.get(path) is not None and self.draw.random() < 0.3
            made[path] = None if is_deleted else number
            write = f"mkdir -p {os.path.dirname(path) or '.'}; echo {number} > {path}"
            words.append(f"rm {path}" if is_deleted else write)
        result = sandbox.run("; ".join(words) or "true", after=after)  # type: ignore[arg-type]
        assert result.exit_code == 0, result
        self.steps.append(f"run {number}, {after}: {made}")
        if after != "discard":
            self.changed[number] = set(made)
            self.possible[number] = set(made)
        if after == "apply":
            self.fold(self.holding if made else set())
            self.live = {path: content for path, content in {**self.live, **made}.items() if content is not None}
            if made and self.draw.random() < 0.3:
                self.undo(sandbox)
                self.live = self.read()
        elif after == "hold":
            self.held |= made
            self.holding.add(number)

    def fold(self, runs: set[int]) -> None:
        """Note that nobody can tell any more which run changed what: layers that are held are folded into one."""
        shared = {path for run in runs for path in self.possible[run]}
        for run in runs:
            self.possible[run] |= shared

    def settle(self, sandbox: Sandbox) -> None:
        """Apply or discard all that is held, and perhaps think better of it."""
        way = self.draw.choice(("apply", "discard"))
        done = sandbox.apply() if way == "apply" else sandbox.discard()
        self.steps.append(f"{way}: op {done.number}")
        assert done.left == (), done
        before = self.held, self.holding
        self.held, self.holding = {}, set()
        if done.number and self.draw.random() < 0.4:
            self.undo(sandbox)
            if way == "apply":
                self.fold(before[1])
            if self.draw.random() < 0.5:
                sandbox.redo()
                self.steps.append("redo")
            else:
                self.held, self.holding = before
        self.live = self.read()

    def undo(self, sandbox: Sandbox) -> None:
        done = sandbox.undo()
        assert done.left == (), done
        self.steps.append(f"undo: op {done.number}")

    def read(self) -> dict[str, int]:
        return {path: int((self.project / path).read_text()) for path in FILES if (self.project / path).is_file()}

    def judge(self, place: str, listed: list[int]) -> None:
        """Check the runs of a file, or of what is below a directory: all that changed it, and none that can't have."""
        about = "; ".join((place, *self.steps))
        assert listed == sorted(listed, reverse=True), about
        assert set(listed) >= runs_of(place, self.changed), about
        assert set(listed) <= runs_of(place, self.possible), about


def runs_of(place: str, changed: dict[int, set[str]]) -> set[int]:
    return {
        number
        for number, paths in changed.items()
        if any(path == place or path.startswith(place + "/") for path in paths)
    }


def test_the_runs_of_a_path_are_those_that_changed_it(
    ground: Ground, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    ground.configure("")
    asked = found = exact = 0
    for seed in range(FULL if full else PLAIN):
        history = History(ground, seed)
        sandbox = ground.sandbox(project=history.project)
        history.play(sandbox)
        monkeypatch.chdir(history.project)
        for place in PLACES:
            assert run_words(["log", "--json", "--limit", "1000", place]) == 0
            listed = [run["number"] for run in json.loads(capsys.readouterr().out)["runs"]]
            history.judge(place, listed)
            asked += 1
            found += len(listed)
            exact += runs_of(place, history.changed) == runs_of(place, history.possible)
        sandbox.close()
    # Control: an oracle that expects nothing would be no judge
    assert found > asked
    assert exact > 0.8 * asked
