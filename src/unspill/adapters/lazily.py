# SPDX-License-Identifier: Apache-2.0
"""A sandbox that is opened at its first use, for frameworks that keep a name of it and come back later.

The name is the sandbox's id: it never leads to another project, nor to one that was made anew in the same place.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from unspill.adapters.workspace import Workspace
from unspill.errors import SandboxUnavailable, UsageError
from unspill.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")


class LazySandbox:
    """Opens a sandbox once. Safe to use from several threads. With an `id`, no other sandbox will do."""

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
