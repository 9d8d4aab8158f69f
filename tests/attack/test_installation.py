# SPDX-License-Identifier: Apache-2.0
"""unspill installed where its own commands write: nothing there is imported, neither at the start nor later."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import unspill
from tests.kernel.terminal_person import at_terminal
from tests.support import run_cli
from unspill import Callback, Sandbox
from unspill.errors import RootRefused

if TYPE_CHECKING:
    from tests.support import Ground
    from unspill import Question

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

PACKAGE: Final = Path(unspill.__path__[0])
SITE: Final = f"lib/python3.{sys.version_info.minor}/site-packages"
# Puts a line into every module of the installation that it finds
AGENT: Final = """
import pathlib, sys
line = f"from __future__ import annotations\\nopen({sys.argv[2]!r}, 'a').write(__name__ + chr(10))"
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    text = path.read_text()
    path.write_text(text.replace("from __future__ import annotations", line, 1))
"""
# The same program without the check: what it does then is the control
WITHOUT: Final = "\ndef check_own_place(roots):\n    return ''\n"
LIBRARY: Final = """
import sys
from unspill import Sandbox
with Sandbox(sys.argv[1]) as sandbox:
    sandbox.run(sys.argv[2:])
    {then}
"""


def install(place: Path, *, checks: bool = True) -> Path:
    """Install unspill in a virtual environment of its own; return the directory of its programs."""
    (place / "bin").mkdir(parents=True)
    (place / "pyvenv.cfg").write_text(f"home = {sys._base_executable.rpartition('/')[0]}\n")  # type: ignore[attr-defined]
    (place / "bin/python").symlink_to(os.path.realpath(sys.executable))
    # With its bytecode, as pip leaves it: to compile it at every start would take most of the time
    shutil.copytree(PACKAGE, place / SITE / "unspill")
    script = place / "bin/unspill"
    script.write_text(f"#!{place}/bin/python\nfrom unspill.cli.main import main\nmain()\n")
    script.chmod(0o700)
    if not checks:
        with (place / SITE / "unspill/host/places.py").open("a") as file:
            file.write(WITHOUT)
    return place / "bin"


def start(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    # Compiled modules would be written into the project, and make changes of the person's own
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(list(words), cwd=cwd, env=variables, capture_output=True, check=False, timeout=120)


WAYS: Final = ("run", "hold and apply", "library")


def attack(way: str, programs: Path, project: Path, agent: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run the agent by one of the ways to a sandbox, and look at the result as anybody would."""
    program = programs / "unspill"
    if way == "library":
        words = ["-P", "-c", LIBRARY.format(then="sandbox.diff(operation=1)"), os.fspath(project), *agent]
        return start(programs / "python", *words, cwd=project)
    if way == "run":
        start(program, "run", "--", *agent, cwd=project)
    else:
        start(program, "run", "--hold", "--", *agent, cwd=project)
        start(program, "apply", cwd=project)
    return start(program, "log", cwd=project)


@pytest.mark.parametrize("way", WAYS)
def test_e12_unspill_in_the_environment_of_the_project_is_not_rewritten(way: str, ground: Ground) -> None:
    """Install unspill in the project's own `.venv`, and have a command put a line into every module of it.

    Control: the same installation without the check runs that line outside of any sandbox.
    """
    canary = ground.home / "canary"
    (ground.project / "agent.py").write_text(AGENT)
    agent = ["/usr/bin/python3", "agent.py", f".venv/{SITE}/unspill", os.fspath(canary)]
    done = attack(way, install(ground.project / ".venv"), ground.project, agent)
    assert not canary.exists()
    assert done.returncode != 0
    assert b"unspill is installed inside it, at " in done.stderr
    shutil.rmtree(ground.project / ".venv")
    attack(way, install(ground.project / ".venv", checks=False), ground.project, agent)
    assert canary.exists()


def test_e12_what_is_held_is_not_applied_over_unspill_itself(ground: Ground) -> None:
    """Have an unspill elsewhere hold changes of the `.venv` in the project, and apply, undo, redo or restore them with
    the one that lies there.

    Control: the one elsewhere does each of it.
    """
    inside = install(ground.project / ".venv") / "unspill"
    ground.write(".venv/notes", "old\n")
    assert run_cli("run", "--hold", "-c", "echo new > .venv/notes", cwd=ground.project).returncode == 0
    for words in (["apply"], ["undo"], ["redo"], ["restore", ".venv/notes"]):
        before = (ground.project / ".venv/notes").read_bytes()
        done = start(inside, *words, cwd=ground.project)
        assert done.returncode == 2, (words, done)
        assert b"unspill is installed inside it" in done.stderr
        assert (ground.project / ".venv/notes").read_bytes() == before
        assert run_cli(*words, cwd=ground.project).returncode == 0
        assert (ground.project / ".venv/notes").read_bytes() != before


