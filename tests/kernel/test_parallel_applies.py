# SPDX-License-Identifier: Apache-2.0
"""Two sandboxes over one project, in two processes that apply at once: whoever is second finds conflicts.

`pytest --full -k parallel_applies` plays 200 interleavings. Nothing is ever mixed, nothing is overwritten unsaid, and
both operations can be taken back.
"""

import fcntl
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure
from tests.support import Ground, chosen_view
from unspill import Policy, Sandbox
from unspill.model.change import Selection

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1800)]

NAMES = ("one", "two")
SHARED = [f"shared{number}" for number in range(4)]
# What each does to the files that only it touches, and to those that both do.
SCRIPT = """
for file in {files}; do printf %s {name} > $file; done
for file in {taken}; do printf %s {name} > new; mv new $file; done
mkdir -p own-{name} both && printf %s {name} > own-{name}/file && printf %s {name} > both/{name}
rm -f gone-{name}
"""


def work(name: str, project: str, bwrap: bytes, pipe: Connection) -> None:
    """Hold what is asked for, then apply it at the very moment that is told."""
    with Sandbox(project, name=name, policy=Policy(bwrap=bwrap, after="hold", **chosen_view())) as sandbox:
        while (request := pipe.recv()) is not None:
            match request:
                case ("run", script):
                    pipe.send(sandbox.run(script).ok)
                case ("apply", moment):
                    while time.monotonic() < moment:
                        pass
                    operation = sandbox.apply()
                    left = {os.fsdecode(one.path): one.why for one in operation.left}
                    pipe.send((operation.number, operation.ending, left))
                case ("held", path):
                    changes = [change for change in sandbox.changes() if change.path == os.fsencode(path)]
                    pipe.send(sandbox.run(f"cat {path}").stdout.kept().decode() if changes else None)
                case ("discard",):
                    pipe.send(sandbox.discard())


class Worker:
    """One process with one sandbox."""

    def __init__(self, ground: Ground, name: str) -> None:
        self.name = name
        self._pipe, inner = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        arguments = (name, os.fspath(ground.project), ground.bwrap, inner)
        self._process = context.Process(target=work, args=arguments)
        self._process.start()
        inner.close()

    def begin(self, *request: object) -> None:
        self._pipe.send(request)

    def answer(self) -> Any:
        return self._pipe.recv()

    def ask(self, *request: object) -> Any:
        self.begin(*request)
        return self.answer()

    def is_ready(self, within_s: float) -> bool:
        return self._pipe.poll(within_s)

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(30)
        self._process.close()
        self._pipe.close()


@pytest.fixture
def workers(ground: Ground) -> Iterator[list[Worker]]:
    started = [Worker(ground, name) for name in NAMES]
    yield started
    for worker in started:
        worker.close()


def lay_out(ground: Ground, number: int) -> dict[str, str]:
    """Write the files that a round begins with; return all of them."""
    files = dict.fromkeys((*SHARED, *(f"gone-{name}" for name in NAMES)), f"before {number}")
    for path, content in files.items():
        ground.write(path, content)
    # Later than the last edit, as the filesystem's clock counts
    time.sleep(0.01)
    return files


