# SPDX-License-Identifier: Apache-2.0
"""Many processes want one rootfs, some of them die at any moment: it is made once, whole, and never used before.

With --full every system call of a build and of a removal that changes something is struck, by a kill, a full disk and
an I/O error; else a few of them, spread over all.
"""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.crash_strikes import FAULTS, Call
from tests.kernel.rootfs_strikes import LIMIT_S, Scene, make_archive, problems_of, variables
from unspill.errors import UnspillError

PROCESSES = 16
KILLS = 12
KILLS_IN_TIME = 50


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty registry and an archive."""
    scene = Scene(tmp_path)
    make_archive(scene.archive)
    return scene


def all_at_once(scene: Scene, actions: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Start processes that wait for one another, let them go, and return how each ended and what it said."""
    processes = [
        subprocess.Popen(
            scene.words(action), env=variables(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for action in actions
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    said = [process.communicate(timeout=LIMIT_S) for process in processes]
    return [
        (process.returncode, json.loads(out) if out else {"stderr": err.decode()})
        for process, (out, err) in zip(processes, said, strict=True)
    ]


def test_many_processes_that_want_one_missing_rootfs_make_it_once(scene: Scene) -> None:
    ended = all_at_once(scene, ["prepare"] * PROCESSES)
    assert [code for code, _answer in ended] == [0] * PROCESSES
    answers = {json.dumps(answer) for _code, answer in ended}
    assert len(answers) == 1
    assert scene.builds() == 1
    (rootfs,) = scene.registry.list()
    assert json.loads(answers.pop()) == {"name": rootfs.name, "inode": os.stat(rootfs.tree).st_ino}
    assert problems_of(scene.registry) == []
    assert scene.staging() == []
    assert scene.registry.current() == rootfs
    record_figure(
        "rootfs, asked for by many at once", f"{scene.builds()} build", f"{PROCESSES} processes, all get the same inode"
    )


def test_if_the_one_that_makes_it_is_killed_another_one_does(scene: Scene) -> None:
    ended = all_at_once(scene, ["die"] * 6)
    assert sorted(code for code, _answer in ended) == [-signal.SIGKILL, *[0] * 5]
    assert len({answer["inode"] for code, answer in ended if code == 0}) == 1
    assert scene.builds() == 2
    assert problems_of(scene.registry) == []
    assert scene.staging() == []


def test_makers_and_removers_of_one_name_never_leave_half_of_it(scene: Scene) -> None:
    ended = all_at_once(scene, ["prepare", "remove"] * 6)
    assert [answer for code, answer in ended if code] == []
    assert problems_of(scene.registry) == []
    assert scene.prepare().name == "small-1.0-any"
    assert scene.staging() == []


def test_a_builder_that_works_in_place_would_be_found_out(scene: Scene) -> None:
    """The control: what an unstaged build leaves when it dies after its manifest was written."""
    made = scene.prepare()
    assert problems_of(scene.registry) == []
    os.unlink(os.path.join(made.tree, b"etc/release"))
    assert any("has changed" in problem for problem in problems_of(scene.registry))
    os.truncate(os.path.join(os.path.dirname(made.tree), b"manifest.json"), 50)
    assert any("damaged" in problem for problem in problems_of(scene.registry))


def spread(calls: tuple[Call, ...], count: int, chance: random.Random) -> list[Call]:
    """Return some calls, spread over all."""
    size = len(calls) / count
    return [calls[int(size * (index + chance.random()))] for index in range(count)]


def judge(scene: Scene, what: str) -> list[str]:
    """Look at what a struck process left, make the rootfs once more, and look again."""
    problems = problems_of(scene.registry)
    try:
        scene.prepare()
    except UnspillError as error:
        problems.append(f"the next attempt: {error}")
    problems += problems_of(scene.registry)
    if scene.registry.current() is None:
        problems.append("none is the current one")
    if "killed" not in what:
        # A disk that failed while something was deleted: it goes with what else nobody needs
        scene.registry.remove_unused()
    problems += [f"left: {name}" for name in scene.staging()]
    return [f"{what}: {problem}" for problem in problems]


def strike(scene: Scene, action: str, points: list[tuple[Call, str]]) -> tuple[int, list[str]]:
    """Strike an action at points; return how many were hit, and what was wrong afterwards."""
    hits, problems = 0, []
    for call, fault in points:
        scene.reset()
        if action == "remove":
            scene.prepare()
        struck = scene.strike(action, call, fault)
        hits += struck.is_hit
        what = f"{action} {call} {fault}"
        if struck.answer.get("error") and not struck.answer["remedy"]:
            problems.append(f"{what}: no remedy: {struck.answer}")
        problems += judge(scene, what)
    return hits, problems


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("action", ["prepare", "remove"])
def test_a_kill_at_any_system_call_leaves_nothing_half_built_in_use(scene: Scene, full: bool, action: str) -> None:
    if action == "remove":
        scene.prepare()
    calls = scene.strike(action).calls
    chance = random.Random(5)
    if full:
        points = [(call, fault) for call in calls for fault in FAULTS]
    else:
        points = [(call, "killed") for call in spread(calls, KILLS if action == "prepare" else 3, chance)]
        points += [(call, "no space") for call in spread(calls, 2, chance)]
    hits, problems = strike(scene, action, points)
    assert problems == []
    assert hits >= len(points) * 0.9
    record_figure(
        f"rootfs, faults in a {'build' if action == 'prepare' else 'removal'}",
        "0 half-built ones used",
        f"{hits} faults: SIGKILL, ENOSPC, EIO at each of {len(calls)} calls; each next attempt succeeds",
    )


@pytest.mark.timeout(7200)
def test_a_kill_at_any_moment_leaves_nothing_half_built_in_use(scene: Scene, full: bool) -> None:
    chance = random.Random(7)
    problems: list[str] = []
    wanted, killed, lasts_s = KILLS_IN_TIME if full else 4, 0, 0.2
    for index in range(20 * wanted):
        if killed == wanted:
            break
        scene.reset()
        process = subprocess.Popen(
            scene.words("prepare"), env=variables(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        time.sleep(lasts_s * (0.5 + 0.5 * chance.random()))
        process.kill()
        is_killed = process.wait() == -signal.SIGKILL
        # How long it takes depends on what else the machine does: too late the last time is earlier the next time
        lasts_s *= 1.1 if is_killed else 0.8
        if is_killed and (scene.top / "rootfs").exists():
            killed += 1
            problems += judge(scene, f"killed, {index}")
    assert problems == []
    assert killed == wanted
    record_figure(
        "rootfs, kills at random moments of a build",
        "0 half-built ones used",
        f"{killed} kills; each next attempt succeeds, no staging left",
    )
