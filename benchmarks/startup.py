# SPDX-License-Identifier: Apache-2.0
"""What starting a sealed command costs: against bare bwrap with the very same plan, overlays as plain binds.

Cases: the library in a warm interpreter with everything included, the command line, the number of mounts, and
where the rest of the library's time goes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from baseline import BareBwrap, run_program
from measuring import Case, Turns, parse_arguments, report

from unspill import Exited, Sandbox
from unspill.layers.trees import remove_tree
from unspill.model.plan import Bind, Dev, Facts, Overlay, Plan, Proc, Tmpfs
from unspill.model.run import RunId
from unspill.runner.perform import perform
from unspill.runner.watch import RunControl

if TYPE_CHECKING:
    from unspill.model.plan import MountOp

LIBRARY_BAR = 1.3
COMMAND_LINE_PASSES = 2.5
MOUNTS_BAR = 20


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    directory = Path(tempfile.mkdtemp(prefix="unspill-startup-", dir=Path.home()))
    project = directory / "project"
    project.mkdir()
    (project / "file").write_text("content\n")
    os.environ["UNSPILL_STATE_DIR"] = str(directory / "state")
    try:
        with Sandbox(project) as sandbox:
            measure(sandbox, project, arguments)
    finally:
        remove_tree(os.fsencode(directory))


def measure(sandbox: Sandbox, project: Path, arguments: argparse.Namespace) -> None:
    plan = sandbox.plan(["true"])
    bare_bwrap = BareBwrap(plan, sandbox.facts)
    perform_only = PerformOnly(plan, sandbox.facts, project.parent)
    turns = Turns(seconds=120 if arguments.full else 30, rounds=1000 if arguments.full else 150)
    program = Path(sys.executable).with_name("unspill")
    turns.run(
        {
            "bare": bare_bwrap.run,
            "library": lambda: run_library(sandbox),
            "pass": lambda: run_program([sys.executable, "-c", "pass"]),
            "command line": lambda: run_program([str(program), "run", "--project", str(project), "--", "true"]),
            "perform": perform_only.run,
        }
    )
    bare, library = turns.median("bare"), turns.median("library")
    allowed = bare + COMMAND_LINE_PASSES * turns.median("pass")
    mounts = sum(isinstance(op, Bind | Overlay | Tmpfs | Proc | Dev) for op in plan.mounts)
    overlays = sum(isinstance(op, Overlay) for op in plan.mounts)
    cases = [
        Case("library run of true", library, "ms", bare, LIBRARY_BAR, samples=turns.samples["library"]),
        Case(
            "unspill run -- true (against bare + 2.5 python -c pass)",
            turns.median("command line"),
            "ms",
            allowed,
            1.0,
            samples=turns.samples["command line"],
        ),
        Case("mounts in the plan", mounts, "mounts", MOUNTS_BAR, 1.0),
        Case("of the library: spawner, overlays, bwrap", turns.median("perform"), "ms", bare, None),
        Case("of the library: store, layers, plan, scan", library - turns.median("perform"), "ms", bare, None),
    ]
    version = sandbox.facts.bwrap.version if sandbox.facts.bwrap else "none"
    passed = turns.median("pass")
    notes = [f"bwrap {version}, engine {sandbox.engine}, {overlays} overlays, python -c pass {passed:.1f} ms"]
    report("startup", cases, arguments, notes)


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
