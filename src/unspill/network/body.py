# SPDX-License-Identifier: Apache-2.0
"""Where the body of a request ends: after its length, or after its last chunk.

Whatever a client sends behind that end is not passed on, so a second request can't ride along with the first.
"""

from __future__ import annotations

from unspill.policy.hosts import Refused

_SIZE_DIGITS = 15
_HEX = b"0123456789abcdefABCDEF"


class Body:
    """Passes on exactly one body. `is_over` once it is complete."""

    def __init__(self, length: int | None) -> None:
        self.is_over = length == 0
        self._left = length or 0
        self._is_chunked = length is None
        self._line = b""  # a size line, or the line end behind a chunk, as far as it has arrived
        self._awaits_line_end = False
        self._is_last = False

    def feed(self, received: bytes) -> bytes:
        """Return what of it belongs to the body.

        Raises:
            Refused: The chunks are malformed.
        """
        if not self._is_chunked:
            taken = received[: self._left]
            self._left -= len(taken)
            self.is_over = not self._left
            return taken
        at = 0
        while at < len(received) and not self.is_over:
            at += self._feed_chunk(received, at)
        return received[:at]

    def _feed_chunk(self, received: bytes, at: int) -> int:
        if self._left:
            taken = min(self._left, len(received) - at)
            self._left -= taken
            self._awaits_line_end = not self._left
            return taken
        self._line += received[at : at + 1]
        if self._awaits_line_end:
            self._read_line_end()
        else:
            self._read_size()
        return 1

    def _read_line_end(self) -> None:
        if not b"\r\n".startswith(self._line):
            raise Refused("request", "a chunk is longer than it says")
        if self._line == b"\r\n":
            self._line, self._awaits_line_end, self.is_over = b"", False, self._is_last

    def _read_size(self) -> None:
        digits = self._line.removesuffix(b"\r\n").removesuffix(b"\r")
        # Extensions and trailers are part of chunks, but no two servers read them alike
        if len(digits) > _SIZE_DIGITS or digits.translate(None, _HEX) or (not digits and self._line):
            raise Refused("request", "the size of a chunk is malformed")
        if self._line.endswith(b"\r\n"):
            self._line, self._left = b"", int(digits, 16)
            self._is_last = self._awaits_line_end = not self._left
