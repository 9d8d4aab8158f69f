# SPDX-License-Identifier: Apache-2.0
"""Runs of one sandbox beside each other: none waits, nothing of any is lost, and what overlaps is told."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.test_run_parallel import at_once
from tests.support import Event, Ground, chosen_view, kinds, printed, short
from unspill import OutputChunk, RunResult, Sandbox
from unspill.model.change import Change, Identity
from unspill.sandbox.beside import find_overlap

pytestmark = pytest.mark.kernel


def go_together(sandbox: Sandbox, commands: list[str], **options: object) -> list[RunResult]:
    """Run commands of which none ends before all are done; then they end one after the other."""
    meet = threading.Barrier(len(commands), timeout=30)
    turns = [threading.Event() for _ in commands]
    turns[0].set()

    def go(number: int) -> RunResult:
        read_end, write_end = os.pipe()

        def note(event: Event) -> None:
            if isinstance(event, OutputChunk) and b"ready" in event.chunk:
                meet.wait()
                assert turns[number].wait(30)
                os.write(write_end, b"go\n")

        try:
            run: Callable[..., RunResult] = sandbox.run
            result = run(
                f"{commands[number]}; echo ready; read -r _", stdin=read_end, on_event=note, limits=short(), **options
            )
        finally:
            os.close(read_end)
            os.close(write_end)
            if number + 1 < len(turns):
                turns[number + 1].set()
        return result

    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(go, range(len(commands))))


@pytest.mark.bwrap
@pytest.mark.parametrize("after", ["hold", "apply"])
def test_runs_of_one_sandbox_go_on_beside_each_other(ground: Ground, engine: str, after: str) -> None:
    """All are under way before one of them ends: with turns they would wait for ever."""
    sandbox = ground.sandbox()
    results = go_together(sandbox, [f"echo {name} > {name}" for name in "abcd"], after=after)
    assert [result.apart for result in results] == [""] * 4
    assert printed(sandbox.run("cat a b c d")) == "a\nb\nc\nd\n"
    if after == "apply":
        assert sorted(os.listdir(ground.project)) == ["a", "b", "c", "d"]
    else:
        assert kinds(sandbox.changes()) == dict.fromkeys("abcd", "added")


def test_each_sees_what_was_there_when_it_began(ground: Ground) -> None:
    sandbox = ground.sandbox()
    # The second looks when the first is sealed: it is let go on by what the first one's end starts
    first, second = go_together(sandbox, ["echo 1 > mine", "echo 2 > other; echo ready; read -r _; ls; exit"])
    assert (printed(first), printed(second)) == ("ready\n", "ready\nother\n")
    assert printed(sandbox.run("ls")) == "mine\nother\n"


def test_the_later_of_two_that_changed_one_file_is_held_apart(ground: Ground) -> None:
    ground.write("file", "old\n")
    sandbox = ground.sandbox()
    first, second = go_together(sandbox, ["echo 1 > file", "echo 2 > file; echo more > more"])
    assert (first.apart, second.apart) == ("", f"default-run-{second.number}")
    assert second.held
    assert second.problem == f"run {first.number} changed file meanwhile: held apart, in sandbox {second.apart!r}"
    assert printed(sandbox.run("cat file; ls")) == "1\nfile\n"
    other = ground.sandbox(second.apart)
    assert kinds(other.changes()) == {"file": "modified", "more": "added"}
    assert printed(other.run("cat file more")) == "2\nmore\n"
    sandbox.discard()
    assert other.apply().left == ()
    assert (ground.project / "file").read_text() == "2\n"
    other.undo()
    assert (ground.project / "file").read_text() == "old\n"
    assert not (ground.project / "more").exists()


@pytest.mark.parametrize("is_applied", [False, True], ids=["held", "applied in part meanwhile"])
def test_a_run_that_is_held_apart_knows_what_was_beneath_the_held_version_that_it_saw(
    ground: Ground, is_applied: bool
) -> None:
    lines = [f"{number}\n" for number in range(24)]
    target = ground.write("file", "".join(lines))
    sandbox = ground.sandbox()
    assert sandbox.run("sed -i 's/^2$/two/' file; echo more > more").held
    target.write_text("".join([*lines[:22], "mine\n", lines[23]]))
    if is_applied:
        # What stays of the held run is in another layer then, with the time of the edit alone
        assert sandbox.apply(["more"]).changed == 1
        assert sandbox.run("echo more > again").held
        result = apply_beside(sandbox, "sed -i 's/^8$/eight/' file", "again")
    else:
        _first, result = go_together(sandbox, ["sed -i 's/^12$/other/' file", "sed -i 's/^8$/eight/' file"])
    other = ground.sandbox(result.apart)
    assert other.apply().left == ()
    merged = [*lines[:2], "two\n", *lines[3:8], "eight\n", *lines[9:22], "mine\n", lines[23]]
    assert target.read_text() == "".join(merged)


def apply_beside(sandbox: Sandbox, command: str, path: str) -> RunResult:
    """Run a command; before it ends, a held file is applied."""
    read_end, write_end = os.pipe()

    def note(event: Event) -> None:
        if isinstance(event, OutputChunk):
            assert sandbox.apply([path]).changed == 1
            os.write(write_end, b"go\n")

    try:
        return sandbox.run(f"{command}; echo ready; read -r _", stdin=read_end, on_event=note, limits=short())
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_deletion_that_is_held_apart_leaves_what_the_person_edited_below_the_held_version(ground: Ground) -> None:
    target = ground.write("d/file", "old\n")
    ground.write("d/other", "old\n")
    sandbox = ground.sandbox()
    assert sandbox.run("echo 1 > d/file").held
    target.write_text("mine\n")
    _first, second = go_together(sandbox, ["echo 1 > d/new", "rm -r d"])
    assert [left.path for left in ground.sandbox(second.apart).apply().left] == [b"d/file"]
    assert target.read_text() == "mine\n"
    assert os.listdir(target.parent) == ["file"]


def test_what_two_apply_to_one_file_is_a_conflict_of_the_later(ground: Ground) -> None:
    ground.write("file", "old\n")
    sandbox = ground.sandbox()
    first, second = go_together(sandbox, ["echo 1 > file", "echo 2 > file; echo more > more"], after="apply")
    assert first.operation is not None
    assert first.operation.left == ()
    assert second.operation is not None
    assert [left.path for left in second.operation.left] == [b"file"]
    assert (ground.project / "file").read_text() == "1\n"
    assert (ground.project / "more").read_text() == "more\n"
    assert printed(sandbox.run("cat file")) == "2\n"


def test_a_run_without_changes_never_conflicts(ground: Ground) -> None:
    ground.write("file", "old\n")
    first, second = go_together(ground.sandbox(), ["echo 1 > file", "cat file"])
    assert (first.apart, second.apart, second.held) == ("", "", False)


@pytest.mark.parametrize("after", ["hold", "apply"])
def test_a_run_that_is_to_be_alone_waits_and_says_what_for(ground: Ground, after: str) -> None:
    sandbox = ground.sandbox()
    heard: list[str] = []
    began = threading.Event()
    read_end, write_end = os.pipe()

    def note(event: Event) -> None:
        if isinstance(event, OutputChunk):
            began.set()

    def told(reason: str) -> None:
        heard.append(reason)
        os.write(write_end, b"go\n")

    def first() -> None:
        sandbox.run("echo x; read -r _; echo 1 > f", stdin=read_end, on_event=note, after=after)  # type: ignore[arg-type]

    def second() -> None:
        assert began.wait(30)
        result = sandbox.run("cat f", alone=True, on_wait=told, after=after)  # type: ignore[arg-type]
        assert printed(result) == "1\n"

    at_once(first, second)
    os.close(read_end)
    os.close(write_end)
    assert heard == ['run 1 of this sandbox (/bin/sh -c "echo x; read -r _; echo 1 > f")']


PROGRAM = """
import sys
from unspill import Policy, Sandbox
policy = Policy(**{view!r}, bwrap={bwrap!r}, after="hold")
command = "echo 2 > file; echo ready; sleep 60"
Sandbox({project!r}, policy=policy).run(command, on_event=lambda event: print("x", flush=True))
"""


def test_what_a_killed_caller_left_is_held_apart_where_another_run_changed_the_same(ground: Ground) -> None:
    ground.write("file", "old\n")
    sandbox = ground.sandbox()
    text = PROGRAM.format(view=chosen_view(), bwrap=ground.bwrap, project=os.fspath(ground.project))
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        # Started, and what the command says when it has written
        assert caller.stdout.readline() + caller.stdout.readline() == b"x\nx\n"
        sandbox.run("echo 1 > file")
        caller.send_signal(signal.SIGKILL)
    assert printed(sandbox.run("cat file")) == "1\n"
    other = ground.sandbox("default-run-1")
    assert printed(other.run("cat file")) == "2\n"


SNAPSHOT = """
import json, os, stat
found = {}
for top, directories, files in os.walk("."):
    for name in directories + files:
        path = os.path.join(top, name)
        status = os.lstat(path)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            found[path] = ["link", os.readlink(path)]
        elif stat.S_ISDIR(status.st_mode):
            found[path] = ["dir", mode]
        else:
            with open(path) as file:
                found[path] = ["file", mode, file.read()]
