# SPDX-License-Identifier: Apache-2.0
"""Which change wrote each line of a file, from its versions, the oldest first.

Pure: the versions are given. A line belongs to the last version that has it and whose predecessor has not; one that an
undo brings back belongs to whoever it belonged to before.
"""

from __future__ import annotations

from unspill.changes.diff import line_edits, split_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    # Who made a version, and its content; None where there was no file
    Version = tuple[Hashable, bytes | None]


def blame_lines(versions: Iterable[Version], *, unknown: Hashable = None) -> list[tuple[Hashable, bytes]]:
    """Return the lines of the last version, each with whoever wrote it.

    Args:
        versions: Whoever made each version, and its content. The first one is there already: nobody knows whose it is.
        unknown: What stands for that.
    """
    lines: list[tuple[Hashable, bytes]] = []
    # By content: what it was like when a version was like this before
    known: dict[bytes | None, list[tuple[Hashable, bytes]]] = {}
    is_first = True
    for author, content in versions:
        if content in known:
            lines = known[content]
        else:
            new = [] if content is None else split_lines(content)
            lines = _attribute(lines, new, unknown if is_first else author)
        known[content] = lines
        is_first = False
    return lines


def _attribute(old: list[tuple[Hashable, bytes]], new: list[bytes], author: Hashable) -> list[tuple[Hashable, bytes]]:
    """Return new lines, those that were there before with whoever they belonged to."""
    found: list[tuple[Hashable, bytes]] = []
    at = 0
    for start, end, new_start, new_end in line_edits([line for _author, line in old], new):
        found += old[at:start] + [(author, line) for line in new[new_start:new_end]]
        at = end
    return found + old[at:]
