# SPDX-License-Identifier: Apache-2.0
"""A sandbox as the workspace of agents of pydantic-ai: what they are told, and pydantic-ai's own suite, whole."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    CommandResult,
    Workspace,
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
    conformance,
)

from tests.architecture.sources import ROOT
from tests.support import Ground, kinds, lasting, processes_with, short
from unspill import Limits
from unspill.adapters.pydantic_ai import UnspillBackend, UnspillWorkspace, make_toolset

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

Found = TypeVar("Found")


def finish(work: Coroutine[Any, Any, Found]) -> Found:
    """Do something async, and not for ever."""

    async def in_time() -> Found:
        return await asyncio.wait_for(work, 30)

    return asyncio.run(in_time())


@pytest.fixture
def backend(ground: Ground) -> Iterator[UnspillBackend]:
    """A workspace over the project; what is changed there is held."""
    backend = UnspillBackend(ground.project, policy=ground.policy())
    yield backend
    backend.close()


def scripted(*steps: tuple[str, dict[str, Any]]) -> FunctionModel:
    """Return a model that makes one call after the other, and then says `done`."""
    left = iter(steps)

    def answer(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        step = next(left, None)
        return ModelResponse([TextPart("done") if step is None else ToolCallPart(*step)])

    return FunctionModel(answer)


def returned(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    """Return what tools have told the model, in order."""
    asked = [message for message in messages if isinstance(message, ModelRequest)]
    return [part for message in asked for part in message.parts if isinstance(part, ToolReturnPart)]


async def sh(context: RunContext[object], command: str) -> CommandResult:
    """Run a command in the workspace."""
    return await context.workspace.run(command, shell=True)


def test_nothing_is_opened_before_the_first_use(ground: Ground) -> None:
    backend = UnspillBackend(ground.top / "nowhere", policy=ground.policy())
    assert backend.ref is None


def test_what_is_written_is_held_and_seen_by_commands_and_can_be_applied_and_undone(
    backend: UnspillBackend, ground: Ground
) -> None:
    async def work() -> str:
        workspace = Workspace(backend)
        await workspace.write_text("deep/a.txt", "one\n")
        await workspace.run("echo two >>deep/a.txt; mkdir empty", shell=True)
        await workspace.remove("empty")
        return await workspace.read_text("deep/a.txt")

    assert finish(work()) == "one\ntwo\n"
    sandbox = backend.open()
    assert kinds(sandbox.changes()) == {"deep": "added", "deep/a.txt": "added"}
    assert list(ground.project.iterdir()) == []
    sandbox.apply()
    assert (ground.project / "deep/a.txt").read_text() == "one\ntwo\n"
    sandbox.undo()
    assert list(ground.project.iterdir()) == []


def test_a_removal_of_what_can_not_be_removed_leaves_all_of_it(backend: UnspillBackend, ground: Ground) -> None:
    ground.write("tree/kept/file", "x")
    ground.write("tree/other", "x")
    (ground.project / "tree/kept").chmod(0o500)
    with pytest.raises(PermissionError):
        finish(Workspace(backend).remove("tree"))
    assert not backend.open().changes()
    assert finish(Workspace(backend).exists("tree/other"))


def break_by_mode(layers: Path) -> None:
    layers.chmod(0o500)


def break_by_kind(layers: Path) -> None:
    shutil.rmtree(layers)
    layers.write_text("")


@pytest.mark.parametrize("break_it", [break_by_mode, break_by_kind])
def test_a_failure_of_the_sandbox_is_never_the_result_of_a_command(
    backend: UnspillBackend, ground: Ground, break_it: Callable[[Path], None]
) -> None:
    finish(backend.working_dir())
    break_it(ground.state / "layers")
    for work in (backend.run("echo x", shell=True), backend.read_bytes("/etc/passwd"), backend.exists("/")):
        with pytest.raises(WorkspaceUnavailableError):
            finish(work)


def test_a_machine_that_can_not_is_said_at_the_first_use(ground: Ground) -> None:
    backend = UnspillBackend(ground.project, policy=ground.policy(bwrap=b"/nowhere/bwrap"))
    with pytest.raises(WorkspaceUnavailableError, match="bwrap"):
        finish(backend.working_dir())
    assert backend.ref is None


def test_a_project_that_is_removed_makes_the_workspace_unavailable(backend: UnspillBackend, ground: Ground) -> None:
    finish(backend.working_dir())
    shutil.rmtree(ground.project)
    with pytest.raises(WorkspaceUnavailableError, match="gone"):
        finish(backend.run(["true"]))


def test_a_ref_never_leads_to_another_project(backend: UnspillBackend, ground: Ground) -> None:
    finish(backend.working_dir())
    other = ground.home / "other"
    other.mkdir()
    assert backend.ref is not None
    stray = UnspillBackend(other, ref=backend.ref, policy=ground.policy())
    with pytest.raises(WorkspaceUnavailableError):
        finish(stray.working_dir())
    assert stray.ref == backend.ref


def test_what_the_sandbox_kept_from_a_command_is_told_after_its_own_words(backend: UnspillBackend) -> None:
    result = finish(backend.run("echo mine >&2; echo x >/usr/file", shell=True))
    lines = result.stderr.splitlines()
    assert lines[0] == "mine"
    assert [line for line in lines if line.startswith("[unspill] Note: ")] == lines[2:]
    assert "write to the project" in lines[-1]


def test_a_bound_that_ends_a_command_is_named(ground: Ground) -> None:
    backend = UnspillBackend(ground.project, policy=ground.policy(limits=short(layer_bytes=1 << 20)))
    result = finish(backend.run("head -c 100M /dev/zero >big; sleep 60", shell=True))
    assert result.exit_code == 137
    assert "[unspill] Command killed: it wrote more than 1 MiB (`limits.layer_bytes`)" in result.stderr
    backend.close()


def test_output_is_whole_or_an_error_says_that_it_is_not(backend: UnspillBackend) -> None:
    most = 10 << 20
    assert len(finish(backend.run(["head", "-c", str(most), "/dev/zero"])).stdout) == most
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        finish(backend.run(["head", "-c", str(most + 1), "/dev/zero"]))
    assert caught.value.limit == most
    assert len(caught.value.stdout) == 1 << 16


def test_output_beyond_what_a_command_may_print_is_an_error(ground: Ground) -> None:
    backend = UnspillBackend(ground.project, policy=ground.policy(limits=Limits(output_bytes=1 << 20)))
    with pytest.raises(WorkspaceOutputLimitError):
        finish(backend.run(["yes"]))
    backend.close()


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_command_whose_time_is_over_is_dead_and_what_it_printed_is_told(ground: Ground, is_ours: bool) -> None:
    limits = short(wall_s=1.0) if is_ours else short()
    backend = UnspillBackend(ground.project, policy=ground.policy(limits=limits))
    word = lasting()
    with pytest.raises(WorkspaceTimeoutError) as caught:
        finish(backend.run(f"echo begun; sleep {word} & sleep {word}", shell=True, timeout=None if is_ours else 1))
    assert caught.value.stdout == "begun\n"
    assert processes_with(word) == []
    backend.close()


def test_a_file_that_no_later_command_would_see_is_not_written(backend: UnspillBackend) -> None:
    with pytest.raises(OSError, match="empty directory"):
        finish(backend.write_bytes("/tmp/file", b"x"))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(backend: UnspillBackend, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        finish(backend.run(["true"], timeout=timeout))


@pytest.mark.parametrize("command", [[""], ["true", "\0"]])
def test_a_command_that_is_none_is_a_wrong_argument(backend: UnspillBackend, command: list[str]) -> None:
    with pytest.raises(ValueError, match="ommand"):
        finish(backend.run(command))


def test_names_that_are_not_utf_8_are_listed_and_found(backend: UnspillBackend, ground: Ground) -> None:
    name = os.fsdecode(b"odd \xff\n")
    (ground.project / name).write_bytes(b"x")
    (ground.project / "link").symlink_to(name)

    async def work() -> tuple[list[str], bytes, str]:
        entries = await Workspace(backend).list_dir(".")
        found = next(entry for entry in entries if entry.name == name)
        return (
            [entry.name for entry in entries],
            await backend.read_bytes(found.path),
            await Workspace(backend).realpath("link"),
        )

    assert finish(work()) == (["link", name], b"x", f"{ground.inside()}/{name}")


async def until_running(word: str) -> None:
    while not processes_with(word):
        await asyncio.sleep(0.01)


def test_cancelling_a_task_kills_all_of_its_command_at_once(backend: UnspillBackend) -> None:
    word = lasting()

    async def work() -> float:
        task = asyncio.create_task(backend.run(f"touch file; setsid sleep {word} & sleep {word}", shell=True))
        await until_running(word)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(word) == []
        return time.monotonic() - began

    assert finish(work()) < 20
    assert kinds(backend.open().changes()) == {"file": "added"}


def test_leaving_a_scope_of_anyio_kills_all_of_its_command_at_once(backend: UnspillBackend) -> None:
    word = lasting()

    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(backend.run, ["sleep", word])
            await until_running(word)
            group.cancel_scope.cancel()
        assert processes_with(word) == []

    finish(work())
    assert finish(backend.run(["true"])).exit_code == 0


def test_cancelling_one_that_waits_for_another_leaves_that_alone(backend: UnspillBackend) -> None:
    word = lasting()

    async def work() -> tuple[int, int]:
        first = asyncio.create_task(backend.run(f"sleep {word} & sleep 1; echo done", shell=True))
        await until_running(word)
        second = asyncio.create_task(backend.read_bytes("/etc/passwd"))
        await asyncio.sleep(0.1)
        second.cancel()
        await asyncio.wait([second])
        return first.done(), (await first).exit_code

    assert finish(work()) == (False, 0)


def test_an_agent_works_in_the_workspace_it_is_given_and_goes_on_there(ground: Ground) -> None:
    backend = UnspillBackend(ground.project, policy=ground.policy())
    agent = Agent(scripted(("sh", {"command": "echo hello >greeting; exit 3"})), tools=[sh])
    first = finish(agent.run("Greet me.", workspace=backend))
    told = returned(first.all_messages())[0].content
    assert told == CommandResult(exit_code=3, stdout="", stderr="")
    assert first.all_messages()[-1].workspace_ref == backend.ref  # type: ignore[union-attr]

    later = UnspillBackend(ground.project, policy=ground.policy())
    model = scripted(("sh", {"command": "cat greeting"}))
    agent = Agent(model, tools=[sh], capabilities=[UnspillWorkspace(later)])
    second = finish(agent.run("Again.", message_history=first.all_messages()))
    assert returned(second.new_messages())[0].content == CommandResult(exit_code=0, stdout="hello\n", stderr="")
    assert not (ground.project / "greeting").exists()
    backend.close()
    later.close()


def test_a_capability_leaves_the_refs_of_others_alone(backend: UnspillBackend) -> None:
    capability = UnspillWorkspace(backend)
    assert capability.get_workspace(None, ref=None) is backend
    assert capability.get_workspace(None, ref=WorkspaceRef(provider="local", id="/etc")) is None
    finish(backend.working_dir())
    assert capability.get_workspace(None, ref=backend.ref) is backend


def test_an_agent_uses_the_tools_of_a_sandbox(ground: Ground) -> None:
    sandbox = ground.sandbox()
    steps = scripted(
        ("write", {"path": "a.txt", "content": "hello\n"}),
        ("run", {"command": "tr a-z A-Z <a.txt; exit 4"}),
        ("read", {"path": "missing.txt"}),
        ("changes", {}),
    )
    agent = Agent(steps, toolsets=[make_toolset(sandbox)])
    parts = returned(finish(agent.run("Greet me.")).all_messages())
    assert [(part.tool_name, part.outcome) for part in parts] == [
        ("write", "success"),
        ("run", "success"),
        ("read", "failed"),
        ("changes", "success"),
    ]
    assert str(parts[1].content).startswith("Exit code: 4\n")
    assert str(parts[1].content).endswith("Output:\nHELLO\n")
    assert parts[1].metadata["exit_code"] == 4
    assert str(parts[2].content).startswith("ERROR: ")
    assert kinds(sandbox.changes()) == {"a.txt": "added"}


def test_the_tools_of_an_agent_have_the_names_and_words_of_all_others(ground: Ground) -> None:
    seen: list[AgentInfo] = []

    def answer(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info)
        return ModelResponse([TextPart("done")])

    sandbox = ground.sandbox()
    finish(Agent(FunctionModel(answer), toolsets=[make_toolset(sandbox)]).run("Hello."))
    names = [tool.name for tool in seen[0].function_tools]
    assert names == ["run", "changes", "diff", "undo", "read", "write", "list", "edit"]
    assert seen[0].function_tools[0].parameters_json_schema["required"] == ["command"]


def test_the_example_runs(ground: Ground) -> None:
    example = ROOT / "examples" / "pydantic_ai_example.py"
    assert len(example.read_text().splitlines()) < 40
    words = [sys.executable, os.fspath(example), os.fspath(ground.project)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("I greeted you.\n1 added\n  A greeting.txt\n", "")
    assert (ground.project / "greeting.txt").read_text() == "hello\n"


GUARD_S, SOON_S = 30, 2

# Why it can't pass here
_WAITS = (
    "it waits for a file that a command makes while it runs; here others see what a command wrote when it has ended"
)
NOT_HERE = {
    "test_cancellation_stops_foreground_work": _WAITS,
    "test_destroying_environment_during_command_raises_unavailable": _WAITS,
}
# It lets the child of a command that has ended go, which is dead here, and waits whether it writes a file
WAITS_IN_VAIN = {"test_background_child_does_not_hold_up_completed_command"}
TESTS = [name for name in dir(conformance.WorkspaceBackendSuite) if name.startswith("test_")]


@pytest.fixture
def anyio_backend() -> str:
    """asyncio, which the sandbox's own async face is for."""
    return "asyncio"


