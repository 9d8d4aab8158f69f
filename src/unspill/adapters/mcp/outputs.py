# SPDX-License-Identifier: Apache-2.0
"""What this server's runs printed, for those who read on after a result that was cut.

The record of a run has 64 KiB of each end of a stream, and a file is written only for what is longer than memory holds
anyway. What lies between is kept here for the last runs, as far as a bound; it ends with the server.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from unspill.model.event import OutputChunk

if TYPE_CHECKING:
    from unspill.model.event import Event
    from unspill.model.run import StreamName
    from unspill.sandbox.sandbox import Sandbox

    Key = tuple[str, int, str]

MOST_BYTES = 32 * 1024 * 1024


class Heard:
    """All that one run prints, up to a bound; of a stream that prints more nothing, since that has a file."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._streams: dict[StreamName, bytearray | None] = {"stdout": bytearray(), "stderr": bytearray()}

    def take(self, event: Event) -> None:
        """Look at an event of the run."""
        if isinstance(event, OutputChunk) and (heard := self._streams[event.stream]) is not None:
            heard += event.chunk
            if len(heard) > self._most:
                self._streams[event.stream] = None

    def whole(self, stream: str) -> bytes | None:
        """Return a stream, None where it was too long."""
        for name, heard in self._streams.items():
            if name == stream and heard is not None:
                return bytes(heard)
        return None


class Outputs:
    """Streams of the last runs by sandbox, run and name. Used by any thread."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._lock = threading.Lock()  # protects the fields below
        self._kept: dict[Key, bytes] = {}
        self._bytes = 0

    def put(self, sandbox: Sandbox, run: int, stream: str, whole: bytes | None) -> None:
        """Keep a stream; the oldest ones go where there is no room."""
        if whole is None:
            return
        key = (sandbox._opened.row.id, run, stream)
        with self._lock:
            self._bytes += len(whole) - len(self._kept.pop(key, b""))
            self._kept[key] = whole
            while self._bytes > self._most:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))

    def find(self, sandbox: Sandbox, run: int, stream: str) -> bytes | None:
        """Return a stream that is kept."""
        with self._lock:
            return self._kept.get((sandbox._opened.row.id, run, stream))
