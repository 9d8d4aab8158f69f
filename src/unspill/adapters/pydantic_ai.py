# SPDX-License-Identifier: Apache-2.0
"""A sandbox as the workspace of pydantic-ai's agents: `agent.run(..., workspace=UnspillBackend("/path/to/project"))`.

Commands and files are one tree, and what is changed there is held, applied and undone as everything in the sandbox.
Commands run one after another, and nothing of them runs on. A ref names the sandbox; it never leads to another project.
"""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_ai import workspaces as offered
from pydantic_ai.workspaces import CommandResult, WorkspaceRef, WorkspaceUnavailableError

from unspill.adapters.os_errors import to_os_error
from unspill.adapters.pydantic_ai_files import UnspillFiles
from unspill.adapters.told import failure_text, run_told
from unspill.errors import ApplyFailed, FileError, ProjectBusy, UnspillError, UsageError
from unspill.plan.inside import to_inside
from unspill.sandbox.asynchronous import call_in_thread
from unspill.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")
MOST_OUTPUT = 10 * 1024 * 1024
PROVIDER = "unspill"
_SHOWN = 64 * 1024


class UnspillBackend(UnspillFiles, offered.SupportsCommands, offered.WorkspaceBackend):
    """Runs commands in a sandbox of a project, and reads and writes its files."""

    def __init__(self, project: str | os.PathLike[str], *, ref: WorkspaceRef | None = None, **options: Any) -> None:
        """Say which sandbox: `options` are those of `Sandbox`. Of a `ref` no other sandbox will do."""
        self._project, self._options, self._ref = project, options, ref
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    def open(self) -> Sandbox:
        """Return the sandbox itself, for `changes`, `apply`, `undo`; opened at the first use."""
        with self._lock:
            if self._sandbox is None:
                try:
                    sandbox = Sandbox(self._project, **self._options)
                except UnspillError as error:
                    raise WorkspaceUnavailableError(failure_text(error)) from error
                ref = WorkspaceRef(provider=PROVIDER, id=sandbox._opened.row.id)
                if self._ref not in (None, ref):
                    sandbox.close()
                    raise WorkspaceUnavailableError(f"{self._ref} is not the sandbox of this project, or is gone")
                self._sandbox, self._ref = sandbox, ref
            if not os.path.isdir(self._sandbox.project):
                raise WorkspaceUnavailableError("the project of this sandbox is gone")
            return self._sandbox

    def attached(self, ref: WorkspaceRef) -> UnspillBackend:
        """Return another that is good for this sandbox alone."""
        return UnspillBackend(self._project, ref=ref, **self._options)

    def close(self) -> None:
        """Let go of the sandbox; what is held stays held."""
        if self._sandbox is not None:
            self._sandbox.close()

    async def working_dir(self) -> str:
        opened = (await self._do(lambda sandbox, _fd: sandbox))._opened
        return os.fsdecode(to_inside(opened.project, opened.policy.view, opened.roots))

    async def run(self, command: Any, *, shell: bool = False, env: Any = None, timeout: Any = None) -> CommandResult:
        if isinstance(command, str) is not shell:
            raise TypeError("a text needs shell=True, and nothing else may have it")
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"the timeout must be a finite number of seconds above 0: {timeout!a}")
        told = await self._do(
            lambda sandbox, fd: run_told(sandbox, command, MOST_OUTPUT, env=env, timeout=timeout, cancel_fd=fd)
        )
        if told.is_late:
            message = "the command was ended: its time was over"
            raise offered.WorkspaceTimeoutError(message, stdout=told.stdout, stderr=told.stderr)
        if told.is_cut:
            message, head = "the command printed too much", (told.stdout[:_SHOWN], told.stderr[:_SHOWN])
            raise offered.WorkspaceOutputLimitError(message, limit=MOST_OUTPUT, stdout=head[0], stderr=head[1])
        return CommandResult(exit_code=told.exit_code, stdout=told.stdout, stderr=told.stderr)

    async def _do(self, work: Callable[[Sandbox, int], Found]) -> Found:
        def do(cancel_fd: int) -> Found:
            found = work(self.open(), cancel_fd)
            # Nobody must take for a result what a command did in a project that was removed meanwhile
            self.open()
            return found

        try:
            return await call_in_thread(do)
        except FileError as error:
            raise to_os_error(error) from error
        except UsageError as error:
            raise ValueError(failure_text(error)) from error
        except (ApplyFailed, ProjectBusy):
            # Another try may go well
            raise
        except UnspillError as error:
            raise WorkspaceUnavailableError(failure_text(error)) from error
        except OSError as error:
            # Of the sandbox's own files: not to be taken for one of the workspace's
            raise WorkspaceUnavailableError(f"the sandbox failed: {error.strerror}") from error
