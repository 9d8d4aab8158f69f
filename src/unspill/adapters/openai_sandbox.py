# SPDX-License-Identifier: Apache-2.0
"""A sandbox client for SandboxAgent (OpenAI agents SDK): its commands and file tools act on one sandbox of ours.

    RunConfig(sandbox=SandboxRunConfig(client=UnspillClient(sandbox)))

The workspace is the project as runs of the sandbox see it. What is changed there is held, applied and undone as always,
so the SDK has nothing to keep or to delete. What a sandbox of ours has not, such as other users, is an error at once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from agents.sandbox.manifest import Manifest
from agents.sandbox.session import BaseSandboxClient, SandboxSession, SandboxSessionState
from agents.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshot, NoopSnapshotSpec
from agents.sandbox.snapshot_defaults import default_local_snapshot_base_dir

from unspill.adapters.openai_commands import UnspillState
from unspill.adapters.openai_workspace import UnspillWorkspace
from unspill.errors import UsageError
from unspill.plan.inside import to_inside

if TYPE_CHECKING:
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec

    from unspill.sandbox.sandbox import Sandbox

_USUAL_ROOT = Manifest().root


class UnspillClient(BaseSandboxClient[None]):
    """Gives agents the sandbox that it was made with. That is opened, and closed, by whoever made it."""

    backend_id = "unspill"
    supports_default_options = True

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: None = None,
    ) -> SandboxSession:
        """Return a workspace; the files of the manifest are written into it when it is started.

        Raises:
            UsageError: the manifest has what a sandbox of ours has not, or a snapshot is wanted.
        """
        _check_snapshot(snapshot)
        state = UnspillState(
            snapshot=NoopSnapshot(id="unspill"),
            manifest=self._fitted(manifest or Manifest()),
            sandbox_id=self._sandbox._opened.row.id,
        )
        return self._wrap_session(UnspillWorkspace(self._sandbox, state))

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return the workspace of an earlier run: whatever was changed in it is still there, held or applied.

        Raises:
            UsageError: it was in another sandbox.
        """
        if not isinstance(state, UnspillState) or state.sandbox_id != self._sandbox._opened.row.id:
            _refuse("the state is that of another sandbox", "Make the client with the sandbox that the run was in.")
        state.assert_path_grants_rebound()
        state.manifest = self._fitted(state.manifest)
        workspace = UnspillWorkspace(self._sandbox, state)
        workspace._set_start_state_preserved(True)
        return self._wrap_session(workspace)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Delete nothing: what is held is for the person to apply or to discard."""
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, UnspillState)

    def _fitted(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the project as its root."""
        opened = self._sandbox._opened
        root = os.fsdecode(to_inside(opened.project, opened.policy.view, opened.roots))
        if manifest.root not in (_USUAL_ROOT, root):
            _refuse(
                f"the root of the manifest is not the project, {root}", "Leave it out, or use SandboxRunConfig(cwd=)."
            )
        if manifest.users or manifest.groups:
            _refuse(
                "there is one user in the sandbox", "Leave `run_as`, and `users` and `groups` of the manifest, out."
            )
        if any(manifest.mount_targets()):
            _refuse(
                "nothing can be mounted in the sandbox", "Leave mounts out of the manifest, or copy what is needed."
            )
        if any(grant.host_path is not None for grant in manifest.extra_path_grants):
            _refuse(
                "a manifest can't show paths of the host", "Add them to `readable` or `roots` of the sandbox's policy."
            )
        return manifest.model_copy(update={"root": root}, deep=True)


def _check_snapshot(snapshot: SnapshotSpec | SnapshotBase | None) -> None:
    """Refuse copies of the workspace; one that the SDK chose by itself is left out, as there is no need for it."""
    usual = LocalSnapshotSpec(base_path=default_local_snapshot_base_dir())
    if not (snapshot is None or isinstance(snapshot, NoopSnapshotSpec | NoopSnapshot) or snapshot == usual):
        _refuse("the workspace is not copied: the sandbox keeps it", "Leave `snapshot` out; `Sandbox.undo` takes back.")


def _refuse(what: str, remedy: str) -> NoReturn:
    # In the text too: of an exception the SDK shows no more
    raise UsageError(f"{what}. {remedy}", remedy=remedy)
