# SPDX-License-Identifier: Apache-2.0
"""What starting a sealed command costs: against bare bwrap with the very same plan, overlays as plain binds.

Cases: the library in a warm interpreter with everything included, the command line, the first screen of a long log, the
number of mounts, and where the rest of the library's time goes.

Layers are made and removed where TMPDIR is: a disk that discards blocks can take longer for five directories than bwrap
for all it does. Apply, scan and load are measured in the home directory, on the disk.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import (
    BareBwrap,
    Case,
    Options,
    Turns,
    compiled_environ,
    make_project,
    parse_options,
    report,
    run_program,
    scratch,
    unspill_program,
)

from unspill import Exited, Sandbox
from unspill.model.plan import Bind, Dev, Facts, Overlay, Plan, Proc, Tmpfs
from unspill.model.run import RunId
from unspill.runner.perform import perform
from unspill.runner.watch import RunControl

if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.plan import MountOp

LIBRARY_BAR = 1.5
# How often `python -c pass` fits into what the command line takes besides bare bwrap
PASSES, CHANGING_PASSES = 4, 6
MOUNTS_BAR = 20
LOGGED_RUNS, LOG_PASSES = 20_000, 4


def main() -> None:
    options = parse_options(__doc__ or "")
    with scratch(Path(tempfile.gettempdir())) as directory, Sandbox(make_project(directory, "project")) as sandbox:
        measure(sandbox, directory, options)


def measure(sandbox: Sandbox, directory: Path, options: Options) -> None:
    plan = sandbox.plan(["true"])
    bare_bwrap = BareBwrap(plan, sandbox.facts)
    perform_only = PerformOnly(plan, sandbox.facts, directory)
    turns = Turns(seconds=options.pick(6, 30, 120), rounds=options.pick(24, 150, 1000))
    environ = compiled_environ(directory)
    changed = make_project(directory, "changed")

    def run_cli(project: str, *command: str) -> None:
        run_program([unspill_program(), "run", "-q", "--project", project, "--", *command], environ)

    turns.run(
        {
            "bare": bare_bwrap.run,
            "library": lambda: run_library(sandbox),
            "pass": lambda: run_program([sys.executable, "-c", "pass"], environ),
            "true": lambda: run_cli(os.fsdecode(sandbox.project), "true"),
            "change": lambda: run_cli(str(changed), "sh", "-c", "echo more >> file"),
            "perform": perform_only.run,
            "log": make_log(directory, environ),
        }
    )
    bare, library, passed = (turns.fast(name) for name in ("bare", "library", "pass"))
    mounts = sum(isinstance(op, Bind | Overlay | Tmpfs | Proc | Dev) for op in plan.mounts)
    overlays = sum(isinstance(op, Overlay) for op in plan.mounts)
    cases = [
        Case("library run of true", library, "ms", bare, LIBRARY_BAR, samples=turns.samples["library"]),
        *(
            Case(
                f"unspill run {words}, against bare + {passes} python -c pass",
                turns.fast(name),
                "ms",
                bare + passes * passed,
                1.0,
                samples=turns.samples[name],
            )
            for name, words, passes in (
                ("true", "-- true", PASSES),
                ("change", "that changes and applies a file", CHANGING_PASSES),
            )
        ),
        Case(
            f"unspill log of {LOGGED_RUNS:,} runs, against {LOG_PASSES} python -c pass",
            turns.fast("log"),
            "ms",
            LOG_PASSES * passed,
            1.0,
            samples=turns.samples["log"],
        ),
        Case("mounts in the plan", mounts, "mounts", MOUNTS_BAR, 1.0, is_counted=True),
        Case("of the library: spawner, overlays, bwrap", turns.fast("perform"), "ms", bare, None),
        Case("of the library: the rest", max(0.0, library - turns.fast("perform")), "ms", bare, None),
    ]
    version = sandbox.facts.bwrap.version if sandbox.facts.bwrap else "none"
    notes = [
        f"bwrap {version}, engine {sandbox.engine}, {overlays} overlays, bare {bare:.1f} ms, pass {passed:.1f} ms",
        "the rest of the library: store, layers, plan, scan",
    ]
    report("startup", cases, options, notes)


def make_log(directory: Path, environ: dict[str, str]) -> Callable[[], None]:
    """Return what prints the first screen of a long log, of a project in a state directory of its own."""
    project = make_project(directory, "logged")
    own = {**environ, "UNSPILL_STATE_DIR": str(directory / "logged-state")}
    run_program([unspill_program(), "run", "-q", "--project", str(project), "-c", "echo more >> file"], own)
    repeat_run(directory / "logged-state" / "store.db", LOGGED_RUNS)
    return lambda: run_program([unspill_program(), "log", "--project", str(project)], own, is_quiet=True)


def repeat_run(database: Path, count: int) -> None:
    """Have a store say that its one run, which was applied, was done so many times, a second apart."""
    with closing(sqlite3.connect(database)) as db, db:
        for table in ("runs", "operations"):
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "seq"]
            later = {
                "id": f"printf('%016x', {16**15 if table == 'runs' else 2 * 16**15} + i)",
                "number": "number + i",
                "runs": f"printf('%016x', {16**15} + i)",
                **{name: f"{name} + i * 1000000000" for name in ("started_ns", "ended_ns", "at_ns")},
            }
            db.execute(
                f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1})"
                f" INSERT INTO {table} ({', '.join(columns)})"
                f" SELECT {', '.join(later.get(name, name) for name in columns)} FROM {table}, n"
            )
        db.execute("UPDATE counters SET number = ?", (count,))
        assert [db.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("runs", "operations")] == [
            (count,),
            (count,),
        ]


def run_library(sandbox: Sandbox) -> None:
    result = sandbox.run(["true"])
    assert result.exit_code == 0, result


class PerformOnly:
    """The plan performed by the runner on layers made by hand: no store, no plan, no scan."""

    def __init__(self, plan: Plan, facts: Facts, directory: Path) -> None:
        self._plan = plan
        self._facts = facts
        self._directory = os.fsencode(directory)
        self._count = 0

    def run(self) -> None:
        self._count += 1
        mounts = tuple(self._with_layer(number, op) for number, op in enumerate(self._plan.mounts))
        control = RunControl(run=RunId("startup"), spill_dir=self._directory + b"/spill")
        performed = perform(self._plan.replace(mounts=mounts), self._facts, control)
        assert performed.outcome == Exited(code=0), performed

    def _with_layer(self, number: int, op: MountOp) -> MountOp:
        if not isinstance(op, Overlay) or op.upper is None:
            return op
        upper, work = (self._directory + b"/%d-%d-%s" % (self._count, number, kind) for kind in (b"upper", b"work"))
        os.mkdir(upper)
        os.mkdir(work)
        return op.replace(upper=upper, work=work)


if __name__ == "__main__":
    main()
