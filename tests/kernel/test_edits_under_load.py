# SPDX-License-Identifier: Apache-2.0
"""No edit is lost on a loaded machine, where a process may stop for a while at any point of opening or saving a file.

Six editors save six files, each in its way, around whole operations that replace or delete them; other processes keep
all processors busy. The control arm forces the race that was lost once, and loses edits where a file is looked at once.
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
from tests.kernel.race_operation import Bench, named, one_look, ready
from unspill.apply import perform
from unspill.apply.last_look import keep_edits
from unspill.apply.sites import Sites
from unspill.host.writers import has_writers
from unspill.model.operation import Operation, OperationId

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(3600)]

BUSY = 4
BURST = 40
KINDS = ("modified", "deleted")
FILES = {f"{style}-{kind}".replace(" ", "-"): (style, kind) for style in STYLES for kind in KINDS}


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

    def __init__(self, bench: Bench, editors: dict[str, Editor]) -> None:
        self._bench = bench
        self._editors = editors
        self._chance = random.Random(13)
        self._usual_us = 20_000
        self.count: Counter[str] = Counter()
        self.lost: list[str] = []

    def run(self, edits: int) -> None:
        while self.count["edits"] < edits:
            for name in FILES:
                self._bench.renew(name)
            operation = self._bench.operate({name: kind for name, (_, kind) in FILES.items()}, begin=self._begin)
            self._usual_us = (self._usual_us + round((time.perf_counter() - self._begun) * 1e6)) // 2
            saved = {name: editor.wait() for name, editor in self._editors.items()}
            self.count["operations"] += 1
            for name, texts in saved.items():
                self._judge(operation, name, texts)

    def _begin(self) -> None:
        self._begun = time.perf_counter()
        for name, (style, _) in FILES.items():
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
        for text in saved if FILES[name][0] == "append" else saved[-1:]:
            if text not in live:
                self.count["named"] += 1
                if text not in apart:
                    self.lost.append(f"{name}: {text!r} of {saved}, live {live!r}, kept {apart!r}, {operation.left}")


def test_no_edit_is_lost_on_a_loaded_machine(tmp_path: Path, full: bool) -> None:
    bench = Bench(tmp_path)
    with load(BUSY), ExitStack() as stack:
        editors = {name: stack.enter_context(Editor(bench.project / name)) for name in FILES}
        race = Race(bench, editors)
        race.run(500_000 if full else 6_000)
    count = race.count
    assert race.lost == []
    assert count["conflicts"]
    assert count["done"]
    if full:
        note = f"around {count['operations']} operations on 6 files ({count['done']} renames stayed, "
        note += f"{count['conflicts']} conflicts), {count['named']} edits in files that the record names; "
        note += f"{BUSY} busy processes and 6 editors on {os.cpu_count()} processors"
        record_figure("edits on a loaded machine", f"0 of {count['edits']} lost", note)


@pytest.mark.parametrize("looks", [2, 1], ids=["two looks", "one look"])
def test_edits_are_lost_only_where_a_file_is_looked_at_once(
    tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """The forced race: whoever has the file open has written and closed it when the kernel is asked for writers."""

    def asked(dir_fd: int, name: bytes) -> bool | None:
        time.sleep(0.002)
        return has_writers(dir_fd, name)

    monkeypatch.setattr(perform, "has_writers", asked)
    if looks == 1:
        monkeypatch.setattr(perform, "misfit", partial(one_look, asked))
    chance = random.Random(looks)
    file, place = tmp_path / "live" / "file", tmp_path / "operations" / "place"
    file.parent.mkdir()
    place.parent.mkdir()
    edits = lost = 0
    with Editor(file) as editor, Sites(os.fsencode(tmp_path)) as sites:
        sites.open_roots([os.fsencode(file.parent)])
        # A busy machine may need more tries until the two meet
        while edits < (1000 if full else 200) or (looks == 1 and not lost and edits < 20_000):
            step = ready(file, place, "modified")
            editor.begin(SLOW, 2, 0, 0)
            time.sleep(chance.random() * 0.001)
            done, _ = perform.perform(sites, [step])
            saved = editor.wait()
            edits += len(saved)
            notes = keep_edits(sites, OperationId("operation"), [step], done, [0]) if looks == 2 else ()
            lost += sum(text not in file.read_bytes() + named(notes, "file") for text in saved)
    assert bool(lost) == (looks == 1)
    if full:
        arm = "a file is looked at once" if looks == 1 else "a file is looked at twice"
        note = "the control arm" if looks == 1 else "whoever had the file open was let to write before the question"
        record_figure(f"edits in a forced race, {arm}", f"{lost} of {edits} lost", note)
