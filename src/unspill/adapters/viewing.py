# SPDX-License-Identifier: Apache-2.0
"""What a framework's own tool for reading shows of a file: lines of a text, or all of what is none.

Which one it is depends on the content, and on what the framework takes the file for by its name.
"""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder

from unspill.errors import FileError
from unspill.policy.paths import show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.sandbox.files import SandboxFiles
    from unspill.sandbox.files_reading import FileLines


class FileView(Record):
    """A part of a text with the numbers of its lines, the first being 1, or a whole file in base64.

    `next_offset` is None where these are the last lines; then `total_lines` is how many there are. `is_cut`: the only
    line is too long, so the end of it is missing. `is_unseen`: no lines were asked for, though there are some.
    `is_too_large`: it is no text and has too many bytes, so nothing of it is shown.
    """

    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    start_line: int | None = None
    end_line: int | None = None
    next_offset: int | None = None
    total_lines: int | None = None
    is_cut: bool = False
    is_unseen: bool = False
    is_too_large: bool = False


def view_file(
    files: SandboxFiles, path: str, offset: int, limit: int, most: int, *, is_text: bool, cancel_fd: int | None = None
) -> FileView:
    """Return at most `limit` lines from line `offset` (the first is 0) on, or a whole file of at most `most` bytes.

    Raises:
        FileError: there is no such file or no such line.
    """
    if is_text:
        part = files.read_lines(path, offset=offset, limit=limit, cancel_fd=cancel_fd)
        text = _text_of(part)
        if text is not None:
            return _lines(part, text, is_wanted=limit > 0)
    found = files.read(path, limit=most, cancel_fd=cancel_fd)
    content = b"" if found.has_more else found.content
    return FileView(content=b64encode(content).decode("ascii"), encoding="base64", is_too_large=found.has_more)


def _lines(part: FileLines, text: str, *, is_wanted: bool) -> FileView:
    if part.count:
        end = part.offset + part.count
        return FileView(
            content=text.replace("\r\n", "\n").removesuffix("\n"),
            start_line=part.offset + 1,
            end_line=end,
            next_offset=part.next_offset,
            total_lines=end if part.next_offset is None else None,
            is_cut=part.is_cut,
        )
    if part.offset and is_wanted:
        raise FileError(f"{show(part.path)}: it has no line {part.offset + 1}", kind="failed")
    return FileView(content="", is_unseen=not is_wanted and part.size > 0)


def _text_of(part: FileLines) -> str | None:
    """Return the lines as text, None where they are none; of a line that is cut the last character may be in part."""
    try:
        text = getincrementaldecoder("utf-8")().decode(part.content, final=not part.is_cut)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
