# SPDX-License-Identifier: Apache-2.0
"""The file tools of deep agents on the tree that commands see: nothing but a shell and its tools is needed inside.

What is written is a change like any other: held, applied, undone.
"""

from __future__ import annotations

from posixpath import join
from typing import TYPE_CHECKING, Any, TypeVar

from deepagents.backends import protocol
from deepagents.backends.sandbox import BaseSandbox

from unspill.adapters.deepagents_reading import read_file
from unspill.adapters.deepagents_words import tell_error
from unspill.errors import FileError, UnspillError
from unspill.policy.paths import show
from unspill.sandbox.asynchronous import call_in_thread
from unspill.sandbox.files import SandboxFiles
from unspill.sandbox.files_reading import MOST_BYTES, FileBytes
from unspill.sandbox.files_writing import Written
from unspill.sandbox.result import became

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from unspill.sandbox.sandbox import Sandbox

    Fd = int | None

Found = TypeVar("Found")
_ALL = 1 << 31
_CODES = (protocol.FILE_NOT_FOUND, protocol.PERMISSION_DENIED, protocol.IS_DIRECTORY)


def cancellable(method: Callable[..., Found]) -> Callable[..., Coroutine[Any, Any, Found]]:
    """Return the async twin of a method that takes a `cancel_fd`; cancelling it kills what runs."""

    async def twin(self: object, *words: Any, **options: Any) -> Found:
        return await call_in_thread(lambda cancel_fd: method(self, *words, cancel_fd=cancel_fd, **options))

    return twin


class FilesOfSandbox(BaseSandbox):
    """The half of a backend that reads and writes files."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._files = SandboxFiles(sandbox)

    def ls(self, path: str, *, cancel_fd: Fd = None) -> protocol.LsResult:
        try:
            found = self._files.list(path, limit=_ALL, cancel_fd=cancel_fd).entries
        except UnspillError as error:
            return protocol.LsResult(error=f"Path '{path}': {tell_error(error)}")
        names = [(join(path, entry.path.decode("utf-8", "backslashreplace")), entry.kind) for entry in found]
        return protocol.LsResult(entries=[{"path": name, "is_dir": kind == "directory"} for name, kind in names])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000, *, cancel_fd: Fd = None) -> protocol.ReadResult:
        return read_file(self._files, file_path, offset, limit, cancel_fd)

    def write(self, file_path: str, content: str, *, cancel_fd: Fd = None) -> protocol.WriteResult:
        try:
            _check(self._files.write(file_path, content, cancel_fd=cancel_fd))
        except UnspillError as error:
            return protocol.WriteResult(error=f"Error: {tell_error(error)}")
        return protocol.WriteResult(path=file_path)

    def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False, *, cancel_fd: Fd = None
    ) -> protocol.EditResult:
        try:
            written = self._files.edit(file_path, old_string, new_string, replace_all=replace_all, cancel_fd=cancel_fd)
            return protocol.EditResult(path=file_path, occurrences=_check(written).replaced)
        except UnspillError as error:
            is_missing = isinstance(error, FileError) and error.kind == "not_found_in_file"
            # What a model has read has no carriage returns; the file may
            if is_missing and "\n" in old_string and "\r" not in old_string:
                old, new = (text.replace("\r\n", "\n").replace("\n", "\r\n") for text in (old_string, new_string))
                return self.edit(file_path, old, new, replace_all, cancel_fd=cancel_fd)
            return protocol.EditResult(error=f"Error: {tell_error(error)}")

    def upload_files(
        self, files: list[tuple[str, bytes]], *, cancel_fd: Fd = None
    ) -> list[protocol.FileUploadResponse]:
        done = [(path, _attempt(self._files.write, path, content, cancel_fd=cancel_fd)[1]) for path, content in files]
        return [protocol.FileUploadResponse(path=path, error=error) for path, error in done]

    def download_files(self, paths: list[str], *, cancel_fd: Fd = None) -> list[protocol.FileDownloadResponse]:
        done = [(path, *_attempt(self._files.read, path, limit=MOST_BYTES, cancel_fd=cancel_fd)) for path in paths]
        return [
            protocol.FileDownloadResponse(path=path, content=None if found is None else found.content, error=error)
            for path, found, error in done
        ]

    als, aread, awrite, aedit = cancellable(ls), cancellable(read), cancellable(write), cancellable(edit)
    aupload_files, adownload_files = cancellable(upload_files), cancellable(download_files)


def _attempt(do: Callable[..., Found], path: str, *words: Any, **options: Any) -> tuple[Found | None, str | None]:
    """Return what a transfer gave, or what is wrong: one of the framework's codes if there is one."""
    if not path.startswith("/"):
        return None, protocol.INVALID_PATH
    try:
        return _check(do(path, *words, **options)), None
    except UnspillError as error:
        told = tell_error(error)
        return None, next((code for code in _CODES if told.startswith(code)), told)


def _check(found: Found) -> Found:
    """Raise where a file was cut, or is lost at once."""
    if isinstance(found, Written) and (not found.lasts or "thrown away" in dict(became(found.result))):
        raise FileError(f"{show(found.path)}: it is not kept, what is written there is thrown away", kind="failed")
    if isinstance(found, FileBytes) and found.has_more:
        raise FileError(f"{show(found.path)}: it has more than {MOST_BYTES} bytes", kind="too_large")
    return found
