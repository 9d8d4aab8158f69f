# SPDX-License-Identifier: Apache-2.0
"""A text with some of its hunks: the old one, in which only the chosen places are as in the new one.

The hunks and their numbers are those that a diff of the same two texts shows. Looks at no file.
"""

from __future__ import annotations

from unspill.changes.hunks import grouped_edits, is_binary, lines_of
from unspill.errors import UsageError
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


class Hunk(Record):
    """One place in which two texts differ, without the lines around it: `removed` gives way to `added`.

    `line` is where it begins in the old text, counted from 1.
    """

    number: int
    line: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


def numbered_hunks(old: bytes, new: bytes) -> tuple[Hunk, ...]:
    """Return the hunks between two texts, counted from 1.

    Raises:
        UsageError: one of them is not text.
    """
    before, after = _texts(old, new)
    return tuple(
        Hunk(
            number=number,
            line=group[0][0] + 1,
            removed=tuple(before[group[0][0] : group[-1][1]]),
            added=tuple(after[group[0][2] : group[-1][3]]),
        )
        for number, group in enumerate(grouped_edits(before, after), 1)
    )


def apply_hunks(old: bytes, new: bytes, numbers: Collection[int]) -> bytes:
    """Return the old text with only these hunks of the new one.

    Raises:
        UsageError: one of them is not text, or there is no such hunk.
    """
    before, after = _texts(old, new)
    groups = grouped_edits(before, after)
    unknown = sorted(set(numbers).difference(range(1, len(groups) + 1)))
    if unknown:
        raise UsageError(
            f"there is no hunk {unknown[0]}: hunks are counted from 1 to {len(groups)}",
            remedy="See `unspill diff` for the numbers.",
        )
    result: list[bytes] = []
    at = 0
    # A line without a line feed is the last one on its side, and so is the edit that has it: none ends up in between.
    for number, group in enumerate(groups, 1):
        if number in numbers:
            for start, end, new_start, new_end in group:
                result += before[at:start]
                result += after[new_start:new_end]
                at = end
    return b"".join([*result, *before[at:]])


def _texts(old: bytes, new: bytes) -> tuple[list[bytes], list[bytes]]:
    if is_binary(old) or is_binary(new):
        raise UsageError("only text has hunks, and this is not text", remedy="Choose the whole file by its path.")
    return lines_of(old), lines_of(new)
