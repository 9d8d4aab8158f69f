# SPDX-License-Identifier: Apache-2.0
"""Where the program of a hook may lie: never where the commands that it seals could change it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import unspill
from tests.cli.coding_agents import ClaudeCode
from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel

PROGRAM = Path(sys.executable).with_name("unspill")
PACKAGE = Path(unspill.__path__[0]).parent


def make_interpreter(directory: Path) -> Path:
    """Make a virtual environment whose interpreter is the system's, by a link that leads out of any project."""
    (directory / "bin").mkdir(parents=True)
    (directory / "pyvenv.cfg").write_text(f"home = {sys._base_executable.rpartition('/')[0]}\n")  # type: ignore[attr-defined]
    (directory / "bin/python").symlink_to(os.path.realpath(sys.executable))
    site = directory / f"lib/python3.{sys.version_info.minor}/site-packages"
    site.mkdir(parents=True)
    (site / "unspill.pth").write_text(f"{PACKAGE}\n")
    return directory / "bin/python"


def as_script(ground: Ground, place: Path) -> list[str]:
    """A program outside, which names an interpreter."""
    script = ground.top / "bin/unspill"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f"#!{make_interpreter(place / 'venv')}\nfrom unspill.cli.main import main\nmain()\n")
    script.chmod(0o700)
    return [str(script)]


def as_module(ground: Ground, place: Path) -> list[str]:
    return [str(make_interpreter(place / "venv")), "-P", "-m", "unspill"]


def as_link(ground: Ground, place: Path) -> list[str]:
    """A link that leads out."""
    (place / "unspill").symlink_to(PROGRAM)
    return [str(place / "unspill")]


def as_linked_link(ground: Ground, place: Path) -> list[str]:
    """A link outside, by way of one."""
    (place / "bin").symlink_to(PROGRAM.parent)
    (ground.top / "bin").mkdir()
    (ground.top / "bin/unspill").symlink_to(place / "bin/unspill")
    return [str(ground.top / "bin/unspill")]


def as_import_path(ground: Ground, place: Path) -> list[str]:
    return ["env", f"PYTHONPATH={place}", str(PROGRAM)]


def as_missing_import_path(ground: Ground, place: Path) -> list[str]:
    """What is not there can be made."""
    return ["env", f"PYTHONPATH={place / 'later'}", str(PROGRAM)]


def as_installed(ground: Ground, place: Path) -> list[str]:
    """A link at a directory of packages in which unspill lies really outside."""
    (place / "packages").symlink_to(PACKAGE)
    return ["env", f"PYTHONPATH={place / 'packages'}", str(PROGRAM)]


WAYS: list[Callable[[Ground, Path], list[str]]] = [
    as_script,
    as_module,
    as_link,
    as_linked_link,
    as_import_path,
    as_missing_import_path,
    as_installed,
]


def call(words: list[str], agent: ClaudeCode, *, cwd: Path) -> "subprocess.CompletedProcess[bytes]":
    event = agent.event_for("echo x") | {"cwd": str(cwd)}
    raw = json.dumps(event).encode()
    return subprocess.run(words, input=raw, cwd=cwd, capture_output=True, check=False, timeout=60)


@pytest.fixture
def agent(ground: Ground) -> ClaudeCode:
    return ClaudeCode(ground.project)


@pytest.mark.parametrize("is_named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize("way", WAYS)
def test_unspill_seals_nothing_from_within_the_project(
    way: Callable[[Ground, Path], list[str]], is_named: bool, ground: Ground, agent: ClaudeCode
) -> None:
    hook = [*way(ground, ground.project), "hook", "claude-code"]
    other = ground.home / "other"
    other.mkdir()
    options = ["--project", str(ground.project)] if is_named else []
    done = call([*hook, *options], agent, cwd=other if is_named else ground.project)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"can't be a root: " in done.stderr
    assert os.fsencode(ground.project) in done.stderr.partition(b"can't be a root: ")[2]
    # The very same is good for another project
    options = ["--project", str(other)] if is_named else []
    done = call([*hook, *options], agent, cwd=ground.project if is_named else other)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", ["{project}", "", ".", ":/nowhere", "/nowhere:"])
def test_modules_of_the_project_are_loaded_by_no_command_that_the_plug_in_leads_to(
    path: str, ground: Ground, agent: ClaudeCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = ground.home / "canary"
    for name in ("sitecustomize.py", "json.py", "shlex.py", "unspill.py"):
        (ground.project / name).write_text(f"open({str(canary)!r}, 'w')\n")
    monkeypatch.setenv("PYTHONPATH", path.format(project=ground.project))
    command = agent.consider("echo x").command
    assert command is not None
    done = subprocess.run(["sh", "-c", command], cwd=ground.project, capture_output=True, check=True)
    assert done.stdout == b"x\n"
    assert not canary.exists()
    # The control arm: where Python looks at that variable, they are
    call([str(PROGRAM), "hook", "claude-code"], agent, cwd=ground.project)
    assert canary.exists() is (path != "")


def test_the_project_itself_can_be_no_place_to_import_from(ground: Ground, agent: ClaudeCode) -> None:
    done = call([sys.executable, "-m", "unspill", "hook", "claude-code"], agent, cwd=ground.project)
    assert done.returncode == 2
    assert b"Python imports modules from " in done.stderr
    done = call([sys.executable, "-P", "-m", "unspill", "hook", "claude-code"], agent, cwd=ground.project)
    assert done.returncode == 0


def test_a_home_directory_is_refused_as_such(ground: Ground, agent: ClaudeCode) -> None:
    done = call([str(PROGRAM), "hook", "claude-code"], agent, cwd=ground.home)
    assert done.returncode == 2
    assert b"it is your home directory." in done.stderr


def test_the_project_is_that_of_the_agent_wherever_a_command_is_run(ground: Ground, agent: ClaudeCode) -> None:
    """Some agents let a model choose the directory, and do not tell the hook."""
    other = ground.home / "other"
    (other / ".git").mkdir(parents=True)
    command = agent.consider("pwd; echo 1 > made").command
    assert command is not None
    subprocess.run(["sh", "-c", command], cwd=other, check=False)
    assert not (other / "made").exists()
    unnamed = [*command.partition(" run ")[0].split(), "run", "--", "bash", "-c", "echo 1 > made"]
    assert subprocess.run(unnamed, cwd=other, check=False).returncode == 0
    assert (other / "made").exists(), "without its name, the project would be the model's choice"


def test_a_command_starts_where_the_agent_stands_behind_a_link_too(ground: Ground, agent: ClaudeCode) -> None:
    (ground.project / "sub").mkdir()
    (ground.home / "link").symlink_to(ground.project / "sub")
    command = agent.consider("echo 1 > made").command
    assert command is not None
    variables = {**os.environ, "PWD": str(ground.home / "link")}
    subprocess.run(["sh", "-c", command], cwd=ground.home / "link", env=variables, check=True)
    assert (ground.project / "sub/made").exists()
    assert run_cli("undo", cwd=ground.project).returncode == 0
