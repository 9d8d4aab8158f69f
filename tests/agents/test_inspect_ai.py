# SPDX-License-Identifier: Apache-2.0
"""Sandboxes for samples of inspect-ai: what commands, tools and evaluations are told, and what is left of them."""

import asyncio
import contextlib
import gc
import os
import pwd
import runpy
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessage, ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    override_sandbox_output_limit,
)

from tests.apart import apart, left  # noqa: F401
from tests.architecture.sources import ROOT
from tests.scripted_model import ScriptedModel, ToolCall, Turn
from tests.support import Ground, kinds, lasting, processes_with
from unspill.adapters.inspect_ai import CommandTimedOut, UnspillEnvironment
from unspill.sandbox.sandbox import TEMPORARY, Sandbox, remove_temporary

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.usefixtures("apart"),
    # inspect-ai itself leaves one of them behind with each evaluation
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
    pytest.mark.agents,
]

MODEL = "mockllm/model"
Found = TypeVar("Found")
Work = Callable[[UnspillEnvironment], Coroutine[Any, Any, Found]]


@contextlib.asynccontextmanager
async def sample(config: str | None = None) -> AsyncIterator[UnspillEnvironment]:
    """A sample's sandbox, for as long as it is needed."""
    places = await UnspillEnvironment.sample_init("task", config, {})
    try:
        yield places["default"]
    finally:
        await UnspillEnvironment.sample_cleanup("task", config, places, interrupted=False)


def in_sample(work: Work[Found], config: str | None = None) -> Found:
    """Do something with a sample's sandbox, and not for ever."""

    async def do() -> Found:
        async with sample(config) as place:
            return await asyncio.wait_for(work(place), 30)

    return asyncio.run(do())


def scripted(*commands: str) -> Any:
    """Return a model that has one command run after the other in each sample, and then says `done`."""

    def answer(messages: list[ChatMessage], *_rest: Any) -> ModelOutput:
        number = sum(isinstance(message, ChatMessageTool) for message in messages)
        is_over = number == len(commands)
        output = (
            ModelOutput.from_content(MODEL, "done")
            if is_over
            else ModelOutput.for_tool_call(MODEL, "bash", {"command": commands[number]})
        )
        # Otherwise they are counted, with a table from the network
        output.usage = ModelUsage()
        return output

    return get_model(MODEL, custom_outputs=answer)


def evaluate(directory: Path, samples: list[Sample], *commands: str, **options: Any) -> EvalLog:
    """Run an evaluation in which a model has commands run in each sample."""
    options = {"sandbox": "unspill", **options}
    task = Task(dataset=samples, solver=[use_tools(bash(timeout=20)), generate()])
    log = eval(task, model=scripted(*commands), log_dir=os.fspath(directory), display="none", **options)[0]
    gc.collect()
    return log


def told(log: EvalLog) -> list[list[ChatMessageTool]]:
    """Return what tools have told the model, by sample."""
    assert log.status == "success", log.error
    samples = log.samples or []
    return [[message for message in one.messages if isinstance(message, ChatMessageTool)] for one in samples]


def test_samples_of_an_evaluation_run_side_by_side_and_leave_nothing(tmp_path: Path) -> None:
    samples = [Sample(str(number), files={"a/name": f"sample {number}\n"}, setup="echo made >made") for number in "12"]
    log = evaluate(
        tmp_path, samples, "date +%s%N; sleep 1; date +%s%N", "cat a/name made; echo x >/tmp/kept", "cat /tmp/kept"
    )
    answers = told(log)
    assert [[message.text for message in one[1:]] for one in answers] == [
        [f"sample {number}\nmade\n", "x\n"] for number in "12"
    ]
    (began, ended), (other_began, other_ended) = ([int(at) for at in one[0].text.split()] for one in answers)
    assert max(began, other_began) < min(ended, other_ended)
    assert left() == []


def test_a_failure_of_the_sandbox_is_an_error_of_the_tool_and_never_output(ground: Ground, tmp_path: Path) -> None:
    layers = ground.state / "layers"

    def answer(messages: list[ChatMessage], *_rest: Any) -> ModelOutput:
        is_over = any(isinstance(message, ChatMessageTool) for message in messages)
        layers.chmod(0o700 if is_over else 0o500)
        output = ModelOutput.for_tool_call(MODEL, "bash", {"command": "echo printed"})
        output = ModelOutput.from_content(MODEL, "done") if is_over else output
        output.usage = ModelUsage()
        return output

    task = Task(dataset=[Sample("x")], solver=[use_tools(bash()), generate()], sandbox="unspill")
    model = get_model(MODEL, custom_outputs=answer)
    log = eval(task, model=model, log_dir=os.fspath(tmp_path), display="none")[0]
    gc.collect()
    message = told(log)[0][0]
    assert message.error is not None
    assert message.error.type == "sandbox_unavailable"
    assert "printed" not in message.text


