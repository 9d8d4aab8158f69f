# SPDX-License-Identifier: Apache-2.0
"""What changed inside files, as unified diffs that are safe to read: bounded, and every character printable.

Each change starts with a line that begins with a word, which no line of content ever does. Binary content is told by
size and SHA-256. The result is for reading, not for `patch`.
"""

from __future__ import annotations

from functools import partial

from unspill.changes.hunks import hunks, is_binary, lines_of
from unspill.changes.quote import COLUMNS, is_cut, quote
from unspill.changes.reader import Reader, read_up_to
from unspill.changes.render import remarks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unspill.model.change import Change, ChangeSet

    # What names the hunks of a change in a root, given both texts
    Token = Callable[[bytes, Change, tuple[bytes, bytes]], str]

MAX_LINES = 2000
MAX_FILE_BYTES = 512 * 1024

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
    """
    lines: list[str] = []
    for part in changes.roots:
        with Reader(part.root, (below or {}).get(part.root, ())) as reader:
            for at, change in enumerate(part.changes):
                is_whole = True
                if not change.is_mere_touch:
                    naming = partial(token, part.root, change)
                    found, is_whole = whole_diff(change, reader, max_file_bytes, columns=columns, token=naming)
                    lines += painted(found, colour=colour)
                if len(lines) > max_lines:
                    rest = len(part.changes) - at - 1
                    return [*lines[:max_lines], _left_out(len(lines) - max_lines, rest)]
                if is_whole and seen is not None:
                    seen.add((part.root, change.path))
    return lines


def _left_out(lines: int, changes: int) -> str:
    rest = f" and {changes} more changes" if changes else ""
    return f"... cut here: {lines} more lines{rest}"


def change_diff(change: Change, reader: Reader, max_file_bytes: int) -> list[str]:
    """Return the difference of one change, without colours."""
    return whole_diff(change, reader, max_file_bytes)[0]


def whole_diff(
    change: Change,
    reader: Reader,
    max_file_bytes: int,
    *,
    columns: int = COLUMNS,
    token: Callable[[tuple[bytes, bytes]], str] = lambda _texts: "",
) -> tuple[list[str], bool]:
    """Return the difference of one change, and whether that is all of it: a binary or large file is only told of.

    Args:
        change: What is to be shown.
        reader: Opens its files.
        max_file_bytes: A larger file is told by its sizes only.
        columns: A longer line is cut.
        token: Says what names the hunks between two texts.
    """
    notes = remarks(change)
    lines = [f"{change.kind} {quote(change.path)}" + (f"  [{'; '.join(notes)}]" if notes else "")]
    if change.base_target is not None:
        lines.append(f"-> {quote(change.base_target)}  [old target]")
    if change.target is not None:
        lines.append(f"-> {quote(change.target)}" + ("  [new target]" if change.base_target is not None else ""))
    has_old = change.base_kind == "file"
    has_new = change.entry is not None and change.entry.kind == "file"
    if (has_old or has_new) and (change.kind != "metadata" or change.unreadable):
        told, texts = _texts(change, reader, max_file_bytes, has_old=has_old, has_new=has_new)
        if texts is None:
            return lines + told, False
        body = list(hunks(*texts, columns=columns, token=token(texts)))
        is_whole = not any(is_cut(line, columns) for text in texts for line in lines_of(text))
        return lines + (told + body if body else ["(empty)"]), is_whole
    if change.kind == "deleted" and change.base_kind == "dir":
        lines.append("(with everything in it)")
    return lines, True


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
    import hashlib

    return hashlib.sha256(content).hexdigest()


def painted(lines: list[str], *, colour: bool) -> list[str]:
    """Return the lines of one change with the colours of a terminal, if they are wanted."""
    if not colour:
        return lines
    coloured = [f"{_BOLD}{lines[0]}{_END}"]
    for line in lines[1:]:
        paint = _COLOURS.get(line[:1])
        coloured.append(f"{paint}{line}{_END}" if paint else line)
    return coloured
