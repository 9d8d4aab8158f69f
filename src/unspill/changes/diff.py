# SPDX-License-Identifier: Apache-2.0
"""What changed inside files, as unified diffs that are safe to read: bounded, and every character printable.

Each change starts with a line that begins with a word, which no line of content ever does. Binary content is told by
size and SHA-256. The result is for reading, not for `patch`; `apply_hunks` makes a text with some of its hunks.

`blame_lines` says which version of a text wrote each of its lines.

The texts are a stranger's, so the time is bounded: common ends are cut off, then Myers' algorithm looks for at most
`EDITS` edits (difflib can be made to take minutes). Beyond that all old lines are followed by all new ones.
"""

from __future__ import annotations

import hashlib
from functools import partial

from unspill.changes.render import name_here, remarks
from unspill.changes.scan import Reader, read_up_to
from unspill.errors import UsageError
from unspill.policy.paths import COLUMNS, is_cut, quote, show_line
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from unspill.model.change import Change, ChangeSet

    # A run of lines: old[0]:old[1] gives way to new[2]:new[3].
    Edit = tuple[int, int, int, int]

    # Who made a version, its content, and an earlier content that lines of it were brought back from
    Version = tuple[Hashable, bytes | None, bytes | None]
    Line = tuple[Hashable, bytes]

    # What names the hunks of a change in a root, given both texts
    Token = Callable[[bytes, Change, tuple[bytes, bytes]], str]

MAX_LINES = 2000
MAX_FILE_BYTES = 512 * 1024
CONTEXT = 3
EDITS = 600
SNIFFED = 8192
_BLANKS = "\t\n\r\f"
_AS_SPACES = str.maketrans(dict.fromkeys(_BLANKS, " "))
NO_NEWLINE = "\\ No newline at end of file"

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_BOLD = "\033[1m"
_END = "\033[0m"


def diff_lines(
    changes: ChangeSet,
    below: Mapping[bytes, Sequence[bytes]] | None = None,
    *,
    max_lines: int = MAX_LINES,
    max_file_bytes: int = MAX_FILE_BYTES,
    columns: int = COLUMNS,
    colour: bool = False,
    token: Token = lambda _root, _change, _texts: "",
    seen: set[tuple[bytes, bytes]] | None = None,
    here: bytes = b"",
) -> list[str]:
    """Return the whole difference, at most `max_lines` lines and a note about the rest.

    Args:
        changes: What `scan` found.
        below: For each root, the sealed layers that lay under the scanned ones, the topmost first.
        max_lines: Bound of the result.
        max_file_bytes: A larger file is told by its sizes only.
        columns: A longer line is cut.
        colour: Mark added and removed lines with terminal colours.
        token: Says what names the hunks of a changed text.
        seen: Is given the root and path of each change that is shown to its last byte.
        here: Where the person stands: headings name paths as seen from there.
    """
    lines: list[str] = []
    for part in changes.roots:
        with Reader(part.root, (below or {}).get(part.root, ())) as reader:
            for at, change in enumerate(part.changes):
                is_whole = True
                if not change.is_mere_touch:
                    naming = partial(token, part.root, change)
                    heading = name_here(part.root, change.path, here)
                    found, is_whole = _whole_diff(
                        change, reader, max_file_bytes, columns=columns, token=naming, name=heading
                    )
                    lines += painted(found, colour=colour)
                if len(lines) > max_lines:
                    rest = len(part.changes) - at - 1
                    return [*lines[:max_lines], left_out(len(lines) - max_lines, rest)]
                if is_whole and seen is not None:
                    seen.add((part.root, change.path))
    return lines


def change_diff(change: Change, reader: Reader, max_file_bytes: int, name: str) -> list[str]:
    """Return the difference of one change, without colours, under this name."""
    return _whole_diff(change, reader, max_file_bytes, name=name)[0]


