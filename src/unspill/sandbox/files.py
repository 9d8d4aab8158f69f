# SPDX-License-Identifier: Apache-2.0
"""The file verbs of a sandbox: one tree for an agent's file tools and its shell.

    files = SandboxFiles(sandbox)
    files.write("src/app.py", "print(1)\\n")        # held, applied, undone, judged as a run that wrote it
    files.edit("src/app.py", "print(1)", "print(2)")
    files.read("src/app.py").text()
    files.list("src", depth=2).entries

Paths are absolute inside the sandbox, or relative to the project; the project may also be named as on the host. Links
are followed as in a command, and lead no further than there.
"""

from __future__ import annotations

from unspill.sandbox.files_inside import Inside
from unspill.sandbox.files_reading import USUAL_BYTES, list_directory, read_bytes, read_lines
from unspill.sandbox.files_writing import edit_file, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import After
    from unspill.sandbox.files_inside import Path
    from unspill.sandbox.files_reading import FileBytes, FileLines, Listing
    from unspill.sandbox.files_writing import Written
    from unspill.sandbox.sandbox import Sandbox

USUAL_LINES = 2000
USUAL_ENTRIES = 1000


class SandboxFiles:
    """Reads and writes what runs of a sandbox see. Safe to use from several threads.

    Every verb raises FileError, whose `kind` says what it was; UsageError; and SandboxUnavailable where we failed.
    `cancel_fd` is a descriptor that becomes readable to cancel.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._inside = Inside(sandbox)

    def read(self, path: Path, *, offset: int = 0, limit: int = USUAL_BYTES, cancel_fd: int | None = None) -> FileBytes:
        """Return at most `limit` bytes of a file, from byte `offset` on."""
        return read_bytes(self._inside, path, offset, limit, cancel_fd)

    def read_lines(
        self, path: Path, *, offset: int = 0, limit: int = USUAL_LINES, cancel_fd: int | None = None
    ) -> FileLines:
        """Return at most `limit` lines of a file, from line `offset` on, and no more than a mebibyte."""
        return read_lines(self._inside, path, offset, limit, cancel_fd)

    def list(
        self, path: Path = ".", *, depth: int = 1, limit: int = USUAL_ENTRIES, cancel_fd: int | None = None
    ) -> Listing:
        """Return what lies in a directory, down to a depth, sorted; links in it are not followed."""
        return list_directory(self._inside, path, depth, limit, cancel_fd)

    def write(
        self,
        path: Path,
        content: str | bytes,
        *,
        replace: bool = True,
        after: After | None = None,
        cancel_fd: int | None = None,
    ) -> Written:
        """Write a file, and make the directories it lies in. What exists keeps its mode.

        Args:
            path: Which file.
            content: All that it shall have.
            replace: If not, a file that exists is an error (`exists`).
            after: `apply` or `hold`; by default the policy's.
            cancel_fd: A descriptor that becomes readable to cancel.
        """
        return write_file(self._inside, path, content, replace=replace, after=after, cancel_fd=cancel_fd)

    def edit(
        self,
        path: Path,
        old: str | bytes,
        new: str | bytes,
        *,
        replace_all: bool = False,
        after: After | None = None,
        cancel_fd: int | None = None,
    ) -> Written:
        """Replace the one place where a file has `old`, or all of them.

        It is an error if there is none (`not_found_in_file`) or several (`ambiguous`, with the count); nothing that was
        written meanwhile is lost.
        """
        return edit_file(self._inside, path, old, new, replace_all=replace_all, after=after, cancel_fd=cancel_fd)
