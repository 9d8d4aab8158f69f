# SPDX-License-Identifier: Apache-2.0
"""A sandbox as the backend of deep agents: what becomes of changes, of long outputs, and of those nobody waits for."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from deepagents import create_deep_agent
from deepagents.backends.sandbox import BaseSandbox
from langchain_core.messages import HumanMessage

from tests.agents.deepagents_given import ashown, scripted, shown
from tests.architecture.sources import ROOT
from tests.support import HOST_ROOT, Ground, kinds, lasting, processes_with, short
from unspill.adapters.deepagents import UnspillSandbox, make_backend

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

EXAMPLE = ROOT / "examples" / "deepagents_example.py"
MODEL = 'model="anthropic:claude-sonnet-4-6"'


def test_an_agent_edits_a_file_and_runs_a_command(ground: Ground) -> None:
    ground.write("app.py", "print('old')\n")
    project, sandbox = ground.inside(), ground.sandbox()

    messages = shown(
        make_backend(sandbox),
        ("read_file", {"file_path": f"{project}/app.py"}),
        ("edit_file", {"file_path": f"{project}/app.py", "old_string": "old", "new_string": "new"}),
        ("execute", {"command": "python3 app.py"}),
        ("ls", {"path": project}),
        ("grep", {"pattern": "new", "path": project}),
        ("glob", {"pattern": "*.py", "path": project}),
        ("delete", {"file_path": f"{project}/app.py"}),
        ("execute", {"command": "ls -a"}),
    )

    assert [message.status for message in messages] == ["success"] * 8
    assert "print('old')" in messages[0].text
    assert messages[2].text == "new\n\n[Command succeeded with exit code 0]"
    assert [f"{project}/app.py" in message.text for message in messages[3:7]] == [True] * 4
    assert messages[7].text == ".\n..\n\n[Command succeeded with exit code 0]"
    assert kinds(sandbox.changes()) == {"app.py": "deleted"}
    assert (ground.project / "app.py").read_text() == "print('old')\n"


@pytest.mark.asyncio
async def test_the_async_tools_do_the_same(ground: Ground) -> None:
    ground.write("app.py", "print('old')\n")
    project = ground.inside()

    messages = await ashown(
        make_backend(ground.sandbox(after="apply")),
        ("edit_file", {"file_path": f"{project}/app.py", "old_string": "old", "new_string": "new"}),
        ("execute", {"command": "python3 app.py"}),
        ("grep", {"pattern": "new", "path": project}),
        ("glob", {"pattern": "*.py", "path": project}),
        ("ls", {"path": project}),
        ("delete", {"file_path": f"{project}/app.py"}),
    )

    assert [message.status for message in messages] == ["success"] * 6
    assert messages[1].text.startswith("new\n")
    assert [f"{project}/app.py" in message.text for message in messages[2:]] == [True] * 4
    assert not (ground.project / "app.py").exists()


def test_what_the_file_tools_write_is_held_applied_and_undone(ground: Ground) -> None:
    ground.write("edited", "one\n")
    sandbox = ground.sandbox()
    backend = UnspillSandbox(sandbox)

    assert backend.write(f"{ground.inside()}/written", "new\n").error is None
    assert backend.edit(f"{ground.inside()}/edited", "one", "two").occurrences == 1
    assert [done.error for done in backend.upload_files([(f"{ground.inside()}/a/uploaded", b"\0\xff")])] == [None]

    assert kinds(sandbox.changes()) == {"a": "added", "a/uploaded": "added", "edited": "modified", "written": "added"}
    assert sorted(os.listdir(ground.project)) == ["edited"]
    sandbox.apply()
    assert (ground.project / "a" / "uploaded").read_bytes() == b"\0\xff"
    assert (ground.project / "edited").read_text() == "two\n"
    sandbox.undo()
    assert sorted(os.listdir(ground.project)) == ["edited"]
    assert (ground.project / "edited").read_text() == "one\n"


def test_a_timeout_ends_a_command_and_never_makes_its_time_longer(ground: Ground) -> None:
    backend = UnspillSandbox(ground.sandbox(limits=short(wall_s=2.0)))
    words = lasting(), lasting()
    started = time.monotonic()

    codes = [
        backend.execute(f"sleep {word}", timeout=bound).exit_code for word, bound in zip(words, (1, 3600), strict=True)
    ]

    assert codes == [124, 124]
    assert time.monotonic() - started < 15
    assert [processes_with(word) for word in words] == [[], []]


@pytest.mark.asyncio
async def test_cancelling_an_agent_kills_what_its_command_has_started(ground: Ground) -> None:
    word, sandbox = lasting(), ground.sandbox()
    command = f"setsid sleep {word} & sleep {word}; touch late"
    task = asyncio.create_task(ashown(make_backend(sandbox), ("execute", {"command": command})))
    await until(lambda: len(processes_with(word)) == 2)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert processes_with(word) == []
    assert not sandbox.changes()


@pytest.mark.asyncio
async def test_cancelling_a_file_tool_ends_it(ground: Ground) -> None:
    """The file tool waits for a command that has the sandbox."""
    word, sandbox = lasting(), ground.sandbox()
    backend = UnspillSandbox(sandbox)
    before = asyncio.create_task(backend.aexecute(f"sleep {word}"))
    await until(lambda: bool(processes_with(word)))
    writing = asyncio.create_task(backend.awrite(f"{ground.inside()}/late", "x"))
    await asyncio.sleep(0.2)

    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(writing, 10)
    before.cancel()
    with pytest.raises(asyncio.CancelledError):
        await before

    assert processes_with(word) == []
    assert not sandbox.changes()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_what_is_too_long_for_a_model_lies_where_it_and_commands_can_read_it(ground: Ground) -> None:
    backend = make_backend(ground.sandbox(limits=short()))
    (message,) = shown(backend, ("execute", {"command": "seq 100000"}))
    place = f"{ground.playground_inside}/.deepagents/large_tool_results/call_0"

    assert len(message.text) < 10_000
    assert place in message.text
    assert backend.execute(f"wc -l <{place}").output.split() == ["100001"]
    assert not ground.sandbox().changes()


def test_without_a_place_for_it_a_model_gets_all_of_it(ground: Ground) -> None:
    """The control arm: nothing can be written at the top of a sandbox."""
    (message,) = shown(UnspillSandbox(ground.sandbox()), ("execute", {"command": "seq 100000"}))
    assert len(message.text) > 500_000


@pytest.mark.view("sealed", reason="it hides a program of this machine")
def test_files_are_read_and_written_without_python_inside(ground: Ground) -> None:
    backend = UnspillSandbox(ground.sandbox(hidden=(b"/usr/bin/python3",)))
    path = f"{ground.inside()}/file"
    assert backend.execute("command -v python3").exit_code == 127

    assert backend.write(path, "one\n").error is None
    assert backend.edit(path, "one", "two").error is None
    assert backend.read(path).file_data == {"content": "two", "encoding": "utf-8"}
    assert [entry["path"] for entry in backend.ls(ground.inside()).entries or []] == [path]
    assert len(backend.grep("two", ground.inside()).matches or []) == 1
    assert backend.delete(path).error is None
    # The control arm: the framework's own way needs it
    assert "python3: Permission denied" in (BaseSandbox.read(backend, path).error or "")
    # It still needs it for this, and says so
    assert "python3: Permission denied" in (backend.glob("*", ground.inside()).error or "")


def test_no_path_of_the_host_is_told_where_a_rootfs_is_shown(ground: Ground) -> None:
    ground.write("file", "x\n")
    sandbox = ground.sandbox(view="rootfs", rootfs=HOST_ROOT)
    backend = make_backend(sandbox)
    assert UnspillSandbox(sandbox).working_dir == "/workspace"

    messages = shown(
        backend,
        ("ls", {"path": "/workspace"}),
        ("read_file", {"file_path": "/workspace/none"}),
        ("edit_file", {"file_path": "/workspace/file", "old_string": "x", "new_string": "y"}),
        ("write_file", {"file_path": "/etc/x", "content": ""}),
        ("execute", {"command": "pwd; cat /workspace/file; seq 100000"}),
        ("glob", {"pattern": "file", "path": "/workspace"}),
    )

    assert [message.status for message in messages] == ["success", "error", "success", "error", "success", "success"]
    assert [str(ground.top) in message.text for message in messages] == [False] * 6
    assert kinds(sandbox.changes()) == {"file": "modified"}


def test_the_example_leaves_what_was_applied_and_nothing_else(ground: Ground) -> None:
    words = [sys.executable, "-W", "error", os.fspath(EXAMPLE), os.fspath(ground.project)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Hello, twice.\n2 added\n  A greeting.txt\n  A loud.txt\n"
    assert os.listdir(ground.project) == ["greeting.txt"]


def test_the_lines_in_the_documentation_make_an_agent(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    section = (ROOT / "docs" / "agents.md").read_text().partition("## LangChain deep agents\n")[2]
    lines = section.partition("```text\n")[2].partition("```\n")[0]
    assert MODEL in lines
    monkeypatch.chdir(ground.project)
    steps = [("execute", {"command": "echo hello > greeting"})]
    names = {"create_deep_agent": create_deep_agent, "scripted": scripted, "steps": steps, "HumanMessage": HumanMessage}
    asked = '    agent.invoke({"messages": [HumanMessage("go")]})\n'

    exec(lines.replace(MODEL, "model=scripted(steps)") + asked, names)

    assert (ground.project / "greeting").read_text() == "hello\n"
