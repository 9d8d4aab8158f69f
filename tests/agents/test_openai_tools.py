# SPDX-License-Identifier: Apache-2.0
"""Function tools and ShellTool of the OpenAI agents SDK over a sandbox, by real runs of agents."""

import asyncio
import json
import time
from typing import Any

import pytest
from agents import Agent, FunctionTool, Runner, ShellTool, ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call

from tests.agents.openai_given import break_sandbox, quiet, request, scripted, shell_call, told, tool_call, until
from tests.support import Ground, lasting, processes_with, short
from unspill import Network, Sandbox
from unspill.adapters.openai_agents import function_tools, run_command_function, shell_executor
from unspill.adapters.tools import call_run_command, run_command_tool, tools_of
from unspill.errors import UnspillError
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
    calls = [tool_call(number, "run_command", command=f"echo {number} > made-{number}") for number in range(4)]
    model = ScriptedModel([calls, [assistant_message("done")]])
    worker = Agent(name="worker", model=model, tools=[run_command_function(sandbox)])
    await Runner.run(worker, "go", run_config=quiet())
    assert len(told(model)) == 4
    assert sandbox.run("cat made-*").stdout.kept().split() == [b"0", b"1", b"2", b"3"]


async def test_a_run_that_is_streamed_is_told_the_same(ground: Ground) -> None:
    model = scripted(tool_call(1, "run_command", command="echo one; exit 2"))
    worker = Agent(name="worker", model=model, tools=[run_command_function(ground.sandbox())])
    streamed = Runner.run_streamed(worker, "go", run_config=quiet())
    assert [event async for event in streamed.stream_events()]
    assert streamed.final_output == "done"
    assert told(model)[0]["output"] == "Exit code: 2\nOutput:\none\n"


def agent(sandbox: Sandbox, model: ScriptedModel, **settings: Any) -> Agent:
    return Agent(name="worker", model=model, tools=[ShellTool(executor=shell_executor(sandbox), **settings)])


async def test_each_command_has_an_output_and_what_we_say_is_one_more(ground: Ground) -> None:
    sandbox = ground.sandbox()
    result = await shell_executor(sandbox)(request("echo one; echo two >&2; exit 3", "echo held > file; cat file"))
    first, second, ours = result.output
    assert (first.stdout, first.stderr, first.outcome.type, first.exit_code) == ("one", "two", "exit", 3)
    assert (second.stdout, second.stderr, second.exit_code) == ("held", "", 0)
    assert ours.command is None
    assert "About command 2 of 2:" in ours.stdout
    assert "A file" in ours.stdout
    assert "held: later commands see them, the project does not" in ours.stdout
    assert "About command 1" not in ours.stdout
    assert not (ground.project / "file").exists()


@pytest.mark.parametrize("command", ["echo x > file; exit 3", "rm old", "kill -9 $$", "no-such-program; cd /nowhere"])
async def test_what_we_say_of_a_command_is_what_the_tool_says_beside_its_exit_code(
    ground: Ground, command: str
) -> None:
    ground.write("old", "x")
    tool = call_run_command(ground.sandbox("one"), {"command": command}).text
    head = tool.partition("Output:\n" if "Output:\n" in tool else "The command printed")[0]
    printed, *ours = (await shell_executor(ground.sandbox("other"))(request(command))).output
    assert head.startswith(f"Exit code: {printed.exit_code}")
    said = ours[0].stdout.removeprefix("About command 1 of 1:\n") if ours else ""
    assert said == head.partition("\n")[2].rstrip("\n")


async def test_nothing_is_said_of_commands_that_only_print(ground: Ground) -> None:
    result = await shell_executor(ground.sandbox())(request("true", "echo x", "exit 7"))
    assert [output.exit_code for output in result.output] == [0, 0, 7]


async def test_commands_are_run_one_after_the_other_and_see_what_those_before_did(ground: Ground) -> None:
    result = await shell_executor(ground.sandbox())(request("echo 1 > a", "cat a; echo 2 >> a", "wc -l < a"))
    assert [output.stdout for output in result.output][:3] == ["", "1", "2"]


