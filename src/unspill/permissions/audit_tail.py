# SPDX-License-Identifier: Apache-2.0
"""Add to the audit what has happened already, at once and cheaply: runs and operations.

Nothing is synchronised, so a power cut can take the last such lines. In the lock's file stands where the log ends and
in which boot that was written: as long as the machine runs, a line that is gone was taken away. Loaded by every run.
"""

from __future__ import annotations

import fcntl
import os
import time

# The part of hashlib that does the work, without what takes milliseconds to load
from _blake2 import blake2b

from unspill.errors import StoreError
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROTATE_BYTES = 8 * 1024 * 1024

_FORM = b"%06d %020d %020d %64b %36b\n"
_LENGTH = 6 + 1 + 20 + 1 + 20 + 1 + 64 + 1 + 36 + 1


class Tail(Record):
    """Where the log ended when it was last written to, and in which boot that was."""

    file: int
    size: int
    lines: int
    hash: str
    boot: str


def hash_of(line: bytes) -> str:
    """Return the hash of a line, without its end."""
    return blake2b(line, digest_size=32).hexdigest()


def as_text(value: bytes) -> str:
    """Return bytes as a line of the audit has them."""
    return value.decode("utf-8", "surrogateescape")


def command_text(argv: tuple[bytes, ...], *, most_bytes: int, most_words: int | None = None) -> list[str]:
    """Return the words of a command, cut where they are too long or too many, and then saying so."""
    kept: list[str] = []
    left = most_bytes
    for word in argv[:most_words]:
        if len(word) > left:
            return [*kept, as_text(word[:left]), f"[cut: {sum(map(len, argv))} bytes in all]"]
        kept.append(as_text(word))
        left -= len(word) + 1
    return kept if len(kept) == len(argv) else [*kept, f"[cut: {len(argv)} words in all]"]


def this_boot() -> str:
    """Return the name of the boot."""
    with open(b"/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_tail(fd: int) -> Tail | None:
    """Return what stands in the lock's file; None if there is nothing that can be read."""
    raw = os.pread(fd, _LENGTH + 1, 0)
    fields = raw.split()
    if len(raw) != _LENGTH or len(fields) != 5 or not all(field.isdigit() for field in fields[:3]):
        return None
    file, size, lines = map(int, fields[:3])
    return Tail(
        file=file, size=size, lines=lines, hash=fields[3].decode("ascii", "replace"), boot=fields[4].decode("ascii")
    )


def write_tail(fd: int, tail: Tail) -> None:
    """Replace what stands in the lock's file."""
    is_new = os.fstat(fd).st_size != _LENGTH
    os.pwrite(fd, _FORM % (tail.file, tail.size, tail.lines, tail.hash.encode(), tail.boot.encode()), 0)
    if is_new:
        os.ftruncate(fd, _LENGTH)
        os.fsync(fd)


def note(directory: bytes, boot: str, *events: dict[str, Any]) -> None:
    """Add events that have happened.

    Raises:
        StoreError: they can't be written.
    """
    try:
        if _noted(directory, boot, events):
            return
    except OSError as error:
        raise StoreError(f"The audit {os.fsdecode(directory)} can't be written: {error.strerror}.") from error
    # The first of all, the first since the machine was started, or the first in a new file: with all care
    from unspill.permissions.audit import Audit

    Audit(directory).append(*events)


def _noted(directory: bytes, boot: str, events: tuple[dict[str, Any], ...]) -> bool:
    try:
        lock = os.open(directory + b"/lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tail = read_tail(lock)
        if tail is None or tail.boot != boot or tail.size >= ROTATE_BYTES:
            return False
        return _append(directory, lock, tail, events)
    finally:
        os.close(lock)


def _append(directory: bytes, lock: int, tail: Tail, events: tuple[dict[str, Any], ...]) -> bool:
    path = b"%b/log-%06d" % (directory, tail.file)
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        if os.fstat(log).st_size != tail.size:
            return False
        text, after = _chained(tail, events)
        if os.write(log, text) != len(text):
            os.ftruncate(log, tail.size)
            raise OSError(0, "the disk is full")
        write_tail(lock, after)
        return True
    finally:
        os.close(log)


def _chained(tail: Tail, events: tuple[dict[str, Any], ...]) -> tuple[bytes, Tail]:
    text, at_ns = b"", time.time_ns()
    for event in events:
        whole = {"n": tail.lines + 1, "at_ns": at_ns, "prev": tail.hash, **event}
        line = to_json(whole).encode("ascii")
        text += line + b"\n"
        tail = tail.replace(size=tail.size + len(line) + 1, lines=tail.lines + 1, hash=hash_of(line))
    return text, tail


def to_json(value: Any) -> str:
    """Return plain values as `json.dumps` with the shortest separators does."""
    if isinstance(value, str):
        if value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
            return f'"{value}"'
        from _json import encode_basestring_ascii

        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_json(key)}:{to_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)
