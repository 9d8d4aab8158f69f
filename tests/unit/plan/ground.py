# SPDX-License-Identifier: Apache-2.0
"""A home, a project and a state directory on the real disk, for plans that are really performed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import find_native_bwrap
from tests.unit.plan.given import FILTER, facts, stack
from unspill.model.plan import Facts, Home, Places, Plan, PlanInput
from unspill.model.policy import Policy
from unspill.plan.argv import bwrap_options
from unspill.plan.build import build_plan

if TYPE_CHECKING:
    from unspill.model.policy import EngineName

LINKS = ("bin", "sbin", "lib", "lib64")


class Ground:
    """Directories below `top`, and the plan over them. `name` is the project's, whatever its characters."""

    def __init__(self, top: Path, name: bytes = b"shop") -> None:
        self.top = os.fsencode(top)
        self.home = self.top + b"/home"
        self.state = self.top + b"/state"
        self.project = self.home + b"/work/" + name
        self.playground = self.top + b"/playground"
        for path in (self.project, self.state + b"/empty", self.playground):
            os.makedirs(path)
        self.write(self.project + b"/kept", b"live\n")
        self.write(self.home + b"/secret", b"canary\n")

    def write(self, path: bytes, content: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    def places(self, **values: Any) -> Places:
        found = [b"/" + name.encode() for name in LINKS]
        links = tuple((path, os.readlink(path)) for path in found if os.path.islink(path))
        usual = Places(
            project=self.project,
            state=self.state,
            playground=self.playground,
            home=Home(path=self.home, user="ann", identity=(("user.name", 'A "q" \\ Ann'),)),
            system=(b"/usr", b"/etc"),
            links=links,
        )
        return usual.replace(**values)

    def given(self, *argv: str | bytes, engine: EngineName = "mount", **values: Any) -> PlanInput:
        """Return a plan's input; with the engine `native` its bwrap is one that has overlays."""
        held = stack(self.project, layers=self.state + b"/layers")
        assert held.open is not None
        for path in (held.open.upper, held.open.work):
            os.makedirs(path, exist_ok=True)
        usual = PlanInput(
            policy=Policy(),
            facts=self.facts(engine),
            places=self.places(),
            engine=engine,
            stacks=(held,),
            argv=tuple(map(os.fsencode, argv)),
            cwd=self.project,
            filter=FILTER,
            environ=((b"PATH", b"/usr/bin:/bin"),),
        )
        return usual.replace(**values)

    def facts(self, engine: EngineName = "mount") -> Facts:
        usual = facts()
        assert usual.bwrap is not None
        path = find_native_bwrap(bwrap()) if engine == "native" else bwrap()
        return usual.replace(bwrap=usual.bwrap.replace(path=os.fsencode(path)))


def bwrap() -> str:
    found = shutil.which("bwrap")
    assert found is not None
    return found


def perform(given: PlanInput) -> subprocess.CompletedProcess[bytes]:
    """Run a plan of the engine `native`, whose overlays need nobody's help."""
    plan: Plan = build_plan(given)
    first = 100
    options, contents = bwrap_options(plan, given.facts, first)
    args = _memory_file(b"".join(option + b"\0" for option in options), first - 1)
    files = [_memory_file(content, first + index) for index, content in enumerate(contents)]
    try:
        return subprocess.run(
            [plan.bwrap, b"--args", b"%d" % args, b"--", *plan.argv],
            pass_fds=(args, *files),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    finally:
        for fd in (args, *files):
            os.close(fd)


def _memory_file(content: bytes, number: int) -> int:
    fd = os.memfd_create("options")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, number, inheritable=True)
    os.close(fd)
    return number
