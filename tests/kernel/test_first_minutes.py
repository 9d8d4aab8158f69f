# SPDX-License-Identifier: Apache-2.0
"""A person's first five minutes: the wheel, pip, `unspill doctor`, the README's demo, then a project of their own.

All with the Python that runs the tests, the one below its virtual environment, in a new home, as an ordinary user
without a network.
"""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building import ROOT, build_wheel, made_once
from tests.docs.performing import PROJECT, make_demo, perform, steps_of, verify
from unspill import __version__

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(240)]

MAIN_C = '#include <stdio.h>\nint main(void) { puts("it works"); return 0; }\n'
MAKEFILE = "prog: main.c\n\t$(CC) -o $@ $<\ntest: prog\n\t./prog\n"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of programs of a virtual environment in which pip has installed the wheel."""

    def make(place: Path) -> None:
        wheel = build_wheel(tmp_path_factory.mktemp("build"))
        call(os.path.realpath(sys.executable), "-m", "venv", place)
        call(place / "bin/pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", wheel)

    return made_once(tmp_path_factory, "person", make) / "bin"


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The project of the README, in a new home."""
    return make_demo(tmp_path / "home")


def call(*words: str | Path) -> str:
    result = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert result.returncode == 0, result.stdout
    return result.stdout


def type_in(programs: Path, project: Path, *words: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `unspill` as a person would who has just installed it."""
    environ = {
        "HOME": os.fspath(project.parent),
        "PATH": os.pathsep.join([os.fspath(programs), os.environ["PATH"]]),
        "LANG": "C.UTF-8",
        **variables,
    }
    return subprocess.run(
        [programs / "unspill", *words], cwd=project, env=environ, text=True, capture_output=True, check=False
    )


def files_below(directory: Path) -> dict[str, str]:
    """Return the files of a directory and their texts."""
    return {path.relative_to(directory).as_posix(): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_pip_installs_the_wheel_and_nothing_else(programs: Path) -> None:
    listed = call(programs / "pip", "list", "--format=freeze", "--disable-pip-version-check").split()
    assert {line.partition("==")[0] for line in listed} - {"pip", "setuptools", "wheel"} == {"unspill"}
    assert call(programs / "unspill", "--version") == f"unspill {__version__}\n"
    where = call(programs / "python3", "-c", "import unspill; print(unspill.__file__)")
    assert where.startswith(os.fspath(programs.parent))
    assert call(programs / "python3", "-c", "import sys; print(sys.version)") == f"{sys.version}\n"


def test_doctor_says_that_it_works_and_how_well(programs: Path, demo: Path, bwrap: Path) -> None:
    result = type_in(programs, demo, "doctor")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(("Level A: ", "Level B: "))
    lines = result.stdout.splitlines()
    assert any(line.startswith("ok    namespaces") for line in lines)
    assert any(line.startswith("ok    bwrap") for line in lines)
    assert not any(line.startswith(("NO ", "weak ")) for line in lines)


def test_the_demo_of_the_readme_works_as_printed(programs: Path, demo: Path, tmp_path: Path, bwrap: Path) -> None:
    found = steps_of((ROOT / "README.md").read_text("utf-8"))
    assert any(step.script.startswith("unspill run ") for step in found)
    verify("README.md", found, perform(found, demo, tmp_path / "steps", programs))
    assert files_below(demo) == {**PROJECT, "notes.txt": "y\n"}


def test_a_build_and_a_git_history_stay_out_of_the_project(programs: Path, tmp_path: Path, bwrap: Path) -> None:
    project = tmp_path / "home" / "hello"
    project.mkdir(parents=True)
    (project / "main.c").write_text(MAIN_C)
    (project / "Makefile").write_text(MAKEFILE)
    (project.parent / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.org\n")

    built = type_in(programs, project, "run", "--hold", "--", "make", "-s", "test")
    assert (built.returncode, built.stdout) == (0, "it works\n")
    assert "Held in sandbox 'default' (run 1)" in built.stderr
    assert "A prog" in built.stderr

    script = "git init -q -b main && git add . && git commit -q -m first && git log --format='%an %s' && git status -s"
    history = type_in(programs, project, "run", "-q", "--hold", "-c", script)
    assert (history.returncode, history.stdout, history.stderr) == (0, "Ann first\n", "")

    again = type_in(programs, project, "run", "-q", "--", "make", "test")
    assert again.stdout == "./prog\nit works\n"

    failed = type_in(programs, project, "run", "--", "make", "nothing")
    assert failed.returncode == 2
    assert "No rule to make target" in failed.stderr

    changes = type_in(programs, project, "changes").stdout
    assert "A prog" in changes
    assert "A .git/" in changes
    assert files_below(project) == {"main.c": MAIN_C, "Makefile": MAKEFILE}

    assert type_in(programs, project, "discard").stdout.startswith("Discarded ")
    assert type_in(programs, project, "changes").stdout == "Nothing is held.\n"


def test_a_build_and_a_git_history_are_applied_and_can_be_taken_back(
    programs: Path, tmp_path: Path, bwrap: Path
) -> None:
    project = tmp_path / "home" / "hello"
    project.mkdir(parents=True)
    (project / "main.c").write_text(MAIN_C)
    (project / "Makefile").write_text(MAKEFILE)
    (project.parent / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.org\n")
    assert "Applied as op 1" in type_in(programs, project, "run", "--", "make", "-s", "test").stderr
    assert call(project / "prog") == "it works\n"
    script = "git init -q -b main && git add . && git commit -q -m first"
    assert type_in(programs, project, "run", "-q", "-c", script).returncode == 0
    assert call("git", "-C", project, "log", "--format=%an %s") == "Ann first\n"
    assert call("git", "-C", project, "status", "--short") == ""
    assert type_in(programs, project, "undo").returncode == 0
    assert not (project / ".git").exists()
    assert type_in(programs, project, "undo").returncode == 0
    assert files_below(project) == {"main.c": MAIN_C, "Makefile": MAKEFILE}


def test_home_holds_only_what_the_documents_say(programs: Path, demo: Path, bwrap: Path) -> None:
    assert type_in(programs, demo, "run", "-q", "--", "touch", "new").returncode == 0
    home = demo.parent
    assert sorted(path.name for path in home.iterdir()) == [".local", "demo"]
    state = home / ".local/state/unspill"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert sorted(path.name for path in demo.iterdir()) == sorted({*PROJECT, "new"})


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 0, "usage: unspill COMMAND"),
        (["--help"], 0, "Run `unspill COMMAND --help` for details."),
        (["run", "--help"], 0, "--working-dir DIR"),
        (["frobnicate"], 2, "unspill: unknown command 'frobnicate'\n  See `unspill --help`."),
        (["run"], 125, "unspill: Command cannot be empty\n  For example: unspill run -- make test"),
        (["run", "--", "no-such-command"], 127, "unspill: Command was not started: no-such-command: No such file"),
        (["run", "--frob", "--", "ls"], 125, "unspill: unknown option --frob\n  See `unspill run --help`."),
        (["run", "--project", "/", "--", "ls"], 125, "unspill: / can't be a root: it is the whole file system."),
        (["run", "--working-dir", "nowhere", "--", "ls"], 125, "unspill: Working directory does not exist: "),
        (["show", "77"], 2, "unspill: no such run or operation: 77\n  See `unspill log`."),
    ],
)
def test_what_is_typed_wrong_is_answered_with_what_to_do(
    programs: Path, demo: Path, bwrap: Path, words: list[str], code: int, says: str
) -> None:
    result = type_in(programs, demo, *words)
    assert result.returncode == code
    shown = result.stdout if code == 0 else result.stderr
    assert says in shown
    assert "Traceback" not in shown
    assert "bwrap:" not in shown


def test_a_defect_of_ours_is_not_taken_for_the_commands_failure(programs: Path, demo: Path, bwrap: Path) -> None:
    package = next(programs.parent.glob("lib/python3*/site-packages/unspill"))
    broken = package.with_name("unspill-broken") / "unspill"
    shutil.copytree(package, broken)
    with (broken / "cli/run.py").open("a") as module:
        module.write(
            "\n\ndef fail(arguments):\n    raise ZeroDivisionError('on purpose')\n\n\nrun = run.replace(run=fail)\n"
        )
    result = type_in(programs, demo, "run", "--", "true", PYTHONPATH=os.fspath(broken.parent))
    assert result.returncode == 125
    assert result.stderr.splitlines()[-2] == "unspill: ZeroDivisionError: on purpose"
    assert "please report it" in result.stderr.splitlines()[-1]


def test_output_that_nobody_reads_any_more_is_no_complaint(programs: Path, demo: Path, bwrap: Path) -> None:
    for words in ("run -q -- seq 300000", "--help", "doctor"):
        line = f"set -o pipefail; '{programs}/unspill' {words} | head -c 1 >/dev/null"
        environ = {"HOME": os.fspath(demo.parent), "PATH": os.environ["PATH"]}
        result = subprocess.run(
            ["bash", "-c", line], cwd=demo, env=environ, text=True, capture_output=True, check=False
        )
        assert result.stderr == ""
        assert result.returncode in (0, 141)
