# SPDX-License-Identifier: Apache-2.0
"""A state directory that is damaged: every tool says that the sandbox failed, and none names a path of the host."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import Ground
from unspill import Sandbox
from unspill.adapters.aio import acall_tool
from unspill.adapters.files import Workspace, attempt
from unspill.adapters.tools import call_run_command, call_tool
from unspill.errors import SandboxUnavailable

pytestmark = pytest.mark.kernel

WHY = (
    "the sandbox failed: Not a directory. What the user can do: Run `unspill doctor`. If it finds no problem, this "
    "is a bug in unspill: please report it."
)
CALLS: dict[str, dict[str, Any]] = {
    "run": {"command": "echo never"},
    "read": {"path": "/etc/passwd"},
    "write": {"path": "file", "content": ""},
    "list": {"path": "/usr"},
    "edit": {"path": "/etc/passwd", "old": "a", "new": "b"},
}


@pytest.fixture
def damaged(ground: Ground) -> Iterator[Sandbox]:
    """A sandbox that had worked, before a file took the place of its layers."""
    sandbox = ground.sandbox()
    assert sandbox.run("true").ok
    layers, gone = ground.state / "layers", ground.state / "gone"
    layers.rename(gone)
    layers.touch()
    yield sandbox
    layers.unlink()
    gone.rename(layers)


def test_the_library_itself_names_the_path(damaged: Sandbox, ground: Ground) -> None:
    """The control arm: that is for the person."""
    with pytest.raises(OSError, match=str(ground.state)):
        damaged.run("true")


@pytest.mark.parametrize("name", CALLS)
def test_a_tool_says_that_the_sandbox_failed(damaged: Sandbox, name: str) -> None:
    answer = call_tool(damaged, name, CALLS[name])
    assert (answer.text, answer.is_error) == (f"ERROR: {WHY}\n", True)
    assert answer.values["error"] == "sandbox-unavailable"


def test_so_does_the_one_tool_by_itself_and_without_blocking(damaged: Sandbox) -> None:
    assert call_run_command(damaged, CALLS["run"]).text == f"ERROR: {WHY}\n"
    assert asyncio.run(acall_tool(damaged, "run", CALLS["run"])).text == f"ERROR: {WHY}\n"


def test_commands_and_files_for_frameworks_fail_by_an_error_of_ours(damaged: Sandbox, ground: Ground) -> None:
    files = Workspace(damaged)
    with pytest.raises(SandboxUnavailable, match=r"^the sandbox failed: Not a directory") as caught:
        Workspace(damaged).run("echo never")
    assert str(ground.state) not in str(caught.value)
    tries = [
        attempt(files.read, "/etc/passwd"),
        attempt(files.entries, "/usr"),
        attempt(files.write, "file", b""),
        attempt(files.remove, "file"),
        attempt(files.exists, "/usr"),
    ]
    assert tries == [(None, f"sandbox-unavailable: {WHY}")] * len(tries)
