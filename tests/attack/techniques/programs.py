# SPDX-License-Identifier: Apache-2.0
"""E12 and E13: programs of the host's side, and who gets them started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.attack.arena import Arena
from tests.attack.techniques.record import Listed
from tests.support import run_cli

if TYPE_CHECKING:
    from collections.abc import Callable


LIST: Final = Listed()

FAKES: Final = (
    "bwrap",
    "git",
    "python3",
    "sh",
    "mount",
    "systemd-run",
    "less",
    "sqlite3",
    "cp",
    "id",
    "socat",
)


def plant_programs(arena: Arena, directory: Path) -> Path:
    """Put programs of well-known names where a command can write; they say that they were started."""
    started = arena.ground.top / "started"
    started.unlink(missing_ok=True)
    directory.mkdir(exist_ok=True)
    for name in FAKES:
        fake = directory / name
        fake.write_text(f"#!/bin/sh\necho {name} >> {started}\nexit 0\n")
        fake.chmod(0o755)
    return started


def all_words(arena: Arena, search: str) -> None:
    """Do what people do all day, in a project that a command has prepared."""
    arena.patch.setenv("PATH", search)
    arena.ground.configure("" if os.getuid() else "allow_root = true\n")
    for words in (
        ("run", "--hold", "--", "/bin/sh", "-c", "echo x > made"),
        ("changes",),
        ("diff",),
        ("apply",),
        ("log",),
        ("undo",),
        ("status",),
    ):
        run_cli(*words, cwd=arena.ground.project)


def started_from(place: Callable[[Arena], str]) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        started = plant_programs(arena, arena.ground.project / "bin")
        rest = os.path.dirname(os.fsdecode(arena.ground.bwrap))
        all_words(arena, f"{place(arena)}:{rest}:/usr/bin:/bin")
        return started.exists()

    return attack


def found_on_the_way(place: Callable[[Arena], str]) -> Callable[[Arena], object]:
    def control(arena: Arena) -> object:
        started = plant_programs(arena, arena.ground.project / "bin")
        search = f"{place(arena)}:/usr/bin:/bin"
        subprocess.run(["bwrap", "--version"], cwd=arena.ground.project, env={"PATH": search}, check=False)
        return started.exists()

    return control


for _tries, _place in {
    "Leave programs in the project's directory that stands first on PATH": lambda arena: f"{arena.ground.project}/bin",
    "Leave programs where a relative part of PATH leads": lambda _arena: "bin",
}.items():
    LIST.add_pair("E12", _tries, started_from(_place), "by looking bwrap up on PATH", found_on_the_way(_place))


def imports(*, naive: bool) -> Callable[[Arena], object]:
    """Leave modules in the project that a start of Python would import."""

    def attack(arena: Arena) -> object:
        started = arena.ground.top / "imported"
        started.unlink(missing_ok=True)
        for name in ("sitecustomize", "usercustomize", "os", "json", "sqlite3", "_socket", "typing", "select"):
            arena.ground.write(f"{name}.py", f"open({os.fspath(started)!r}, 'a').write(__name__)\n")
        if naive:
            subprocess.run([sys.executable, "-c", "import sqlite3"], cwd=arena.ground.project, check=False)
        else:
            all_words(arena, f"{os.path.dirname(os.fsdecode(arena.ground.bwrap))}:/usr/bin:/bin")
        return started.exists()

    return attack


LIST.add_pair(
    "E12",
    "Leave modules in the project that Python would import from its working directory",
    imports(naive=False),
    "by a Python that looks there",
    imports(naive=True),
)

# What the project's own git configuration says, and what a person does that makes git run it
GIT: Final = {
    "core.fsmonitor": ('core.fsmonitor "touch {canary}; false"', "status"),
    "diff.external": ('diff.external "touch {canary}; true"', "diff"),
    "a text conversion": ('diff.x.textconv "touch {canary}; cat"', "diff"),
    "a clean filter": ('filter.x.clean "touch {canary}; cat"', "diff"),
}


def looks(setting: str, verb: str, *, naive: bool) -> Callable[[Arena], object]:
    """Let unspill look at, show and apply changes of a repository whose configuration runs something."""

    def attack(arena: Arena) -> object:
        project, canary = arena.ground.project, arena.ground.top / "fired"
        said = setting.format(canary=canary)
        prepare = f"""
        git init -q . && git config user.name x && git config user.email x@example.org
        echo one > a.txt; echo '*.txt diff=x filter=x' > .gitattributes; git add -A; git commit -qm x
        git config {said}; echo two > a.txt
        """
        subprocess.run(["sh", "-c", prepare], cwd=project, check=False, capture_output=True)
        canary.unlink(missing_ok=True)
        if naive:
            subprocess.run(["git", verb], cwd=project, check=False, capture_output=True)
        else:
            sandbox = arena.ground.sandbox()
            sandbox.run("echo three > a.txt; echo more > b.txt", after="hold")
            sandbox.summary()
            sandbox.diff()
            sandbox.apply()
            sandbox.undo()
            shutil.rmtree(project / ".git")
        return canary.exists()

    return attack


for _what, (_setting, _verb) in GIT.items():
    LIST.add_pair(
        "E13",
        f"Have git run something while changes are looked at, by {_what}",
        looks(_setting, _verb, naive=False),
        f"by `git {_verb}`",
        looks(_setting, _verb, naive=True),
    )

PAGERS: Final = ("PAGER", "GIT_PAGER", "EDITOR", "VISUAL", "LESSOPEN", "GIT_EXTERNAL_DIFF")


def pages(*, naive: bool) -> Callable[[Arena], object]:
    """A variable names a program of the project's to show things with, as some environments set it."""

    def attack(arena: Arena) -> object:
        started = plant_programs(arena, arena.ground.project / "bin")
        for name in PAGERS:
            arena.patch.setenv(name, os.fspath(arena.ground.project / "bin/less"))
        if naive:
            prepare = "git init -q .; echo one > a.txt; git add -A; echo two > a.txt; git diff"
            subprocess.run(["sh", "-c", prepare], cwd=arena.ground.project, check=False, capture_output=True)
            shutil.rmtree(arena.ground.project / ".git")
        else:
            all_words(arena, f"{os.path.dirname(os.fsdecode(arena.ground.bwrap))}:/usr/bin:/bin")
        return started.exists()

    return attack


LIST.add_pair(
    "E13",
    "Have a program of the project's show the changes, by variables that name a pager or an editor",
    pages(naive=False),
    "by `git diff`",
    pages(naive=True),
)