def test_e12_a_root_for_one_run_can_not_hold_unspill(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a directory to write in which unspill, or a module that Python looks for, lies.

    Control: for another directory beside it the person is asked.
    """
    place = ground.home / "tools"
    (place / "lib").mkdir(parents=True)
    (ground.home / "other").mkdir()
    asked: list[Question] = []

    def answer(question: Question) -> bool:
        asked.append(question)
        return True

    with Sandbox(ground.project, policy=ground.policy(), approver=Callback(answer)) as sandbox:
        monkeypatch.setattr(sys, "path", [*sys.path, os.fspath(place / "lib")])
        for root in (place, place / "lib"):
            with pytest.raises(RootRefused, match="Python imports modules from"):
                sandbox.run("touch made", roots=[os.fspath(root)])
        assert not asked, "nobody is asked for what can't be"
        assert sandbox.run("true", roots=[os.fspath(ground.home / "other")]).ok
        assert len(asked) == 1
    done = run_cli("run", "--root", PACKAGE.parent, "--", "true", cwd=ground.project)
    assert done.returncode == 125
    assert b"can't be a root: " in done.stderr


def test_e12_a_root_of_an_earlier_run_is_looked_at_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold changes of a directory that one run was allowed, and have them applied by a Python that imports from it.

    Control: a Python that does not, applies them.
    """
    other = ground.home / "other"
    other.mkdir()
    with Sandbox(ground.project, policy=ground.policy(), approver=Callback(lambda _question: True)) as sandbox:
        assert sandbox.run(f"echo evil > {other}/json.py", roots=[os.fspath(other)]).held
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path, os.fspath(other)])
            with pytest.raises(RootRefused, match="Python imports modules from"):
                sandbox.apply()
            assert not (other / "json.py").exists()
        assert sandbox.apply().changed == 1
        assert (other / "json.py").exists()


@pytest.mark.parametrize("name", ["asyncio.py", "org/python/core.py"])
@pytest.mark.parametrize("way", ["PYTHONPATH", "a .pth file"])
def test_e12_a_program_that_imports_from_the_project_is_no_way_out(way: str, name: str, ground: Ground) -> None:
    """Leave a module by the name of one that unspill, or the standard library, tries to import later, in a project
    that Python's settings lead to.

    Control: the same program without the check runs the module.
    """
    canary = ground.home / "canary"
    evil = (
        f"mkdir -p {os.path.dirname(name) or '.'}; echo \"open('{canary}', 'w')\" > {name}; head -c 9 /dev/zero > notes"
    )
    ground.write("notes", "old\n")
    program = LIBRARY.format(then="import unspill.runner.aio, copy")
    words = ["-P", "-c", program, os.fspath(ground.project), "sh", "-c", evil]

    def attack(python: Path) -> subprocess.CompletedProcess[bytes]:
        if way == "PYTHONPATH":
            return start("env", f"PYTHONPATH={ground.project}", python, *words, cwd=ground.home)
        # Before the standard library, as the directory of an editable installation may be
        line = f"import sys; sys.path.insert(0, {os.fspath(ground.project)!r})\n"
        (python.parents[1] / SITE / "editable.pth").write_text(line)
        return start(python, *words, cwd=ground.home)

    done = attack(install(ground.home / "good") / "python")
    assert b"Python imports modules from" in done.stderr
    assert not canary.exists()
    assert not (ground.project / name).exists()
    attack(install(ground.home / "bad", checks=False) / "python")
    assert canary.exists()


def test_e12_a_program_that_was_started_in_the_project_is_warned(ground: Ground) -> None:
    """Leave a module by the name of one of the standard library in the project, for a program of the person's that was
    started there and uses unspill.

    Control: Python runs it; started with `-P` the program has no warning, and Python does not.
    """
    canary = ground.home / "canary"
    program = LIBRARY.format(then="print(*sandbox.run('true').warnings); import shelve")
    words = ["-c", program, os.fspath(ground.project), "sh", "-c", f"echo \"open('{canary}', 'w')\" > shelve.py"]
    done = start(sys.executable, "-P", *words, cwd=ground.project)
    assert b"This program imports modules from" not in done.stdout
    assert not canary.exists()
    done = start(sys.executable, *words, cwd=ground.project)
    assert b"This program imports modules from" in done.stdout
    assert canary.exists()