def painted(lines: list[str], *, colour: bool) -> list[str]:
    """Return the lines of one change with the colours of a terminal, if they are wanted."""
    if not colour:
        return lines
    coloured = [f"{_BOLD}{lines[0]}{_END}"]
    for line in lines[1:]:
        paint = _COLOURS.get(line[:1])
        coloured.append(f"{paint}{line}{_END}" if paint else line)
    return coloured


class DiffLine(Record):
    """One line of a hunk. `mark` is a space, `-` or `+`; `text` has its line feed, if it has one.

    `number` counts the changed lines of the whole difference from 1, in the order in which it is shown; 0 for a line
    that both sides have. `old` and `new` are where it is in either text, 0 where it is not.
    """

    hunk: int
    mark: str
    text: bytes
    number: int
    old: int
    new: int


def numbered_lines(old: bytes, new: bytes) -> Iterator[DiffLine]:
    """Yield the lines of all hunks between two texts, with those around them.

    Raises:
        UsageError: one of them is not text.
    """
    before, after = _lines_of_texts(old, new)
    count = 0
    for hunk, group in enumerate(_grouped_edits(before, after), 1):
        at = max(0, group[0][0] - CONTEXT)
        for start, end, new_start, new_end in group:
            yield from _common(hunk, before, range(at, start), new_start - start)
            for line in range(start, end):
                count += 1
                yield DiffLine(hunk=hunk, mark="-", text=before[line], number=count, old=line + 1, new=0)
            for line in range(new_start, new_end):
                count += 1
                yield DiffLine(hunk=hunk, mark="+", text=after[line], number=count, old=0, new=line + 1)
            at = end
        yield from _common(hunk, before, range(at, min(len(before), at + CONTEXT)), group[-1][3] - at)


def _common(hunk: int, before: Sequence[bytes], lines: range, ahead: int) -> Iterator[DiffLine]:
    for line in lines:
        yield DiffLine(hunk=hunk, mark=" ", text=before[line], number=0, old=line + 1, new=line + ahead + 1)


def apply_hunks(old: bytes, new: bytes, numbers: Collection[int], lines: Collection[int] = ()) -> bytes:
    """Return the old text with only these hunks of the new one, and these lines, counted as `numbered_lines` does.

    An added line takes the place of a removed one, in their order; what is more follows the last of them. Where no
    line is removed, those that are added come after the old ones.

    Raises:
        UsageError: one of them is not text, or there is no such hunk or line.
    """
    before, after = _lines_of_texts(old, new)
    groups = _grouped_edits(before, after)
    _refuse_unknown("hunk", numbers, len(groups))
    picked = frozenset(lines)
    result: list[bytes] = []
    at, count = 0, 0
    for number, group in enumerate(groups, 1):
        for start, end, new_start, new_end in group:
            removed, added = before[start:end], after[new_start:new_end]
            whole = range(count + 1, count + len(removed) + len(added) + 1)
            chosen = whole if number in numbers else picked
            gone = [count + line in chosen for line in range(1, len(removed) + 1)]
            come = [text for line, text in enumerate(added, count + len(removed) + 1) if line in chosen]
            result += [*before[at:start], *_picked(removed, gone, come)]
            at, count = end, whole.stop - 1
    _refuse_unknown("changed line", lines, count)
    result += before[at:]
    # A line without a line feed is the last one on its side, and need not be here
    return b"".join([*map(with_line_feed, result[:-1]), *result[-1:]])


def _picked(removed: Sequence[bytes], gone: Sequence[bool], come: Sequence[bytes]) -> Iterator[bytes]:
    """Yield what becomes of some lines of which those that are `gone` make room for those that `come`."""
    last = max((at for at, is_gone in enumerate(gone) if is_gone), default=len(gone) - 1)
    waiting = list(come)
    for at, (line, is_gone) in enumerate(zip(removed, gone, strict=True)):
        if not is_gone:
            yield line
        elif waiting:
            yield waiting.pop(0)
        if at == last:
            yield from waiting
    if not removed:
        yield from waiting