print(json.dumps(found))
"""
Tree = dict[str, list[object]]
NAMES = ("a", "b", "d/x", "d/y", "d/e/z", "d", "d/e", "n/o", "n")


def draw(chance: random.Random, number: int) -> str:
    """Return a command of a run that does not fail, whatever is there."""
    steps = []
    for count in range(chance.randint(1, 3)):
        name, other = chance.sample(NAMES, 2)
        steps.append(
            chance.choice(
                (
                    f"mkdir -p $(dirname {name}); echo {number}.{count} > {name}",
                    f"rm -rf {name}",
                    f"rm -rf {name}; mkdir -p {name}; echo {number}.{count} > {name}/new-{number}",
                    f"chmod 7{chance.choice('0123457')}0 {name}",
                    f"mv -T {name} {other}",
                    f"rm -rf {name}; ln -s to-{number} {name}",
                    f"mkdir -p {name}; echo {number} > {name}/of-{number}",
                )
            )
        )
    return "; ".join(steps) + "; true"


def snapshot(directory: Path) -> Tree:
    done = subprocess.run([sys.executable, "-c", SNAPSHOT], cwd=directory, capture_output=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def seen(sandbox: Sandbox) -> Tree:
    return json.loads(printed(sandbox.run(["python3", "-c", SNAPSHOT], after="discard")))  # type: ignore[no-any-return]


def differing(tree: Tree, base: Tree) -> set[str]:
    return {path for path in tree.keys() | base.keys() if tree.get(path) != base.get(path)}


def is_near(path: str, others: set[str]) -> bool:
    return any(path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in others)


def play(ground: Ground, seed: int) -> int:
    """Have random runs begin at once and end in turn; look whether each is whole where it is held, or applied."""
    chance = random.Random(seed)
    after = chance.choice(("hold", "apply"))
    project = ground.home / f"game-{seed}"
    for path in ("a", "d/x", "d/e/z"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        # No two alike: what a run moves to another's place must differ from what was there
        (project / path).write_text(f"old {path}\n")
    base = snapshot(project)
    commands = [draw(chance, number) for number in range(chance.randint(2, 4))]
    expected = []
    for number, command in enumerate(commands):
        twin = ground.home / f"twin-{seed}-{number}"
        shutil.copytree(project, twin, symlinks=True)
        subprocess.run(["sh", "-c", command], cwd=twin, capture_output=True, check=False)
        expected.append(snapshot(twin))
    told = f"seed {seed}, {after}: {commands}"
    opened = Sandbox(project, policy=ground.policy())
    with opened as sandbox:
        results = go_together(sandbox, commands, after=after)
        left = check_held(sandbox, results, base, expected, told)
        if after == "apply":
            check_applied(snapshot(project), results, base, expected, told)
        else:
            assert snapshot(project) == base, told
    return left


def check_held(sandbox: Sandbox, results: list[RunResult], base: Tree, expected: list[Tree], told: str) -> int:
    apart = [number for number, result in enumerate(results) if result.apart]
    for number in apart:
        with Sandbox(sandbox.project, name=results[number].apart, policy=sandbox.policy) as other:
            view, changed = seen(other), differing(expected[number], base)
            assert {path: view.get(path) for path in changed} == {
                path: expected[number].get(path) for path in changed
            }, (
                told,
                number,
            )
    view = seen(sandbox)
    for number, result in enumerate(results):
        changed = differing(expected[number], base)
        if not result.apart and result.operation is None:
            assert {path: view.get(path) for path in changed} == {
                path: expected[number].get(path) for path in changed
            }, (
                told,
                number,
            )
        if result.apart and result.operation is None:
            # Not without a reason: another has changed something in the same directory of the project
            others = {path.split("/")[1] for other in range(number) for path in differing(expected[other], base)}
            assert not others.isdisjoint(path.split("/")[1] for path in changed), (told, number)
    return len(apart)


def check_applied(live: Tree, results: list[RunResult], base: Tree, expected: list[Tree], told: str) -> None:
    for number, result in enumerate(results):
        left = set() if result.operation is None else {f"./{os.fsdecode(one.path)}" for one in result.operation.left}
        if result.apart:
            continue
        later = {path for other in range(number + 1, len(results)) for path in differing(expected[other], base)}
        for path in differing(expected[number], base):
            is_there = live.get(path) == expected[number].get(path)
            # A later one may have seen it, only if it was told of nothing
            assert is_there or is_near(path, left) or is_near(path, later), (told, number, path)


WHOLE = 2000


@pytest.mark.slow
@pytest.mark.any_bwrap
@pytest.mark.timeout(4 * 3600)
def test_nothing_of_random_runs_beside_each_other_is_lost(ground: Ground, full: bool) -> None:
    """The time buys games of two to four runs each, with `--full` 2,000 of them."""
    rounds = WHOLE if full else 12
    apart = sum(play(ground, seed) for seed in range(rounds))
    assert 0 < apart < 3 * rounds
    record_figure("runs beside each other", "0 lost", f"{rounds} random interleavings; {apart} runs were held apart")


def change(path: str, kind: str = "modified") -> Change:
    entry = None if kind == "deleted" else Identity(kind="file", mode=0o644, inode=1, size=1, ctime_ns=1)
    return Change(path=os.fsencode(path), kind=kind, entry=entry)  # type: ignore[arg-type]


OVERLAPS: list[tuple[Change, Change, bool]] = [
    (change("a"), change("b"), False),
    (change("a"), change("a"), True),
    (change("a"), change("ab"), False),
    (change("d/x"), change("d/y"), False),
    # A directory that is gone, or another one, hides what is added to it
    (change("d/x", "added"), change("d", "deleted"), True),
    (change("d/x", "added"), change("d", "replaced"), True),
    (change("d", "deleted"), change("d/x", "added"), True),
    (change("d", "added"), change("d", "added"), True),
    # A layer has copies of the directories above what it changed, as they were
    (change("d", "metadata"), change("d/x", "added"), True),
    (change("d/x", "added"), change("d", "metadata"), False),
    (change(".git/refs/heads/a", "added"), change(".git/refs/heads/b", "added"), True),
    (change(".git/objects/aa/bb", "added"), change(".git/objects/cc/dd", "added"), False),
]


@pytest.mark.parametrize(("earlier", "later", "expected"), OVERLAPS)
def test_two_changes_overlap_where_one_would_hide_the_other(earlier: Change, later: Change, expected: bool) -> None:
    assert bool(find_overlap([earlier], [later])) == expected


def test_a_run_that_closed_a_directory_is_held_apart(ground: Ground) -> None:
    ground.write("d/sub/f", "old\n")
    with ground.sandbox() as sandbox:
        results = go_together(sandbox, ["echo new > d/sub/f", "echo mine > mine; chmod 000 d"], after="hold")
    assert [bool(result.apart) for result in results] == [False, True]
    with ground.sandbox(results[1].apart) as apart:
        assert printed(apart.run("cat mine", after="discard")) == "mine\n"
