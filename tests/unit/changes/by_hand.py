# SPDX-License-Identifier: Apache-2.0
"""What a text becomes of which somebody takes over only some changed lines, worked out by editing it."""

from itertools import pairwise, zip_longest

from unspill.changes.diff import DiffLine, split_lines


def by_hand(old: bytes, lines: list[DiffLine], picked: set[int]) -> bytes:
    """Edit the old text, from its end to its start, as somebody would who takes over only what is picked."""
    result = split_lines(old)
    in_front = {line.number: before.old for before, line in pairwise(lines)}
    for block in reversed(blocks_of(lines)):
        olds = [line.old for line in block if line.mark == "-"]
        gone = [line.old for line in block if line.mark == "-" and line.number in picked]
        come = [line.text for line in block if line.mark == "+" and line.number in picked]
        last = (gone or olds or [in_front.get(block[0].number, 0)])[-1]
        result[last:last] = come[len(gone) :]
        for place, text in reversed(list(zip_longest(gone, come[: len(gone)]))):
            result[place - 1 : place] = [] if text is None else [text]
    return b"".join([*(line if line.endswith(b"\n") else line + b"\n" for line in result[:-1]), *result[-1:]])


def blocks_of(lines: list[DiffLine]) -> list[list[DiffLine]]:
    """Return changed lines that follow one another in a hunk."""
    blocks: list[list[DiffLine]] = []
    for before, line in zip([None, *lines], lines, strict=False):
        if not line.number:
            continue
        if before is None or not before.number or before.hunk != line.hunk:
            blocks.append([])
        blocks[-1].append(line)
    return blocks