def _refuse_unknown(what: str, numbers: Collection[int], most: int) -> None:
    unknown = sorted(set(numbers).difference(range(1, most + 1)))
    if unknown:
        raise UsageError(
            f"there is no {what} {unknown[0]}: this file has {what}s 1 to {most}",
            remedy="See `unspill diff` for the numbers.",
        )


def hunks(old: bytes, new: bytes, *, columns: int = COLUMNS, token: str = "") -> Iterator[str]:
    """Yield the lines of all hunks, without a header. Where there are several, each tells its number and the token."""
    before, after = split_lines(old), split_lines(new)
    groups = _grouped_edits(before, after)
    for number, group in enumerate(groups, 1):
        name = f" hunk {number}" + (f"@{token}" if token else "")
        yield from _hunk(group, before, after, name if len(groups) > 1 else "", columns)


def _whole_diff(
    change: Change,
    reader: Reader,
    max_file_bytes: int,
    *,
    columns: int = COLUMNS,
    token: Callable[[tuple[bytes, bytes]], str] = lambda _texts: "",
    name: str,
) -> tuple[list[str], bool]:
    """Return the difference of one change, and whether that is all of it: a binary or large file is only told of.

    Args:
        change: What is to be shown.
        reader: Opens its files.
        max_file_bytes: A larger file is told by its sizes only.
        columns: A longer line is cut.
        token: Says what names the hunks between two texts.
        name: What its heading calls it. The lines that `patch` reads name it as seen from its root.
    """
    told = describe(change, reader, max_file_bytes, name)
    lines = list(told.lines)
    if told.texts is None:
        return lines, told.is_whole
    body = list(hunks(*told.texts, columns=columns, token=token(told.texts)))
    is_whole = not any(is_cut(line, columns) for text in told.texts for line in split_lines(text))
    return lines + ([*told.heading, *body] if body else ["(empty)"]), is_whole


class Described(Record):
    """What is told of a change: a line with its name, what else there is to say, and both texts where it has them.

    `heading` stands above the hunks between them. Without texts, `is_whole` says whether the lines are all of it: a
    binary or large file is only told of.
    """

    lines: tuple[str, ...]
    texts: tuple[bytes, bytes] | None = None
    heading: tuple[str, ...] = ()
    is_whole: bool = True


def describe(change: Change, reader: Reader, max_file_bytes: int, name: str) -> Described:
    """Return what is told of a change under a name, and its texts; those of a larger file are not read."""
    notes = remarks(change)
    entry = change.entry
    if entry is not None and entry.kind == "file" and change.base_kind is None and entry.mode & 0o111 and not notes:
        notes = [f"mode {entry.mode & 0o7777:o}"]
    lines = [f"{change.kind} {name}" + (f"  [{'; '.join(notes)}]" if notes else "")]
    if change.base_target is not None:
        lines.append(f"-> {quote(change.base_target)}  [old target]")
    if change.target is not None:
        lines.append(f"-> {quote(change.target)}" + ("  [new target]" if change.base_target is not None else ""))
    has_old = change.base_kind == "file"
    has_new = change.entry is not None and change.entry.kind == "file"
    if (has_old or has_new) and (change.kind != "metadata" or change.unreadable):
        told, texts = _texts(change, reader, max_file_bytes, has_old=has_old, has_new=has_new)
        if texts is None:
            return Described(lines=(*lines, *told), is_whole=False)
        return Described(lines=tuple(lines), texts=texts, heading=tuple(told))
    if change.kind == "deleted" and change.base_kind == "dir":
        lines.append("(with everything in it)")
    return Described(lines=tuple(lines))