def test_e12_unspill_started_as_a_module_does_not_import_from_the_project(ground: Ground) -> None:
    """Leave a module by the name of one of the standard library in a project where unspill is started with
    `python -m`, which imports from there.

    Control: Python runs it before unspill comes to its check; with `-P` it does not.
    """
    canary = ground.home / "canary"
    words = ("-m", "unspill", "run", "-c", "true")
    done = start(sys.executable, *words, cwd=ground.project)
    assert done.returncode == 125
    assert b"Python imports modules from" in done.stderr
    ground.write("runpy.py", f"open({os.fspath(canary)!r}, 'w')\n")
    ground.write("unspill.py", f"open({os.fspath(canary)!r}, 'w')\n")
    assert start(sys.executable, "-P", *words, cwd=ground.project).returncode == 0
    assert not canary.exists()
    start(sys.executable, *words, cwd=ground.project)
    assert canary.exists()


PROGRAM: Final = Path(__file__).with_name("late_imports.py")
HELD: Final = "mkdir -p .claude; echo > .claude/settings.json; printf '#!/bin/sh' > run.sh; chmod +x run.sh"
OPEN: Final = "from unspill import Sandbox\nwith Sandbox(project) as sandbox:\n    "
TOOL: Final = "from unspill.adapters.tools import call_tool\n" + OPEN


@dataclass(frozen=True)
class Case:
    """What is done after some preparation. `layers` have changed where nothing live does.

    `git` is the path of the repository in which something changes first, where there is one.
    """

    words: tuple[str, ...] = ()
    code: str = ""
    before: tuple[tuple[str, ...], ...] = ()
    exit_code: int = 0
    layers: bool = False
    fails: bool = False
    no_audit: bool = False
    git: str = ""


RUN: Final = ("run", "-c", "echo new > file; touch made")
HOLD: Final = ("run", "--hold", "-c", f"echo new > file; echo two >> lines; touch made; {HELD}")
COMMIT: Final = "git add file && git commit -qm x; touch made"
HEADS: Final = ".git/refs/heads"
CASES: Final = {
    "run": Case(RUN),
    "run, for the first time": Case(RUN, no_audit=True),
    "run, quietly": Case((*RUN[:1], "--quiet", *RUN[1:])),
    "run, as JSON": Case((*RUN[:1], "--json", *RUN[1:])),
    "run that fails": Case(("run", "-c", "echo new > file; cat .env; curl http://example.org; exit 3"), exit_code=3),
    "run that holds": Case(("run", "-c", f"echo new > file; {HELD}")),
    "run over what is held": Case(RUN, before=(("run", "--hold", "-c", "touch other; mkdir d; touch d/e"),)),
    "run with names of strangers": Case(("run", "-c", "echo new > file; touch '\u0430bc' 'ü' \"$(printf '\\033')\"")),
    "run with git": Case(("run", "-c", "git init -q . && git add -f .env; echo new > file")),
    "run with reasons": Case(("run", "-c", "echo new > file; cat /root/x"), exit_code=1),
    "run while the disk fails": Case(RUN, fails=True),
    "apply": Case(("apply",), before=(HOLD,), exit_code=6),
    "apply, as JSON": Case(("apply", "--json"), before=(HOLD,), exit_code=6),
    "apply of a path": Case(("apply", "file"), before=(HOLD,)),
    "apply of a hunk": Case(("apply", "--hunk", "lines:1@TOKEN", "file"), before=(HOLD,)),
    "apply with consent": Case(("apply", "--include", ".claude@TOKEN"), before=(HOLD,)),
    "apply while the disk fails": Case(("apply",), before=(HOLD,), fails=True, exit_code=5),
    "undo": Case(("undo",), before=(RUN,)),
    "undo, as JSON": Case(("undo", "--json"), before=(RUN,)),
    "undo while the disk fails": Case(("undo",), before=(RUN,), fails=True, exit_code=5),
    "redo": Case(("redo",), before=(RUN, ("undo",))),
    "restore": Case(("restore", "file"), before=(RUN,)),
    "discard": Case(("discard",), before=(HOLD,), layers=True),
    "discard, as JSON": Case(("discard", "--json"), before=(HOLD,), layers=True),
    "discard of a path": Case(("discard", "made"), before=(HOLD,), layers=True),
    "discard of a hunk": Case(("discard", "--hunk", "lines:1"), before=(HOLD,), layers=True),
    "run in a repository": Case(("run", "-c", COMMIT), git=".git/objects"),
    "run of which some is held in a repository": Case(("run", "-c", f"{COMMIT}; {HELD}"), git=".git/objects"),
    "run in a repository while the disk fails": Case(("run", "-c", COMMIT), git=".git/objects", fails=True),
    "apply in a repository": Case(("apply",), before=(("run", "--hold", "-c", COMMIT),), git=".git/objects"),
    "apply of files in a repository": Case(("apply", "made"), before=(("run", "--hold", "-c", COMMIT),), git="."),
    "undo in a repository": Case(("undo",), before=(("run", "-c", COMMIT),), git=HEADS),
    "redo in a repository": Case(("redo",), before=(("run", "-c", COMMIT), ("undo",)), git=HEADS),
    "undo of an apply in a repository": Case(
        ("undo",), before=(("run", "--hold", "-c", COMMIT), ("apply",)), git=HEADS
    ),
    "library: run": Case(code=f"{OPEN}sandbox.run('echo new > file; exit 3').text()"),
    "library: arun": Case(code=f"{OPEN}import asyncio; asyncio.run(sandbox.arun('echo new > file'))"),
    "library: apply": Case(code=f"{OPEN}sandbox.operation_changes(sandbox.apply().number)", before=(HOLD,)),
    "library: undo": Case(code=f"{OPEN}sandbox.operation_changes(sandbox.undo().number)", before=(RUN,)),
    "library: redo": Case(code=f"{OPEN}sandbox.redo()", before=(RUN, ("undo",))),
    "library: restore": Case(code=f"{OPEN}sandbox.restore('file')", before=(RUN,)),
    "library: discard": Case(code=f"{OPEN}sandbox.discard()", before=(HOLD,), layers=True),
    "tool: run": Case(code=f"{TOOL}print(call_tool(sandbox, 'run', {{'command': 'echo new > file'}}).text)"),
    "tool: undo": Case(code=f"{TOOL}print(call_tool(sandbox, 'undo', {{}}).text)", before=(RUN,)),
}


