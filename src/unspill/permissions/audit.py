# SPDX-License-Identifier: Apache-2.0
"""Write the audit: append-only, hash-chained, durable when `append` returns, by many processes at once.

After a crash the next writer keeps what is whole, cuts what is not, and says so in a record of its own. It never
repairs what a crash can't have done: that is recorded as missing, and `verify` reports it for ever.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.errors import StoreError
from unspill.host.writing import sync_directory
from unspill.permissions.audit_chain import (
    GENESIS,
    Head,
    chained,
    follow,
    log_file,
    log_numbers,
    parse,
    read_head,
    write_head,
)
from unspill.permissions.audit_tail import ROTATE_BYTES, Tail, hash_of, read_tail, this_boot, write_tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from unspill.permissions.events import Event


class Audit:
    """The audit in one directory, which is made for its owner alone."""

    __slots__ = ("_directory", "_rotate_bytes")

    def __init__(self, directory: bytes, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._directory = directory
        self._rotate_bytes = rotate_bytes

    def append(self, *events: Event) -> None:
        """Add events; they are on the disk afterwards, all of them or none.

        Raises:
            StoreError: they can't be written. What was to be recorded must not happen then.
        """
        try:
            _make_directory(self._directory)
            with Locked(self._directory, fcntl.LOCK_EX) as lock:
                boot = this_boot()
                head, recovered = _end(self._directory, read_tail(lock), boot)
                if head.size >= self._rotate_bytes:
                    head = head.replace(file=head.file + 1, size=0)
                text, after = chained(head, (*recovered, *events), time.time_ns())
                self._write(head, text)
                write_head(self._directory, after)
                write_tail(lock, Tail(**after.as_dict(), boot=boot))
        except OSError as error:
            raise StoreError(
                f"The audit {os.fsdecode(self._directory)} can't be written: {error.strerror}.",
                remedy="Look for free space; nothing is done that can't be recorded.",
            ) from error

    def _write(self, head: Head, text: bytes) -> None:
        path = log_file(self._directory, head.file)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, head.size)
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, head.size)
            raise
        finally:
            os.close(fd)
        if head.size == 0:
            sync_directory(self._directory)


class Locked:
    """The lock of an audit directory, while in a `with`."""

    __slots__ = ("_fd", "_how", "_path")

    def __init__(self, directory: bytes, how: int) -> None:
        self._path = directory + b"/lock"
        self._how = how

    def __enter__(self) -> int:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, self._how)
        except BaseException:
            os.close(self._fd)
            raise
        return self._fd

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)


def _make_directory(directory: bytes) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return
    os.chmod(directory, 0o700)


def _end(directory: bytes, tail: Tail | None, boot: str) -> tuple[Head, tuple[Event, ...]]:
    """Return where to go on, and a record of what had to be mended for that."""
    head, numbers = read_head(directory), log_numbers(directory)
    if head is None and not numbers:
        # So that a log without a head is never what a crash left behind
        write_head(directory, Head())
        return Head(), ()
    if head is None or not _reaches(directory, head, numbers):
        return _after_loss(directory, head, numbers)
    if tail is not None and tail.boot == boot and tail.lines > head.lines and not _is_reached(directory, tail):
        return _after_loss(directory, head.replace(lines=tail.lines, hash=tail.hash), numbers)
    return _after_crash(directory, head, tail)


def _is_reached(directory: bytes, tail: Tail) -> bool:
    try:
        return os.stat(log_file(directory, tail.file)).st_size >= tail.size
    except FileNotFoundError:
        return False


def _reaches(directory: bytes, head: Head, numbers: list[int]) -> bool:
    if head.file not in numbers:
        return head.size == 0 and not numbers
    return os.stat(log_file(directory, head.file)).st_size >= head.size


def _after_crash(directory: bytes, head: Head, tail: Tail | None) -> tuple[Head, tuple[Event, ...]]:
    """Keep what was written after the head and belongs there; the rest of it was never acknowledged to anybody.

    Lines that were only noted are behind the head as a rule; if the tail names more of them, a power cut has taken
    some.
    """
    end, dropped = head, b""
    while not dropped and (found := _read_from(directory, end)) is not None:
        end, dropped = _valid_part(end, found)
        if dropped or _read_from(directory, end.replace(file=end.file + 1, size=0)) is None:
            break
        end = end.replace(file=end.file + 1, size=0)
    lost = 0 if tail is None else max(0, tail.lines - end.lines)
    is_noted = tail is not None and (tail.lines, tail.hash) == (end.lines, end.hash)
    if (end.lines == head.lines or is_noted) and not dropped and not lost:
        return end, ()
    event = {"kind": "recovered", "kept": end.lines - head.lines, "dropped_bytes": len(dropped), "missing": 0}
    event |= {"lost": lost} if lost else {}
    return end, (event | {"dropped": hash_of(dropped)},)


def _valid_part(head: Head, found: bytes) -> tuple[Head, bytes]:
    """Return the head after the lines that belong there, and what comes behind them."""
    while (length := found.find(b"\n")) >= 0:
        after = follow(head, found[:length])
        if after is None:
            break
        head, found = after, found[length + 1 :]
    return head, found


def _after_loss(directory: bytes, head: Head | None, numbers: list[int]) -> tuple[Head, tuple[Event, ...]]:
    """Go on behind whatever is still there, and keep the evidence that there was more."""
    expected = 0 if head is None else head.lines
    number = numbers[-1] if numbers else 1
    text = _read_from(directory, Head(file=number)) or b""
    whole = text[: text.rfind(b"\n") + 1]
    last = whole[:-1].rpartition(b"\n")[2]
    event = parse(last) or {}
    lines = event["n"] if isinstance(event.get("n"), int) else expected
    end = Head(file=number, size=len(whole), lines=lines, hash=hash_of(last) if last else GENESIS)
    return end, (
        {
            "kind": "recovered",
            "kept": 0,
            "dropped_bytes": len(text) - len(whole),
            "missing": max(1, expected - lines),
            "head_was": None if head is None else head.hash,
        },
    )


def _read_from(directory: bytes, head: Head) -> bytes | None:
    """Return what a file of the log has from the head's end on; None if there is no such file."""
    try:
        with open(log_file(directory, head.file), "rb") as file:
            file.seek(head.size)
            return file.read()
    except FileNotFoundError:
        return None
