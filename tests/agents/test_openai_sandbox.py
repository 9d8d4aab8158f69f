# SPDX-License-Identifier: Apache-2.0
"""The sandbox interface of the OpenAI agents SDK on a real sandbox: commands, files, and runs of a SandboxAgent."""

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from agents import Runner, RunState
from agents.exceptions import AgentsException
from agents.sandbox import Dir, Manifest, SandboxAgent, SandboxPathGrant, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import BaseEntry, File
from agents.sandbox.errors import (
    ApplyPatchDiffError,
    ExecNonZeroError,
    ExecTimeoutError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.files import EntryKind
from agents.sandbox.sandboxes import UnixLocalSandboxClient
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshotSpec
from agents.sandbox.types import Group, User
from agents.testing import ScriptedModel
from openai.types.responses import ResponseCustomToolCall

from tests.agents.openai_given import break_sandbox, opened, quiet, scripted, told, tool_call, until
from tests.support import Ground, kinds, lasting, processes_with, short
from unspill import Network, Sandbox, Secrets
from unspill.adapters.openai_agents import UnspillClient
from unspill.errors import SandboxUnavailable, UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.asyncio, pytest.mark.agents]


@pytest_asyncio.fixture
async def workspace(ground: Ground) -> AsyncIterator[SandboxSession]:
    """A started workspace, over a sandbox that holds changes."""
    started = await opened(ground)
    yield started
    await started.aclose()


