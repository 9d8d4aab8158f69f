# SPDX-License-Identifier: Apache-2.0
"""Our tools as function tools of the OpenAI agents SDK, by real runs of agents whose model is scripted."""

import asyncio
import json
from typing import Any

import pytest
from agents import Agent, FunctionTool, Runner
from agents.testing import ScriptedModel, assistant_message, function_call

from tests.agents.openai_given import break_sandbox, quiet, scripted, told, tool_call, until
from tests.support import Ground, lasting, processes_with
from unspill import Sandbox
from unspill.adapters.openai_agents import function_tools, run_command_function
from unspill.adapters.tools import call_run_command, run_command_tool, tools_of
from unspill.model.permission import Denied, Question

pytestmark = [pytest.mark.kernel, pytest.mark.asyncio, pytest.mark.agents]


async def say(tools: list[FunctionTool], *steps: Any) -> list[str]:
    """Let an agent make these calls and return what its model was told."""
    model = scripted(*steps)
    worker = Agent(name="worker", model=model, tools=[*tools])
    result = await Runner.run(worker, "go", run_config=quiet())
    assert result.final_output == "done"
    return [item["output"] for item in told(model)]


async def test_the_tool_is_told_to_a_model_as_everywhere_else(ground: Ground) -> None:
    sandbox = ground.sandbox()
    tool, made = run_command_tool(sandbox), run_command_function(sandbox)
    assert (made.name, made.description, made.params_json_schema) == (tool.name, tool.description, tool.schema)
    assert [tool.name for tool in function_tools(sandbox)] == [tool.name for tool in tools_of(sandbox)]


async def test_a_model_reads_the_words_of_the_tool(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    (text,) = await say([run_command_function(sandbox)], tool_call(1, "run_command", command="echo hello > f; cat f"))
    assert text.startswith("Exit code: 0\n")
    assert text.endswith("Output:\nhello\n")
    assert "applied to the project" in text
    assert (ground.project / "f").read_text() == "hello\n"
    sandbox.undo()
    assert not (ground.project / "f").exists()


async def test_it_is_what_the_library_says(ground: Ground) -> None:
    sandbox = ground.sandbox()
    (text,) = await say([run_command_function(sandbox)], tool_call(1, "run_command", command="echo x; exit 3"))
    assert text == call_run_command(sandbox, {"command": "echo x; exit 3"}).text


async def test_all_tools_work_together_in_one_run(ground: Ground) -> None:
    sandbox = ground.sandbox()
    texts = await say(
        function_tools(sandbox),
        tool_call(1, "write", path="app.py", content="print(1)\n"),
        tool_call(2, "edit", path="app.py", old="1", new="2"),
        tool_call(3, "run", command="python3 app.py"),
        tool_call(4, "list"),
        tool_call(5, "read", path="app.py"),
        tool_call(6, "changes"),
        tool_call(7, "diff"),
    )
    assert not any(text.startswith("ERROR:") for text in texts), texts
    assert texts[2].endswith("Output:\n2\n")
    assert "app.py" in texts[3]
    assert "print(2)" in texts[4]
    assert "A app.py" in texts[5]
    assert "+print(2)" in texts[6]
    assert not (ground.project / "app.py").exists()


@pytest.mark.parametrize("arguments", ["", "{", "[]", "null", '"x"', "1" * 5000, "[" * 100_000])
async def test_arguments_that_are_no_object_are_told_as_an_error(ground: Ground, arguments: str) -> None:
    tool = run_command_function(ground.sandbox())
    text = await tool.on_invoke_tool(None, arguments)  # type: ignore[arg-type]
    assert text.startswith("ERROR: ")


@pytest.mark.parametrize(
    "arguments", [{}, {"command": ""}, {"command": 5}, {"command": "true", "cwd": "/"}, {"command": "a\0b"}]
)
async def test_wrong_arguments_are_told_as_an_error_and_the_run_goes_on(
    ground: Ground, arguments: dict[str, Any]
) -> None:
    bad = function_call("run_command", json.dumps(arguments), call_id="call_1")
    (text,) = await say([run_command_function(ground.sandbox())], bad)
    assert text.startswith("ERROR: ")


async def test_a_denial_is_told_with_what_to_do(ground: Ground) -> None:
    class No:
        def ask(self, question: Question) -> Denied:
            return Denied(digest=question.digest, by="a test")

    sandbox = Sandbox(ground.project, policy=ground.policy(), approver=No())
    (text,) = await say(
        [run_command_function(sandbox)], tool_call(1, "run_command", command="echo x > file", network=True)
    )
    assert text.startswith("ERROR: ")
    assert "Nothing was run. Do without it, or tell the user what you need and why." in text
    assert sandbox.runs() == ()
    sandbox.close()


async def test_our_failure_is_told_as_an_error_and_never_as_output(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_sandbox(monkeypatch)
    (text,) = await say([run_command_function(ground.sandbox())], tool_call(1, "run_command", command="echo hello"))
    assert text.startswith("ERROR: the sandbox could not be started: ")
    assert "Output:" not in text


async def test_cancelling_the_run_of_an_agent_kills_the_tree(ground: Ground) -> None:
    word = lasting()
    task = asyncio.create_task(
        say(
            [run_command_function(ground.sandbox())], tool_call(1, "run_command", command=f"setsid sleep {word} & wait")
        )
    )
    await until(lambda: bool(processes_with(word)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The SDK does not wait for a function tool that it has cancelled
    await until(lambda: not processes_with(word))


@pytest.mark.parametrize("is_approved", [True, False])
async def test_the_approval_of_the_sdk_works_with_it(ground: Ground, is_approved: bool) -> None:
    sandbox = ground.sandbox(after="apply")
    model = scripted(tool_call(1, "run_command", command="echo x > made"))
    worker = Agent(name="worker", model=model, tools=[run_command_function(sandbox, needs_approval=True)])
    paused = await Runner.run(worker, "go", run_config=quiet())
    assert sandbox.runs() == ()
    state = paused.to_state()
    (state.approve if is_approved else state.reject)(paused.interruptions[0])
    await Runner.run(worker, state, run_config=quiet())
    assert (ground.project / "made").exists() is is_approved


async def test_calls_that_a_model_makes_at_once_do_not_disturb_one_another(ground: Ground) -> None:
    sandbox = ground.sandbox()
    calls = [tool_call(number, "run_command", command=f"echo {number} >> all") for number in range(4)]
    model = ScriptedModel([calls, [assistant_message("done")]])
    worker = Agent(name="worker", model=model, tools=[run_command_function(sandbox)])
    await Runner.run(worker, "go", run_config=quiet())
    assert len(told(model)) == 4
    assert sorted(sandbox.run("cat all").stdout.kept().split()) == [b"0", b"1", b"2", b"3"]


async def test_a_run_that_is_streamed_is_told_the_same(ground: Ground) -> None:
    model = scripted(tool_call(1, "run_command", command="echo one; exit 2"))
    worker = Agent(name="worker", model=model, tools=[run_command_function(ground.sandbox())])
    streamed = Runner.run_streamed(worker, "go", run_config=quiet())
    assert [event async for event in streamed.stream_events()]
    assert streamed.final_output == "done"
    assert told(model)[0]["output"] == "Exit code: 2\nOutput:\none\n"