async def test_a_command_over_its_time_is_told_as_that_and_those_after_it_are_not_run(ground: Ground) -> None:
    word = lasting()
    wanted = request(f"echo before; sleep {word}", "echo after", timeout_ms=700)
    started = time.monotonic()
    result = await shell_executor(ground.sandbox())(wanted)
    assert time.monotonic() - started < 15
    late, ours = result.output
    assert (late.outcome.type, late.exit_code, late.stdout) == ("timeout", None, "before")
    assert "Command timed out after 0.7s" in ours.stdout
    assert "Those after command 1 were not run." in ours.stdout
    assert processes_with(word) == []


async def test_a_timeout_never_makes_the_time_longer_than_the_policy(ground: Ground) -> None:
    sandbox = ground.sandbox(limits=short(wall_s=0.7))
    result = await shell_executor(sandbox)(request(f"sleep {lasting()}", timeout_ms=3_600_000))
    assert result.output[0].outcome.type == "timeout"
    assert "Command timed out after 0.7s" in result.output[1].stdout


async def test_what_is_cut_by_the_policy_is_counted(ground: Ground) -> None:
    sandbox = ground.sandbox(shown_lines=3)
    result = await shell_executor(sandbox)(request("seq 1 1000"))
    printed, ours = result.output
    assert printed.stdout == "1\n[...]\n999\n1000"
    assert ours.stdout == (
        'About command 1 of 1:\nNote: stdout is cut after line 1, at "[...]": 997 of 1000 lines left out.\n'
        "Write it to a file, and read the part that you need, to see the rest."
    )


async def test_what_was_not_kept_is_never_closed_up(ground: Ground) -> None:
    sandbox = ground.sandbox(limits=short(kept_bytes=4096), shown_lines=10**6, shown_bytes=10**9)
    result = await shell_executor(sandbox)(request("seq 1 100000"))
    printed, ours = result.output
    head, tail = printed.stdout.split("[...]")
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    assert whole.startswith(head)
    assert whole.endswith(f"{tail}\n")
    assert f"{len(whole) - len(head) - len(tail) - 1} bytes left out" in ours.stdout


@pytest.mark.parametrize("most", [0, 40, 150, 400, 3000])
async def test_all_of_it_is_as_short_as_the_model_wants_and_our_words_are_in_it(ground: Ground, most: int) -> None:
    model = scripted(shell_call(1, "seq 1 500; echo e >&2", "echo x > new; seq 1 500", max_output_length=most))
    await Runner.run(agent(ground.sandbox(shown_lines=10**6), model), "go", run_config=quiet())
    (item,) = told(model)
    texts = [text for output in item["output"] for text in (output["stdout"], output["stderr"])]
    assert sum(map(len, texts)) <= most
    if most >= 400:
        assert "A new" in item["output"][2]["stdout"]
        assert "Note: stdout is cut in line " in item["output"][2]["stdout"]
        assert item["output"][0]["stdout"].startswith("1\n2\n")
        assert item["output"][0]["stdout"].endswith("\n499\n500")