def _texts(
    change: Change, reader: Reader, max_file_bytes: int, *, has_old: bool, has_new: bool
) -> tuple[list[str], tuple[bytes, bytes] | None]:
    """Return a heading and both sides of a file, or what is told instead where they are not to be shown."""
    old_size = change.base_size if has_old else 0
    new_size = change.entry.size if has_new and change.entry is not None else 0
    if max(old_size, new_size) > max_file_bytes:
        return [f"(too large to show: {_sizes(change, has_old=has_old, has_new=has_new)})"], None
    try:
        old = read_up_to(reader.open_before(change), max_file_bytes) if has_old else b""
        new = read_up_to(reader.open_after(change), max_file_bytes) if has_new else b""
    except OSError as error:
        return [f"(not readable: {error.strerror or error})"], None
    if is_binary(old) or is_binary(new):
        told = [("old", old)] * has_old + [("new", new)] * has_new
        return [f"(binary, {which}: {len(content)} bytes, sha256 {_sha256(content)})" for which, content in told], None
    name = quote(change.path)
    head = [f"--- {'a/' + name if has_old else '/dev/null'}", f"+++ {'b/' + name if has_new else '/dev/null'}"]
    return head, (old, new)


def _sizes(change: Change, *, has_old: bool, has_new: bool) -> str:
    sizes = [f"{change.base_size} bytes"] * has_old
    if has_new and change.entry is not None:
        sizes.append(f"{change.entry.size} bytes")
    return " to ".join(sizes)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def left_out(lines: int, changes: int) -> str:
    """Return the line that stands for what is not shown."""
    rest = f" and {changes} more changes" if changes else ""
    return f"... cut here: {lines} more lines{rest}"


def _lines_of_texts(old: bytes, new: bytes) -> tuple[list[bytes], list[bytes]]:
    if is_binary(old) or is_binary(new):
        raise UsageError("this is not a text file, so it has no hunks", remedy="Choose the whole file by its path.")
    return split_lines(old), split_lines(new)


def is_binary(content: bytes) -> bool:
    """Tell content that no text has: a zero byte, or mostly bytes that are neither UTF-8 nor Latin."""
    if b"\0" in content:
        return True
    start = content[:SNIFFED].decode("utf-8", "surrogateescape")
    if start.translate(_AS_SPACES).isprintable():
        return False
    odd = sum(not character.isprintable() and character not in _BLANKS for character in start)
    return odd * 3 > len(start)


def with_line_feed(line: bytes) -> bytes:
    """Return a line that another one can follow."""
    return line if line.endswith(b"\n") else line + b"\n"


def split_lines(text: bytes) -> list[bytes]:
    """Split at line feeds only: a carriage return is content that has to be seen."""
    *whole, last = text.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, last] if last else lines


def _grouped_edits(before: Sequence[bytes], after: Sequence[bytes]) -> list[list[Edit]]:
    """Return the edits between two texts by hunk, in the order in which hunks are counted."""
    return list(_grouped(line_edits(before, after)))


def line_edits(before: Sequence[bytes], after: Sequence[bytes]) -> list[Edit]:
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


def blame_lines(versions: Iterable[Version], *, unknown: Hashable = None) -> list[Line]:
    """Return the lines of the last version, each with whoever wrote it.

    A line belongs to the last version that has it and whose predecessor has not; one that an undo brings back belongs
    to whoever it belonged to before.

    Args:
        versions: Each version of the file, the oldest first, None where there was none. The first one nobody knows the
            author of.
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
    brought = dict(_unchanged(source, new)) if source else {}
    kept = dict(_unchanged(old, new))
    return [(kept.get(at, brought.get(at, author)), line) for at, line in enumerate(new)]


def _unchanged(old: list[Line], new: list[bytes]) -> Iterable[tuple[int, Hashable]]:
    """Yield the numbers of new lines that were there before, with whoever they belonged to."""
    at, ahead = 0, 0
    for start, end, new_start, new_end in (*line_edits([line for _author, line in old], new), (len(old), 0, 0, 0)):
        yield from ((line + ahead, old[line][0]) for line in range(at, start))
        at, ahead = end, ahead + (new_end - new_start) - (end - start)
