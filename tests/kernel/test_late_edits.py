# SPDX-License-Identifier: Apache-2.0
"""An edit of a version that leaves the live tree reaches the live file or is named, on a loaded machine as well."""

import errno
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.late_scenes import SCENES, THEIRS, Scene, killed, swapped_back, swapped_back_beside_others
from tests.kernel.race_editor import SLOW, STYLES, Editor
from tests.kernel.race_operation import Bench, Opening, around_renames, asked_last, named, ready
from tests.support import MOUNTS, Ground
from unspill.apply import operate, perform, recover
from unspill.apply.perform import keep_edits, sync_done
from unspill.apply.steps import OpenDirs
from unspill.cli.output import outcome_lines
from unspill.host.dirfd import has_writers
from unspill.layers.trees import remove_tree
from unspill.model.operation import Operation, OperationId
from unspill.model.policy import DAY_NS
from unspill.sandbox.upkeep import prune
from unspill.store.db import Store

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

OTHER_FILESYSTEM = MOUNTS / "xfs/work"


@pytest.fixture(params=["here", "on another filesystem"])
def project(ground: Ground, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where the project is; elsewhere than the state directory copies change hands."""
    made = ground.project / "inner" if request.param == "here" else OTHER_FILESYSTEM / f"late-edits-{os.getpid()}"
    yield made
    remove_tree(os.fsencode(made))


@pytest.fixture
def scene(ground: Ground, project: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    project.mkdir()
    return Scene(replace(ground, project=project), monkeypatch)


@pytest.fixture
def bench(tmp_path: Path, project: Path) -> Bench:
    return Bench(tmp_path, project)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("play", SCENES, ids=lambda play: play.__name__)
def test_an_edit_of_what_left_the_live_tree_is_in_a_file_that_the_record_names(
    scene: Scene, play: Callable[[Scene], Operation]
) -> None:
    operation = play(scene)
    live = scene.file.read_bytes() if scene.file.exists() else b""
    assert THEIRS not in live
    assert THEIRS in named(operation.notes, "file"), operation
    recorded = scene.sandbox.operations()[0]
    assert recorded.notes == operation.notes
    assert list(scene.file.parent.glob(".unspill-*")) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("play", SCENES, ids=lambda play: play.__name__)
def test_without_the_last_look_nobody_is_told_where_the_edit_is(
    scene: Scene, play: Callable[[Scene], Operation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm."""
    for module in (operate, recover):
        monkeypatch.setattr(module, "keep_edits", lambda *_: ())
    operation = play(scene)
    assert not scene.file.exists() or THEIRS not in scene.file.read_bytes()
    assert named(operation.notes, "file") == b""
    assert not operation.left or all("kept" not in left.reason for left in operation.left)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("play", [swapped_back, swapped_back_beside_others], ids=lambda play: play.__name__)
def test_the_command_s_version_with_the_edit_in_it_stays_held(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, play: Callable[[Scene], Operation]
) -> None:
    scene = Scene(ground, monkeypatch)
    operation = play(scene)
    assert [(left.path, left.why) for left in operation.left] == [(b"file", "conflict")]
    assert scene.file.read_bytes() == b"base\nearlier\n"
    assert [change.path for change in scene.sandbox.changes()] == [b"file"]
    assert scene.sandbox.run("cat file", after="hold").stdout.kept() == b"ours\ntheirs\n"
    scene.sandbox.discard()
    assert THEIRS in named(operation.notes, "file")


@pytest.mark.timeout(300)
def test_what_is_written_later_still_is_in_the_file_that_the_record_names(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that opened ours while it was live, unseen, and keeps it open for minutes."""
    scene = Scene(ground, monkeypatch)
    around_renames(monkeypatch, {1: scene.append}, {1: scene.open_now})
    opened: list[int] = []
    monkeypatch.setattr(operate, "wait_for_opens", lambda: opened.append(scene.opening.open()))
    operation = scene.apply()
    assert "a program had it open" in operation.notes[0]
    os.write(opened[0], THEIRS)
    os.close(opened[0])
    assert named(operation.notes, "file") == b"ours\ntheirs\n"


@pytest.mark.timeout(300)
def test_a_group_that_is_taken_back_leaves_no_edit_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Opening()
    first, second = bench.renew("first"), bench.renew("second")
    # The second of the group was saved right before its rename, so the first goes back as well
    around_renames(monkeypatch, {2: lambda: second.write_text("saved\n")}, {1: lambda: opening.begin(first)})
    monkeypatch.setattr(operate, "wait_for_opens", lambda: opening.finish(THEIRS))
    operation = bench.operate({"first": "modified", "second": "modified"}, in_one_group=True)
    assert (first.read_text(), second.read_text()) == ("base\n", "saved\n")
    assert named(operation.notes, "first") == b"ours\ntheirs\n"


@pytest.mark.timeout(300)
def test_both_versions_that_somebody_saved_are_found(scene: Scene) -> None:
    """The live file is saved before the first rename, and ours after it: the newest is live, the other one named."""
    around_renames(scene.monkeypatch, {1: scene.append}, {1: scene.append})
    operation = scene.apply()
    assert [left.path for left in operation.left] == [b"file"]
    assert scene.file.read_bytes() == b"ours\nearlier\n"
    assert named(operation.notes, "file") == b"base\nearlier\n"


@pytest.mark.timeout(300)
def test_the_summary_of_a_run_names_the_file(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(ground, monkeypatch)
    around_renames(monkeypatch, {1: scene.append}, {1: scene.open_now})
    scene.end_open_when(operate, "wait_for_opens")
    result = scene.sandbox.run("echo ours > file", after="apply")
    lines = outcome_lines(result, scene.sandbox)
    assert named([line.strip() for line in lines], "file") == b"ours\ntheirs\n"


@pytest.mark.timeout(300)
def test_what_can_t_be_kept_is_said(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(perform, "make_kept", refuse)
    operation = swapped_back(scene)
    said = "file: you edited it while unspill was changing it; that version could not be kept: "
    assert operation.notes == (said + "the filesystem does not allow it",)


@pytest.mark.timeout(300)
def test_a_deleted_file_that_was_saved_and_made_anew_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    file = bench.renew("file")
    around_renames(monkeypatch, {1: lambda: file.write_text("saved\n")}, {1: lambda: file.write_text("anew\n")})
    operation = bench.operate({"file": "deleted"})
    assert file.read_text() == "anew\n"
    assert named(operation.notes, "file") == b"saved\n"


@pytest.mark.timeout(300)
def test_a_file_made_in_a_directory_on_its_way_out_is_found(scene: Scene) -> None:
    """What somebody makes in a directory after the rename, and after the look that would have put it back."""
    (scene.file.parent / "empty").mkdir()
    fd = os.open(scene.file.parent / "empty", os.O_PATH | os.O_DIRECTORY)

    def make_late(*arguments: object, **options: object) -> None:
        os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
        sync_done(*arguments, **options)  # type: ignore[arg-type]

    scene.monkeypatch.setattr(operate, "sync_done", make_late)
    operation = scene.apply("rmdir empty")
    os.close(fd)
    (note,) = operation.notes
    assert note.startswith("empty: you edited it")
    assert os.listdir(note.rpartition(" ")[2]) == ["made"]


@pytest.mark.timeout(300)
def test_a_rollback_that_died_has_named_the_displaced_version_when_it_is_done(scene: Scene) -> None:
    """Killed between moving the person's version out of the layer and recording where it is."""
    assert scene.sandbox.run("echo ours > file", after="hold").ok
    killed(scene.ground)
    scene.append()

    def fail(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with scene.monkeypatch.context() as patched:
        patched.setattr(recover, "sync_done", fail)
        with pytest.raises(KeyboardInterrupt):
            scene.ground.sandbox("another")
    operation = scene.ground.sandbox("another").recovered[0]
    assert scene.file.read_bytes() == b"ours\nearlier\n"
    assert [left.path for left in operation.left] == [b"file"]
    assert named(operation.notes, "file") == b"base\n"


@pytest.mark.timeout(300)
def test_an_undo_leaves_what_a_program_has_open(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(ground, monkeypatch)
    scene.apply()
    with scene.file.open("ab") as opened:
        operation = scene.sandbox.undo()
        opened.write(THEIRS)
    assert [left.reason for left in operation.left] == [perform.BEING_WRITTEN]
    assert scene.file.read_bytes() == b"ours\ntheirs\n"


@pytest.mark.timeout(300)
def test_what_is_kept_lasts_as_long_as_its_operation_is_remembered(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(ground, monkeypatch)
    operation = swapped_back(scene)
    store = Store.open(os.fsencode(ground.state))
    for days, is_there in ((29, True), (31, False)):
        prune(store, time.time_ns() + days * DAY_NS, days=30, budget=1 << 40)
        assert Path(operation.notes[0].rpartition(" ")[2]).exists() == is_there
    store.close()


class Asked:
    """Answers whether a file is being written, a moment late: by then the program has written and closed it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._fd = -1

    def open(self) -> None:
        self._fd = os.open(self._file, os.O_WRONLY | os.O_APPEND)

    def __call__(self, dir_fd: int, name: bytes) -> bool | None:
        if self._fd >= 0 and os.fstat(self._fd).st_ino == os.stat(name, dir_fd=dir_fd).st_ino:
            os.write(self._fd, THEIRS)
            os.close(self._fd)
            self._fd = -1
        return has_writers(dir_fd, name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_swapped_back", [False, True], ids=["displaced", "swapped back"])
@pytest.mark.parametrize("is_defended", [True, False], ids=["asked first", "asked last"])
def test_a_write_that_ends_while_the_kernel_is_asked_for_writers_reaches_the_live_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_swapped_back: bool, is_defended: bool
) -> None:
    """Where the kernel is asked last, the control arm, it lands in a version that is not live."""
    file, place = tmp_path / "live" / "file", tmp_path / "operations" / "place"
    file.parent.mkdir()
    place.parent.mkdir()
    step = ready(file, place, "modified")
    asked = Asked(file)
    if is_swapped_back:
        around_renames(monkeypatch, {1: lambda: file.write_text("saved\n")}, {1: asked.open})
    else:
        around_renames(monkeypatch, {1: asked.open}, {})
    monkeypatch.setattr(perform, "has_writers", asked)
    if not is_defended:
        monkeypatch.setattr(perform, "misfit", partial(asked_last, asked))
    with OpenDirs(os.fsencode(tmp_path)) as sites:
        sites.open_roots([os.fsencode(file.parent)])
        perform.perform(sites, [step])
    assert (THEIRS in file.read_bytes()) == is_defended


BUSY = 4
BURST = 40
KINDS = ("modified", "deleted")
FILES = {f"{style}-{kind}".replace(" ", "-"): (style, kind) for style in STYLES for kind in KINDS}
# What is lost most easily
APPENDED = {f"append-{number}": ("append", "modified") for number in range(6)}


@contextmanager
def load(count: int) -> Iterator[None]:
    """Keep the processors busy."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


class Race:
    """Operations on six files while each has an editor; and what became of the edits."""

    def __init__(self, bench: Bench, files: dict[str, tuple[str, str]], editors: dict[str, Editor]) -> None:
        self._bench = bench
        self._files = files
        self._editors = editors
        self._chance = random.Random(13)
        self._usual_us = 20_000
        self.count: Counter[str] = Counter()
        self.lost: list[str] = []

    def run(self, edits: int) -> None:
        while self.count["edits"] < edits:
            for name in self._files:
                self._bench.renew(name)
            operation = self._bench.operate({name: kind for name, (_, kind) in self._files.items()}, begin=self._begin)
            self._usual_us = (self._usual_us + round((time.perf_counter() - self._begun) * 1e6)) // 2
            saved = {name: editor.wait() for name, editor in self._editors.items()}
            self.count["operations"] += 1
            for name, texts in saved.items():
                self._judge(operation, name, texts)

    def _begin(self) -> None:
        self._begun = time.perf_counter()
        for name, (style, _) in self._files.items():
            delay_us = self._chance.randrange(self._usual_us)
            pause_us = self._chance.choice((0, 0, 0, 30))
            self._editors[name].begin(style, self._chance.randint(1, BURST), delay_us, pause_us)

    def _judge(self, operation: Operation, name: str, saved: list[bytes]) -> None:
        """Look for everything that was saved and not saved over: in the live file, or in a file that is named."""
        file = self._bench.project / name
        live = file.read_bytes() if file.exists() else b""
        apart = named(operation.notes, name)
        is_left = any(left.path == name.encode() for left in operation.left)
        self.count["edits"] += len(saved)
        self.count["conflicts"] += is_left
        self.count["done"] += not is_left
        for text in saved if self._files[name][0] == "append" else saved[-1:]:
            if text not in live:
                self.count["named"] += 1
                if text not in apart:
                    self.lost.append(f"{name}: {text!r} of {saved}, live {live!r}, kept {apart!r}, {operation.left}")


def raced(base: Path, edits: int, files: dict[str, tuple[str, str]], *, until_lost: bool = False) -> Race:
    """Race for so many edits, or on until one is lost."""
    bench = Bench(base)
    with load(BUSY), ExitStack() as stack:
        race = Race(bench, files, {name: stack.enter_context(Editor(bench.project / name)) for name in files})
        race.run(edits)
        while until_lost and not race.lost and race.count["edits"] < 200_000:
            race.run(race.count["edits"] + 1_000)
    return race


@pytest.mark.timeout(3600)
def test_no_edit_is_lost_on_a_loaded_machine(tmp_path: Path, full: bool) -> None:
    """The time buys 6,000 edits among busy processes, and 500,000 with `--full`: the race is rare."""
    race = raced(tmp_path, 500_000 if full else 6_000, FILES)
    count = race.count
    assert race.lost == []
    assert count["conflicts"]
    assert count["done"]
    note = f"around {count['operations']} operations on 6 files ({count['done']} renames stayed, "
    note += f"{count['conflicts']} conflicts), {count['named']} edits in files that the record names; "
    note += f"{BUSY} busy processes and 6 editors on {os.cpu_count()} processors"
    record_figure("edits on a loaded machine", f"0 of {count['edits']} lost", note)


@pytest.mark.timeout(3600)
def test_without_the_defences_edits_are_lost_on_a_loaded_machine(
    tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm: the kernel is asked last, and nobody looks once more."""
    monkeypatch.setattr(perform, "misfit", partial(asked_last, has_writers))
    monkeypatch.setattr(operate, "keep_edits", lambda *_: ())
    race = raced(tmp_path, 50_000 if full else 1_000, APPENDED, until_lost=True)
    assert race.lost
    record_figure(
        "edits on a loaded machine, without the defences",
        f"{len(race.lost)} of {race.count['edits']} lost from view",
        "the control arm, appended to: writers are asked for last, and there is no last look",
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ["asked first", "asked last"])
def test_edits_are_lost_in_a_forced_race_only_where_the_kernel_is_asked_last(
    tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """The race that was lost once: a program has written and closed the file while the kernel is asked for writers."""

    def asked(dir_fd: int, name: bytes) -> bool | None:
        time.sleep(0.002)
        return has_writers(dir_fd, name)

    is_control = order == "asked last"
    monkeypatch.setattr(perform, "has_writers", asked)
    if is_control:
        monkeypatch.setattr(perform, "misfit", partial(asked_last, asked))
    chance = random.Random(order)
    file, place = tmp_path / "live" / "file", tmp_path / "operations" / "place"
    file.parent.mkdir()
    place.parent.mkdir()
    edits = lost = 0
    with Editor(file) as editor, OpenDirs(os.fsencode(tmp_path)) as dirs:
        dirs.open_roots([os.fsencode(file.parent)])
        # A busy machine may need more tries until the two meet
        while edits < (1000 if full else 200) or (is_control and not lost and edits < 20_000):
            step = ready(file, place, "modified")
            editor.begin(SLOW, 2, 0, 0)
            time.sleep(chance.random() * 0.001)
            done, _ = perform.perform(dirs, [step])
            saved = editor.wait()
            edits += len(saved)
            notes = () if is_control else keep_edits(dirs, OperationId("operation"), [step], done, [0])
            lost += sum(text not in file.read_bytes() + named(notes, "file") for text in saved)
    assert bool(lost) == is_control
    note = (
        "the control arm"
        if is_control
        else "a program writes and closes the file while the kernel is asked for writers"
    )
    record_figure(f"edits in a forced race, writers {order}", f"{lost} of {edits} lost", note)
