# SPDX-License-Identifier: Apache-2.0
"""Read the audit and check it: every line follows from the one before, and the last one is the one that the head names.

An edit, a removal or another order of any line is found. Who can write the directory and makes the whole chain and
the head anew is not: for that the last hash must be kept elsewhere.
"""

from __future__ import annotations

import fcntl
import os

from unspill.errors import StoreError
from unspill.model.record import Record
from unspill.permissions.audit import Locked
from unspill.permissions.audit_chain import Head, follow, log_file, log_numbers, parse, read_head
from unspill.permissions.audit_tail import Tail, read_tail, this_boot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.permissions.events import Event


class Verified(Record):
    """The audit is whole. `hash` is that of its last line; `recovered` are the lines that mended a crash.

    `lost` lines about runs and operations were the last before the power went.
    """

    lines: int
    files: int
    hash: str
    recovered: tuple[int, ...] = ()
    lost: int = 0


class Broken(Record):
    """The audit is not what was written. `file` and `line` (of that file, from 1) say where it shows first.

    `is_crash`: a crash alone can have done it, nothing that was acknowledged is gone, and the next record mends it.
    """

    file: int
    line: int
    reason: str
    is_crash: bool = False


if TYPE_CHECKING:
    Verdict = Verified | Broken


def verify(directory: bytes) -> Verdict:
    """Check the whole audit.

    Raises:
        StoreError: it can't be read.
    """
    try:
        if not os.path.isdir(directory):
            return Verified(lines=0, files=0, hash=Head().hash)
        with Locked(directory, fcntl.LOCK_SH) as lock:
            return _verified(directory, read_head(directory), log_numbers(directory), read_tail(lock))
    except OSError as error:
        raise StoreError(f"The audit {os.fsdecode(directory)} can't be read: {error.strerror}.") from error


def read_events(directory: bytes) -> Iterator[Event]:
    """Yield all events, the oldest first, checked or not; what can't be read as one is passed over."""
    for number in log_numbers(directory) if os.path.isdir(directory) else ():
        with open(log_file(directory, number), "rb") as file:
            for line in file:
                event = parse(line)
                if event is not None:
                    yield event


class _Walk:
    """A walk along the chain."""

    __slots__ = ("at_head", "at_tail", "end", "lost", "named", "recovered", "tail")

    def __init__(self, named: Head, tail: Tail) -> None:
        self.named = named
        self.tail = tail
        self.at_tail = tail.lines == 0
        self.lost = 0
        self.end = Head()
        self.recovered: list[int] = []
        self.at_head = self.end if named == self.end else None

    def file(self, number: int, text: bytes) -> Broken | None:
        """Follow one file; say where it does not go on."""
        self.end = self.end.replace(file=number, size=0)
        # The file after a rotation may be there before the head knows of it
        for at, line in enumerate(text.split(b"\n")[:-1], start=1):
            after = follow(self.end, line)
            if after is None:
                return self._broken(at, "this line does not follow from the one before it")
            self.end = after
            if after.lines == self.named.lines:
                self.at_head = after
            if after.lines == self.tail.lines:
                self.at_tail = after.hash == self.tail.hash
            event = parse(line) or {}
            if event.get("kind") == "recovered":
                if event.get("missing") != 0:
                    return self._broken(at, "lines before this one are gone")
                self.recovered.append(after.lines)
                self.lost += int(event.get("lost") or 0)
        if not text.endswith(b"\n") and text:
            return self._broken(text.count(b"\n") + 1, "this line is not whole")
        return None

    def _broken(self, line: int, reason: str) -> Broken:
        is_crash = self.at_head == self.named and "gone" not in reason
        return Broken(file=self.end.file, line=line, reason=reason, is_crash=is_crash)


def _verified(directory: bytes, head: Head | None, numbers: list[int], tail: Tail | None) -> Verdict:
    if head is None:
        if numbers:
            return Broken(file=0, line=0, reason="the head is gone or not readable")
        return Verified(lines=0, files=0, hash=Head().hash)
    if tail is None and head.lines:
        return Broken(file=0, line=0, reason="the tail is gone or not readable")
    walk = _Walk(head, tail or Tail(**Head().as_dict(), boot=""))
    for expected, number in enumerate(numbers, start=1):
        if number != expected:
            return Broken(file=expected, line=0, reason="this file is gone")
        with open(log_file(directory, number), "rb") as file:
            broken = walk.file(number, file.read())
        if broken is not None:
            return broken
    if walk.at_head != head:
        return Broken(file=walk.end.file, line=0, reason="lines at the end are gone, or the head was changed")
    lost = max(0, walk.tail.lines - walk.end.lines)
    if not walk.at_tail and (walk.tail.boot == this_boot() or not lost):
        return Broken(file=walk.end.file, line=0, reason="lines at the end are gone, or the tail was changed")
    return Verified(
        lines=walk.end.lines,
        files=len(numbers),
        hash=walk.end.hash,
        recovered=tuple(walk.recovered),
        lost=walk.lost + lost,
    )
