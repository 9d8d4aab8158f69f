# SPDX-License-Identifier: Apache-2.0
"""For agents of the OpenAI agents SDK: its ShellTool, our tools as function tools, and a client for its sandboxes.

    Agent(..., tools=[ShellTool(executor=shell_executor(sandbox))])
    Agent(..., tools=[run_command_function(sandbox)])
    Agent(..., tools=[*function_tools(sandbox)])
    RunConfig(sandbox=SandboxRunConfig(client=UnspillClient(sandbox)))

What commands print and what we say of them are kept apart; in a SandboxAgent what we say stands at the end of standard
error, marked. Our failure is a call that failed or an exception, never an output. The workspace of a SandboxAgent is
the project as runs of the sandbox see it, so the SDK has nothing to keep or to delete.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agents import (
    FunctionTool,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
)
from agents.sandbox import Manifest
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxSession,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshot, NoopSnapshotSpec
from agents.sandbox.snapshot_defaults import default_local_snapshot_base_dir
from agents.sandbox.types import ExecResult

from unspill.adapters.aio import acall_tool, do_in_thread, run_batch
from unspill.adapters.answers import answer_error
from unspill.adapters.files import Workspace
from unspill.adapters.tools import run_command_tool, tools_of
from unspill.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agents import ShellCommandRequest

    from unspill.adapters.answers import Printed
    from unspill.adapters.tools import Tool
    from unspill.sandbox.sandbox import Sandbox

_NO_COPIES = "the workspace is not copied: the sandbox keeps it. Leave `snapshot` out; `Sandbox.undo` takes back."
_FILES_ONLY = (
    "the manifest has more than files and variables. Leave out `root` (or use SandboxRunConfig(cwd=)), `users`, "
    "`groups` and `run_as`, mounts, and paths of the host (or add them to `readable` of the sandbox's policy)."
)


def shell_executor(sandbox: Sandbox) -> Callable[[ShellCommandRequest], Awaitable[ShellResult]]:
    """Return what a ShellTool runs its commands with.

    A call has an output for each command that was run, and behind those one that is ours, where there is something to
    say. An exception is shown to the model too, as the text of a call that failed.
    """

    async def run_all(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        timeout_s = None if action.timeout_ms is None else action.timeout_ms / 1000
        batch = await run_batch(sandbox, action.commands, timeout_s, action.max_output_length)
        ours = [ShellCommandOutput(batch.words, outcome=ShellCallOutcome("exit", 0))] if batch.words else []
        return ShellResult([*map(_output, batch.printed), *ours], max_output_length=action.max_output_length)

    return run_all


def _output(printed: Printed) -> ShellCommandOutput:
    outcome = ShellCallOutcome("timeout") if printed.is_late else ShellCallOutcome("exit", printed.exit_code)
    return ShellCommandOutput(printed.stdout, printed.stderr, outcome, printed.command)


def run_command_function(sandbox: Sandbox, **options: Any) -> FunctionTool:
    """Return the tool `run_command`; the options are those of FunctionTool, such as `needs_approval`."""
    return _function(sandbox, run_command_tool(sandbox), "run", options)


def function_tools(sandbox: Sandbox, **options: Any) -> list[FunctionTool]:
    """Return all tools of an agent: `run`, those that look at changes and take them back, those for files."""
    return [_function(sandbox, tool, tool.name, options) for tool in tools_of(sandbox)]


def _function(sandbox: Sandbox, tool: Tool, name: str, options: dict[str, Any]) -> FunctionTool:
    async def invoke(_context: object, text: str) -> str:
        try:
            arguments = json.loads(text or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return answer_error(UsageError("the arguments are not a JSON object")).text
        return (await acall_tool(sandbox, name, arguments)).text

    # Not strict: in that mode every argument is required
    return FunctionTool(tool.name, tool.description, tool.schema, invoke, strict_json_schema=False, **options)


class UnspillState(SandboxSessionState):
    """What a later run of an agent needs to find the sandbox again."""

    type: Literal["unspill"] = "unspill"
    sandbox_id: str


class UnspillSession(BaseSandboxSession):
    """Runs commands in a sandbox, each a run of its own, and reads and writes the files that they see."""

    def __init__(self, sandbox: Sandbox, state: UnspillState) -> None:
        self.state, self._sandbox, self._files = state, sandbox, Workspace(sandbox)
        self._set_start_state_preserved(state.workspace_root_ready)

    async def running(self) -> bool:
        return self.state.workspace_root_ready

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words, env = [str(word) for word in command], await self.state.manifest.environment.resolve()
        run = self._files.run_program
        output = await do_in_thread(lambda fd: run(words, env=env, timeout=timeout, cancel_fd=fd))
        if output.late_s is not None:
            raise ExecTimeoutError(command=words, timeout_s=output.late_s)
        return ExecResult(stdout=output.printed[0], stderr=output.noted_stderr(), exit_code=output.exit_code)

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        where, kinds = self._place(path, user), {"not_found": lambda _text: WorkspaceReadNotFoundError(path=path)}
        return io.BytesIO(await do_in_thread(lambda fd: self._files.read(where, cancel_fd=fd), kinds=kinds))

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None, replace: bool = True) -> None:
        where = self._place(path, user, for_write=True)
        content = coerce_write_payload(path=path, data=data).stream.read()
        await do_in_thread(lambda fd: self._files.write(where, content, replace=replace, cancel_fd=fd))

    async def _write_new_file(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        await self.write(path, data, user=user, replace=False)

    def _place(self, path: Path, user: Any, *, for_write: bool = False) -> str:
        if user is not None:
            raise UsageError("there is one user in the sandbox. Leave `run_as` and `user` out.")
        return str(self.normalize_path(path, for_write=for_write))

    async def persist_workspace(self) -> io.IOBase:
        raise UsageError(_NO_COPIES)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        raise UsageError(_NO_COPIES)


class UnspillClient(BaseSandboxClient[None]):
    """Gives agents the sandbox that it was made with. That is opened, and closed, by whoever made it."""

    backend_id = "unspill"
    supports_default_options = True

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self._id = sandbox, sandbox.id

    async def create(self, *, snapshot: Any = None, manifest: Any = None, options: None = None) -> SandboxSession:
        """Return a workspace; the files of the manifest are written into it when it is started."""
        usual = LocalSnapshotSpec(base_path=default_local_snapshot_base_dir())
        if snapshot not in (None, usual) and not isinstance(snapshot, NoopSnapshot | NoopSnapshotSpec):
            raise UsageError(_NO_COPIES)
        state = UnspillState(snapshot=NoopSnapshot(id="unspill"), manifest=manifest or Manifest(), sandbox_id=self._id)
        return await self.resume(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return the workspace of an earlier run: whatever was changed in it is still there, held or applied."""
        if not isinstance(state, UnspillState) or state.sandbox_id != self._id:
            raise UsageError("the state is that of another sandbox. Make the client with the one that the run was in.")
        root, wanted = Workspace(self._sandbox).root, state.manifest
        shown = [grant.path for grant in wanted.extra_path_grants if grant.host_path is not None]
        others = [*wanted.users, *wanted.groups, *wanted.mount_targets(), *shown]
        if others or wanted.root not in (Manifest().root, root):
            raise UsageError(_FILES_ONLY)
        state.manifest = wanted.model_copy(update={"root": root}, deep=True)
        return self._wrap_session(UnspillSession(self._sandbox, state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Delete nothing: what is held is for the person to apply or to discard."""
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, UnspillState)