async def test_a_command_runs_in_the_project_and_its_streams_and_code_are_its_own(
    ground: Ground, workspace: SandboxSession
) -> None:
    result = await workspace.exec("pwd; echo oops >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (f"{ground.inside()}\n".encode(), b"oops\n", 3)


async def test_words_are_run_as_they_are(workspace: SandboxSession) -> None:
    result = await workspace.exec("printf", "%s|", "a b", "$HOME", shell=False)
    assert result.stdout == b"a b|$HOME|"


async def test_a_program_that_is_not_there_is_127_and_no_failure_of_ours(workspace: SandboxSession) -> None:
    result = await workspace.exec("no-such-program", shell=False)
    assert result.exit_code == 127
    assert result.stderr.startswith(b"[unspill] ")


async def test_a_command_that_can_not_be_is_told_as_its_own_fault(workspace: SandboxSession) -> None:
    result = await workspace.exec("echo a\0b")
    assert (result.stdout, result.exit_code) == (b"", 2)
    assert b"NUL" in result.stderr


async def test_the_host_is_hidden_from_commands(ground: Ground, workspace: SandboxSession) -> None:
    (ground.home / "diary").write_text("secret")
    ground.write("file", "x")
    attempt = f"cat {ground.home}/diary; rm file"
    assert b"secret" not in (await workspace.exec(attempt)).stdout
    assert (ground.project / "file").exists()
    # Control: the SDK's own client for this machine
    plain = await UnixLocalSandboxClient().create(manifest=Manifest(root=str(ground.project)))
    async with plain:
        assert (await plain.exec(attempt)).stdout == b"secret"
    assert not (ground.project / "file").exists()


async def test_a_command_over_the_time_of_the_sdk_is_its_timeout_and_dead(workspace: SandboxSession) -> None:
    word, started = lasting(), time.monotonic()
    with pytest.raises(ExecTimeoutError) as caught:
        await workspace.exec(f"setsid sleep {word} & sleep {word}", timeout=0.6)
    assert caught.value.timeout_s == 0.6
    assert time.monotonic() - started < 15
    assert processes_with(word) == []


async def test_no_time_at_all_is_told_as_the_caller_s_fault(workspace: SandboxSession) -> None:
    result = await workspace.exec("true", timeout=0)
    assert (result.stdout, result.exit_code) == (b"", 2)
    assert result.stderr.startswith(b"[unspill] timeout_s must be more than 0")


async def test_the_time_of_the_policy_is_told_as_that(ground: Ground) -> None:
    workspace = await opened(ground, limits=short(wall_s=0.7))
    with pytest.raises(ExecTimeoutError) as caught:
        await workspace.exec(f"sleep {lasting()}", timeout=600)
    assert caught.value.timeout_s == 0.7


async def test_cancelling_a_command_kills_its_tree(workspace: SandboxSession) -> None:
    word = lasting()
    task = asyncio.create_task(workspace.exec(f"setsid sleep {word} & wait"))
    await until(lambda: bool(processes_with(word)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(word) == []


async def test_what_is_left_out_of_an_output_is_said(ground: Ground) -> None:
    workspace = await opened(ground, limits=short(kept_bytes=1000))
    result = await workspace.exec("head -c 5000 /dev/zero | tr '\\0' x")
    assert result.stdout == b"x" * 1000 + b"\n// ... (3000 bytes left out) ...\n" + b"x" * 1000
    assert result.stderr.startswith(b"[unspill] Note: 3000 bytes are left out where the output says so. Write it to a ")


async def test_a_listing_that_is_cut_is_an_error_and_no_listing(ground: Ground) -> None:
    workspace = await opened(ground, limits=short(kept_bytes=1000))
    await workspace.exec("for i in $(seq 1 200); do : > file-$i; done")
    with pytest.raises(OSError, match=r"the listing is too long\. List directories in it\."):
        await workspace.ls(".")


async def test_a_refused_host_is_said_at_the_end_of_standard_error(ground: Ground) -> None:
    workspace = await opened(ground, network=Network(hosts=("other.example.org",)))
    result = await workspace.exec("printf x >&2; curl -s -f -m 5 http://example.org/")
    assert result.exit_code != 0
    assert result.stderr.startswith(b"x\n[unspill] Network: example.org:80 was refused: no rule covers it.")


async def test_a_bound_that_ended_a_command_is_named(ground: Ground) -> None:
    workspace = await opened(ground, limits=short(output_bytes=10_000, kept_bytes=1000))
    result = await workspace.exec("yes")
    assert result.exit_code == 137
    assert b"[unspill] Command killed: it printed more than 9.766 KiB (`limits.output_bytes`)" in result.stderr


async def test_our_failure_is_an_exception(
    workspace: SandboxSession, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    await workspace.write(Path("file"), io.BytesIO(b"x"))
    break_sandbox(monkeypatch)
    with pytest.raises(SandboxUnavailable, match=r"^the sandbox could not be started: "):
        await workspace.exec("echo hello")
    with pytest.raises(SandboxUnavailable):
        await workspace.read(Path("file"))
    with pytest.raises(SandboxUnavailable):
        await workspace.write(Path("file"), io.BytesIO(b"y"))
    monkeypatch.undo()
    assert (await workspace.exec("cat file")).stdout == b"x"


async def test_variables_of_the_manifest_are_set(ground: Ground) -> None:
    workspace = await opened(ground, Manifest.model_validate({"environment": {"value": {"COLOUR": "blue"}}}))
    assert (await workspace.exec("echo $COLOUR")).stdout == b"blue\n"


async def test_what_was_not_applied_is_said(ground: Ground) -> None:
    workspace = await opened(ground, after="apply")
    result = await workspace.exec("mkdir -p .git/hooks && echo true > .git/hooks/pre-commit && echo ok > fine")
    assert (ground.project / "fine").exists()
    assert not (ground.project / ".git/hooks/pre-commit").exists()
    assert b"[unspill] Not applied (held: " in result.stderr


async def test_the_files_of_a_manifest_are_changes_like_any_other(ground: Ground) -> None:
    entries: dict[str | Path, BaseEntry] = {
        "notes.md": File(content=b"# notes\n"),
        "src": Dir(children={"a.py": File(content=b"a = 1\n")}),
    }
    workspace = await opened(ground, Manifest(entries=entries))
    assert (await workspace.exec("cat notes.md src/a.py")).stdout == b"# notes\na = 1\n"
    assert set(kinds(ground.sandbox().changes())) == {"notes.md", "src", "src/a.py"}
    assert [*ground.project.iterdir()] == []


async def test_it_runs_from_its_start_to_its_end_and_what_is_held_stays(ground: Ground) -> None:
    client = UnspillClient(ground.sandbox())
    workspace = await client.create()
    assert not await workspace.running()
    async with workspace:
        assert await workspace.running()
        assert not workspace.supports_pty()
        await workspace.exec("echo x > file")
    await client.delete(workspace)
    assert kinds(ground.sandbox().changes()) == {"file": "added"}


async def test_a_workspace_is_found_again_by_its_state(ground: Ground) -> None:
    client = UnspillClient(ground.sandbox())
    workspace = await client.create(manifest=Manifest(entries={"seed": File(content=b"1")}))
    async with workspace:
        await workspace.exec("echo 2 > seed; echo x > file")
    payload = client.serialize_session_state(workspace.state)
    again = await client.resume(client.deserialize_session_state(payload))
    async with again:
        assert (await again.exec("cat seed file")).stdout == b"2\nx\n"
    other = UnspillClient(ground.sandbox("other"))
    with pytest.raises(UsageError, match="that of another sandbox"):
        await other.resume(client.deserialize_session_state(client.serialize_session_state(workspace.state)))


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (Manifest(root="/elsewhere"), "SandboxRunConfig"),
        (Manifest(users=[User(name="bob")]), "run_as"),
        (Manifest(groups=[Group(name="all", users=[])]), "run_as"),
        (Manifest(extra_path_grants=(SandboxPathGrant(path="/x", host_path="/srv/x"),)), "readable"),
    ],
    ids=["root", "users", "groups", "host paths"],
)
async def test_what_a_sandbox_has_not_is_refused_with_a_remedy(ground: Ground, manifest: Manifest, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        await UnspillClient(ground.sandbox()).create(manifest=manifest)


async def test_snapshots_are_refused_but_for_the_one_that_the_sdk_chooses_by_itself(ground: Ground) -> None:
    client = UnspillClient(ground.sandbox())
    with pytest.raises(UsageError, match=r"Leave `snapshot` out"):
        await client.create(snapshot=LocalSnapshotSpec(base_path=ground.top / "copies"))
    for usual in (None, NoopSnapshotSpec(), LocalSnapshotSpec(base_path=ground.home / ".local/state" / SDK_PLACE)):
        assert (await client.create(snapshot=usual)).state.snapshot.type == "noop"


SDK_PLACE = "openai-agents-python/sandbox/snapshots"


async def test_nobody_acts_as_another_user(workspace: SandboxSession) -> None:
    # The SDK asks for `sudo`, which nothing in the sandbox can grant
    assert not (await workspace.exec("id", user="bob")).ok()
    for attempt in (
        workspace.read(Path("x"), user="bob"),
        workspace.write(Path("x"), io.BytesIO(b""), user=User(name="bob")),
    ):
        with pytest.raises(UsageError, match="Leave `run_as`"):
            await attempt


async def test_there_are_no_terminals_and_no_ports(workspace: SandboxSession) -> None:
    with pytest.raises(NotImplementedError):
        await workspace.pty_exec_start("sh", tty=True)
    with pytest.raises(ExposedPortUnavailableError):
        await workspace.resolve_exposed_port(8000)


async def test_file_methods_and_commands_see_one_tree_and_the_project_is_not_touched(
    ground: Ground, workspace: SandboxSession
) -> None:
    ground.write("old.txt", "old\n")
    await workspace.write(Path("new/file"), io.BytesIO(b"by a method\0\xff"))
    await workspace.exec("echo by a command > other; echo more >> old.txt")
    assert (await workspace.exec("cat new/file")).stdout == b"by a method\0\xff"
    assert (await workspace.read(Path("other"))).read() == b"by a command\n"
    assert (await workspace.read(Path(ground.inside(), "old.txt"))).read() == b"old\nmore\n"
    assert kinds(ground.sandbox().changes()) == {
        "new": "added", "new/file": "added", "old.txt": "modified", "other": "added"
    }  # fmt: skip
    assert [path.name for path in ground.project.iterdir()] == ["old.txt"]
    assert (ground.project / "old.txt").read_text() == "old\n"


async def test_what_is_written_is_applied_where_the_policy_says_so_and_undone(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    workspace = await UnspillClient(sandbox).create()
    await workspace.start()
    await workspace.write(Path("file"), io.BytesIO(b"x"))
    assert (ground.project / "file").read_bytes() == b"x"
    sandbox.undo()
    with pytest.raises(WorkspaceReadNotFoundError):
        await workspace.read(Path("file"))


async def test_reading_fails_as_the_sdk_expects(ground: Ground, workspace: SandboxSession) -> None:
    ground.write("dir/file", "x")
    with pytest.raises(WorkspaceReadNotFoundError):
        await workspace.read(Path("missing"))
    with pytest.raises(IsADirectoryError):
        await workspace.read(Path("dir"))
    for outside in (Path("../diary"), Path("/etc/passwd")):
        with pytest.raises(InvalidManifestPathError):
            await workspace.read(outside)
    assert await workspace.read_bounded(Path("dir/file"), max_bytes=10) == b"x"
    ground.write("long", "y" * 10_000)
    assert await workspace.read_bounded(Path("long"), max_bytes=10) == b"y" * 10


async def test_a_link_leads_no_further_than_the_sandbox(ground: Ground, workspace: SandboxSession) -> None:
    (ground.home / "diary").write_text("secret")
    (ground.project / "link").symlink_to(ground.home / "diary")
    with pytest.raises(WorkspaceReadNotFoundError):
        await workspace.read(Path("link"))
    with pytest.raises(OSError, match="it is not kept"):
        await workspace.write(Path("link"), io.BytesIO(b"mine"))
    assert (ground.home / "diary").read_text() == "secret"


async def test_a_masked_secret_is_not_read(ground: Ground, workspace: SandboxSession) -> None:
    ground.write(".env", "TOKEN=1")
    with pytest.raises(WorkspaceReadNotFoundError):
        await workspace.read(Path(".env"))
    # Control: where the person does not want that
    revealing = await opened(ground, secrets=Secrets(mask=False))
    assert (await revealing.read(Path(".env"))).read() == b"TOKEN=1"


async def test_text_is_not_written_as_bytes(workspace: SandboxSession) -> None:
    with pytest.raises(WorkspaceWriteTypeError):
        await workspace.write(Path("file"), io.StringIO("x"))


async def test_a_write_that_would_not_last_is_an_error(ground: Ground) -> None:
    workspace = await opened(ground, Manifest(extra_path_grants=(SandboxPathGrant(path="/tmp"),)))
    with pytest.raises(OSError, match="finds an empty directory"):
        await workspace.write(Path("/tmp/x"), io.BytesIO(b"x"))


async def test_directories_are_listed_made_moved_and_removed(ground: Ground, workspace: SandboxSession) -> None:
    ground.write("a/file", "12345")
    (ground.project / "link").symlink_to("a")
    await workspace.mkdir("b/c", parents=True)
    await workspace.mv("a/file", "b/c/moved")
    entries = {entry.path.rpartition("/")[2]: entry for entry in await workspace.ls(".")}
    assert {name: entry.kind for name, entry in entries.items()} == {
        "a": EntryKind.DIRECTORY, "b": EntryKind.DIRECTORY, "link": EntryKind.SYMLINK
    }  # fmt: skip
    (moved,) = await workspace.ls("b/c")
    assert (moved.path, moved.size, moved.kind) == (f"{ground.inside()}/b/c/moved", 5, EntryKind.FILE)
    assert await workspace.same_file("b/c/moved", "b/c/../c/moved")
    await workspace.rm("b", recursive=True)
    with pytest.raises(ExecNonZeroError):
        await workspace.ls("b")
    assert (ground.project / "a/file").read_text() == "12345"


async def test_a_patch_is_made_inside(ground: Ground, workspace: SandboxSession) -> None:
    ground.write("old.py", "a = 1\nb = 2\n")
    await workspace.apply_patch({"type": "update_file", "path": "old.py", "diff": "@@\n a = 1\n-b = 2\n+b = 3\n"})
    await workspace.apply_patch({"type": "create_file", "path": "new.py", "diff": "+c = 4\n"})
    assert (await workspace.exec("cat old.py new.py")).stdout.split() == b"a = 1 b = 3 c = 4".split()
    with pytest.raises(ApplyPatchDiffError, match="already exists"):
        await workspace.apply_patch({"type": "create_file", "path": "old.py", "diff": "+d\n"})
    await workspace.apply_patch({"type": "delete_file", "path": "old.py"})
    assert kinds(ground.sandbox().changes()) == {"new.py": "added", "old.py": "deleted"}
    assert (ground.project / "old.py").read_text() == "a = 1\nb = 2\n"


async def test_no_archive_is_made_of_the_workspace_and_none_put_into_it(workspace: SandboxSession) -> None:
    for attempt in (workspace.persist_workspace(), workspace.hydrate_workspace(io.BytesIO())):
        with pytest.raises(UsageError, match="the sandbox keeps it"):
            await attempt


async def test_an_archive_that_leads_out_of_the_workspace_reaches_nothing(
    ground: Ground, workspace: SandboxSession
) -> None:
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        link = tarfile.TarInfo("door")
        link.type, link.linkname = tarfile.SYMTYPE, str(ground.home)
        tar.addfile(link)
        for name in ("door/planted", "../planted", f"{ground.home}/planted"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    evil.seek(0)
    await workspace.write(Path("evil.tar"), evil)
    await workspace.exec("tar -P -xf evil.tar")
    assert not (ground.home / "planted").exists()
    # Control: unpacked here, by what believes it
    evil.seek(0)
    with tarfile.open(fileobj=evil) as tar:
        tar.extraction_filter = lambda member, _path: member
        tar.extractall(ground.project)
    assert (ground.home / "planted").read_bytes() == b"evil"


async def test_archives_are_unpacked_by_the_sdk_into_the_sandbox(ground: Ground, workspace: SandboxSession) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("inner/file")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    archive.seek(0)
    await workspace.extract("in.tar", archive)
    assert (await workspace.exec("cat inner/file")).stdout == b"x"
    assert [*ground.project.iterdir()] == []


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
