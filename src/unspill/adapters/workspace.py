# SPDX-License-Identifier: Apache-2.0
"""The commands and files of a sandbox, for frameworks that have tools of their own for them.

Each verb does what it is asked to or raises an UnspillError: a FileError where it is the file's, and never half of it.
What is written is a change like any other: held, applied, undone.
"""

from __future__ import annotations

import os
import posixpath

from unspill.adapters.answering import own_failure
from unspill.adapters.told import failure_text, run_told
from unspill.adapters.tool import places_inside
from unspill.adapters.viewing import view_file
from unspill.errors import FileError, UnspillError, UsageError
from unspill.policy.paths import show
from unspill.sandbox.files import SandboxFiles
from unspill.sandbox.files_reading import MOST_BYTES
from unspill.sandbox.files_tree import SandboxTree
from unspill.sandbox.result import became

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from unspill.adapters.told import Told
    from unspill.adapters.viewing import FileView
    from unspill.sandbox.files_reading import Entry
    from unspill.sandbox.files_writing import Written
    from unspill.sandbox.requesting import Command
    from unspill.sandbox.sandbox import Sandbox

    Found = TypeVar("Found")

_MOST_ENTRIES = 1_000_000
# Where frameworks have other words than we for the same
_CODES = {"not_found": "file_not_found", "not_found_in_file": "string not found", "ambiguous": "multiple occurrences"}
_SAYS_ALL = frozenset({"file_not_found", "is_directory", "permission_denied"})


class Workspace:
    """Runs commands in a sandbox, and reads and writes the files that they see. Safe to use from several threads.

    `cancel_fd` is a descriptor that becomes readable to cancel.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._files = SandboxFiles(sandbox)
        self._tree = SandboxTree(sandbox)

    @property
    def root(self) -> str:
        """Where commands see the project."""
        return places_inside(self.sandbox)[0]

    def run(self, command: Command, most: int | None = None, **options: Any) -> Told:
        """Run a command and tell at most `most` bytes of each stream; the options are those of `Sandbox.run`."""
        return run_told(self.sandbox, command, most, **options)

    def read(self, path: str, most: int = MOST_BYTES, *, cancel_fd: int | None = None) -> bytes:
        """Return all that a file has, if that is no more than so many bytes."""
        found = _ours(self._files.read, path, limit=most, cancel_fd=cancel_fd)
        if found.has_more:
            raise FileError(f"{show(found.path)}: it has more than {most} bytes", kind="too_large")
        return found.content

    def view(
        self, path: str, offset: int, limit: int, most: int, *, is_text: bool, cancel_fd: int | None = None
    ) -> FileView:
        """Return at most `limit` lines of a text, or all of what is none, if it has at most so many bytes."""
        return _ours(view_file, self._files, path, offset, limit, most, is_text=is_text, cancel_fd=cancel_fd)

    def entries(self, path: str, *, cancel_fd: int | None = None) -> tuple[Entry, ...]:
        """Return what lies in a directory."""
        return _ours(self._files.list, path, limit=_MOST_ENTRIES, cancel_fd=cancel_fd).entries

    def write(self, path: str, content: str | bytes, *, replace: bool = True, cancel_fd: int | None = None) -> Written:
        """Write a whole file; that it would be lost at once is an error."""
        return _kept(_ours(self._files.write, path, content, replace=replace, cancel_fd=cancel_fd))

    def edit(
        self, path: str, old: str, new: str, *, replace_all: bool = False, cancel_fd: int | None = None
    ) -> Written:
        """Replace a text, also where the lines of the file end with a carriage return, which no model sees."""
        try:
            return _kept(_ours(self._files.edit, path, old, new, replace_all=replace_all, cancel_fd=cancel_fd))
        except FileError as error:
            if error.kind != "not_found_in_file" or "\n" not in old or "\r" in old:
                raise
        old, new = (text.replace("\r\n", "\n").replace("\n", "\r\n") for text in (old, new))
        return _kept(_ours(self._files.edit, path, old, new, replace_all=replace_all, cancel_fd=cancel_fd))

    def look(self, path: str, *, cancel_fd: int | None = None) -> Entry:
        """Return what is at a path; of a link, where it leads."""
        return _ours(self._tree.look, path, cancel_fd=cancel_fd)

    def entries_followed(self, path: str, *, cancel_fd: int | None = None) -> list[Entry]:
        """Return what lies in a directory; of a link to a directory, that it is one."""
        entries = self.entries(path, cancel_fd=cancel_fd)
        links = [entry.path for entry in entries if entry.kind == "link"]
        linked = _ours(self._tree.directories, path, links, cancel_fd=cancel_fd)
        return [entry.replace(kind="directory") if entry.path in linked else entry for entry in entries]

    def exists(self, path: str, *, cancel_fd: int | None = None) -> bool:
        """Tell whether there is something at a path; of a link, where it leads."""
        return _ours(self._tree.exists, path, cancel_fd=cancel_fd)

    def real_path(self, path: str, *, cancel_fd: int | None = None) -> str:
        """Return where a path leads by all its links."""
        return os.fsdecode(_ours(self._tree.real_path, path, cancel_fd=cancel_fd))

    def make_directory(self, path: str, *, cancel_fd: int | None = None) -> None:
        """Make a directory, and those it lies in, unless it is there."""
        _ours(self._tree.make_directory, path, cancel_fd=cancel_fd)

    def remove(self, path: str, *, cancel_fd: int | None = None) -> None:
        """Remove a file, or a directory with all that is in it, but never the project or what that lies in."""
        above, name = posixpath.split(posixpath.join(self.root, path).rstrip("/"))
        target = posixpath.join(self.real_path(above or "/", cancel_fd=cancel_fd), name)
        if f"{self.root}/".startswith(f"{target.rstrip('/')}/"):
            raise UsageError("the project and what it lies in can't be removed", remedy="Remove what is in it.")
        _ours(self._tree.remove, path, cancel_fd=cancel_fd)


def _ours(verb: Callable[..., Found], *words: Any, **options: Any) -> Found:
    """Do something with files of the sandbox; what goes wrong with files of the host is our failure."""
    try:
        return verb(*words, **options)
    except OSError as error:
        raise own_failure(error) from error


def _kept(written: Written) -> Written:
    """Raise where what was written is lost already."""
    if not written.lasts:
        why = "each command finds an empty directory there"
    elif "thrown away" in dict(became(written.result)):
        why = "what is written is thrown away"
    else:
        return written
    raise FileError(f"{show(written.path)}: it is not kept: {why}", kind="failed")


def attempt(do: Callable[..., Found], *words: Any, **options: Any) -> tuple[Found | None, str | None]:
    """Return what a verb gives, or a code and what is wrong, for frameworks whose results have a place for both."""
    try:
        return do(*words, **options), None
    except UnspillError as error:
        return None, f"{code_of(error)}: {failure_text(error)}"


def transfer(do: Callable[..., Found], path: str, *words: Any, **options: Any) -> tuple[Found | None, str | None]:
    """Do the same for one of many files, by an absolute path; where the code says all, it is all that is told."""
    if not path.startswith("/"):
        return None, "invalid_path"
    found, error = attempt(do, path, *words, **options)
    code = (error or "").partition(":")[0]
    return found, code if code in _SAYS_ALL else error


def code_of(error: UnspillError) -> str:
    """Return what is wrong in one word, as frameworks have it."""
    return _CODES.get(error.kind, error.kind) if isinstance(error, FileError) else error.code
