# SPDX-License-Identifier: Apache-2.0
"""Each system call of an operation and of recovery that changes something fails: by a kill, a full disk, an I/O error.

After one start the live tree is exactly the one before or exactly the one after, so is where each repository stands,
the record says which, nothing lies around and no byte is lost. With --full every call is struck; else a few of each
kind, chosen by a fixed seed.
"""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.crash_judging import ENDS, Reference, apart, begin, is_whole, make_reference, verify, verify_left
from tests.kernel.crash_scene import Scene, make_scene
from tests.kernel.crash_strikes import FAULTS, Call, Struck, run_program
from tests.support import MOUNTS, Ground, made_ground
from unspill.layers.trees import remove_tree
from unspill.model.plan import Facts

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(7200)]

OTHER_FILESYSTEM = MOUNTS / "xfs/work"
ACTIONS = tuple(ENDS)
# Without --full
SOME = ("apply", "undo")
DOUBLE_CRASHES = 200
# A fault of a disk that does not get better: calls that a Python program can do without
LASTING = ("renameat2", "fsync", "pwrite64", "fdatasync", "mkdirat", "chmod", "syncfs", "unlink", "mkdir", "rename")

Point = tuple[Call, str]


@dataclass
class Tally:
    """What was struck, and what went wrong."""

    points: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    missed: int = 0

    def add(self, what: str, problems: list[str]) -> None:
        """Note what went wrong at a point, and say so at once: a whole run takes long."""
        told = [f"{what}: {problem}" for problem in problems]
        self.problems += told
        print(*told, sep="\n", end="\n" if told else "", flush=True)


@dataclass(frozen=True)
class Ordeal:
    """A scene, what should become of it, and a seeded choice."""

    scene: Scene
    reference: Reference
    log: Path
    known: dict[str, tuple[Call, ...]] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(20))

    def begin(self, action: str) -> None:
        """Put everything back to before an action."""
        self.scene.reset()
        if action.startswith("undo"):
            apart(begin, self.scene, action)

    def run(self, action: str, call: Call | None = None, fault: str = "killed") -> Struck:
        return run_program(action, self.scene.project, self.log, call, fault)

    def calls(self, action: str) -> tuple[Call, ...]:
        """Return the calls of an action that nobody disturbs; found out once."""
        if action not in self.known:
            self.begin(action)
            struck = self.run(action)
            assert struck.report is not None
            assert "number" in struck.report, struck.report
            assert apart(verify, self.scene, self.reference, action) == []
            self.known[action] = struck.calls
        return self.known[action]

    def points(self, calls: tuple[Call, ...], count: int | None) -> list[Point]:
        """Return each call with each fault, or some of them: as many of each fault, spread over all calls."""
        everything = [(call, fault) for call in calls for fault in FAULTS]
        if count is None:
            return everything
        size = len(calls) * len(FAULTS) / count
        return [everything[int(size * (index + self.chance.random()))] for index in range(count)]

    def judge(self, action: str, struck: Struck, what: str, tally: Tally) -> None:
        """Start once and look; what is wrong goes into the tally."""
        if not struck.is_hit:
            tally.missed += 1
            return
        problems = []
        report = struck.report or {}
        if not report.get("is_ours", True):
            problems.append(f"raised {report['text']}")
        left = {os.fsencode(path) for path, _why in report.get("left", ())} - {
            path for path, _why in self.reference.left
        }
        if left and action == "apply":
            # A disk that fails where a single file is read: all others are applied, and this one is named
            tally.add(what, apart(verify_left, self.scene, self.reference, tuple(left)))
            return
        # One fault that the process survives is put right by itself, at once
        if not struck.is_killed and "+" not in what and what.startswith(action):
            problems += [f"at once: {problem}" for problem in is_whole(self.scene, self.reference)]
        problems += apart(verify, self.scene, self.reference, action)
        tally.add(what, problems)

    def strike(self, action: str, points: list[Point], tally: Tally) -> None:
        """Strike an action at each point."""
        for call, fault in points:
            self.begin(action)
            struck = self.run(action, call, fault)
            tally.points[action] += struck.is_hit
            self.judge(action, struck, f"{action} {call} {fault}", tally)

    def crash(self, action: str, call: Call) -> None:
        self.begin(action)
        self.run(action, call)

    def calls_of_recoveries(self, action: str, places: list[Call]) -> list[Call]:
        """Return the calls of starts after kills at some places, each once."""
        found: dict[Call, None] = {}
        for call in places:
            self.crash(action, call)
            found |= dict.fromkeys(self.run("open").calls)
        return list(found)

    def strike_recovery(self, action: str, call: Call, count: int | None, tally: Tally) -> None:
        """Kill an action at a call, and strike the start after it."""
        self.crash(action, call)
        for inner, fault in self.points(self.run("open").calls, count):
            self.crash(action, call)
            struck = self.run("open", inner, fault)
            tally.points["recovery"] += struck.is_hit
            self.judge(action, struck, f"recovery of {action} {call}, {inner} {fault}", tally)


