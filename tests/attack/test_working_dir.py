# SPDX-License-Identifier: Apache-2.0
"""The working directory: a path that bwrap would resolve while it has the host's /proc open."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena
from unspill import RunResult, Sandbox
from unspill.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

NUMBERS = range(3, 20)


def victim(ground: Ground) -> Path:
    path = ground.top / "victim.txt"
    path.write_text("canary")
    return path


def go_through(sandbox: Sandbox, cwd: str, target: Path) -> RunResult | None:
    """Read and write a file of the host from a working directory that may be outside; None if it was refused."""
    beyond = ".." + str(target)
    try:
        return sandbox.run(f"cat {beyond}; echo overwritten > {beyond}", cwd=cwd)
    except UsageError:
        return None


def is_outside(sandbox: Sandbox, cwds: list[str], target: Path) -> bool:
    results = [go_through(sandbox, cwd, target) for cwd in cwds]
    return any(result is not None and b"canary" in result.stdout.kept() for result in results) or (
        target.read_text() != "canary"
    )


@pytest.mark.parametrize("place", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/thread-self/fd/{}"])
def test_a23_a_working_directory_leads_through_no_descriptor_of_bwrap(arena: Arena, ground: Ground, place: str) -> None:
    """Ask for a working directory that is a descriptor which bwrap itself still has open on the host's /proc.

    Control: where bwrap goes there by itself, the file of the host is read and written.
    """
    target = victim(ground)
    cwds = [place.format(number) for number in NUMBERS]
    assert not is_outside(ground.sandbox(), cwds, target)
    with arena.patch.context() as patch:
        patch.setattr("unspill.plan.build.is_staged", lambda *_: False)
        assert is_outside(ground.sandbox(), cwds, target)


@pytest.mark.parametrize("link", ["/proc/self/fd/{}", "/dev/fd/{}", "up/{}"])
def test_a23_a_link_of_an_earlier_run_leads_nowhere_as_a_working_directory(
    arena: Arena, ground: Ground, link: str
) -> None:
    """Leave links to such descriptors in the project, for a later run that starts in one of them.

    Control: where bwrap goes there by itself, the file of the host is read and written.
    """
    target = victim(ground)
    sandbox = ground.sandbox()
    made = [f"ln -s {link.format(number)} d{number}" for number in NUMBERS]
    sandbox.run("ln -s /proc/self/fd up; " + "; ".join(made))
    cwds = [f"d{number}" for number in NUMBERS]
    assert not is_outside(sandbox, cwds, target)
    with arena.patch.context() as patch:
        patch.setattr("unspill.plan.build.is_staged", lambda *_: False)
        assert is_outside(sandbox, cwds, target)


def test_a24_the_pipe_of_the_shell_that_goes_there_is_gone_before_the_command_starts(
    arena: Arena, ground: Ground
) -> None:
    """Write words of that shell to every descriptor from 3 to 255, and look for pipes of pid 1 to take over.

    Control: the shell itself has the pipe, or a program that is not found could not be told.
    """
    (ground.project / "sub").mkdir()
    script = """
    for number in range(3, 256):
        try: os.write(number, b"program")
        except OSError: continue
        won(number)
    for name in os.listdir("/proc/1/fd"):
        try: target = os.readlink(f"/proc/1/fd/{name}")
        except PermissionError: continue
        if int(name) > 2 and "pipe" in target: won("of pid 1:", name)
    """
    for profile in ("default", "strict"):
        assert not arena.attack(script, options={"cwd": "sub"}, profile=profile).won
        assert ground.sandbox(profile=profile).run(["no-such-program"], cwd="sub").exit_code == 127


def test_a23_what_goes_to_the_working_directory_leaves_no_descriptor(arena: Arena, ground: Ground) -> None:
    """Look for descriptors in a run that a shell has led to its directory, and for those of its ancestors.

    Control: the search finds one that the command opens itself.
    """
    (ground.project / "sub").mkdir()
    look = """
    for number in range(3, 4096):
        try: os.fstat(number)
        except OSError: continue
        won("has", number)
    """
    assert not arena.attack(look, options={"cwd": "sub"})
    assert arena.attack("os.open('/', os.O_RDONLY)\n" + look.replace("\n    ", "\n"), options={"cwd": "sub"})
    assert os.listdir(ground.project / "sub") == []
