# SPDX-License-Identifier: Apache-2.0
"""Files of which only some hunks are meant: which they are, and what they hold on both sides."""

from __future__ import annotations

import os

from unspill.changes.diff import apply_hunks
from unspill.changes.reader import Reader, read_up_to
from unspill.changes.select import select
from unspill.errors import UsageError
from unspill.model.change import Selection
from unspill.record import Record
from unspill.sandbox.consent import digest_of_hunks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.change import Change, ChangeSet, Hunks

LARGEST = 16 << 20


class PartlyChosen(Record):
    """A changed file below a root, before and after its change."""

    root: bytes
    change: Change
    old: bytes
    new: bytes


def read_partly_chosen(changes: ChangeSet, some: Hunks) -> PartlyChosen:
    """Find the file that hunks are of, however its path is written, and read both sides of it.

    Raises:
        UsageError: there is no such change, it is too large or has no text to choose from, or it is not what was shown.
    """
    (change,) = select(changes, Selection(hunks=(some,)), parents=False)
    root = next(part.root for part in changes.roots if change in part.changes)
    if max(change.entry.size, change.base_size) > LARGEST:
        raise UsageError(f"{os.fsdecode(change.path)!r} is too large for hunks", remedy="Choose the whole file.")
    with Reader(root) as reader:
        old = read_up_to(reader.open_before(change), LARGEST)
        new = read_up_to(reader.open_after(change), LARGEST)
    if some.digest and not digest_of_hunks(change.path, old, new).startswith(some.digest):
        raise UsageError(
            f"the hunks of {os.fsdecode(change.path)!r} are not those that you were shown",
            remedy="Look again: `unspill diff PATH`, on a terminal.",
        )
    return PartlyChosen(root=root, change=change, old=old, new=new)


def partial_contents(changes: ChangeSet, hunks: Sequence[Hunks]) -> dict[bytes, dict[bytes, bytes]]:
    """Return, by root and path, the text that each partly chosen file will have.

    Raises:
        UsageError: a file is too large or not text, or has no such hunk.
    """
    contents: dict[bytes, dict[bytes, bytes]] = {}
    for some in hunks:
        file = read_partly_chosen(changes, some)
        contents.setdefault(file.root, {})[file.change.path] = apply_hunks(file.old, file.new, some.numbers)
    return contents
