# SPDX-License-Identifier: Apache-2.0
"""The hunks of a unified diff between two texts given as bytes, safe to show.

The texts are a stranger's, so the time is bounded: common ends are cut off, then Myers' algorithm looks for at most
`EDITS` edits (difflib can be made to take minutes). Beyond that all old lines are followed by all new ones.
"""

from __future__ import annotations

from unspill.changes.quote import COLUMNS, show_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    # A run of lines: old[0]:old[1] gives way to new[2]:new[3].
    Edit = tuple[int, int, int, int]

CONTEXT = 3
EDITS = 600
SNIFFED = 8192
NO_NEWLINE = "\\ No newline at end of file"


def hunks(old: bytes, new: bytes, *, columns: int = COLUMNS, token: str = "") -> Iterator[str]:
    """Yield the lines of all hunks, without a header. Where there are several, each tells its number and the token."""
    before, after = lines_of(old), lines_of(new)
    groups = grouped_edits(before, after)
    for number, group in enumerate(groups, 1):
        name = f" hunk {number}" + (f"@{token}" if token else "")
        yield from _hunk(group, before, after, name if len(groups) > 1 else "", columns)


def grouped_edits(before: Sequence[bytes], after: Sequence[bytes]) -> list[list[Edit]]:
    """Return the edits between two texts by hunk, in the order in which hunks are counted."""
    return list(_grouped(_edits(before, after)))


def is_binary(content: bytes) -> bool:
    """Tell content that no text has: a zero byte, or mostly bytes that are neither UTF-8 nor Latin."""
    if b"\0" in content:
        return True
    start = content[:SNIFFED].decode("utf-8", "surrogateescape")
    odd = sum(not character.isprintable() and character not in "\t\n\r\f" for character in start)
    return odd * 3 > len(start)


def lines_of(text: bytes) -> list[bytes]:
    """Split at line feeds only: a carriage return is content that has to be seen."""
    *whole, last = text.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, last] if last else lines


def _edits(before: Sequence[bytes], after: Sequence[bytes]) -> list[Edit]:
    start, end, new_end = 0, len(before), len(after)
    while start < min(end, new_end) and before[start] == after[start]:
        start += 1
    while start < min(end, new_end) and before[end - 1] == after[new_end - 1]:
        end -= 1
        new_end -= 1
    if start == end and start == new_end:
        return []
    found = _myers(before[start:end], after[start:new_end])
    if found is None:
        return [(start, end, start, new_end)]
    return [(a + start, b + start, c + start, d + start) for a, b, c, d in found]


def _myers(before: Sequence[bytes], after: Sequence[bytes]) -> list[Edit] | None:
    """Return the shortest edits, or None when there are too many: An O(ND) Difference Algorithm, 1986."""
    reach = {1: 0}
    steps: list[dict[int, int]] = []
    for distance in range(min(EDITS, len(before) + len(after)) + 1):
        steps.append(reach.copy())
        for k in range(-distance, distance + 1, 2):
            down = k == -distance or (k != distance and reach[k - 1] < reach[k + 1])
            x = reach[k + 1] if down else reach[k - 1] + 1
            while x < len(before) and x - k < len(after) and before[x] == after[x - k]:
                x += 1
            reach[k] = x
            if x >= len(before) and x - k >= len(after):
                return _traced(steps, len(before), len(after))
    return None


def _traced(steps: list[dict[int, int]], x: int, y: int) -> list[Edit]:
    """Walk back through what each distance reached, joining edits that touch."""
    edits: list[Edit] = []
    for distance in range(len(steps) - 1, 0, -1):
        reach, k = steps[distance], x - y
        down = k == -distance or (k != distance and reach[k - 1] < reach[k + 1])
        from_k = k + 1 if down else k - 1
        from_x = reach[from_k]
        from_y = from_x - from_k
        edit = (from_x, from_x, from_y, from_y + 1) if down else (from_x, from_x + 1, from_y, from_y)
        if edits and (edits[-1][0], edits[-1][2]) == (edit[1], edit[3]):
            edit = (edit[0], edits[-1][1], edit[2], edits.pop()[3])
        edits.append(edit)
        x, y = from_x, from_y
    return edits[::-1]


def _grouped(edits: list[Edit]) -> Iterator[list[Edit]]:
    group: list[Edit] = []
    for edit in edits:
        if group and edit[0] - group[-1][1] > 2 * CONTEXT:
            yield group
            group = []
        group.append(edit)
    if group:
        yield group


def _hunk(group: list[Edit], before: Sequence[bytes], after: Sequence[bytes], name: str, columns: int) -> Iterator[str]:
    start = max(0, group[0][0] - CONTEXT)
    end = min(len(before), group[-1][1] + CONTEXT)
    new_start = group[0][2] - (group[0][0] - start)
    new_end = group[-1][3] + (end - group[-1][1])
    yield f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@{name}"
    at = start
    for a, b, c, d in group:
        yield from _marked(" ", before[at:a], columns)
        yield from _marked("-", before[a:b], columns)
        yield from _marked("+", after[c:d], columns)
        at = b
    yield from _marked(" ", before[at:end], columns)


def _range(start: int, end: int) -> str:
    length = end - start
    if length == 1:
        return f"{start + 1}"
    return f"{start + 1 if length else start},{length}"


def _marked(mark: str, lines: Sequence[bytes], columns: int) -> Iterator[str]:
    for line in lines:
        yield mark + show_line(line.removesuffix(b"\n"), columns)
        if not line.endswith(b"\n"):
            yield NO_NEWLINE
