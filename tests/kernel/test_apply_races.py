# SPDX-License-Identifier: Apache-2.0
"""Applying while others write, swap, link, mount or apply: nobody's edit is lost, and nothing outside is touched."""

import fcntl
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel import race_mounts
from tests.kernel.laying import lay
from tests.kernel.race_editor import STYLES, Editor
from tests.kernel.race_operation import named, ready
from tests.kernel.race_swapper import Swapper
from tests.support import Ground, chosen_view, locked_by_a_stranger
from unspill import Policy, Sandbox
from unspill.apply import operate, perform
from unspill.apply.perform import keep_edits
from unspill.apply.recover import settle_mark
from unspill.apply.steps import OpenDirs
from unspill.host import dirfd
from unspill.layers.locks import RootLocks
from unspill.model.change import Selection
from unspill.model.operation import Operation, OperationId

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1800)]

BURST = 10
COMMANDS = {"modified": "echo ours > file", "deleted": "rm file"}


@dataclass
class Tally:
    """What became of the edits."""

    edits: int = 0
    applied: int = 0
    conflicts: int = 0
    named: int = 0
    merged: int = 0
    lost: list[str] = field(default_factory=list)


def race(ground: Ground, tally: Tally, styles: tuple[str, ...], kind: str, edits: int) -> None:
    """Let an editor save the file while a change of it is applied, until it has been saved so often."""
    chance = random.Random(f"{styles}{kind}")
    file, sandbox = ground.write("file", "base\n"), ground.sandbox()
    usual_us = 5000
    with Editor(file) as editor:
        while edits > 0:
            file.write_text("base\n")
            assert sandbox.run(COMMANDS[kind], after="hold").ok
            style, count = chance.choice(styles), chance.randint(1, BURST)
            editor.begin(style, count, chance.randrange(2 * usual_us), chance.choice((0, 0, 50, 500)))
            begun = time.perf_counter()
            operation = sandbox.apply()
            usual_us = (usual_us + round((time.perf_counter() - begun) * 1e6)) // 2
            saved = editor.wait()
            edits -= count
            judge(ground, tally, style, saved, operation)
            sandbox.discard()


