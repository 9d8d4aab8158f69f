# SPDX-License-Identifier: Apache-2.0
"""What tests of the OpenAI agents SDK need: a model that says what it is told to, runs without tracing, workspaces."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agents import RunConfig, RunContextWrapper, ShellActionRequest, ShellCallData, ShellCommandRequest
from agents.sandbox import Manifest
from agents.sandbox.session import SandboxSession
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseFunctionShellToolCall

from tests.support import Ground
from unspill.adapters.openai_agents import UnspillClient
from unspill.errors import SandboxUnavailable
from unspill.runner.live import LiveSandbox


def quiet(**settings: Any) -> RunConfig:
    """Return a configuration that traces nothing."""
    return RunConfig(tracing_disabled=True, **settings)


def shell_call(number: int, *commands: str, **bounds: int) -> ResponseFunctionShellToolCall:
    """Return what a model says to have commands run by a ShellTool."""
    action = {"commands": [*commands], **bounds}
    return ResponseFunctionShellToolCall.model_validate(
        {
            "type": "shell_call",
            "id": f"sh_{number}",
            "call_id": f"call_{number}",
            "status": "completed",
            "action": {"timeout_ms": None, "max_output_length": None, **action},
            "environment": None,
        }
    )


def tool_call(number: int, name: str, **arguments: Any) -> Any:
    """Return what a model says to have a function tool called."""
    return function_call(name, arguments, call_id=f"call_{number}")


def scripted(*steps: Any) -> ScriptedModel:
    """Return a model that makes one call after the other, and then says `done`."""
    return ScriptedModel([*([step] for step in steps), [assistant_message("done")]])


def request(*commands: str, **bounds: int) -> ShellCommandRequest:
    """Return what the SDK hands to an executor."""
    action = ShellActionRequest(commands=[*commands], **bounds)
    return ShellCommandRequest(RunContextWrapper(context=None), ShellCallData(call_id="call_1", action=action))


def told(model: ScriptedModel) -> list[Any]:
    """Return the outputs of tools that the model has been shown, in order."""
    last = model.last_call
    assert last is not None
    assert not isinstance(last.input, str)
    return [*_outputs(last.input)]


def _outputs(items: list[Any]) -> Iterator[Any]:
    for item in items:
        if str(item.get("type", "")).endswith("_call_output"):
            yield item


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something, not for ever."""
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def refuse_to_join(*_given: object) -> None:
    """Let no command join a sandbox that is alive already."""
    raise SandboxUnavailable("broken by the test")


def break_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make bwrap refuse to start, as a defect of ours would."""
    monkeypatch.setattr(LiveSandbox, "join", refuse_to_join)
    monkeypatch.setattr("unspill.plan.argv._namespaces", lambda *_given: (b"--no-such-option",))


async def opened(ground: Ground, manifest: Manifest | None = None, **settings: Any) -> SandboxSession:
    """Return a started workspace over a sandbox with these settings."""
    workspace = await UnspillClient(ground.sandbox(**settings)).create(manifest=manifest)
    await workspace.start()
    return workspace
