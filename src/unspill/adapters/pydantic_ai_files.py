# SPDX-License-Identifier: Apache-2.0
"""The files of a workspace of pydantic-ai: what commands in the sandbox see, and nothing else of the host."""

from __future__ import annotations

import os
import posixpath
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from pydantic_ai.workspaces import FileEntry, SupportsFilesystem, SupportsRealpath

from unspill.sandbox.files import SandboxFiles
from unspill.sandbox.files_reading import MOST_BYTES
from unspill.sandbox.files_tree import SandboxTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.sandbox.sandbox import Sandbox

Found = TypeVar("Found")
_MOST_ENTRIES = 1_000_000


class UnspillFiles(SupportsFilesystem, SupportsRealpath):
    """Reads and writes files of a sandbox; each verb is a run, so what it writes is a change as any other."""

    @abstractmethod
    async def working_dir(self) -> str: ...

    @abstractmethod
    async def _do(self, work: Callable[[Sandbox, int], Found]) -> Found:
        """Do something with the sandbox, in a thread; what goes wrong is raised as pydantic-ai wants it."""

    async def read_bytes(self, path: str) -> bytes:
        found = await self._do(lambda sandbox, fd: SandboxFiles(sandbox).read(path, limit=MOST_BYTES, cancel_fd=fd))
        if found.has_more:
            raise OSError(f"{path} has more than {MOST_BYTES} bytes")
        return found.content

    async def write_bytes(self, path: str, data: bytes) -> None:
        written = await self._do(lambda sandbox, fd: SandboxFiles(sandbox).write(path, data, cancel_fd=fd))
        if not written.lasts:
            raise PermissionError(f"{path} lies where each command finds an empty directory")

    async def stat(self, path: str) -> FileEntry:
        found = await self._do(lambda sandbox, fd: SandboxTree(sandbox).look(path, cancel_fd=fd))
        is_dir = found.kind == "directory"
        name = posixpath.basename(path.rstrip("/"))
        return FileEntry(name=name, path=path, is_dir=is_dir, size=found.size if found.kind == "file" else None)

    async def list_dir(self, path: str) -> list[FileEntry]:
        def look(sandbox: Sandbox, fd: int) -> list[FileEntry]:
            entries = SandboxFiles(sandbox).list(path, limit=_MOST_ENTRIES, cancel_fd=fd).entries
            links = [entry.path for entry in entries if entry.kind == "link"]
            linked = SandboxTree(sandbox).directories(path, links, cancel_fd=fd)
            return [
                FileEntry(
                    name=os.fsdecode(entry.path),
                    path=posixpath.join(path, os.fsdecode(entry.path)),
                    is_dir=entry.kind == "directory" or entry.path in linked,
                    size=entry.size if entry.kind == "file" else None,
                )
                for entry in entries
            ]

        return await self._do(look)

    async def make_dir(self, path: str) -> None:
        await self._do(lambda sandbox, fd: SandboxTree(sandbox).make_directory(path, cancel_fd=fd))

    async def remove(self, path: str) -> None:
        above, name = posixpath.split(path.rstrip("/"))
        target = posixpath.join(await self.realpath(above or "/"), name)
        if f"{await self.working_dir()}/".startswith(f"{target.rstrip('/')}/"):
            raise ValueError("the working directory and what it lies in can't be removed")
        await self._do(lambda sandbox, fd: SandboxTree(sandbox).remove(path, cancel_fd=fd))

    async def exists(self, path: str) -> bool:
        return await self._do(lambda sandbox, fd: SandboxTree(sandbox).exists(path, cancel_fd=fd))

    async def realpath(self, path: str) -> str:
        return os.fsdecode(await self._do(lambda sandbox, fd: SandboxTree(sandbox).real_path(path, cancel_fd=fd)))
