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

    # Who made a version, its content, and an earlier content that lines of it were brought back from
    Version = tuple[Hashable, bytes | None, bytes | None]
    Line = tuple[Hashable, bytes]


def blame_lines(versions: Iterable[Version], *, unknown: Hashable = None) -> list[Line]:
    """Return the lines of the last version, each with whoever wrote it.

    Args:
        versions: Each version of the file, None where there was none. The first one nobody knows the author of.
        unknown: What stands for that.
    """
    lines: list[Line] = []
    # By content: what it was like when a version was like this before
    known: dict[bytes | None, list[Line]] = {}
    is_first = True
    for author, content, source in versions:
        if content in known:
            lines = known[content]
        else:
            new = [] if content is None else split_lines(content)
            lines = _attribute(lines, new, unknown if is_first else author, known.get(source, []))
        known[content] = lines
        is_first = False
    return lines


def _attribute(old: list[Line], new: list[bytes], author: Hashable, source: list[Line]) -> list[Line]:
    """Return new lines, those that were there before, or in what they were brought back from, with their authors."""
    brought = dict(_common(source, new)) if source else {}
    kept = dict(_common(old, new))
    return [(kept.get(at, brought.get(at, author)), line) for at, line in enumerate(new)]


def _common(old: list[Line], new: list[bytes]) -> Iterable[tuple[int, Hashable]]:
    """Yield the numbers of new lines that were there before, with whoever they belonged to."""
    at, ahead = 0, 0
    for start, end, new_start, new_end in (*line_edits([line for _author, line in old], new), (len(old), 0, 0, 0)):
        yield from ((line + ahead, old[line][0]) for line in range(at, start))
        at, ahead = end, ahead + (new_end - new_start) - (end - start)
