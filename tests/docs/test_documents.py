# SPDX-License-Identifier: Apache-2.0
"""Every shell block of README.md and docs/ is run, in order, in a new home with a small project.

The project is the directory `demo` with README.md, main.py and notes.txt; the first command starts there, and
the directory and variables it leaves are those of the next.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.blocks import OTHER_NAMES, RUN, Step, find_blocks, matches, steps

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")]
)
INSTALL = re.compile(
    r"(sudo )?(apt|apt-get|dnf|pacman|zypper|apk|pip|pipx|uv|git clone|python3? -m (venv|pip))\b"
)
PROJECT = {
    "README.md": "# Demo\n",
    "main.py": 'print("hello")\n',
    "notes.txt": "first note\n",
}
TIMEOUT_S = 240


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The project of the documents, in a home of its own."""
    project = tmp_path / "home" / "demo"
    project.mkdir(parents=True)
    for name, text in PROJECT.items():
        (project / name).write_text(text)
    return project


def perform(found: list[Step], demo: Path, scratch: Path) -> list[tuple[int, str]]:
    """Run all steps in one shell; return the exit status and output of each, up to the first that fails."""
    scratch.mkdir()
    script = []
    for number, step in enumerate(found):
        (scratch / f"{number}.sh").write_text(step.script + "\n")
        strict = "set +e" if step.expected is not None else "set -e"
        # Failed until proven otherwise: the step may end the shell itself.
        script.append(f"echo 1 >{scratch}/{number}.status; {strict}")
        script.append(f"source {scratch}/{number}.sh >{scratch}/{number}.out 2>&1 </dev/null")
        script.append(f"status=$?; echo $status >{scratch}/{number}.status; [ $status = 0 ] || exit")
    run_shell(script, demo)
    return [
        (
            int((scratch / f"{number}.status").read_text()),
            (scratch / f"{number}.out").read_text(errors="replace"),
        )
        for number in range(len(found))
        if (scratch / f"{number}.status").exists()
    ]


def run_shell(script: list[str], demo: Path) -> None:
    variables = {
        "HOME": os.fspath(demo.parent),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "TERM": "dumb",
        "USER": os.environ.get("USER", ""),
    }
    process = subprocess.Popen(
        ["bash", "-c", "\n".join(script)], cwd=demo, env=variables, start_new_session=True
    )
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


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_print_what_the_document_shows(
    document: str, demo: Path, tmp_path: Path, bwrap: Path
) -> None:
    found = [
        step
        for block in find_blocks((ROOT / document).read_text("utf-8"))
        if block.language in RUN and block.not_run is None
        for step in steps(block)
    ]
    verify(document, found, perform(found, demo, tmp_path / "steps"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_only_commands_that_install_something_are_left_out(document: str) -> None:
    left_out = [
        line.removeprefix("$ ")
        for block in find_blocks((ROOT / document).read_text("utf-8"))
        if block.not_run is not None
        for line in block.content
        if line.strip()
    ]
    assert [line for line in left_out if not INSTALL.match(line)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_shell_block_hides_behind_another_name(document: str) -> None:
    blocks = find_blocks((ROOT / document).read_text("utf-8"))
    assert [block.line for block in blocks if block.language in OTHER_NAMES] == []


def test_steps_share_one_shell_and_one_directory(demo: Path, tmp_path: Path) -> None:
    found = [
        Step(line=1, script="mkdir sub && cd sub && name=value", expected=()),
        Step(line=2, script='basename "$PWD"; echo $name', expected=("sub", "value")),
        Step(line=3, script="cd ..\ncat main.py", expected=None),
        Step(line=4, script='basename "$PWD" >&2', expected=("demo",)),
    ]
    results = perform(found, demo, tmp_path / "steps")
    assert results == [(0, ""), (0, "sub\nvalue\n"), (0, PROJECT["main.py"]), (0, "demo\n")]
    verify("example", found, results)


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (Step(line=7, script="echo no; false", expected=("no",)), "ended with 1"),
        (Step(line=7, script="exit 3", expected=()), "ended with 1"),
        (Step(line=7, script="false\ntrue", expected=None), "ended with 1"),
        (Step(line=7, script="echo two", expected=("one",)), "but the document shows:\none"),
    ],
)
def test_the_first_difference_is_reported_with_its_line(
    step: Step, complaint: str, demo: Path, tmp_path: Path
) -> None:
    found = [step, Step(line=9, script="true", expected=())]
    with pytest.raises(pytest.fail.Exception, match=f"example:7(.|\n)*{complaint}"):
        verify("example", found, perform(found, demo, tmp_path / "steps"))


def test_what_a_document_leaves_running_is_ended(demo: Path, tmp_path: Path) -> None:
    found = [Step(line=1, script="sleep 1000 & echo $!", expected=("...",))]
    ((status, printed),) = perform(found, demo, tmp_path / "steps")
    assert status == 0
    deadline = time.monotonic() + 10
    while is_alive(int(printed)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(int(printed))


def is_alive(pid: int) -> bool:
    """Tell whether a process still runs; one that only waits to be reaped by init does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