@pytest.fixture(scope="module")
def first_ordeal(
    tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes, known_facts: tuple[str, Facts]
) -> Iterator[Ordeal]:
    """What all tests on one filesystem begin with: each strike puts everything back first."""
    top = tmp_path_factory.mktemp("ordeal")
    with (
        pytest.MonkeyPatch.context() as patch,
        made_ground(top, trusted_bwrap, known_facts, patch) as ground,
    ):
        scene = make_scene(ground, ground.project)
        yield Ordeal(scene, make_reference(scene, is_staged=False), ground.top / "trace")


@pytest.fixture
def ordeal(first_ordeal: Ordeal) -> Ordeal:
    """An ordeal on one filesystem, with a choice that no other test has drawn from."""
    return replace(first_ordeal, chance=random.Random(20))


@pytest.fixture
def ordeal_elsewhere(ground: Ground) -> Iterator[Ordeal]:
    """An ordeal whose project lies on another filesystem than the state directory."""
    if not OTHER_FILESYSTEM.is_dir():
        pytest.skip(f"no other filesystem is mounted at {OTHER_FILESYSTEM}; .ci/setup does it")
    top = Path(tempfile.mkdtemp(dir=OTHER_FILESYSTEM))
    (top / "project").mkdir()
    scene = make_scene(ground, top / "project", is_elsewhere=True)
    yield Ordeal(scene, make_reference(scene, is_staged=True), ground.top / "trace")
    remove_tree(os.fsencode(top))


