# SPDX-License-Identifier: Apache-2.0
"""Keeps one stream of a command: its head and tail in memory, the rest in a capped file.

Memory stays bounded whatever is printed; no byte is changed or decoded here.
"""

from __future__ import annotations

import os

from unspill.model.run import Output

_FILE_CAP = 1 << 30


class Collector:
    """Takes the chunks of one stream as they come."""

    def __init__(self, file: bytes, *, kept_bytes: int, file_cap: int | None) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._kept = kept_bytes
        self._path = file
        self._cap = _FILE_CAP if file_cap is None else file_cap
        self._fd: int | None = None
        self._is_spilled = False
        self._in_file = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        """Take one chunk."""
        self.total += len(chunk)
        if self._is_spilled:
            self._spill(chunk)
        room = self._kept - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > self._kept and not self._is_spilled:
            self._open()
        if len(self._tail) > 2 * self._kept:
            self._cut_tail()

    def _cut_tail(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._kept)]

    def _open(self) -> None:
        """Begin the file with all there was; so far nothing of it has been let go."""
        self._is_spilled = True
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # head and tail are kept all the same
        self._spill(bytes(self._head + self._tail))

    def _spill(self, chunk: bytes) -> None:
        view = memoryview(chunk)[: max(0, self._cap - self._in_file)]
        while view and self._fd is not None:
            try:
                written = os.write(self._fd, view)
            except OSError:
                # A full disk must not stop the reading: the kill path depends on it
                self._cap = 0
                return
            self._in_file += written
            view = view[written:]

    def finish(self) -> Output:
        """Return what was kept; nothing may be added after."""
        has_file = self._fd is not None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._cut_tail()
        return Output(
            head=bytes(self._head),
            tail=bytes(self._tail),
            left_out=self.total - len(self._head) - len(self._tail),
            file=self._path if has_file else None,
        )