def judge(ground: Ground, tally: Tally, style: str, saved: list[bytes], operation: Operation) -> None:
    """Look for everything that was saved and not saved over: in the live file, or in a file that the record names."""
    live = (ground.project / "file").read_bytes() if (ground.project / "file").exists() else b""
    is_reported = any(left.path == b"file" and left.why == "conflict" for left in operation.left)
    tally.edits += len(saved)
    tally.applied += bool(operation.changed) and not is_reported
    tally.conflicts += is_reported
    for text in saved if style == "append" else saved[-1:]:
        if text in live:
            continue
        if text in named(operation.notes, "file"):
            tally.named += 1
        else:
            tally.lost.append(f"{style}: {text!r} of {len(saved)}, live {live!r}, {operation.left}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("style", STYLES)
def test_no_edit_made_during_an_apply_is_lost(ground: Ground, full: bool, style: str, kind: str) -> None:
    """The time buys at least a hundred edits, and more until some fall into an apply."""
    tally = Tally()
    race(ground, tally, (style,), kind, 1100 if full else 100)
    # Whether an edit falls into an apply at all is chance, and on a busy machine it may take a while
    while not tally.conflicts and tally.edits < 2000:
        race(ground, tally, (style,), kind, 100)
    assert tally.lost == []
    assert tally.conflicts
    if full:
        value = f"0 of {tally.edits} lost"
        note = (
            f"{tally.applied} applied, {tally.conflicts} conflicts, {tally.named} edits in files that the record names"
        )
        record_figure(f"edits during an apply: {style}, {kind}", value, note)


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("style", STYLES)
def test_no_edit_made_around_the_rename_is_lost(tmp_path: Path, full: bool, style: str, kind: str) -> None:
    """The steps alone, thousands of times: an apply is mostly busy with other things than the rename."""
    chance = random.Random(f"{style}{kind}")
    file, place = tmp_path / "live" / "file", tmp_path / "operations" / "place"
    file.parent.mkdir()
    place.parent.mkdir()
    edits = done = kept_apart = 0
    lost: list[str] = []
    with Editor(file) as editor, OpenDirs(os.fsencode(tmp_path)) as dirs:
        dirs.open_roots([os.fsencode(file.parent)])
        while edits < (6000 if full else 600):
            step = ready(file, place, kind)
            editor.begin(style, chance.randint(1, BURST), 0, chance.choice((0, 0, 0, 30)))
            # When the first edits come: as long as a process takes to wake up
            time.sleep(chance.random() * 0.0004)
            performed, left = perform.perform(dirs, [step])
            saved = editor.wait()
            edits += len(saved)
            done += not left
            live = file.read_bytes() if file.exists() else b""
            # By now the editor has closed whatever it had open, so the last look sees all of it
            apart = named(keep_edits(dirs, OperationId("operation"), [step], performed, [0]), "file")
            for text in saved if style == "append" else saved[-1:]:
                if text not in live:
                    kept_apart += 1
                    if text not in apart:
                        lost.append(f"{text!r} of {saved}, live {live!r}, kept {apart!r}, {left}")
    assert lost == []
    if full:
        note = f"{done} renames stayed, {kept_apart} edits in files that the record names"
        record_figure(f"edits around a rename: {style}, {kind}", f"0 of {edits} lost", note)


NUMBERS = "".join(f"{number}\n" for number in range(1, 41))
MINE = NUMBERS.replace("\n30\n", "\nmine\n")


def race_merging(ground: Ground, tally: Tally, style: str, edits: int) -> None:
    """Let an editor go on saving a text while what it saved before is merged with what a run made of it."""
    chance = random.Random(style)
    file, sandbox = ground.write("file", NUMBERS), ground.sandbox()
    usual_us = 5000
    with Editor(file) as editor:
        while edits > 0:
            file.write_text(NUMBERS)
            assert sandbox.run("sed -i 's/^5$/ours/' file", after="hold").ok
            file.write_text(MINE)
            count = chance.randint(1, BURST)
            # Some begin when nothing is applied any more
            editor.begin(style, count, chance.randrange(3 * usual_us), chance.choice((0, 0, 50, 500)))
            begun = time.perf_counter()
            operation = sandbox.apply()
            usual_us = (usual_us + round((time.perf_counter() - begun) * 1e6)) // 2
            saved = editor.wait()
            edits -= count
            # All but what is added to the end replaces the whole text, the earlier edit with it
            judge(ground, tally, style, saved, operation)
            live = file.read_bytes()
            if style == "append" and b"\nmine\n" not in live:
                tally.lost.append(f"the edit before the apply, live {live!r}")
            tally.merged += b"\nours\n" in live and b"\nmine\n" in live
            sandbox.discard()


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_no_edit_made_during_a_merge_is_lost(ground: Ground, full: bool, style: str) -> None:
    """The time buys at least a hundred edits, and more until some fall into an apply."""
    tally = Tally()
    race_merging(ground, tally, style, 1100 if full else 100)
    # A text that replaces the whole file has nothing in it that was merged before
    is_merging = style == "append"
    while not (tally.conflicts and (tally.merged or not is_merging)) and tally.edits < 2000:
        race_merging(ground, tally, style, 100)
    assert tally.lost == []
    assert tally.conflicts
    assert bool(tally.merged) == is_merging
    if full:
        note = f"{tally.merged} merged, {tally.conflicts} conflicts, {tally.named} edits in files that the record names"
        record_figure(f"edits during a merge: {style}", f"0 of {tally.edits} lost", note)


def naive_apply(file: Path, text: str) -> None:
    """Look whether a file is as it was, then replace it."""
    new = file.with_name("new")
    new.write_text(text)
    if file.read_text() == "base\n":
        new.rename(file)


@pytest.mark.slow
def test_check_then_rename_loses_edits(tmp_path: Path, full: bool) -> None:
    """The control arm."""
    chance = random.Random(1)
    file = tmp_path / "file"
    file.write_text("base\n")
    lost = edits = 0
    with Editor(file) as editor:
        # It takes longer on a busy machine until one falls between look and rename
        while edits < (6000 if full else 2000) or (not lost and edits < 40_000):
            file.write_text("base\n")
            editor.begin("append", BURST, 0, 0)
            for _ in range(chance.randrange(1, 40)):
                naive_apply(file, "base\n")
            saved = editor.wait()
            edits += len(saved)
            lost += sum(text not in file.read_bytes() for text in saved)
    assert lost
    if full:
        record_figure("edits during check-then-rename", f"{lost} of {edits} lost", "the control arm")


@pytest.mark.slow
def test_a_file_that_somebody_has_open_for_writing_is_left_and_named(ground: Ground) -> None:
    file = ground.write("file", "base\n")
    sandbox = ground.sandbox()
    sandbox.run("echo ours > file", after="hold")
    with file.open("a") as opened:
        operation = sandbox.apply()
        opened.write("theirs\n")
    assert [(left.path, left.reason) for left in operation.left] == [(b"file", perform.BEING_WRITTEN)]
    assert file.read_text() == "base\ntheirs\n"
    assert [change.path for change in sandbox.changes()] == [b"file"]


@pytest.mark.slow
def test_a_reader_keeps_nothing_from_being_applied(ground: Ground) -> None:
    file = ground.write("file", "base\n")
    sandbox = ground.sandbox()
    sandbox.run("echo ours > file", after="hold")
    with file.open() as opened:
        assert sandbox.apply().left == ()
        assert opened.read() == "base\n"
    assert file.read_text() == "ours\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_late_write_is_noticed_before_the_end_even_where_leases_tell_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The kernel's answer about writers is taken away: other users' files and some filesystems have none."""
    monkeypatch.setattr(perform, "has_writers", lambda *_: None)
    file = ground.write("file", "base\n")
    sandbox = ground.sandbox()
    sandbox.run(COMMANDS[kind], after="hold")
    with file.open("a", buffering=1) as opened:

        def write_late(*arguments: object) -> int:
            opened.write("theirs\n")
            return settle_mark(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(operate, "settle_mark", write_late)
        operation = sandbox.apply()
    assert [(left.path, left.why) for left in operation.left] == [(b"file", "conflict")]
    assert file.read_text() == "base\ntheirs\n"


@pytest.mark.slow
def test_where_nobody_asks_for_writers_a_late_write_is_lost_from_view(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm."""
    monkeypatch.setattr(perform, "has_writers", lambda *_: False)
    file = ground.write("file", "base\n")
    sandbox = ground.sandbox()
    sandbox.run("echo ours > file", after="hold")
    with file.open("a") as opened:
        operation = sandbox.apply()
        opened.write("theirs\n")
    assert operation.left == ()
    assert file.read_text() == "ours\n"


@pytest.mark.slow
@pytest.mark.parametrize("style", ["rename over", "truncate and write"])
@pytest.mark.parametrize("kind", COMMANDS)
def test_an_edit_that_was_displaced_when_the_process_died_is_back_after_the_next_start(
    ground: Ground, style: str, kind: str
) -> None:
    """Killed between the rename and the look at what came out of it, which is not what was expected."""
    file = ground.write("file", "base\n")
    assert ground.run(COMMANDS[kind], after="hold").ok
    program = [sys.executable, "-c", KILLED, os.fspath(ground.project), os.fsdecode(ground.bwrap), style]
    done = subprocess.run(program, cwd=Path(__file__).parents[2], capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not file.exists() or file.read_text() == "ours\n"
    sandbox = ground.sandbox("another")
    assert file.read_text() == "<edit 1>\n"
    assert sandbox.operations()[0].ending == "rolled back"
    assert len(ground.sandbox().changes()) == 1


KILLED = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
from tests.kernel.race_editor import edit
from unspill import Policy, Sandbox
from unspill.apply import perform
rename = perform.renameat2

def renameat2(*arguments):
    edit(sys.argv[1] + "/file", sys.argv[3], b"<edit 1>\\n")
    rename(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

perform.renameat2 = renameat2
Sandbox(sys.argv[1], policy=Policy(bwrap=os.fsencode(sys.argv[2]))).apply()
"""


WAYS = ("openat2", "stepwise, openat2 taken away")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of opening what lies beneath a root."""
    if request.param != "openat2":
        monkeypatch.setattr(dirfd, "openat2", race_mounts.missing)
    return str(request.param)


def make_canary(ground: Ground) -> Path:
    """Make a directory outside that looks like the one that is changed."""
    outside = ground.top / "outside"
    (outside / "e").mkdir(parents=True)
    for name in ("f", "gone", "e/f"):
        (outside / name).write_text("canary\n")
    return outside


def contents(top: Path) -> dict[str, str]:
    """Return every file below a directory."""
    return {os.fspath(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}


def fill(directory: Path) -> None:
    (directory / "e").mkdir(parents=True, exist_ok=True)
    for name in ("f", "gone", "e/f"):
        (directory / name).write_text("base\n")
    (directory / "new").unlink(missing_ok=True)


CHANGE_BELOW = "echo ours > d/f; echo ours > d/e/f; echo ours > d/new; rm d/gone"


@pytest.mark.slow
def test_no_apply_gets_out_while_a_directory_is_swapped_for_a_link(ground: Ground, full: bool, way: str) -> None:
    """The time buys 5,000 swaps while applies go on, and 100,000 with `--full`."""
    outside, directory, link = make_canary(ground), ground.project / "d", ground.project / "link"
    before, wanted, at_least = contents(outside), 100_000 if full else 5_000, 100 if full else 20
    link.symlink_to(outside)
    sandbox = ground.sandbox()
    applies = succeeded = changed = 0
    fill(directory)
    with Swapper(directory, link) as swapper:
        while swapper.swaps < wanted or applies < at_least:
            fill(directory)
            assert sandbox.run(CHANGE_BELOW, after="hold").ok
            changes = sandbox.changes()
            swapper.start()
            operation = sandbox.apply(reviewed=changes)
            if operation.number and applies % 3 == 0:
                sandbox.undo()
            swapper.stop()
            applies += 1
            succeeded += bool(operation.changed)
            changed += operation.changed
            assert contents(outside) == before
            sandbox.discard()
    assert succeeded
    if full:
        note = f"of {applies} applies {succeeded} changed {changed} entries while a directory and a link are exchanged"
        record_figure(f"path swaps during applies, {way}", f"{swapper.swaps} swaps: 0 escapes", note)


@pytest.mark.slow
def test_applying_by_path_gets_out_while_a_directory_is_swapped_for_a_link(ground: Ground) -> None:
    """The control arm."""
    outside, directory, link = make_canary(ground), ground.project / "d", ground.project / "link"
    before = contents(outside)
    link.symlink_to(outside)
    fill(directory)
    with Swapper(directory, link) as swapper:
        swapper.start()
        for attempt in range(100_000):
            (ground.project / "theirs").write_text("ours\n")
            if not directory.is_symlink():
                (ground.project / "theirs").rename(directory / "f")
            if attempt % 100 == 0 and contents(outside) != before:
                break
        swapper.stop()
    assert contents(outside) != before


@dataclass(frozen=True)
class Trick:
    """A change that is held, and what happens to the live tree before it is applied."""

    hold: str
    meanwhile: Callable[[Ground, Path], None]
    prepare: Callable[[Ground, Path], None] = lambda _ground, _outside: None


def swap_for_link(name: str) -> Callable[[Ground, Path], None]:
    """Return what moves a directory away and puts a link out there."""

    def swap(ground: Ground, outside: Path) -> None:
        (ground.project / name).rename(ground.project / "moved")
        (ground.project / name).symlink_to(outside if name == "d" else outside / "e")

    return swap


def install_link(ground: Ground, outside: Path) -> None:
    """Let another sandbox replace the directory by a link within the project, which then leads out."""
    other = ground.sandbox("other")
    other.run("mv d inner && ln -s inner d", after="hold")
    assert not [left for left in other.apply().left if left.path == b"d"]
    (ground.project / "inner").rename(ground.project / "moved")
    (ground.project / "inner").symlink_to(outside)


def consented_link(ground: Ground, outside: Path) -> None:
    """Apply a link that leads out, as a person may."""
    ground.sandbox().run(["ln", "-s", os.fspath(outside), "way"], after="hold")
    assert ground.sandbox().apply(Selection(included=(b"way",))).changed == 1


def nothing(_ground: Ground, _outside: Path) -> None:
    return


TRICKS = {
    "the directory is swapped for a link after the review": Trick(CHANGE_BELOW, swap_for_link("d")),
    "a directory further down is swapped for a link": Trick(CHANGE_BELOW, swap_for_link("d/e")),
    "another apply puts an innocent link there": Trick(CHANGE_BELOW, install_link),
    "a link that leads out becomes a directory": Trick(
        "rm way && mkdir -p way/e && echo ours > way/f && echo ours > way/e/f", nothing, consented_link
    ),
    "what is below a link is deleted": Trick("rm way && mkdir way && rm -rf way && rm -rf d", nothing, consented_link),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRICKS)
def test_nothing_is_written_through_a_link_in_two_steps(ground: Ground, way: str, name: str) -> None:
    trick, outside = TRICKS[name], make_canary(ground)
    before = contents(outside)
    sandbox = hold(ground, trick, outside)
    changes = sandbox.changes()
    trick.meanwhile(ground, outside)
    sandbox.apply(reviewed=changes)
    assert contents(outside) == before
    assert not (outside / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TRICKS)[:3])
def test_changes_laid_by_path_are_written_through_a_link(ground: Ground, name: str) -> None:
    """The control arm."""
    trick, outside = TRICKS[name], make_canary(ground)
    before = contents(outside)
    changes = hold(ground, trick, outside).changes()
    trick.meanwhile(ground, outside)
    lay(changes, ground.project)
    assert contents(outside) != before


def hold(ground: Ground, trick: Trick, outside: Path) -> Sandbox:
    """Hold a trick's change."""
    fill(ground.project / "d")
    trick.prepare(ground, outside)
    sandbox = ground.sandbox()
    assert sandbox.run(trick.hold, after="hold").ok
    return sandbox


@pytest.mark.slow
@pytest.mark.parametrize("way_in", ["openat2", "stepwise"])
@pytest.mark.parametrize("source", ["", "other"])
@pytest.mark.parametrize("command", ["echo ours > d/e/f", "echo ours > d/e/new", "rm d/e/f", "rm -r d"])
def test_a_mount_inside_the_project_is_not_entered(ground: Ground, command: str, source: str, way_in: str) -> None:
    """A filesystem of its own, or another directory of the same one, in namespaces of an ordinary user."""
    fill(ground.project / "d")
    ground.write("other/f", "mounted\n")
    assert ground.run(command, after="hold").ok
    point, refused = ground.project / "d" / "e", command.rpartition(" ")[2]
    mounted = os.fspath(ground.project / source) if source else ""
    words: list[str | Path] = [ground.project, point, mounted, way_in, os.fsdecode(ground.bwrap)]
    program: list[str | Path] = [sys.executable, race_mounts.__file__, *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["seen"] == {"f": "mounted\n"}
    # Over the mount of another filesystem the layer seems to have changed the mode of the directory too
    assert {path: why for path, (why, _) in told["left"].items() if path != "d/e"} == {refused: "refused"}
    assert told["changed"] == 0
    assert (point / "f").read_text() == "base\n"
    assert (ground.project / "other" / "f").read_text() == "mounted\n"


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
                case ("be", "another user"):
                    # Whose locks are not ours
                    RootLocks.acquire = lambda *_: None  # type: ignore[method-assign]
                    pipe.send(None)


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


def contents_of(project: Path) -> dict[str, str]:
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
    assert contents_of(ground.project) == expected
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
        assert contents_of(ground.project) == before
    assert conflicts > count / 2
    record_figure(
        "parallel applies", "0 mixed, 0 overwritten", f"{count} interleavings of two processes, {conflicts} conflicts"
    )


def test_without_a_lock_between_them_as_for_two_users_nothing_is_overwritten(
    ground: Ground, workers: list[Worker]
) -> None:
    """Each step is checked, so a path is of one of them and the other is told; which one may differ from path to path.

    It takes some rounds until both are at it at the same time.
    """
    for worker in workers:
        worker.ask("be", "another user")
    for number in range(10):
        chance = random.Random(number)
        before = lay_out(ground, number)
        touched = prepare(workers, chance)
        told = apply_at_once(workers, chance)
        found = contents_of(ground.project)
        for path in SHARED:
            changed = [name for name in NAMES if path in touched[name]]
            applied = [name for name in changed if path not in told[name][2]]
            assert len(applied) == (1 if changed else 0), (path, told)
            assert found[path] == (applied[0] if applied else before[path])
        assert {found[f"both/{name}"] + found[f"own-{name}/file"] for name in NAMES} == {"oneone", "twotwo"}
        for worker in workers:
            worker.ask("discard")


def test_what_another_sandbox_applied_is_a_conflict_until_ours_shall_win(ground: Ground) -> None:
    ground.write("file", "before")
    one, two = ground.sandbox("one"), ground.sandbox("two")
    for sandbox in (one, two):
        sandbox.run(f"printf %s {sandbox.name} > file; printf %s {sandbox.name} > {sandbox.name}")
    assert one.apply().left == ()
    (left,) = two.apply().left
    assert (left.path, left.why) == (b"file", "conflict")
    assert contents_of(ground.project) == {"file": "one", "one": "one", "two": "two"}
    assert two.run("cat file").stdout.kept() == b"two"
    assert two.apply(Selection(paths=(b"file",), overwrite=(b"file",))).left == ()
    assert contents_of(ground.project) == {"file": "two", "one": "one", "two": "two"}


def test_without_marks_the_second_apply_overwrites_the_first(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is by the moment alone that another's work is told from what ours was made from."""
    ground.write("file", "before")
    one, two = ground.sandbox("one"), ground.sandbox("two")
    for sandbox in (one, two):
        sandbox.run(f"printf %s {sandbox.name} > file")
    one.apply()
    monkeypatch.setattr("unspill.apply.draft.Marks.of", lambda *_: 1 << 62)
    assert two.apply().left == ()
    assert contents_of(ground.project) == {"file": "two"}


def test_an_apply_waits_for_a_process_of_the_same_user_that_locks_the_project(
    ground: Ground, workers: list[Worker]
) -> None:
    """As earlier versions of unspill lock it."""
    worker = workers[0]
    assert worker.ask("run", "echo new > file")
    fd = os.open(ground.project, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        worker.begin("apply", 0.0)
        assert not worker.is_ready(0.3)
        assert contents_of(ground.project) == {}
    finally:
        os.close(fd)
    number, ending, left = worker.answer()
    assert (number, ending, left) == (1, "done", {})
    assert contents_of(ground.project) == {"file": "new\n"}


def test_an_apply_does_not_wait_for_somebody_else_who_locks_the_project(ground: Ground, workers: list[Worker]) -> None:
    """The control is the test above: the lock of a process of the same user."""
    assert workers[0].ask("run", "echo new > file")
    with locked_by_a_stranger(ground.project):
        workers[0].begin("apply", 0.0)
        assert workers[0].is_ready(20)
        assert workers[0].answer() == (1, "done", {})
    assert contents_of(ground.project) == {"file": "new\n"}


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
