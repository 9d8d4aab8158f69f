# SPDX-License-Identifier: Apache-2.0
"""The content of files of which only some hunks are applied: what is live, with those hunks."""

from __future__ import annotations

import os

from unspill.changes.partial import apply_hunks
from unspill.changes.reader import Reader, read_up_to
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.change import ChangeSet
    from unspill.model.selection import Hunks

LARGEST = 16 << 20


def partial_contents(changes: ChangeSet, hunks: Sequence[Hunks]) -> dict[bytes, bytes]:
    """Return, by path, the text that each partly chosen file will have.

    Raises:
        UsageError: a file is too large or not text, or has no such hunk.
    """
    wanted = {some.path: some.numbers for some in hunks}
    contents: dict[bytes, bytes] = {}
    for part in changes.roots:
        with Reader(part.root) as reader:
            for change in part.changes:
                if change.path not in wanted:
                    continue
                if change.entry is None or max(change.entry.size, change.base_size) > LARGEST:
                    raise UsageError(f"{os.fsdecode(change.path)!r} has no hunks to choose from")
                old = read_up_to(reader.open_before(change), LARGEST)
                new = read_up_to(reader.open_after(change), LARGEST)
                contents[change.path] = apply_hunks(old, new, wanted[change.path])
    return contents
