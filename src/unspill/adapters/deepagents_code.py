# SPDX-License-Identifier: Apache-2.0
"""Sandboxes for the program `dcode` (deepagents-code), which finds this by an entry point: `dcode --sandbox unspill`.

It is the sandbox of the project that dcode was started in, as for `unspill run`. At its end dcode deletes what it has
opened, and nobody has looked at it: so what is held stays, until the person applies it or throws it away.

dcode calls this in its event loop, where LangGraph's server makes an error of every call that could block. So all of it
is done in a thread.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from deepagents_code.integrations.sandbox_provider import (
    SandboxError,
    SandboxInstallHint,
    SandboxNotFoundError,
    SandboxProvider,
    SandboxProviderMetadata,
)
from deepagents_code.project_utils import get_server_project_context

from unspill.adapters.deepagents import UnspillSandbox
from unspill.errors import UnspillError
from unspill.sandbox.project import find_project
from unspill.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepagents.backends import protocol

Found = TypeVar("Found")


class UnspillProvider(SandboxProvider):
    """Opens sandboxes of a project by name, and closes them."""

    def __init__(self) -> None:
        self._opened: dict[str, Sandbox] = {}

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """What dcode tells its model of the place: the project as commands see it."""
        install = SandboxInstallHint(kind="package", name="unspill")
        return SandboxProviderMetadata(name="unspill", working_dir=_off_loop(_find_working_dir), install=install)

    def get_or_create(
        self, *, sandbox_id: str | None = None, project: str | None = None, **kwargs: Any
    ) -> protocol.SandboxBackendProtocol:
        """Open the sandbox of that name, by default `default`, of dcode's project or of another.

        Raises:
            SandboxError: it can't be opened, or an argument is unknown, or it is open for another project.
        """
        if kwargs:
            raise SandboxError(f"no such setting: {', '.join(kwargs)}")
        return DcodeSandbox(_off_loop(lambda: self._open(sandbox_id, project)))

    def _open(self, sandbox_id: str | None, project: str | None) -> Sandbox:
        name, where = sandbox_id or "default", os.fsencode(project) if project else _project()
        try:
            sandbox = self._opened.get(name) or Sandbox(where, name=name)
        except UnspillError as error:
            # In the words for a person, who reads them at the terminal of dcode
            raise SandboxError(f"{error.message}. {error.remedy}".rstrip()) from error
        if sandbox.project != os.path.realpath(where):
            raise SandboxError(f"the sandbox {name} is open for another project: delete it first")
        self._opened[name] = sandbox
        return sandbox

    def delete(self, *, sandbox_id: str, discard: bool = False, **kwargs: Any) -> None:
        """Close a sandbox that this has opened; only if asked to, throw away what is held in it.

        Raises:
            SandboxNotFoundError: this has opened none of that name.
        """
        sandbox = self._opened.pop(sandbox_id, None)
        if sandbox is None:
            raise SandboxNotFoundError(f"no sandbox of that name is open: {sandbox_id}")
        _off_loop(lambda: _close(sandbox, discard=discard))


class DcodeSandbox(UnspillSandbox):
    """Runs dcode's set-up script too, which dcode starts in its event loop."""

    def execute(
        self, command: str, *, timeout: int | None = None, cancel_fd: int | None = None
    ) -> protocol.ExecuteResponse:
        work = super().execute
        return _off_loop(lambda: work(command, timeout=timeout, cancel_fd=cancel_fd))


def _close(sandbox: Sandbox, *, discard: bool) -> None:
    with sandbox:
        if discard:
            sandbox.discard()


def _find_working_dir() -> str:
    try:
        with Sandbox(_project()) as sandbox:
            return UnspillSandbox(sandbox).working_dir
    except UnspillError:
        # Told when one is opened to be used, which goes wrong in the same way
        return os.fsdecode(_project())


def _project() -> bytes:
    # The process that opens sandboxes has another working directory than its user
    context = get_server_project_context()
    return find_project(os.getcwdb() if context is None else os.fsencode(context.user_cwd))


def _off_loop(work: Callable[[], Found]) -> Found:
    """Do something where no event loop runs: in this thread, or, if it has one, in another while this one waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # At its end dcode has no loop, and Python starts no threads any more
        return work()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
