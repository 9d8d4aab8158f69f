# SPDX-License-Identifier: Apache-2.0
"""An edit of a version that leaves the live tree reaches the live file, or the operation's record names where it is.

An open that had found the file before the rename may end after every question to the kernel. Each case is shown once
more without the last look: there nobody is told where the edit is.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.kernel.late_scenes import SCENES, THEIRS, Scene, killed, swapped_back, swapped_back_beside_others
from tests.kernel.race_operation import Bench, Opening, around_renames, asked_last, named, ready
from tests.support import Ground
from unspill.apply import operate, perform, recover
from unspill.apply.perform import sync_done
from unspill.apply.steps import OpenDirs
from unspill.cli.output import outcome_lines
from unspill.host.dirfd import has_writers
from unspill.layers.trees import remove_tree
from unspill.model.operation import Operation
from unspill.model.policy import DAY_NS
from unspill.sandbox.upkeep import prune
from unspill.store.db import Store

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(300)]

OTHER_FILESYSTEM = Path("/opt/unspill-ci/fs/xfs/work")


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


def test_a_group_that_is_taken_back_leaves_no_edit_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Opening()
    first, second = bench.renew("first"), bench.renew("second")
    # The second of the group was saved right before its rename, so the first goes back as well
    around_renames(monkeypatch, {2: lambda: second.write_text("saved\n")}, {1: lambda: opening.begin(first)})
    monkeypatch.setattr(operate, "wait_for_opens", lambda: opening.finish(THEIRS))
    operation = bench.operate({"first": "modified", "second": "modified"}, in_one_group=True)
    assert (first.read_text(), second.read_text()) == ("base\n", "saved\n")
    assert named(operation.notes, "first") == b"ours\ntheirs\n"


def test_both_versions_that_somebody_saved_are_found(scene: Scene) -> None:
    """The live file is saved before the first rename, and ours after it: the newest is live, the other one named."""
    around_renames(scene.monkeypatch, {1: scene.append}, {1: scene.append})
    operation = scene.apply()
    assert [left.path for left in operation.left] == [b"file"]
    assert scene.file.read_bytes() == b"ours\nearlier\n"
    assert named(operation.notes, "file") == b"base\nearlier\n"


def test_the_summary_of_a_run_names_the_file(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(ground, monkeypatch)
    around_renames(monkeypatch, {1: scene.append}, {1: scene.open_now})
    scene.end_open_when(operate, "wait_for_opens")
    result = scene.sandbox.run("echo ours > file", after="apply")
    lines = outcome_lines(result, "default", scene.sandbox.project)
    assert named([line.strip() for line in lines], "file") == b"ours\ntheirs\n"


def test_what_can_t_be_kept_is_said(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(perform, "make_kept", refuse)
    operation = swapped_back(scene)
    said = "file: you edited it while unspill was changing it; that version could not be kept: "
    assert operation.notes == (said + "the filesystem does not allow it",)


def test_a_deleted_file_that_was_saved_and_made_anew_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    file = bench.renew("file")
    around_renames(monkeypatch, {1: lambda: file.write_text("saved\n")}, {1: lambda: file.write_text("anew\n")})
    operation = bench.operate({"file": "deleted"})
    assert file.read_text() == "anew\n"
    assert named(operation.notes, "file") == b"saved\n"


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


def test_an_undo_leaves_what_a_program_has_open(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(ground, monkeypatch)
    scene.apply()
    with scene.file.open("ab") as opened:
        operation = scene.sandbox.undo()
        opened.write(THEIRS)
    assert [left.reason for left in operation.left] == [perform.BEING_WRITTEN]
    assert scene.file.read_bytes() == b"ours\ntheirs\n"


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
