# SPDX-License-Identifier: Apache-2.0
"""Both sides of a change set as the guard needs them: what exists before or afterwards, and small contents.

Never follows a link. A content that is too large or can't be read is None, which the guard takes for the worst.
"""

from __future__ import annotations

from unspill.changes.reader import read_up_to
from unspill.errors import UnspillError
from unspill.model.change import Change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.changes.reader import Reader
    from unspill.model.change import EntryKind, RootChanges

# git's own files of this kind have a few hundred bytes
MAX_CONTENT = 256 * 1024


class View:
    """The changes of one root by path, with what lies beneath them."""

    def __init__(self, part: RootChanges, reader: Reader) -> None:
        self.root = part.root
        self._part = part
        self._reader = reader
        self._by_path: dict[bytes, Change] | None = None
        self._existed: dict[bytes, bool] = {}

    def find(self, path: bytes) -> Change | None:
        """Return the change of exactly this path."""
        if self._by_path is None:
            self._by_path = {change.path: change for change in self._part.changes}
        return self._by_path.get(path)

    def exists(self, path: bytes) -> bool:
        """Tell whether something is there before or afterwards.

        Either, because a person may apply a part of the changes and leave the rest.
        """
        if self.find(path) is not None:
            return True
        known = self._existed.get(path)
        if known is None:
            known = self._existed[path] = not self._is_in_new_directory(path) and self._was_there(path)
        return known

    def kind_before(self, path: bytes) -> EntryKind | None:
        """Say what was at a path before; None where there was nothing, special where nobody can tell."""
        try:
            return self._reader.kind_before(path)
        except OSError:
            return "special"

    def crosses_link(self, path: bytes) -> bool:
        """Tell whether a path leads through a link, or to one, before or afterwards."""
        names = path.split(b"/")
        for end in range(1, len(names) + 1):
            place = b"/".join(names[:end])
            change = self.find(place)
            if change is not None and change.entry is not None and change.entry.kind == "symlink":
                return True
            if self.kind_before(place) == "symlink":
                return True
        return False

    def _is_in_new_directory(self, path: bytes) -> bool:
        # What is in an added directory has a change of its own, so nothing beneath need be asked
        parent = self.find(path.rpartition(b"/")[0])
        return parent is not None and parent.kind == "added"

    def _was_there(self, path: bytes) -> bool:
        try:
            return self._reader.kind_before(path) is not None
        except OSError:
            return True

    def after(self, change: Change) -> bytes | None:
        """Return the content that a change leaves, None where it can't be told."""
        if change.entry is None or change.entry.kind != "file" or change.entry.size > MAX_CONTENT:
            return None
        try:
            return read_up_to(self._reader.open_after(change), MAX_CONTENT + 1)
        except (OSError, UnspillError):
            return None

    def before(self, path: bytes) -> bytes | None:
        """Return the content of an older file, None where there was none that can be read."""
        try:
            content = read_up_to(self._reader.open_before(Change(path=path, kind="modified")), MAX_CONTENT + 1)
        except (OSError, UnspillError):
            return None
        return content if len(content) <= MAX_CONTENT else None