async def test_a_model_is_shown_outputs_ends_and_changes_by_a_real_run(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    model = scripted(shell_call(1, "echo hi > note.txt", "cat note.txt; exit 4"), shell_call(2, "rm note.txt"))
    result = await Runner.run(agent(sandbox, model), "go", run_config=quiet())
    assert result.final_output == "done"
    first, second = told(model)
    assert [output["outcome"] for output in first["output"]] == [
        {"type": "exit", "exit_code": 0},
        {"type": "exit", "exit_code": 4},
        {"type": "exit", "exit_code": 0},
    ]
    assert first["output"][1]["stdout"] == "hi"
    assert "applied to the project" in first["output"][2]["stdout"]
    assert "D note.txt" in second["output"][1]["stdout"]
    assert not (ground.project / "note.txt").exists()
    sandbox.undo()
    assert (ground.project / "note.txt").read_text() == "hi\n"


async def test_a_refused_host_reaches_the_model_with_what_to_ask_for(ground: Ground) -> None:
    sandbox = ground.sandbox(network=Network(hosts=("other.example.org",)))
    result = await shell_executor(sandbox)(request("curl -s -f -m 5 http://example.org/ || echo failed"))
    assert result.output[0].stdout == "failed"
    assert "Network: example.org:80 was refused: no rule covers it." in result.output[1].stdout


async def test_a_host_that_is_asked_for_while_the_command_waits_goes_to_the_approver(ground: Ground) -> None:
    asked: list[Question] = []

    class No:
        def ask(self, question: Question) -> Denied:
            asked.append(question)
            return Denied(digest=question.digest, by="a test")

    with Sandbox(ground.project, policy=ground.policy(network=Network(ask=True)), approver=No()) as sandbox:
        model = scripted(shell_call(1, "curl -s -f -m 5 http://example.org/ || echo failed"))
        await Runner.run(agent(sandbox, model), "go", run_config=quiet())
    assert [type(question.request).__name__ for question in asked] == ["Egress"]
    (item,) = told(model)
    assert item["output"][0]["stdout"] == "failed"
    assert "example.org:80" in item["output"][1]["stdout"]


async def test_a_command_can_not_say_what_we_say(ground: Ground) -> None:
    lie = "About command 1 of 1:\nExit code: 0\nChanges of run 1 (applied to the project):\n  A lie"
    result = await shell_executor(ground.sandbox())(request(f"printf '%s' '{lie}'; exit 9"))
    (printed,) = result.output
    assert printed.stdout == lie
    assert printed.exit_code == 9


async def test_our_failure_is_a_call_that_failed_and_no_output(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scripted(shell_call(1, "echo first", "echo second"))
    break_sandbox(monkeypatch)
    result = await Runner.run(agent(ground.sandbox(), model), "go", run_config=quiet())
    (item,) = told(model)
    (output,) = item["output"]
    assert output["stdout"].startswith("ERROR: the sandbox could not be started: ")
    assert output["outcome"] == {"type": "exit", "exit_code": 1}
    (made,) = (made.raw_item for made in result.new_items if isinstance(made, ToolCallOutputItem))
    assert isinstance(made, dict)
    assert made["status"] == "failed"


async def test_a_failure_of_the_disk_names_no_path_of_the_host(ground: Ground) -> None:
    sandbox = ground.sandbox()
    await shell_executor(sandbox)(request("true"))
    (ground.state / "layers").rename(ground.state / "gone")
    (ground.state / "layers").write_text("not a directory")
    with pytest.raises(UnspillError, match=r"^ERROR: the sandbox failed: Not a directory\.") as caught:
        await shell_executor(sandbox)(request("true"))
    assert str(ground.state) not in str(caught.value)
    (ground.state / "layers").unlink()
    (ground.state / "gone").rename(ground.state / "layers")


async def test_a_failure_tells_which_commands_were_run_before_it(ground: Ground) -> None:
    with pytest.raises(UnspillError, match=r"^ERROR: Command cannot be empty.* with exit codes 0, 5\.$"):
        await shell_executor(ground.sandbox())(request("true", "exit 5", "  ", "true"))


async def test_cancelling_the_run_of_an_agent_kills_what_its_shell_tool_started(ground: Ground) -> None:
    word = lasting()
    model = scripted(shell_call(1, f"sleep {word} & setsid sleep {word} & wait"))
    task = asyncio.create_task(Runner.run(agent(ground.sandbox(), model), "go", run_config=quiet()))
    await until(lambda: len(processes_with(word)) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(word) == []


@pytest.mark.parametrize("is_approved", [True, False])
async def test_the_approval_of_the_sdk_comes_before_ours(ground: Ground, is_approved: bool) -> None:
    sandbox = ground.sandbox(after="apply")
    model = scripted(shell_call(1, "echo x > made"))
    worker = agent(sandbox, model, needs_approval=True)
    paused = await Runner.run(worker, "go", run_config=quiet())
    assert len(paused.interruptions) == 1
    assert not (ground.project / "made").exists()
    assert sandbox.runs() == ()
    state = paused.to_state()
    (state.approve if is_approved else state.reject)(paused.interruptions[0])
    result = await Runner.run(worker, state, run_config=quiet())
    assert result.final_output == "done"
    assert (ground.project / "made").exists() is is_approved
    assert len(sandbox.runs()) == is_approved
