# SPDX-License-Identifier: Apache-2.0
"""What deep agents are given of a file of a sandbox: lines of a text, or all of what is none, in base64.

Which one it is depends on the name too, because so does what the framework does with it.
"""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING

from deepagents.backends.protocol import ReadResult
from deepagents.backends.sandbox import MAX_BINARY_BYTES, TRUNCATION_MSG
from deepagents.backends.utils import _get_backend_read_file_type, normalize_read_bounds

from unspill.adapters.deepagents_words import tell_error
from unspill.errors import UnspillError

if TYPE_CHECKING:
    from unspill.sandbox.files import SandboxFiles
    from unspill.sandbox.files_reading import FileLines


def read_file(files: SandboxFiles, path: str, offset: int, limit: int, cancel_fd: int | None) -> ReadResult:
    """Return a window of lines, or the whole file where it is no text."""
    offset, limit = normalize_read_bounds(offset, limit)
    try:
        if _get_backend_read_file_type(path) == "text":
            part = files.read_lines(path, offset=offset, limit=limit, cancel_fd=cancel_fd)
            text = _text_of(part)
            if text is not None:
                return _window(path, part, text, limit)
        found = files.read(path, limit=MAX_BINARY_BYTES, cancel_fd=cancel_fd)
    except UnspillError as error:
        return ReadResult(error=f"File '{path}': {tell_error(error)}")
    if found.has_more:
        return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes")
    return ReadResult(file_data={"content": b64encode(found.content).decode("ascii"), "encoding": "base64"})


def _window(path: str, part: FileLines, text: str, limit: int) -> ReadResult:
    if not part.count and part.offset and limit:
        return ReadResult(error=f"File '{path}': Line offset {part.offset} exceeds file length")
    content = text.replace("\r\n", "\n").removesuffix("\n") + (TRUNCATION_MSG if part.is_cut else "")
    if not part.count:
        is_unseen = not limit and part.size > 0
        return ReadResult(file_data={"content": "", "encoding": "utf-8"}, no_lines_requested=is_unseen)
    end = part.offset + part.count
    return ReadResult(
        file_data={"content": content, "encoding": "utf-8"},
        total_lines=end if part.next_offset is None else None,
        start_line=part.offset + 1,
        end_line=end,
        next_offset=part.next_offset,
    )


def _text_of(part: FileLines) -> str | None:
    """Return the lines as text, None where they are none; of a line that is cut the last character may be in part."""
    try:
        text = getincrementaldecoder("utf-8")().decode(part.content, final=not part.is_cut)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
