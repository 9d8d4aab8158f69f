# SPDX-License-Identifier: Apache-2.0
"""The form of the audit on disk: files of lines, each line with its number and the hash of the one before, and a head.

log-000001, log-000002, ...   one JSON object per line; a new file goes on where the last one ended
head                          where the last line ends and its hash: tells when lines at the end are gone
lock                          taken by whoever writes, shared by whoever reads; holds the tail, see `audit_tail`
"""

from __future__ import annotations

import json
import os

from unspill.model.record import Record
from unspill.permissions.audit_tail import hash_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# What the first line has in place of a hash.
GENESIS = "0" * 64


class Head(Record):
    """The end of the log: the file, its size, how many lines there are in all files, the hash of the last."""

    file: int = 1
    size: int = 0
    lines: int = 0
    hash: str = GENESIS


def chained(head: Head, events: Iterable[dict[str, Any]], at_ns: int) -> tuple[bytes, Head]:
    """Return events as the lines that come after a head, and the head that comes after them."""
    text = b""
    for event in events:
        whole = {"n": head.lines + 1, "at_ns": at_ns, "prev": head.hash} | event
        line = json.dumps(whole, separators=(",", ":")).encode("ascii")
        text += line + b"\n"
        head = Head(file=head.file, size=head.size + len(line) + 1, lines=head.lines + 1, hash=hash_of(line))
    return text, head


def follow(head: Head, line: bytes) -> Head | None:
    """Return the head after a line (without its end); None if the line does not belong there."""
    event = parse(line)
    if event is None or event.get("prev") != head.hash or event.get("n") != head.lines + 1:
        return None
    return Head(file=head.file, size=head.size + len(line) + 1, lines=head.lines + 1, hash=hash_of(line))


def parse(line: bytes) -> dict[str, Any] | None:
    """Return what a line says; None if it is not one of ours."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def log_file(directory: bytes, number: int) -> bytes:
    """Return the path of a file of the log."""
    return b"%b/log-%06d" % (directory, number)


def log_numbers(directory: bytes) -> list[int]:
    """Return the numbers of the files that there are."""
    names = (name.removeprefix(b"log-") for name in os.listdir(directory) if name.startswith(b"log-"))
    return sorted(int(name) for name in names if name.isdigit())


def read_head(directory: bytes) -> Head | None:
    """Return the head; None if there is none that can be read."""
    try:
        with open(directory + b"/head", "rb") as file:
            raw = file.read(4096)
    except FileNotFoundError:
        return None
    value = parse(raw)
    if value is None or not all(isinstance(value.get(field), int) for field in ("file", "size", "lines")):
        return None
    head = Head(file=value["file"], size=value["size"], lines=value["lines"], hash=str(value.get("hash")))
    return head if _head_text(head) == raw else None


def write_head(directory: bytes, head: Head) -> None:
    """Replace the head: after a crash there is the old one or the new one."""
    aside = directory + b"/head.new"
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, _head_text(head))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(aside, directory + b"/head")


def _head_text(head: Head) -> bytes:
    return b'{"file":%d,"size":%d,"lines":%d,"hash":"%b"}\n' % (
        *(head.file, head.size, head.lines),
        head.hash.encode("ascii", "replace"),
    )
