# SPDX-License-Identifier: Apache-2.0
"""Whole agents of the frameworks, each by its example, with the model that plays a script to real coding agents.

They are sealed, and what they did is undone to the very tree.
"""

import asyncio
import gc
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.scripted_model import ScriptedModel, ToolCall, Turn
from tests.support import Ground, run_cli

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.agents,
    # The frameworks leave their clients to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEY = "canary-of-the-key"
# A word that only the output has
ENDS = "printf 'the-end-%s\\n' 42"
PATCH = "*** Begin Patch\n*** Add File: greeting.txt\n+hello\n*** End Patch\n"


@dataclass(frozen=True)
class Whole:
    """An agent: how its model is named, its tool for commands, and what it does before it runs one."""

    model: str
    tool: str
    argument: str
    first: tuple[Turn, ...] = ()


AGENTS = {
    "openai_agents_example": Whole("mock-model", "run_command", "command"),
    "openai_sandbox_example": Whole(
        "mock-model",
        "exec_command",
        "cmd",
        first=(Turn(calls=(ToolCall(("apply_patch",), {}, text=PATCH),)),),
    ),
    "deepagents_example": Whole("anthropic:claude-sonnet-4-6", "execute", "command"),
    "pydantic_ai_example": Whole("anthropic:claude-sonnet-4-6", "shell", "command"),
}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def canary() -> Iterator[ScriptedModel]:
    """A server that says nothing, and notes what is asked of it."""
    with ScriptedModel() as canary:
        yield canary


def tree(project: Path) -> dict[str, tuple[int, bytes]]:
    paths = [path for path in project.rglob("*") if path.is_file()]
    return {str(path.relative_to(project)): (path.stat().st_mode, path.read_bytes()) for path in paths}


@pytest.mark.parametrize("name", AGENTS)
def test_a_whole_agent_is_sealed_and_what_it_did_is_undone(
    name: str,
    ground: Ground,
    model: ScriptedModel,
    canary: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = AGENTS[name]
    (ground.home / ".ssh").mkdir(mode=0o700)
    (ground.home / ".ssh/id_rsa").write_text(f"{KEY}\n")
    ground.write("notes.md", "# Notes\n")
    before = tree(ground.project)
    reaches = f"curl -sS -m 3 {canary.url}/canary >/dev/null 2>&1 && echo NET-OPEN || echo NET-CLOSED"
    writes = "test -e greeting.txt || echo hello > greeting.txt; echo more > more.txt"
    command = f"{writes}; {reaches}; cat ~/.ssh/id_rsa || echo HIDDEN; {ENDS}"
    call = ToolCall((whole.tool,), {whole.argument: command})
    model.script = (*whole.first, Turn(calls=(call,)), Turn(text="All done."))
    variables = {"OPENAI_BASE_URL": f"{model.url}/v1", "ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_URL": model.url}
    for variable, value in {**variables, "OPENAI_API_KEY": "fake", "ANTHROPIC_API_KEY": "fake"}.items():
        monkeypatch.setenv(variable, value)
    example = os.fspath(ROOT / "examples" / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [example, os.fspath(ground.project), whole.model])
    # Not as a program of its own: a framework and its clients take up to ten seconds to load
    with closing(asyncio.new_event_loop()) as loop:
        # For frameworks that take the one that there is
        asyncio.set_event_loop(loop)
        runpy.run_path(example, run_name="__main__")
        asyncio.set_event_loop(None)
    gc.collect()
    printed = capsys.readouterr().out
    told = printed, model.results
    sent = "".join(model.requests)
    assert "the-end-42" in "".join(model.results), told
    assert ("NET-CLOSED" in sent, "HIDDEN" in sent) == (True, True), told
    assert KEY not in sent
    assert "/canary" not in canary.paths
    assert "All done." in printed
    after = tree(ground.project)
    assert after.keys() - before.keys() == {"greeting.txt"}, told
    assert after["greeting.txt"][1].strip() == b"hello"
    for _ in range(10):
        if run_cli("undo", cwd=ground.project).returncode != 0:
            break
    assert tree(ground.project) == before
    # The control: without a sandbox the same command reads the key and reaches the server
    alone = subprocess.run(["sh", "-c", command], cwd=ground.top, capture_output=True, text=True, check=True)
    assert KEY in alone.stdout
    assert "/canary" in canary.paths
