# SPDX-License-Identifier: Apache-2.0
"""What an agent of pydantic-ai is made with: the tools of a sandbox (`toolsets=`), or its workspace (`capabilities=`).

The tools have the words, schemas and answers that all frameworks get. What went wrong with a tool, not with a command,
is told to the model as a failed call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_ai import FunctionToolset, Tool, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolFailed

from unspill.adapters.pydantic_ai import PROVIDER, UnspillBackend
from unspill.adapters.toolbox import call_tool, tools_of
from unspill.sandbox.asynchronous import call_in_thread

if TYPE_CHECKING:
    from pydantic_ai.workspaces import WorkspaceRef

    from unspill.adapters import tool
    from unspill.sandbox.sandbox import Sandbox


def make_toolset(sandbox: Sandbox, *, may_apply: bool = False) -> FunctionToolset[Any]:
    """Return `run`, `changes`, `diff`, `undo`, `read`, `write`, `list` and `edit`; `apply` only where you want that."""
    offered = tools_of(sandbox, may_apply=may_apply)
    return FunctionToolset([_make_tool(sandbox, one, may_apply=may_apply) for one in offered], id="unspill")


def _make_tool(sandbox: Sandbox, offered: tool.Tool, *, may_apply: bool) -> Tool[Any]:
    async def call(**arguments: Any) -> ToolReturn:
        answer = await call_in_thread(
            lambda fd: call_tool(sandbox, offered.name, arguments, cancel_fd=fd, may_apply=may_apply)
        )
        if answer.is_error:
            raise ToolFailed(answer.text)
        return ToolReturn(answer.text, metadata=answer.values)

    return Tool.from_schema(call, offered.name, offered.description, offered.schema)


@dataclass
class UnspillWorkspace(AbstractCapability[Any]):
    """Gives each run of an agent this workspace, also where it goes on with messages that name it."""

    backend: UnspillBackend

    def get_workspace(self, ctx: Any, *, ref: WorkspaceRef | None) -> UnspillBackend | None:
        if ref is None or ref == self.backend.ref:
            return self.backend
        return self.backend.attached(ref) if ref.provider == PROVIDER else None