def contents(project: Path) -> dict[str, str]:
    return {os.fspath(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file()}


def prepare(workers: list[Worker], chance: random.Random) -> dict[str, list[str]]:
    """Let both hold changes; return which shared files each has changed."""
    touched = {}
    for worker in workers:
        chosen = touched[worker.name] = chance.sample(SHARED, chance.randint(1, len(SHARED)))
        at = chance.randint(0, len(chosen))
        files, taken = " ".join(chosen[:at]), " ".join(chosen[at:])
        worker.begin("run", SCRIPT.format(name=worker.name, files=files, taken=taken))
    answers = [worker.answer() for worker in workers]
    assert all(answers)
    return touched


def apply_at_once(workers: list[Worker], chance: random.Random) -> dict[str, tuple[int, str, dict[str, str]]]:
    """Let both apply, up to some milliseconds apart."""
    moment = time.monotonic() + 0.005
    for worker in workers:
        worker.begin("apply", moment + chance.choice([0, 0, 0.001, 0.004, 0.008]) * chance.random())
    return {worker.name: worker.answer() for worker in workers}


def check(
    ground: Ground,
    workers: list[Worker],
    before: dict[str, str],
    touched: dict[str, list[str]],
    told: dict[str, tuple[int, str, dict[str, str]]],
) -> int:
    """Compare what is there with what both were told; return how many conflicts there were."""
    assert sorted(ending for _, ending, _ in told.values()) == ["done", "done"], told
    first, second = sorted(workers, key=lambda worker: told[worker.name][0])
    assert 0 < told[first.name][0] < told[second.name][0], told
    expected = {path: content for path, content in before.items() if not path.startswith("gone-")}
    for worker in (second, first):
        expected |= dict.fromkeys((f"own-{worker.name}/file", f"both/{worker.name}"), worker.name)
        expected |= dict.fromkeys(touched[worker.name], worker.name)
    conflicts = set(touched[first.name]) & set(touched[second.name])
    assert contents(ground.project) == expected
    assert told[first.name][2] == {}
    assert told[second.name][2] == dict.fromkeys(conflicts, "conflict")
    for path in conflicts:
        assert second.ask("held", path) == second.name
    assert os.listdir(ground.state / "pending") == []
    return len(conflicts)


def take_back(ground: Ground, told: dict[str, tuple[int, str, dict[str, str]]], chance: random.Random) -> None:
    """Undo both operations, in any order."""
    numbers = [number for number, _, _ in told.values()]
    chance.shuffle(numbers)
    for number in numbers:
        ground.sandbox().undo(number)
    # A directory that both have made belongs to the first, and can't go while the other's file is in it
    both = ground.project / "both"
    if both.is_dir():
        both.rmdir()


def test_parallel_applies_never_mix_and_never_overwrite(ground: Ground, workers: list[Worker], full: bool) -> None:
    count = 200 if full else 40
    conflicts = 0
    for number in range(count):
        chance = random.Random(number)
        before = lay_out(ground, number)
        touched = prepare(workers, chance)
        told = apply_at_once(workers, chance)
        conflicts += check(ground, workers, before, touched, told)
        take_back(ground, told, chance)
        # An undo of an apply holds the changes again
        for worker in workers:
            worker.ask("discard")
        assert contents(ground.project) == before
    assert conflicts > count / 2
    record_figure(
        "parallel applies", "0 mixed, 0 overwritten", f"{count} interleavings of two processes, {conflicts} conflicts"
    )


def test_what_another_sandbox_applied_is_a_conflict_until_ours_shall_win(ground: Ground) -> None:
    ground.write("file", "before")
    one, two = ground.sandbox("one"), ground.sandbox("two")
    for sandbox in (one, two):
        sandbox.run(f"printf %s {sandbox.name} > file; printf %s {sandbox.name} > {sandbox.name}")
    assert one.apply().left == ()
    (left,) = two.apply().left
    assert (left.path, left.why) == (b"file", "conflict")
    assert contents(ground.project) == {"file": "one", "one": "one", "two": "two"}
    assert two.run("cat file").stdout.kept() == b"two"
    assert two.apply(Selection(paths=(b"file",), overwrite=(b"file",))).left == ()
    assert contents(ground.project) == {"file": "two", "one": "one", "two": "two"}


def test_without_marks_the_second_apply_overwrites_the_first(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is by the moment alone that another's work is told from what ours was made from."""
    ground.write("file", "before")
    one, two = ground.sandbox("one"), ground.sandbox("two")
    for sandbox in (one, two):
        sandbox.run(f"printf %s {sandbox.name} > file")
    one.apply()
    monkeypatch.setattr("unspill.apply.draft.Marks.of", lambda *_: 1 << 62)
    assert two.apply().left == ()
    assert contents(ground.project) == {"file": "two"}


def test_an_apply_waits_for_the_lock_of_the_project_whoever_has_it(ground: Ground, workers: list[Worker]) -> None:
    worker = workers[0]
    assert worker.ask("run", "echo new > file")
    fd = os.open(ground.project, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        worker.begin("apply", 0.0)
        assert not worker.is_ready(0.3)
        assert contents(ground.project) == {}
    finally:
        os.close(fd)
    number, ending, left = worker.answer()
    assert (number, ending, left) == (1, "done", {})
    assert contents(ground.project) == {"file": "new\n"}


def test_a_project_that_another_path_leads_to_has_the_same_lock(ground: Ground, workers: list[Worker]) -> None:
    (ground.home / "alias").symlink_to(ground.project)
    fd = os.open(ground.home / "alias", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert workers[0].ask("run", "echo new > file")
        workers[0].begin("apply", 0.0)
        assert not workers[0].is_ready(0.2)
    finally:
        os.close(fd)
    assert workers[0].answer()[1] == "done"
