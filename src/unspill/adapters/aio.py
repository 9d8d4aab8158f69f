# SPDX-License-Identifier: Apache-2.0
"""The async bridge: what adapters do in a sandbox, in a thread, for frameworks that are built on asyncio.

Cancelling a task kills what it has started and waits until that is dead. What goes wrong is raised as the framework's
own exceptions: our own failure is never taken for one of the command or of its files.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from unspill.adapters.answers import batch_output, failure_text, own_failure
from unspill.adapters.files import Workspace, run_or_raise
from unspill.adapters.tools import call_tool, read_arguments
from unspill.errors import ApplyFailed, FileError, ProjectBusy, SandboxUnavailable, UnspillError, UsageError
from unspill.model.run import TimedOut
from unspill.runner.aio import call_in_thread
from unspill.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from unspill.adapters.answers import Answer, Batch
    from unspill.sandbox.result import RunResult

    Raised = Callable[[str], Exception]

Found = TypeVar("Found")
_OF_FILES: dict[str, Raised] = {
    "not_found": FileNotFoundError,
    "is_directory": IsADirectoryError,
    "not_a_directory": NotADirectoryError,
    "permission_denied": PermissionError,
    "exists": FileExistsError,
}


async def acall_tool(sandbox: Sandbox, name: str, arguments: Mapping[str, Any], **options: Any) -> Answer:
    """Call a tool without blocking the event loop; cancelling the task ends what it does."""
    return await call_in_thread(lambda cancel_fd: call_tool(sandbox, name, arguments, cancel_fd=cancel_fd, **options))


async def run_batch(sandbox: Sandbox, commands: Sequence[str], timeout_s: float | None, most: int | None) -> Batch:
    """Run commands one after the other, up to one that is over its time, and show at most so many characters of them.

    Raises:
        UnspillError: one of them could not be run; it says which were run before it.
    """
    results: list[RunResult] = []
    for command in commands:
        try:
            results.append(await _run(sandbox, command, timeout_s))
        except UnspillError as error:
            codes = ", ".join(str(result.exit_code) for result in results)
            told = f" Commands before it were run, with exit codes {codes}." if results else ""
            raise UnspillError(f"ERROR: {failure_text(error)}{told}") from error
        if isinstance(results[-1].outcome, TimedOut):
            break
    return batch_output(sandbox, commands, results, most)


async def _run(sandbox: Sandbox, command: str, timeout_s: float | None) -> RunResult:
    options = read_arguments(sandbox, {"command": command, "timeout_s": timeout_s})
    return await call_in_thread(lambda cancel_fd: run_or_raise(sandbox, **options, cancel_fd=cancel_fd))


def cancellable(method: Callable[..., Found]) -> Callable[..., Coroutine[Any, Any, Found]]:
    """Return the async form of a method that takes a `cancel_fd`."""

    async def call(self: object, *words: Any, **options: Any) -> Found:
        return await call_in_thread(lambda cancel_fd: method(self, *words, cancel_fd=cancel_fd, **options))

    return call


async def do_in_thread(
    work: Callable[[int], Found],
    *,
    failed: Raised | None = None,
    usage: Raised | None = None,
    kinds: Mapping[str, Raised] = _OF_FILES,
) -> Found:
    """Do something that takes a `cancel_fd`, without blocking the event loop; cancelling the task cancels it.

    Args:
        work: What to do.
        failed: Makes what is raised where the sandbox failed, from a text; by default that is our own error.
        usage: Makes what is raised where the caller did something wrong; by default our own error.
        kinds: Makes what is raised for some kinds of a FileError, instead of Python's own.
    """
    try:
        return await call_in_thread(work)
    except FileError as error:
        made = kinds.get(error.kind) or _OF_FILES.get(error.kind, OSError)
        raise made(failure_text(error)) from error
    except (ApplyFailed, ProjectBusy):
        # Another try may go well
        raise
    except UnspillError as error:
        make = usage if isinstance(error, UsageError) else failed
        if make is None:
            raise
        raise make(failure_text(error)) from error
    except OSError as error:
        ours = own_failure(error)
        raise (ours if failed is None else failed(failure_text(ours))) from error


class LazySandbox:
    """Opens a sandbox once, at its first use, for frameworks that keep a name of it and come back later.

    The name is the sandbox's id: with an `id`, no other sandbox will do, nor one that was made anew in the same place.
    Safe to use from several threads.
    """

    def __init__(self, project: str | os.PathLike[str], id: str | None = None, **options: Any) -> None:
        """Say which sandbox: `options` are those of `Sandbox`."""
        self.project, self.options, self.id = project, options, id
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()

    def open(self) -> Sandbox:
        """Return the sandbox.

        Raises:
            UnspillError: it can't be opened, or its project is gone.
        """
        with self._lock:
            if self._sandbox is None:
                self._sandbox = self._find()
            if not os.path.isdir(self._sandbox.project):
                raise SandboxUnavailable("the project of this sandbox is gone")
            return self._sandbox

    def _find(self) -> Sandbox:
        try:
            sandbox = Sandbox(self.project, **self.options)
        except UsageError as error:
            # Whoever uses it has given nothing that could be wrong
            raise SandboxUnavailable(error.message, remedy=error.remedy) from error
        if self.id not in (None, sandbox.id):
            sandbox.close()
            raise SandboxUnavailable(f"{self.id} is not the sandbox of this project, or is gone")
        self.id = sandbox.id
        return sandbox

    def use(self, work: Callable[[Workspace, int], Found], cancel_fd: int) -> Found:
        """Do something in the workspace of the sandbox.

        Raises:
            UnspillError: what `work` raises, or the project is gone, before it or meanwhile.
        """
        found = work(Workspace(self.open()), cancel_fd)
        # Nobody must take for a result what a command did in a project that was removed
        self.open()
        return found

    def close(self) -> None:
        """Let go of the sandbox; what is held stays held."""
        if self._sandbox is not None:
            self._sandbox.close()
