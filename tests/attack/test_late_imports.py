# SPDX-License-Identifier: Apache-2.0
"""From its first step on an operation imports nothing: what a command wrote over our own files would be run by it."""

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

from tests.kernel.terminal_person import at_terminal
from tests.support import run_cli

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

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
