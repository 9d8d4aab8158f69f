# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of a document in one shell, as a person would type them, and compares what they print.

The project is the directory `demo` with README.md, main.py and notes.txt; the first command starts there, and the
directory and variables it leaves are those of the next.
"""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.blocks import RUN, BadBlock, Step, find_blocks, matches, steps

PROJECT = {
    "README.md": "# Demo\n",
    "main.py": 'print("hello")\n',
    "notes.txt": "first note\n",
}
TIMEOUT_S = 240


def make_demo(home: Path) -> Path:
    """Make a home directory with the project of the documents; return the project."""
    project = home / "demo"
    project.mkdir(parents=True)
    for name, text in PROJECT.items():
        (project / name).write_text(text)
    return project


def steps_of(document: str) -> list[Step]:
    """Return all that is run of a document. An `output` block is what the script or program before it prints.

    Raises:
        BadBlock: There is nothing that an output block could be of.
    """
    found: list[Step] = []
    before = ""
    for block in find_blocks(document):
        if block.language == "output":
            if before not in ("sh", "python"):
                raise BadBlock(f"line {block.line}: output without the program that prints it")
            found[-1] = replace(found[-1], expected=block.content)
        elif block.language in RUN and block.not_run is None:
            found += steps(block)
        before = block.language if block.not_run is None else ""
    return found


def perform(found: list[Step], demo: Path, scratch: Path, programs: Path | None = None) -> list[tuple[int, str]]:
    """Run all steps in one shell; return the exit status and output of each, up to the first that fails.

    `programs` is the directory where `unspill` and `python3` are; by default those that run the tests.
    """
    scratch.mkdir()
    script = []
    for number, step in enumerate(found):
        (scratch / f"{number}.sh").write_text(step.script + "\n")
        strict = "set +e" if step.expected is not None else "set -e"
        # Failed until proven otherwise: the step may end the shell itself.
        script.append(f"echo 1 >{scratch}/{number}.status; {strict}")
        script.append(f"source {scratch}/{number}.sh >{scratch}/{number}.out 2>&1 </dev/null")
        script.append(f"status=$?; echo $status >{scratch}/{number}.status; [ $status = 0 ] || exit")
    run_shell(script, demo, programs or Path(sys.executable).parent)
    return [
        (
            int((scratch / f"{number}.status").read_text()),
            (scratch / f"{number}.out").read_text(errors="replace"),
        )
        for number in range(len(found))
        if (scratch / f"{number}.status").exists()
    ]


def run_shell(script: list[str], demo: Path, programs: Path) -> None:
    variables = {
        "HOME": os.fspath(demo.parent),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([os.fspath(programs), os.environ["PATH"]]),
        "TERM": "dumb",
        "USER": os.environ.get("USER", ""),
    }
    process = subprocess.Popen(["bash", "-c", "\n".join(script)], cwd=demo, env=variables, start_new_session=True)
    try:
        process.wait(TIMEOUT_S)
    finally:
        # The shell leads the group: what a document leaves running ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def verify(document: str, found: list[Step], results: list[tuple[int, str]]) -> None:
    """Compare what was printed with what is written, and say where they first differ."""
    for step, (status, printed) in zip(found, results, strict=False):
        at = f"{document}:{step.line}\n{step.script}"
        if status != 0:
            pytest.fail(f"{at}\nended with {status} and printed:\n{printed}", pytrace=False)
        if step.expected is not None and not matches(step.expected, printed):
            shown = "\n".join(step.expected)
            pytest.fail(f"{at}\nprinted:\n{printed}\nbut the document shows:\n{shown}", pytrace=False)
    assert len(results) == len(found)