def imported(ground: Ground, case: Case, *, taken_away: bool = False) -> list[str]:
    """Do what a case says, and return what was imported after its first step."""
    if case.no_audit:
        shutil.rmtree(ground.state / "audit")
    seen = ground.top / "seen"
    order: dict[str, Any] = {
        "project": os.fspath(ground.project),
        "watched": os.fspath(ground.state / "layers" if case.layers else ground.project / (case.git or "file")),
        "seen": os.fspath(seen),
        "taken_away": taken_away,
        "fails": case.fails,
        **({"code": case.code} if case.code else {"words": case.words}),
    }
    done = subprocess.run(
        [sys.executable, "-P", PROGRAM, json.dumps(order)], cwd=ground.project, capture_output=True, check=False
    )
    assert done.returncode == case.exit_code, done
    return seen.read_text().splitlines()


@pytest.fixture(name="case")
def prepared(request: pytest.FixtureRequest, ground: Ground) -> Case:
    """A case with all that comes before it."""
    case = CASES[request.param]
    ground.write("file", "old\n")
    ground.write("lines", "one\n")
    ground.write(".env", "SECRET=1\n")
    if case.git:
        (ground.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
        subprocess.run(["git", "init", "-q"], cwd=ground.project, check=True)
        subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "first"], cwd=ground.project, check=True)
    for words in (("run", "-c", "touch first"), *case.before):
        assert run_cli(*words, cwd=ground.project).returncode == 0
    return replace(case, words=tuple(shown(ground, word) for word in case.words))


def shown(ground: Ground, word: str) -> str:
    """Have what a word names shown on a terminal, and return the word with the token of that."""
    if not word.endswith("@TOKEN"):
        return word
    name = word.partition("@")[0].partition(":")[0]
    at_terminal("diff", name, cwd=ground.project)
    refusal = run_cli("apply", "--hunk" if ":" in word else "--include", word.partition("@")[0], cwd=ground.project)
    return word.replace("TOKEN", refusal.stderr.decode().rpartition("@")[2].strip())


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_e12_an_operation_imports_nothing_after_its_first_step(case: Case, ground: Ground) -> None:
    """Write over modules that are not loaded yet, so that the very operation that brings them runs them at its end.

    Control: below, where nothing is loaded ahead.
    """
    assert imported(ground, case) == []


@pytest.mark.parametrize(
    "case",
    [
        *("run", "apply", "discard of a path"),
        *("run in a repository", "apply of files in a repository"),
    ],
    indirect=True,
)
def test_e12_control_without_loading_ahead_something_is_imported(case: Case, ground: Ground) -> None:
    """Do the same where nothing is loaded before it is needed. Others import all of theirs at the top.

    Control: this is the control of the test above.
    """
    assert imported(ground, case, taken_away=True) != []
