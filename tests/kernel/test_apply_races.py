# SPDX-License-Identifier: Apache-2.0
"""Nobody's edit is lost, whenever and however another process saves a file that is being applied.

Each control arm does the same without the defence, and loses edits.
"""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.race_editor import STYLES, Editor
from tests.kernel.race_operation import named, ready
from tests.support import Ground
from unspill.apply import operate, perform
from unspill.apply.perform import keep_edits
from unspill.apply.recover import settle_mark
from unspill.apply.steps import OpenDirs
from unspill.model.operation import Operation, OperationId

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(1800)]

BURST = 10
COMMANDS = {"modified": "echo ours > file", "deleted": "rm file"}


@dataclass
class Tally:
    """What became of the edits."""

    edits: int = 0
    applied: int = 0
    conflicts: int = 0
    named: int = 0
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


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("style", STYLES)
def test_no_edit_made_during_an_apply_is_lost(ground: Ground, full: bool, style: str, kind: str) -> None:
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


def naive_apply(file: Path, text: str) -> None:
    """Look whether a file is as it was, then replace it."""
    new = file.with_name("new")
    new.write_text(text)
    if file.read_text() == "base\n":
        new.rename(file)


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


def test_a_reader_keeps_nothing_from_being_applied(ground: Ground) -> None:
    file = ground.write("file", "base\n")
    sandbox = ground.sandbox()
    sandbox.run("echo ours > file", after="hold")
    with file.open() as opened:
        assert sandbox.apply().left == ()
        assert opened.read() == "base\n"
    assert file.read_text() == "ours\n"


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
