# SPDX-License-Identifier: Apache-2.0
"""Contents of files and directories as a run sees them: windows of bytes or of lines, names with kinds and sizes.

Every answer is bounded and says what it leaves out. Changes nothing.
"""

from __future__ import annotations

import stat

from unspill.errors import FileError, SandboxUnavailable, UsageError
from unspill.model.policy import MIB
from unspill.policy.paths import show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.sandbox.files_inside import Inside, Path

    EntryKind = Literal["file", "directory", "link", "pipe", "socket", "device", "unknown"]

MOST_BYTES = 100 * MIB
USUAL_BYTES = 1 * MIB
MOST_DEPTH = 64
_LISTING_BYTES = 16 * MIB
_LARGEST = (1 << 63) - 1

_LOOK = """\
said=$(stat -L -c '%s' -- "$1" 2>&1) || no - "$said"
[ ! -d "$1" ] || no is_directory
[ -f "$1" ] || no not_a_file
[ -r "$1" ] || no permission_denied
printf 'ok %s\\n' "$said"
"""
_BYTES = _LOOK + 'if [ "$2" = 0 ]; then exec head -c "$3" -- "$1"; fi\ntail -c "+$(($2 + 1))" -- "$1" | head -c "$3"\n'
_LINES = _LOOK + 'tail -n "+$(($2 + 1))" -- "$1" | head -n "$3" | head -c "$4"\n'
# In batches: the count, a line for each, then the names, which may have newlines. One that vanished has no line
_LIST = """\
said=$(stat -L -c '%f' -- "$1" 2>&1) || no - "$said"
[ -d "$1" ] || no not_a_directory
[ -r "$1" ] && said=$(cd -- "$1" 2>&1) || no permission_denied
cd -- "$1"
printf 'ok '
{
    find . -mindepth 1 -maxdepth "$2" -exec sh -c '
        printf "%s\\n" "$#"
        if said=$(stat -c "%f %s" -- "$@" 2>/dev/null); then
            printf "%s\\n" "$said"
        else
            for name; do stat -c "%f %s" -- "$name" 2>/dev/null || echo "0 0"; done
        fi
        printf "%s\\0" "$@"' sh {} + 2>/dev/null
    printf 'end %s\\n' "$?"
} | head -c "$3"
"""
_FOR_WINDOWS, _FOR_LISTS = "stat head tail", "stat find head sh"
# The name of each verb that only looks, its script and the programs that it needs
READING = (("read", _BYTES, _FOR_WINDOWS), ("read", _LINES, _FOR_WINDOWS), ("list", _LIST, _FOR_LISTS))
_KINDS: dict[int, EntryKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class FileBytes(Record):
    """A window of a file, from `offset` on. `size` is that of the whole file as the kernel gives it."""

    path: bytes
    content: bytes
    offset: int
    size: int
    has_more: bool

    @property
    def left_out(self) -> int:
        """How many bytes come after the window; 0 also where the kernel does not tell the size, as in /proc."""
        return max(0, self.size - self.offset - len(self.content)) if self.has_more else 0

    def text(self) -> str:
        """Return the window as UTF-8.

        Raises:
            FileError: it is not (`not_text`).
        """
        return _decode(self.path, self.content)


class FileLines(Record):
    """Lines of a file, from line `offset` (the first is 0) on. `next_offset` is None where these are the last.

    `is_cut`: the only line is longer than the bound, so the end of it is missing.
    """

    path: bytes
    content: bytes
    offset: int
    count: int
    next_offset: int | None
    size: int
    is_cut: bool = False

    def text(self) -> str:
        """Return the lines as UTF-8.

        Raises:
            FileError: they are not (`not_text`).
        """
        return _decode(self.path, self.content)


class Entry(Record):
    """One name below a directory, with the path from there. A link is told as itself, with its own size."""

    path: bytes
    kind: EntryKind
    size: int


class Listing(Record):
    """Entries by path; `left_out` more were found. Not `is_whole` where a directory below could not be read."""

    path: bytes
    entries: tuple[Entry, ...]
    left_out: int = 0
    is_whole: bool = True


def read_bytes(inside: Inside, path: Path, offset: int, limit: int, cancel_fd: int | None = None) -> FileBytes:
    """Return at most `limit` bytes of a file."""
    _check_window(offset, limit, MOST_BYTES)
    where = inside.resolve(path)
    words = (where, str(offset), str(limit + 1))
    size, content = _split(inside.ask("read", _BYTES, _FOR_WINDOWS, words, limit + 1, cancel_fd), where)
    return FileBytes(path=where, content=content[:limit], offset=offset, size=size, has_more=len(content) > limit)


def read_lines(inside: Inside, path: Path, offset: int, limit: int, cancel_fd: int | None = None) -> FileLines:
    """Return at most `limit` lines of a file, and at most as many as a mebibyte has."""
    _check_window(offset, limit, _LARGEST - 1)
    where = inside.resolve(path)
    words = (where, str(offset), str(limit + 1), str(USUAL_BYTES + 1))
    size, content = _split(inside.ask("read", _LINES, _FOR_WINDOWS, words, USUAL_BYTES + 1, cancel_fd), where)
    return _cut_lines(where, content, offset, limit).replace(size=size)


def _cut_lines(path: bytes, content: bytes, offset: int, limit: int) -> FileLines:
    """Return the lines of a window that has one more than is wanted, or one byte more than is allowed."""
    is_long = len(content) > USUAL_BYTES
    lines = _by_newline(content[:USUAL_BYTES])
    has_more = is_long or len(lines) > limit
    lines = lines[:limit]
    is_cut = is_long and len(lines) == 1 and not lines[0].endswith(b"\n")
    if is_long and len(lines) > 1 and not lines[-1].endswith(b"\n"):
        lines.pop()
    following = offset + len(lines) if has_more else None
    return FileLines(
        path=path,
        content=b"".join(lines),
        offset=offset,
        count=len(lines),
        next_offset=following,
        size=0,
        is_cut=is_cut,
    )


def _by_newline(content: bytes) -> list[bytes]:
    """Return the lines as tail and head count them: nothing but a newline ends one."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def list_directory(inside: Inside, path: Path, depth: int, limit: int, cancel_fd: int | None = None) -> Listing:
    """Return what lies in a directory, and below it down to a depth."""
    if not 1 <= depth <= MOST_DEPTH or limit < 1:
        raise UsageError(f"a depth is from 1 to {MOST_DEPTH}, a limit at least 1")
    where = inside.resolve(path)
    words = (where, str(depth), str(_LISTING_BYTES))
    answer = inside.ask("list", _LIST, _FOR_LISTS, words, _LISTING_BYTES, cancel_fd)
    if len(answer) >= _LISTING_BYTES:
        raise FileError(
            f"{show(where)}: there are too many entries", kind="too_large", remedy="Ask for less depth, or deeper down."
        )
    entries, is_whole = _parse_listing(answer, where)
    entries.sort(key=lambda entry: entry.path.split(b"/"))
    return Listing(path=where, entries=tuple(entries[:limit]), left_out=max(0, len(entries) - limit), is_whole=is_whole)


def _parse_listing(answer: bytes, where: bytes) -> tuple[list[Entry], bool]:
    entries: list[Entry] = []
    at = 0
    try:
        while not answer.startswith(b"end ", at):
            count, at = _cut(answer, b"\n", at)
            lines = []
            for _number in range(int(count)):
                line, at = _cut(answer, b"\n", at)
                lines.append(line)
            for line in lines:
                name, at = _cut(answer, b"\0", at)
                entries.append(_entry(line, name))
        return entries, answer[at:] == b"end 0\n"
    except (ValueError, OverflowError):
        raise SandboxUnavailable(f"{show(where)}: an answer from inside that can't be understood") from None


def _cut(answer: bytes, end: bytes, at: int) -> tuple[bytes, int]:
    """Return what stands before the next end, and where it goes on: never by a copy of all the rest."""
    found = answer.index(end, at)
    return answer[at:found], found + 1


def _entry(line: bytes, name: bytes) -> Entry:
    mode, size = line.split()
    kind = _KINDS.get(stat.S_IFMT(int(mode, 16)), "unknown")
    return Entry(path=name.removeprefix(b"./"), kind=kind, size=int(size))


def _split(answer: bytes, where: bytes) -> tuple[int, bytes]:
    size, newline, content = answer.partition(b"\n")
    if not newline or not size.isdigit():
        raise SandboxUnavailable(f"{show(where)}: an answer from inside that can't be understood")
    return int(size), content


def _check_window(offset: int, limit: int, most: int) -> None:
    if not 0 <= offset < _LARGEST or not 0 <= limit <= most:
        raise UsageError(f"an offset is at least 0, a limit from 0 to {most}")


def _decode(path: bytes, content: bytes) -> str:
    if b"\0" in content:
        raise FileError(f"{show(path)}: it is not a text", kind="not_text")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{show(path)}: it is not a text in UTF-8", kind="not_text") from None
