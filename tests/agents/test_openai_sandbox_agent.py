# SPDX-License-Identifier: Apache-2.0
"""Real runs of a SandboxAgent, whose model is scripted, with its own shell and patch tools over a sandbox of ours."""

import asyncio
from typing import Any

import pytest
from agents import Runner, RunState
from agents.exceptions import AgentsException
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.testing import ScriptedModel
from openai.types.responses import ResponseCustomToolCall

from tests.agents.openai_given import break_sandbox, quiet, scripted, told, tool_call, until
from tests.support import Ground, kinds, lasting, processes_with
from unspill import Network, Sandbox
from unspill.adapters.openai_agents import UnspillClient
from unspill.errors import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.asyncio, pytest.mark.agents]

PATCH = """*** Begin Patch
*** Update File: app.py
@@
-print(1)
+print(2)
*** Add File: notes.txt
+patched
*** End Patch
"""


def patch_call(number: int, patch: str) -> ResponseCustomToolCall:
    return ResponseCustomToolCall(type="custom_tool_call", name="apply_patch", input=patch, call_id=f"call_{number}")


def worker(model: ScriptedModel, **settings: Any) -> SandboxAgent:
    capabilities = settings.pop("capabilities", None) or [Shell(), Filesystem()]
    return SandboxAgent(name="worker", model=model, capabilities=capabilities, **settings)


async def run(sandbox: Sandbox, agent: SandboxAgent, given: Any = "go", **settings: Any) -> Any:
    config = quiet(sandbox=SandboxRunConfig(client=UnspillClient(sandbox), **settings))
    return await Runner.run(agent, given, run_config=config)


async def test_its_shell_and_its_patches_act_on_one_tree_and_the_project_is_not_touched(ground: Ground) -> None:
    ground.write("app.py", "print(1)\n")
    sandbox = ground.sandbox()
    model = scripted(
        tool_call(1, "exec_command", cmd="python3 app.py; echo made > by-shell"),
        patch_call(2, PATCH),
        tool_call(3, "exec_command", cmd="python3 app.py; cat notes.txt by-shell; exit 6"),
    )
    result = await run(sandbox, worker(model))
    assert result.final_output == "done"
    first, patched, last = (item["output"] for item in told(model))
    assert "Process exited with code 0" in first
    assert first.endswith("Output:\n1\n")
    assert "notes.txt" in str(patched)
    assert "Process exited with code 6" in last
    assert last.endswith("Output:\n2\npatchedmade\n")
    assert kinds(sandbox.changes()) == {"app.py": "modified", "by-shell": "added", "notes.txt": "added"}
    assert (ground.project / "app.py").read_text() == "print(1)\n"
    sandbox.apply()
    assert (ground.project / "app.py").read_text() == "print(2)\n"
    sandbox.undo()
    assert [path.name for path in ground.project.iterdir()] == ["app.py"]


async def test_a_patch_of_a_secret_finds_none_and_can_not_replace_it(ground: Ground) -> None:
    ground.write(".env", "TOKEN=1")
    sandbox = ground.sandbox(after="apply")
    model = scripted(
        patch_call(1, "*** Begin Patch\n*** Update File: .env\n@@\n-TOKEN=1\n+TOKEN=2\n*** End Patch\n"),
        patch_call(2, "*** Begin Patch\n*** Add File: .env\n+TOKEN=3\n*** End Patch\n"),
    )
    await run(sandbox, worker(model))
    first, second = told(model)
    assert first["output"] == "apply_patch missing file: .env"
    assert second["output"] == "Created .env"
    assert kinds(sandbox.changes()) == {".env": "added"}
    assert (ground.project / ".env").read_text() == "TOKEN=1"


async def test_a_directory_of_the_project_is_where_it_starts_if_wanted(ground: Ground) -> None:
    ground.write("sub/file", "inner")
    model = scripted(tool_call(1, "exec_command", cmd="cat file"))
    await run(ground.sandbox(), worker(model), cwd="sub")
    assert told(model)[0]["output"].endswith("Output:\ninner")


async def test_a_command_over_its_time_is_told_and_dead(ground: Ground) -> None:
    word = lasting()
    model = scripted(tool_call(1, "exec_command", cmd=f"sleep {word}", yield_time_ms=600))
    await run(ground.sandbox(), worker(model))
    assert told(model)[0]["output"].endswith("Command timed out after 0.600 seconds.")
    assert processes_with(word) == []


async def test_a_refused_host_reaches_the_model(ground: Ground) -> None:
    sandbox = ground.sandbox(network=Network(hosts=("other.example.org",)))
    model = scripted(tool_call(1, "exec_command", cmd="curl -s -f -m 5 http://example.org/"))
    await run(sandbox, worker(model))
    assert "[unspill] Network: example.org:80 was refused: no rule covers it." in told(model)[0]["output"]


async def test_our_failure_ends_the_run_and_is_never_an_output(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = ground.sandbox()
    workspace = await UnspillClient(sandbox).create()
    await workspace.start()
    model = scripted(tool_call(1, "exec_command", cmd="echo hello"))
    break_sandbox(monkeypatch)
    config = quiet(sandbox=SandboxRunConfig(session=workspace))
    with pytest.raises(AgentsException, match="the sandbox could not be started: "):
        await Runner.run(worker(model), "go", run_config=config)
    assert model.remaining_steps == 1


async def test_cancelling_the_run_of_an_agent_kills_the_tree(ground: Ground) -> None:
    word = lasting()
    model = scripted(tool_call(1, "exec_command", cmd=f"setsid sleep {word} & wait", yield_time_ms=600_000))
    task = asyncio.create_task(run(ground.sandbox(), worker(model)))
    await until(lambda: bool(processes_with(word)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not processes_with(word))


@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_run_that_waits_for_approval_goes_on_in_the_same_sandbox(ground: Ground, is_approved: bool) -> None:
    def ask(tools: Any) -> None:
        tools.exec_command.needs_approval = True

    sandbox = ground.sandbox()
    model = scripted(patch_call(1, "*** Begin Patch\n*** Add File: first\n+1\n*** End Patch\n"),
                     tool_call(2, "exec_command", cmd="cat first; echo 2 > second"))  # fmt: skip
    agent = worker(model, capabilities=[Shell(configure_tools=ask), Filesystem()])
    paused = await run(sandbox, agent)
    assert kinds(sandbox.changes()) == {"first": "added"}
    state = await RunState.from_string(agent, paused.to_state().to_string())
    (state.approve if is_approved else state.reject)(state.get_interruptions()[0])
    result = await run(sandbox, agent, state)
    assert result.final_output == "done"
    assert ("second" in kinds(sandbox.changes())) is is_approved
    assert told(model)[-1]["output"].endswith("Output:\n1") is is_approved


async def test_an_agent_that_is_to_run_as_another_user_is_refused(ground: Ground) -> None:
    with pytest.raises(UsageError, match="`run_as`"):
        await run(ground.sandbox(), worker(scripted(), run_as="bob"))


async def test_no_copy_of_the_project_is_left_on_the_host(ground: Ground) -> None:
    ground.write("file", "x" * 1000)
    await run(ground.sandbox(), worker(scripted(tool_call(1, "exec_command", cmd="echo y > file"))))
    assert [*ground.home.rglob("*.tar")] == []
