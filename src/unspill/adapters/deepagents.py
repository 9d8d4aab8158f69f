# SPDX-License-Identifier: Apache-2.0
"""A sandbox as the backend of LangChain deep agents: `create_deep_agent(..., backend=make_backend(sandbox))`.

What we say of a command comes before what it printed, each line marked, and nothing that it prints can pass for that.
Where nothing was run, a model is shown an error of the tool.
"""

from __future__ import annotations

from posixpath import join
from typing import TYPE_CHECKING, Any

from deepagents.backends import CompositeBackend, protocol
from deepagents.backends.sandbox import MAX_BINARY_BYTES, TRUNCATION_MSG, BaseSandbox
from deepagents.backends.utils import _get_backend_read_file_type, normalize_read_bounds

from unspill.adapters.aio import cancellable
from unspill.adapters.answers import failure_text
from unspill.adapters.files import Workspace, attempt, places_of, transfer
from unspill.adapters.tools import read_arguments
from unspill.errors import SandboxUnavailable, UnspillError, UsageError
from unspill.policy.paths import show

if TYPE_CHECKING:
    from unspill.sandbox.sandbox import Sandbox

    Fd = int | None


def make_backend(sandbox: Sandbox) -> CompositeBackend:
    """Return a backend that puts what is too long for a model into the playground, where commands can read it too."""
    return CompositeBackend(
        UnspillSandbox(sandbox), {}, artifacts_root=f"{show(places_of(sandbox).playground)}/.deepagents"
    )


class NotRun(SandboxUnavailable, NotImplementedError):
    """Nothing was run. Of this kind deep agents make an error of the tool; most others would end the agent."""


def _by_script(method: Any) -> Any:
    """Return a method of the framework's that runs a script of its own, async or not."""
    return lambda self, *words, **options: method(UnspillSandbox(self.sandbox, for_scripts=True), *words, **options)


class UnspillSandbox(BaseSandbox):
    """Runs the commands of an agent, or, `for_scripts`, such as a program reads; and reads and writes files."""

    def __init__(self, sandbox: Sandbox, *, for_scripts: bool = False) -> None:
        self.sandbox, self._files, self._for_scripts = sandbox, Workspace(sandbox), for_scripts

    @property
    def id(self) -> str:
        return self.sandbox.name

    @property
    def working_dir(self) -> str:
        """Where commands see the project."""
        return self._files.root

    def execute(self, command: str, *, timeout: int | None = None, cancel_fd: Fd = None) -> protocol.ExecuteResponse:
        """Run a command; `timeout` only makes the policy's time shorter. Raises NotRun where the sandbox failed."""
        try:
            options = read_arguments(self.sandbox, {"command": command, "timeout_s": timeout or None})
            found = self._files.run(**options, cancel_fd=cancel_fd)
        except UnspillError as error:
            if self._for_scripts:
                # Without an exit code, which would be read as that of the script
                return protocol.ExecuteResponse(f"ERROR: {failure_text(error)}")
            raise (ValueError if isinstance(error, UsageError) else NotRun)(failure_text(error)) from error
        output = found.output() if self._for_scripts else found.noted_output()
        return protocol.ExecuteResponse(output, found.exit_code, found.is_cut)

    def ls(self, path: str, *, cancel_fd: Fd = None) -> protocol.LsResult:
        found, error = attempt(self._files.entries, path, cancel_fd=cancel_fd)
        if found is None:
            return protocol.LsResult(f"Path '{path}': {error}")
        names = [(join(path, entry.path.decode("utf-8", "backslashreplace")), entry.kind) for entry in found]
        return protocol.LsResult(None, [{"path": name, "is_dir": kind == "directory"} for name, kind in names])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000, *, cancel_fd: Fd = None) -> protocol.ReadResult:
        bounds = (*normalize_read_bounds(offset, limit), MAX_BINARY_BYTES)
        is_text = _get_backend_read_file_type(file_path) == "text"
        found, error = attempt(self._files.view, file_path, *bounds, is_text=is_text, cancel_fd=cancel_fd)
        if found is None or found.is_too_large:
            large = f"Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
            return protocol.ReadResult(f"File '{file_path}': {error or large}")
        content = found.content + (TRUNCATION_MSG if found.is_cut else "")
        lines = (found.total_lines, found.start_line, found.end_line, found.next_offset)
        return protocol.ReadResult(None, {"content": content, "encoding": found.encoding}, *lines, found.is_unseen)

    def write(self, file_path: str, content: str, *, cancel_fd: Fd = None) -> protocol.WriteResult:
        written, error = attempt(self._files.write, file_path, content, cancel_fd=cancel_fd)
        return protocol.WriteResult(None, file_path) if written else protocol.WriteResult(f"Error: {error}")

    def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False, *, cancel_fd: Fd = None
    ) -> protocol.EditResult:
        words = (file_path, old_string, new_string)
        written, error = attempt(self._files.edit, *words, replace_all=replace_all, cancel_fd=cancel_fd)
        return (
            protocol.EditResult(None, file_path, written.replaced)
            if written
            else protocol.EditResult(f"Error: {error}")
        )

    def delete(self, file_path: str, *, cancel_fd: Fd = None) -> protocol.DeleteResult:
        _nothing, error = attempt(self._files.remove, file_path, cancel_fd=cancel_fd)
        return protocol.DeleteResult(f"Error: {error}") if error else protocol.DeleteResult(None, file_path)

    def upload_files(self, files: list[tuple[str, bytes]], *, cancel_fd: Fd = None) -> list[Any]:
        done = [(path, transfer(self._files.write, path, content, cancel_fd=cancel_fd)) for path, content in files]
        return [protocol.FileUploadResponse(path, error) for path, (_written, error) in done]

    def download_files(self, paths: list[str], *, cancel_fd: Fd = None) -> list[Any]:
        done = [(path, transfer(self._files.read, path, cancel_fd=cancel_fd)) for path in paths]
        return [protocol.FileDownloadResponse(path, content, error) for path, (content, error) in done]

    aexecute, als, aread = cancellable(execute), cancellable(ls), cancellable(read)
    awrite, aedit, adelete = cancellable(write), cancellable(edit), cancellable(delete)
    aupload_files, adownload_files = cancellable(upload_files), cancellable(download_files)
    grep, agrep = _by_script(BaseSandbox.grep), _by_script(BaseSandbox.agrep)
    glob, aglob = _by_script(BaseSandbox.glob), _by_script(BaseSandbox.aglob)
