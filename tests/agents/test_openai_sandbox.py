# SPDX-License-Identifier: Apache-2.0
"""Commands by the sandbox interface of the OpenAI agents SDK, on a real sandbox: ends, bounds, what is refused."""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agents.sandbox import Dir, Manifest, SandboxPathGrant
from agents.sandbox.entries import BaseEntry, File
from agents.sandbox.errors import ExecTimeoutError, ExposedPortUnavailableError
from agents.sandbox.sandboxes import UnixLocalSandboxClient
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshotSpec
from agents.sandbox.types import Group, User

from tests.agents.openai_given import break_sandbox, opened, until
from tests.support import Ground, kinds, lasting, processes_with, short
from unspill import Network
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
    assert b"[unspill] Command killed: it reached the limit output = 10000" in result.stderr


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
