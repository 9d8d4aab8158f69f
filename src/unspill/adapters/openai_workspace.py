# SPDX-License-Identifier: Apache-2.0
"""The files of a SandboxAgent (OpenAI agents SDK) are those that runs of the sandbox see, and nothing else of the host.

Reading and writing are the file verbs of the sandbox; all else that the SDK does with files (list, move, remove, make
directories, patch, unpack) it does by these and by commands. Archives are made and unpacked inside.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from agents.sandbox.errors import WorkspaceArchiveReadError as NotRead
from agents.sandbox.errors import WorkspaceArchiveWriteError as NotWritten
from agents.sandbox.errors import WorkspaceReadNotFoundError as NotFound
from agents.sandbox.session.workspace_payloads import coerce_write_payload

from unspill.adapters.openai_commands import UnspillCommands, check_user
from unspill.adapters.openai_words import failure_of
from unspill.errors import FileError, UnspillError
from unspill.sandbox.asynchronous import call_in_thread
from unspill.sandbox.files import SandboxFiles
from unspill.sandbox.files_reading import MOST_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from agents.sandbox.types import User

    from unspill.sandbox.files_reading import FileBytes


class UnspillWorkspace(UnspillCommands):
    """The project as runs of a sandbox see it, with what is held."""

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        check_user(user)
        found = await self._window(path, MOST_BYTES)
        if found.has_more:
            raise NotRead(path=path, context={"reason": f"it has more than {MOST_BYTES} bytes"})
        return io.BytesIO(found.content)

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return (await self._window(path, min(max_bytes, MOST_BYTES))).content

    async def _window(self, path: Path, most: int) -> FileBytes:
        where, files = os.fspath(self.normalize_path(path)), SandboxFiles(self._sandbox)
        try:
            return await call_in_thread(lambda fd: files.read(where, limit=most, cancel_fd=fd))
        except UnspillError as error:
            if isinstance(error, FileError) and error.kind == "not_found":
                raise NotFound(path=path, cause=error) from error
            raise NotRead(path=path, context={"reason": failure_of(self._sandbox, error)}, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        await self._write(path, data, user, replace=True)

    async def _write_new_file(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        await self._write(path, data, user, replace=False)

    async def _write(self, path: Path, data: io.IOBase, user: str | User | None, *, replace: bool) -> None:
        check_user(user)
        where, files = os.fspath(self.normalize_path(path, for_write=True)), SandboxFiles(self._sandbox)
        content = coerce_write_payload(path=path, data=data).stream.read()
        try:
            written = await call_in_thread(lambda fd: files.write(where, content, replace=replace, cancel_fd=fd))
        except UnspillError as error:
            if isinstance(error, FileError) and error.kind == "exists":
                raise FileExistsError(error.message) from error
            raise NotWritten(path=path, message=failure_of(self._sandbox, error), cause=error) from error
        if not written.lasts:
            raise NotWritten(path=path, message=f"{where} lies where each command finds an empty directory")

    async def persist_workspace(self) -> io.IOBase:
        """Return the files as a tar, apart from those that the manifest calls ephemeral."""
        left_out = [f"--exclude=./{path.as_posix()}" for path in self._persist_workspace_skip_relpaths()]
        limits = self._sandbox._opened.policy.limits.replace(kept_bytes=MOST_BYTES, output_bytes=2 * MOST_BYTES)
        root = self._workspace_root_path()
        try:
            result = await self._run(["tar", "-C", os.fspath(root), *left_out, "-cf", "-", "."], limits=limits)
        except UnspillError as error:
            raise NotRead(path=root, context={"reason": failure_of(self._sandbox, error)}, cause=error) from error
        if not result.ok or result.stdout.left_out:
            why = f"it has more than {MOST_BYTES} bytes" if result.ok else failure_of(self._sandbox, result)
            raise NotRead(path=root, context={"reason": why})
        return io.BytesIO(result.stdout.kept())

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar over the files, by one run, which can be undone as any other."""
        root = self._workspace_root_path()
        content = coerce_write_payload(path=root, data=data).stream.read()
        try:
            result = await self._run(["tar", "-C", os.fspath(root), "--no-same-owner", "-xf", "-"], stdin=content)
        except UnspillError as error:
            raise NotWritten(path=root, message=failure_of(self._sandbox, error), cause=error) from error
        if not result.ok:
            raise NotWritten(path=root, message=failure_of(self._sandbox, result))
