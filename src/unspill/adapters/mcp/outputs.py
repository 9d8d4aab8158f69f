# SPDX-License-Identifier: Apache-2.0
"""What this server's calls did: their runs, what these printed, and what was applied. It ends with the server.

Others may use the same sandbox, the person first of all, who may have shown a run of theirs more than a model is to
see. So a client reads on in the output of its own calls only, and takes back only what they have applied.

The record of a run has 64 KiB of each end of a stream, and a file is written only for what is longer than memory holds
anyway. What lies between is kept here for the last runs, as far as a bound.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from unspill.model.run import OutputChunk

if TYPE_CHECKING:
    from unspill.adapters.answering import Answer
    from unspill.model.run import Event, StreamName
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
        key = (sandbox.id, run, stream)
        with self._lock:
            self._bytes += len(whole) - len(self._kept.pop(key, b""))
            self._kept[key] = whole
            while self._bytes > self._most:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))

    def find(self, sandbox: Sandbox, run: int, stream: str) -> bytes | None:
        """Return a stream that is kept."""
        with self._lock:
            return self._kept.get((sandbox.id, run, stream))


class Own:
    """The runs and the operations of calls, by sandbox and number. Used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the fields below
        self._runs: set[tuple[str, int]] = set()
        self._operations: set[tuple[str, int]] = set()

    def add(self, sandbox: Sandbox, tool: str, answer: Answer) -> None:
        """Take note of what a call did. What file tools print is between them and their scripts."""
        run, operation = answer.values.get("run"), answer.values.get("operation")
        with self._lock:
            if run and tool == "run":
                self._runs.add((sandbox.id, run))
            if operation:
                self._operations.add((sandbox.id, operation))

    def has_run(self, sandbox: Sandbox, run: int) -> bool:
        """Tell whether it was a call that ran it."""
        with self._lock:
            return (sandbox.id, run) in self._runs

    def has_operation(self, sandbox: Sandbox, operation: int) -> bool:
        """Tell whether it was a call that applied it."""
        with self._lock:
            return (sandbox.id, operation) in self._operations
