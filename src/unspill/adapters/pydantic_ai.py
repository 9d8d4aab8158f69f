# SPDX-License-Identifier: Apache-2.0
"""A sandbox for pydantic-ai: `agent.run(..., workspace=UnspillBackend(project))`, or tools: `make_toolset(sandbox)`.

Commands and files are one tree, and what is changed there is held, applied and undone as everything in the sandbox.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_ai import FunctionToolset, Tool, ToolReturn
from pydantic_ai import workspaces as ws
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolFailed

from unspill.adapters.aio import LazySandbox, acall_tool, do_in_thread
from unspill.adapters.tools import tools_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.adapters import tools as our_tools
    from unspill.adapters.files import Workspace
    from unspill.sandbox.files import FileEntry
    from unspill.sandbox.sandbox import Sandbox

Found = TypeVar("Found")
_MOST, _SHOWN = 10 * 1024 * 1024, 64 * 1024


class UnspillBackend(ws.SupportsFilesystem, ws.SupportsRealpath, ws.SupportsCommands, ws.WorkspaceBackend):
    """The tree and the commands of a sandbox, `Sandbox(project, **options)`; a ref is good for that one alone."""

    def __init__(self, project: str | os.PathLike[str], *, ref: ws.WorkspaceRef | None = None, **options: Any) -> None:
        self.opening = LazySandbox(project, None if ref is None else ref.id, **options)
        self.open, self.close = self.opening.open, self.opening.close

    @property
    def ref(self) -> ws.WorkspaceRef | None:
        return None if self.opening.id is None else ws.WorkspaceRef(provider="unspill", id=self.opening.id)

    async def working_dir(self) -> str:
        return await self._do(lambda files, _fd: files.root)

    async def run(self, command: Any, *, shell: bool = False, env: Any = None, timeout: Any = None) -> ws.CommandResult:
        if isinstance(command, str) is not shell:
            raise TypeError("a text needs shell=True, and nothing else may have it")
        output = await self._do(lambda files, fd: files.run(command, _MOST, env=env, timeout=timeout, cancel_fd=fd))
        if output.is_late:
            raise ws.WorkspaceTimeoutError("its time was over", stdout=output.stdout, stderr=output.stderr)
        if output.is_cut:
            stdout, stderr = output.stdout[:_SHOWN], output.stderr[:_SHOWN]
            raise ws.WorkspaceOutputLimitError("it printed too much", limit=_MOST, stdout=stdout, stderr=stderr)
        return ws.CommandResult(exit_code=output.exit_code, stdout=output.stdout, stderr=output.stderr)

    async def read_bytes(self, path: str) -> bytes:
        return await self._do(lambda files, fd: files.read(path, cancel_fd=fd))

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self._do(lambda files, fd: files.write(path, data, cancel_fd=fd))

    async def stat(self, path: str) -> ws.FileEntry:
        return _entry(os.path.split(path.rstrip("/")), await self._do(lambda files, fd: files.look(path, cancel_fd=fd)))

    async def list_dir(self, path: str) -> list[ws.FileEntry]:
        found = await self._do(lambda files, fd: files.entries_followed(path, cancel_fd=fd))
        return [_entry((path, os.fsdecode(entry.path)), entry) for entry in found]

    async def make_dir(self, path: str) -> None:
        await self._do(lambda files, fd: files.make_directory(path, cancel_fd=fd))

    async def remove(self, path: str) -> None:
        await self._do(lambda files, fd: files.remove(path, cancel_fd=fd))

    async def exists(self, path: str) -> bool:
        return await self._do(lambda files, fd: files.exists(path, cancel_fd=fd))

    async def realpath(self, path: str) -> str:
        return await self._do(lambda files, fd: files.real_path(path, cancel_fd=fd))

    async def _do(self, work: Callable[[Workspace, int], Found]) -> Found:
        use, failed = self.opening.use, ws.WorkspaceUnavailableError
        return await do_in_thread(lambda fd: use(work, fd), failed=failed, usage=ValueError)


def _entry(place: tuple[str, str], entry: FileEntry) -> ws.FileEntry:
    size = entry.size if entry.kind == "file" else None
    return ws.FileEntry(name=place[1], path=os.path.join(*place), is_dir=entry.kind == "directory", size=size)


@dataclass
class UnspillWorkspace(AbstractCapability[Any]):
    """Gives each run of an agent this workspace (`capabilities=`), also where it goes on with messages that name it."""

    backend: UnspillBackend

    def get_workspace(self, ctx: Any, *, ref: ws.WorkspaceRef | None) -> UnspillBackend | None:
        if ref is None or ref == self.backend.ref:
            return self.backend
        opening = self.backend.opening
        return UnspillBackend(opening.project, ref=ref, **opening.options) if ref.provider == "unspill" else None


def make_toolset(sandbox: Sandbox, *, may_apply: bool = False) -> FunctionToolset[Any]:
    """Return `run`, `changes`, `diff`, `undo`, `read`, `write`, `list` and `edit`; `apply` only where you want that."""

    def make(ours: our_tools.Tool) -> Tool[Any]:
        async def call(**arguments: Any) -> ToolReturn:
            answer = await acall_tool(sandbox, ours.name, arguments, may_apply=may_apply)
            if answer.is_error:
                raise ToolFailed(answer.text)
            return ToolReturn(answer.text, metadata=answer.values)

        return Tool.from_schema(call, ours.name, ours.description, ours.schema)

    return FunctionToolset([make(ours) for ours in tools_of(sandbox, may_apply=may_apply)], id="unspill")