def test_what_is_missing_on_a_machine_is_said_before_the_first_sample(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('bwrap = "/nowhere/bwrap"\n')
    with pytest.raises(SandboxUnavailableError, match="There is no bwrap"):
        evaluate(tmp_path, [Sample("x")], sandbox=("unspill", os.fspath(policy)))
    assert left() == []


def test_a_policy_beside_the_task_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tmp_path / "task.py"
    task.write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "@task\n"
        "def mine():\n"
        "    return Task(dataset=[Sample('x')], sandbox='unspill')\n"
    )
    (tmp_path / "unspill.toml").write_text("nonsense = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SandboxUnavailableError, match=r"unspill\.toml: nonsense"):
        eval("task.py", model=scripted(), log_dir=os.fspath(tmp_path / "log"), display="none")
    gc.collect()


def test_samples_that_are_not_cleaned_up_can_be_looked_at(tmp_path: Path) -> None:
    evaluate(tmp_path, [Sample("x")], "echo result >file", sandbox_cleanup=False)
    (project,) = Path(tempfile.gettempdir()).iterdir()
    with Sandbox(project, name=TEMPORARY) as sandbox:
        assert kinds(sandbox.changes()) == {"file": "added"}
        remove_temporary(sandbox)
    assert left() == []


def test_what_a_sample_changes_is_held_and_can_be_applied_and_undone() -> None:
    async def work(place: UnspillEnvironment) -> None:
        await place.write_file("a", "one")
        await place.exec(["sh", "-c", "cat a >b"])
        sandbox, project = place.sandbox, Path(os.fsdecode(place.sandbox.project))
        assert kinds(sandbox.changes()) == {"a": "added", "b": "added"}
        assert list(project.iterdir()) == []
        sandbox.apply()
        assert (project / "b").read_text() == "one"
        sandbox.undo()
        assert list(project.iterdir()) == []

    in_sample(work)
    assert left() == []


def test_files_of_a_sample_with_names_of_secrets_are_not_masked() -> None:
    async def work(place: UnspillEnvironment) -> str:
        await place.write_file(".env", "KEY=1\n")
        return (await place.exec(["cat", ".env"])).stdout

    assert in_sample(work) == "KEY=1\n"


def test_a_policy_of_the_evaluation_is_used(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("limits = { wall_s = 1 }\n")
    with pytest.raises(CommandTimedOut):
        in_sample(lambda place: place.exec(["sleep", "20"]), os.fspath(policy))


@pytest.mark.parametrize("text", ["limits = 3\n", None])
def test_a_policy_that_can_not_be_read_makes_no_sandbox(tmp_path: Path, text: str | None) -> None:
    policy = tmp_path / "policy.toml"
    if text is not None:
        policy.write_text(text)
    with pytest.raises(SandboxUnavailableError, match=r"policy\.toml"):
        in_sample(lambda place: place.exec(["true"]), os.fspath(policy))
    assert left() == []


@pytest.mark.parametrize(
    ("command", "options", "error", "text"),
    [
        (["true"], {"cwd": "nowhere"}, FileNotFoundError, "nowhere"),
        (["true"], {"cwd": "/nowhere"}, FileNotFoundError, "nowhere"),
        (["a\0b"], {}, ValueError, "embedded null byte"),
        (["/etc/passwd"], {}, PermissionError, "passwd"),
        (["true"], {"user": "root"}, SandboxUserUnsupportedError, "root"),
        (["true"], {"user": "0"}, SandboxUserUnsupportedError, "0"),
    ],
)
def test_what_can_not_be_run_is_the_error_that_inspect_ai_has_for_it(
    command: list[str], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        in_sample(lambda place: place.exec(command, **options))


@pytest.mark.parametrize("user", [str(os.getuid()), pwd.getpwuid(os.getuid()).pw_name])
def test_the_user_of_commands_may_be_named(user: str) -> None:
    assert in_sample(lambda place: place.exec(["true"], user=user)).success


def test_a_program_that_is_not_there_is_a_result() -> None:
    result = in_sample(lambda place: place.exec(["no-such-program"]))
    assert (result.success, result.returncode, result.stdout) == (False, 127, "")
    assert result.stderr.startswith("[unspill] The command could not be started: ")


def test_what_a_command_had_printed_is_told_when_its_time_is_over() -> None:
    with pytest.raises(CommandTimedOut) as caught:
        in_sample(lambda place: place.exec(["sh", "-c", "echo begun; sleep 20"], timeout=1))
    assert caught.value.truncated_output == "begun\n[unspill] Command timed out after 1s\n"


def test_output_beyond_the_limit_is_an_error_with_the_beginning_of_it() -> None:
    async def work(place: UnspillEnvironment) -> None:
        with override_sandbox_output_limit(1024, "exec"):
            assert len((await place.exec(["head", "-c", "1024", "/dev/zero"])).stdout) == 1024
            await place.exec(["head", "-c", "1025", "/dev/zero"])

    with pytest.raises(OutputLimitExceededError) as caught:
        in_sample(work)
    assert caught.value.truncated_output == "\0" * 1024


def test_a_file_that_no_later_command_would_see_is_not_written() -> None:
    with pytest.raises(OSError, match="empty directory"):
        in_sample(lambda place: place.write_file("/var/tmp/file", "x"))


def test_cancelling_a_command_kills_all_of_it_at_once() -> None:
    word = lasting()

    async def work(place: UnspillEnvironment) -> float:
        task = asyncio.create_task(place.exec(["sh", "-c", f"setsid sleep {word} & sleep {word}"]))
        while not processes_with(word):
            await asyncio.sleep(0.01)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(word) == []
        return time.monotonic() - began

    assert in_sample(work) < 20
    assert left() == []


@pytest.mark.parametrize("pause_s", [0, 0.001])
def test_cancelling_a_sample_that_is_being_made_leaves_nothing(pause_s: float) -> None:
    async def work() -> None:
        task = asyncio.create_task(UnspillEnvironment.sample_init("task", None, {}))
        await asyncio.sleep(pause_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert left() == []


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = os.fspath(ROOT / "examples" / "inspect_ai_example.py")
    assert len(Path(example).read_text().splitlines()) < 40
    monkeypatch.setattr(sys, "argv", [example, os.fspath(tmp_path)])
    # Not as a program of its own: inspect-ai takes seconds to load
    runpy.run_path(example, run_name="__main__")
    gc.collect()
    assert capsys.readouterr().out == "success\nHELLO\n\nIt says HELLO.\n"
    assert left() == []


def react_agent(log_dir: Path, model: str) -> None:
    """Run the agent of inspect-ai that goes on until it submits an answer."""
    sample = Sample("What is it in capital letters?", target="HELLO", files={"greeting.txt": "hello\n"})
    task = Task(dataset=[sample], solver=react(tools=[bash(timeout=60)]), scorer=includes(), sandbox="unspill")
    log = eval(task, model=model, log_dir=os.fspath(log_dir), display="none")[0]
    print(log.status, *(sample.output.completion for sample in log.samples or []), sep="\n")


def the_example(log_dir: Path, model: str) -> None:
    example = os.fspath(ROOT / "examples" / "inspect_ai_example.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [example, os.fspath(log_dir), model])
        runpy.run_path(example, run_name="__main__")


@pytest.mark.parametrize("agent", [the_example, react_agent])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_whole_agent_is_sealed_and_leaves_nothing(
    agent: Callable[[Path, str], None],
    apart: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the model that plays a script to real coding agents."""
    (apart / "home/.ssh").mkdir(mode=0o700)
    (apart / "home/.ssh/id_rsa").write_text("canary-of-the-key\n")
    with ScriptedModel() as model, ScriptedModel() as canary:
        reaches = f"curl -sS -m 3 {canary.url}/canary >/dev/null 2>&1 && echo NET-OPEN || echo NET-CLOSED"
        command = f"tr a-z A-Z <greeting.txt | tee loud.txt; {reaches}; cat {apart}/home/.ssh/id_rsa || echo HIDDEN"
        looks = ToolCall(("bash",), {"command": "cat loud.txt"})
        submits = Turn(calls=(ToolCall(("submit",), {"answer": "It says HELLO."}),))
        model.script = (
            Turn(calls=(ToolCall(("bash",), {"command": command}),)),
            Turn(calls=(looks,)),
            submits if agent is react_agent else Turn(text="It says HELLO."),
        )
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "fake")
        # By a name of its own: inspect-ai keeps a client by the name of its model
        agent(tmp_path, f"openai/mock-{model.port}")
        gc.collect()
    told = "".join(model.results)
    assert ("HELLO" in told, "NET-CLOSED" in told, "HIDDEN" in told) == (True, True, True), told
    assert "canary-of-the-key" not in "".join(model.requests)
    assert canary.paths == []
    printed = capsys.readouterr().out
    assert printed.startswith("success\n")
    assert printed.endswith("It says HELLO.\n")
    assert left() == []