class Hurried:
    """anyio, with guards for what is near instead of those for what is across a network."""

    def __getattr__(self, name: str) -> Any:
        return getattr(anyio, name)

    def fail_after(self, delay: float, shield: bool = False) -> Any:
        return anyio.fail_after(SOON_S if delay == GUARD_S else delay, shield=shield)

    def move_on_after(self, delay: float, shield: bool = False) -> Any:
        return anyio.move_on_after(SOON_S if delay == GUARD_S else delay, shield=shield)


class TestUnspillBackend(conformance.WorkspaceBackendSuite):
    """All of it."""

    @pytest.fixture(autouse=True)
    def not_here(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
        """Expect those to fail that can't pass, and wait less for what never comes."""
        name = request.node.originalname
        if reason := NOT_HERE.get(name):
            request.applymarker(pytest.mark.xfail(strict=True, raises=BaseExceptionGroup, reason=reason))
        if not full and (name in NOT_HERE or name in WAITS_IN_VAIN):
            monkeypatch.setattr(conformance, "anyio", Hurried())

    @pytest.fixture
    def backend(self, ground: Ground) -> Iterator[WorkspaceBackend]:
        backend = UnspillBackend(ground.project, policy=ground.policy())
        yield backend
        backend.close()

    @pytest.fixture
    def fresh_backend(self, ground: Ground) -> Callable[[], WorkspaceBackend]:
        return lambda: UnspillBackend(ground.project, name="fresh", policy=ground.policy())

    @pytest.fixture
    def attach_backend(self, ground: Ground) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        def attach(ref: WorkspaceRef) -> WorkspaceBackend:
            return UnspillBackend(ground.project, ref=ref, policy=ground.policy())

        return attach

    @pytest.fixture
    def destructive_backend(self, ground: Ground) -> Callable[[], WorkspaceBackend]:
        return lambda: UnspillBackend(ground.project, policy=ground.policy())

    @pytest.fixture
    def destroy_environment(self, ground: Ground) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(_backend: WorkspaceBackend) -> None:
            shutil.rmtree(ground.project)

        return destroy


def test_no_more_than_2_rules_of_38_are_left_out() -> None:
    assert len(TESTS) == 38
    assert set(NOT_HERE) <= set(TESTS)
    assert len(NOT_HERE) <= 2
