# SPDX-License-Identifier: Apache-2.0
"""A client for SandboxAgent (OpenAI agents SDK): `RunConfig(sandbox=SandboxRunConfig(client=UnspillClient(sandbox)))`.

The workspace is the project as runs of the sandbox see it, so the SDK has nothing to keep or to delete. What we say of
a command stands at the end of its standard error, marked: there is no other place for it. Our failure is an exception.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agents.sandbox import Manifest
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.session import BaseSandboxClient, BaseSandboxSession, SandboxSession, SandboxSessionState
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshot, NoopSnapshotSpec
from agents.sandbox.snapshot_defaults import default_local_snapshot_base_dir
from agents.sandbox.types import ExecResult

from unspill.adapters.aio import do_in_thread
from unspill.adapters.files import Workspace
from unspill.errors import UsageError

if TYPE_CHECKING:
    from unspill.sandbox.sandbox import Sandbox

_NO_COPIES = "the workspace is not copied: the sandbox keeps it. Leave `snapshot` out; `Sandbox.undo` takes back."
_FILES_ONLY = (
    "the manifest has more than files and variables. Leave out `root` (or use SandboxRunConfig(cwd=)), `users`, "
    "`groups` and `run_as`, mounts, and paths of the host (or add them to `readable` of the sandbox's policy)."
)


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
