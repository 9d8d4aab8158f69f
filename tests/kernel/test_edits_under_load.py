# SPDX-License-Identifier: Apache-2.0
"""No edit is lost on a loaded machine, where a process may stop for a while at any point of opening or saving a file.

Six editors save six files, each in its way, around whole operations that replace or delete them; other processes keep
all processors busy. The control arms do the same without the defences, and force the race that was lost once.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.race_editor import SLOW, STYLES, Editor
from tests.kernel.race_operation import Bench, asked_last, named, ready
from unspill.apply import operate, perform
from unspill.apply.perform import keep_edits
from unspill.apply.steps import OpenDirs
from unspill.host.dirfd import has_writers
from unspill.model.operation import Operation, OperationId

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(3600)]

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


def test_no_edit_is_lost_on_a_loaded_machine(tmp_path: Path, full: bool) -> None:
    race = raced(tmp_path, 500_000 if full else 6_000, FILES)
    count = race.count
    assert race.lost == []
    assert count["conflicts"]
    assert count["done"]
    note = f"around {count['operations']} operations on 6 files ({count['done']} renames stayed, "
    note += f"{count['conflicts']} conflicts), {count['named']} edits in files that the record names; "
    note += f"{BUSY} busy processes and 6 editors on {os.cpu_count()} processors"
    record_figure("edits on a loaded machine", f"0 of {count['edits']} lost", note)


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
