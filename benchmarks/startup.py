# SPDX-License-Identifier: Apache-2.0
"""What starting a sealed command costs: against bare bwrap with the very same plan, overlays as plain binds.

Cases: the library in a warm interpreter with everything included, the command line, the number of mounts, and
where the rest of the library's time goes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from measuring import Case, Turns, parse_arguments, report

from unspill import Sandbox
from unspill.host.job import memory_file
from unspill.model.plan import Bind, Dev, Overlay, Plan, Proc, Tmpfs
from unspill.plan.argv import bare_options

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
        shutil.rmtree(directory, ignore_errors=True)


def measure(sandbox: Sandbox, project: Path, arguments) -> None:  # type: ignore[no-untyped-def]
    plan = sandbox.plan(["true"])
    turns = Turns(seconds=120 if arguments.full else 30, rounds=1000 if arguments.full else 150)
    program = Path(sys.executable).with_name("unspill")
    turns.run(
        {
            "bare": lambda: run_bare(plan, sandbox),
            "library": lambda: run_library(sandbox),
            "pass": lambda: run_program([sys.executable, "-c", "pass"]),
            "command line": lambda: run_program([str(program), "run", "--project", str(project), "--", "true"]),
            "perform": lambda: sandbox.perform_only(["true"]),
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
    notes = [f"bwrap {version}, engine {sandbox.engine}, {overlays} overlays, python -c pass {turns.median('pass'):.1f} ms"]
    report("startup", cases, arguments, notes)


def run_library(sandbox: Sandbox) -> None:
    result = sandbox.run(["true"])
    assert result.exit_code == 0, result


def run_bare(plan: Plan, sandbox: Sandbox) -> None:
    options, contents = bare_options(plan, sandbox.facts, 4)
    files = [memory_file(content) for content in (b"".join(option + b"\0" for option in options), *contents)]
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(files, start=3)]
    argv = [plan.bwrap, b"--args", b"3", b"--", *plan.argv]
    wait_for(os.posix_spawn(plan.bwrap, argv, {}, file_actions=actions))
    for fd in files:
        os.close(fd)


def run_program(argv: list[str]) -> None:
    wait_for(os.posix_spawn(argv[0], argv, os.environ))


def wait_for(pid: int) -> None:
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status


if __name__ == "__main__":
    main()
