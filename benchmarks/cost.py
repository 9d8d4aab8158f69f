# SPDX-License-Identifier: Apache-2.0
"""What one run costs besides time: processor, system calls, and what is kept of it on the disk and in the database.

Cases: bare bwrap with the very same plan, a run of `true`, a run that changes a file and is applied, and both in a live
sandbox. Each is repeated in a process of its own; what the first repetition costs is taken off, so opening the sandbox
and starting Python do not count. System calls are counted by strace where there is one.

`cost.py --only change --count 50` is such a process, to look at with other tools.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import BareBwrap, Case, Options, compiled_environ, make_parser, make_project, report, scratch

from unspill import Sandbox
from unspill.host import libc

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = ["sh", "-c", "echo more >> file"]
WORDS = {
    "bare": "bare bwrap",
    "true": "run of true",
    "change": "run that changes a file, applied",
    "live true": "live run of true",
    "live change": "live run that changes a file, applied",
}
# Counted, so the same everywhere: the run, its operation, the text that a merge would need; a live sandbox also writes
# down which layers it gave up, until they are swept
ROWS = {"true": 1, "change": 3, "live true": 1, "live change": 4}


class CostOptions(Options):
    """Those of all benchmarks, and what a process of this one repeats."""

    only: str
    count: int


@dataclass(frozen=True)
class Cost:
    """What repetitions of a case have cost in all."""

    cpu_ms: float
    calls: float | None
    rows: float
    kept: float
    entries: float

    def per_run(self, first: Cost, count: int) -> Cost:
        """Return what each of `count` further repetitions has cost."""
        calls = None if self.calls is None or first.calls is None else (self.calls - first.calls) / count
        numbers = (
            (getattr(self, name) - getattr(first, name)) / count for name in ("cpu_ms", "rows", "kept", "entries")
        )
        cpu_ms, rows, kept, entries = (max(0.0, number) for number in numbers)
        return Cost(cpu_ms=cpu_ms, calls=calls, rows=rows, kept=kept, entries=entries)


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--only", choices=[*WORDS], default="", help="repeat one case in the state directory of yours")
    parser.add_argument("--count", type=int, default=1, help="how often")
    options = parser.parse_args(namespace=CostOptions())
    if options.only:
        repeat(options.only, options.count)
    else:
        report("cost", measure(options), options, ["what the first repetition costs is taken off"])


def repeat(case: str, count: int) -> None:
    """Do what is measured, `count` times."""
    with tempfile.TemporaryDirectory() as place, Sandbox(make_project(Path(place), "project")) as sandbox:
        if case.startswith("live"):
            with sandbox.live() as live:
                again(lambda: live.run(CHANGE if "change" in case else ["true"]), count)
        elif case == "bare":
            # bwrap ends before its child does; what nobody waits for is counted nowhere
            libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
            again(BareBwrap(sandbox.plan(["true"]), sandbox.facts).run, count)
            reap_all()
        else:
            again(lambda: sandbox.run(CHANGE if case == "change" else ["true"]), count)


def reap_all() -> None:
    """Wait for every child that is left."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def again(work: Callable[[], Any], count: int) -> None:
    for _ in range(count):
        result = work()
        assert result is None or result.exit_code == 0, result


def measure(options: CostOptions) -> list[Case]:
    # A few repetitions tell what is counted, but not what differs each time
    count, traced = options.pick(4, 200, 1000), options.pick(0, 20, 100)
    with tempfile.TemporaryDirectory() as place:
        compiled = Path(place)
        costs = {case: cost_of(case, count, traced, compiled) for case in (ROWS if options.short else WORDS)}
    cases = []
    for case, cost in costs.items():
        words = WORDS[case]
        if not options.short:
            cases.append(Case(f"{words}: processor", cost.cpu_ms, "ms", costs["bare"].cpu_ms, None))
        if cost.calls is not None:
            cases.append(Case(f"{words}: system calls", cost.calls, "calls", costs["bare"].calls, None))
        if case in ROWS:
            cases.append(Case(f"{words}: rows kept", cost.rows, "rows", ROWS[case], 1.0, is_counted=True))
            cases.append(Case(f"{words}: disk kept", cost.kept / 1024, "KiB", None, None))
            cases.append(Case(f"{words}: files and directories kept", cost.entries, "entries", None, None))
    return cases


def cost_of(case: str, count: int, traced: int, compiled: Path) -> Cost:
    if not traced or shutil.which("strace") is None:
        return perform(case, 1 + count, compiled).per_run(perform(case, 1, compiled), count)
    counted = perform(case, 1 + traced, compiled, is_traced=True).per_run(
        perform(case, 1, compiled, is_traced=True), traced
    )
    # After these, all that it imports is compiled
    plain = perform(case, 1 + count, compiled).per_run(perform(case, 1, compiled), count)
    return Cost(cpu_ms=plain.cpu_ms, calls=counted.calls, rows=plain.rows, kept=plain.kept, entries=plain.entries)


def perform(case: str, count: int, compiled: Path, *, is_traced: bool = False) -> Cost:
    """Repeat a case in a process of its own, with a new state directory, and say what that has cost."""
    with scratch(Path(tempfile.gettempdir())) as directory:
        summary = directory / "calls"
        command = [sys.executable, __file__, "--only", case, "--count", str(count)]
        if is_traced:
            command = ["strace", "-f", "-qq", "-c", "-o", str(summary), *command]
        process = subprocess.Popen(command, env=compiled_environ(compiled))
        status, usage = os.wait4(process.pid, 0)[1:]
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        state = Path(os.environ["UNSPILL_STATE_DIR"])
        entries = [entry.lstat() for entry in state.rglob("*")]
        return Cost(
            cpu_ms=(usage.ru_utime + usage.ru_stime) * 1000,
            calls=calls_in(summary) if is_traced else None,
            rows=rows_of(state / "store.db"),
            kept=sum(entry.st_blocks * 512 for entry in entries),
            entries=len(entries),
        )


def calls_in(summary: Path) -> int:
    """Return the sum of strace's table: in its last line, before the number of errors, if there is one."""
    words = summary.read_text().splitlines()[-1].split()
    assert words[-1] == "total", words
    return int(words[3])


def rows_of(database: Path) -> int:
    """Return how many rows all tables have."""
    with closing(sqlite3.connect(database)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)


if __name__ == "__main__":
    main()