def places_of_interest(calls: tuple[Call, ...]) -> list[Call]:
    """Return calls at which a kill leaves different work: nothing live is changed yet, half is, all is and written."""
    # A discard changes nothing live: there the renames are those of its layers
    renames = [call for call in calls if call.name.startswith("rename")]
    last_end = max(index for index, call in enumerate(calls) if call.name == "write")
    before = calls[max(0, calls.index(renames[0]) - 12)]
    return [before, renames[len(renames) // 2], calls[min(last_end + 2, len(calls) - 1)]]


def end(tally: Tally, name: str, note: str, *, least: int) -> None:
    by_part = ", ".join(f"{part} {count}" for part, count in tally.points.items())
    print(f"{name}: {tally.points.total()} points ({by_part}), {tally.missed} not reached")
    mixed = sum("mixed state" in problem for problem in tally.problems)
    lost = sum("lost: " in problem for problem in tally.problems)
    others = len(tally.problems) - mixed - lost
    value = f"{tally.points.total()} points: {mixed} mixed states, {lost} contents lost, {others} other problems"
    record_figure(name, value, f"{note} ({by_part})")
    assert tally.problems == []
    assert tally.points.total() >= least
    # How often a mark waits for the filesystem's clock, or a directory is listed, is not always the same
    assert tally.missed <= max(2, 0.1 * tally.points.total())


def test_the_changes_are_of_every_kind(ordeal: Ordeal) -> None:
    held = ordeal.reference.held["held"]
    assert len(held) >= 50
    assert {entry[1] for entry in held} == {"added", "modified", "deleted", "replaced", "metadata"}
    assert {entry[3] for entry in held if len(entry) > 3} == {"file", "dir", "symlink"}
    assert {why for _path, why in ordeal.reference.left} == {"held", "conflict"}
    assert len(ordeal.reference.held["residue"]) == len(ordeal.reference.left)


def test_texts_that_the_person_edited_too_are_merged(ordeal: Ordeal) -> None:
    trees = ordeal.reference.trees
    runs = {"merged": (b"5",), "merged_twice": (b"5", b"20")}
    for name, lines in runs.items():
        before, after = (trees[tree][name.encode()].content for tree in ("before", "after"))
        assert b"the person: 35 " in before
        assert b" run: " not in before
        wanted = before
        for line, run in zip(lines, (b"the first run", b"the second run"), strict=False):
            wanted = wanted.replace(b"\n%s " % line, b"\n%s: %s " % (run, line))
        assert after == wanted


def test_one_repository_moves_and_the_other_gets_the_work_beside_it(ordeal: Ordeal) -> None:
    before, after, undone = (ordeal.reference.repositories[name] for name in ("before", "after", "undone"))
    assert before["."].head != after["."].head
    assert before["."].index != after["."].index
    assert {name for name in before["."].refs if name not in after["."].refs} == {"refs/heads/old"}
    # The commit that the run amended is kept by a reference, and so is what an undo displaces
    assert before["."].refs["refs/heads/main"] == after["."].refs["refs/unspill/op-1/0"]
    assert after["."].refs["refs/heads/topic"] == undone["."].refs["refs/unspill/op-2/1"]
    assert after["lib"].refs == before["lib"].refs | {
        "refs/unspill/run-2/heads/main": after["lib"].refs["refs/unspill/run-2/heads/main"]
    }


@pytest.mark.parametrize("action", ACTIONS)
def test_a_fault_at_any_call_leaves_the_tree_before_or_the_tree_after(ordeal: Ordeal, action: str, full: bool) -> None:
    """The time buys an operation for each fault: at a few calls here, at every one with `--full`."""
    tally = Tally()
    calls = ordeal.calls(action)
    ordeal.strike(action, ordeal.points(calls, None if full else 4), tally)
    for call in places_of_interest(calls)[:: 1 if full else 2]:
        ordeal.strike_recovery(action, call, None if full else 1, tally)
    note = f"{', '.join(FAULTS)} at every changing system call of it and of its recovery"
    end(tally, f"crash points, {action}", note, least=2 * len(calls) if full else 5)


def test_a_crash_while_recovering_from_a_crash_is_recovered_from(ordeal: Ordeal, full: bool) -> None:
    """The time buys crashes within the recovery itself: a few here, many with `--full`."""
    tally = Tally()
    actions = ACTIONS if full else SOME
    calls = {action: ordeal.calls(action) for action in actions}
    places = {action: places_of_interest(calls[action])[0 if full else 2 :] for action in actions}
    inside = {action: ordeal.calls_of_recoveries(action, places[action]) for action in actions}
    wanted = DOUBLE_CRASHES if full else 4
    while tally.points.total() < wanted and tally.missed < 3 * wanted:
        action = ordeal.chance.choice(actions)
        call = ordeal.chance.choice(calls[action])
        ordeal.crash(action, call)
        inner = ordeal.chance.choice(inside[action])
        struck = ordeal.run("open", inner)
        tally.points[action] += struck.is_hit
        ordeal.judge(action, struck, f"recovery of {action} {call}, killed at {inner}", tally)
    tally.missed = 0
    end(tally, "crash points, double crashes", "killed at random, then killed again while recovering", least=wanted)


def test_a_disk_that_stays_broken_is_recovered_from_when_it_is_mended(ordeal: Ordeal, full: bool) -> None:
    """The time buys whole operations on a disk that stays full or broken from one call on."""
    tally = Tally()
    for action in ACTIONS if full else SOME:
        calls = [call for call in ordeal.calls(action) if call.name in LASTING]
        for call in calls[:: 5 if full else len(calls) // 2]:
            for fault in ("no space+", "I/O error+")[: 2 if full else 1]:
                ordeal.begin(action)
                struck = ordeal.run(action, call, fault)
                tally.points[action] += struck.is_hit
                ordeal.judge(action, struck, f"{action} {call} {fault}", tally)
    end(tally, "crash points, lasting faults", "from one call on all of its name fail", least=3)


def test_a_fault_is_survived_where_the_project_is_on_another_filesystem(ordeal_elsewhere: Ordeal, full: bool) -> None:
    """The time buys the same faults where entries are copied between two filesystems."""
    ordeal, tally = ordeal_elsewhere, Tally()
    for action in ACTIONS if full else SOME:
        calls = ordeal.calls(action)
        points = ordeal.points(calls, len(calls) if full else 2)
        ordeal.strike(action, points, tally)
        for call in places_of_interest(calls)[:: 1 if full else 3]:
            ordeal.strike_recovery(action, call, 40 if full else 1, tally)
    end(tally, "crash points, two filesystems", "every third of the changing system calls", least=500 if full else 4)


def test_a_reference_that_was_about_to_be_written_leaves_no_file_behind(ordeal: Ordeal) -> None:
    renames = [call for call in ordeal.calls("apply") if call.name == "renameat"]
    ordeal.crash("apply", renames[len(renames) // 2])
    assert len(list(ordeal.scene.project.glob("**/*.unspill.lock"))) == 1
    assert apart(verify, ordeal.scene, ordeal.reference, "apply") == []


def test_the_suite_sees_a_mixed_state(ordeal: Ordeal) -> None:
    """The control arm: before the start that recovers it, a kill among the steps is found out."""
    calls = ordeal.calls("apply")
    renames = [call for call in calls if call.name == "renameat2"]
    ordeal.crash("apply", renames[len(renames) // 2])
    assert is_whole(ordeal.scene, ordeal.reference) != []
    assert apart(verify, ordeal.scene, ordeal.reference, "apply") == []
