# SPDX-License-Identifier: Apache-2.0
"""A command's output on its way to a terminal: text and colours pass, whatever else a terminal obeys is shown instead.

A terminal answers questions as if they had been typed, changes its title, its clipboard and its past. What is not on a
terminal gets every byte as it was. No byte is lost: what is not obeyed is readable.
"""

from __future__ import annotations

_ESC = 0x1B
# New line, return (progress bars), tab, backspace: none of them leaves the line or speaks to the terminal
_PLAIN = frozenset(b"\n\r\t\b")
# Select graphic rendition, erase in line
_FINAL = frozenset(b"mK")
_PARAMETERS = frozenset(b"0123456789;:")
_LONGEST = 48
# Reorder what is shown: embeddings, overrides, isolates
_REORDERING = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Screen:
    """One stream, chunk by chunk; what a chunk ends in the middle of is kept for the next."""

    def __init__(self) -> None:
        self._kept = b""

    def render(self, chunk: bytes) -> bytes:
        """Return what may be written to the terminal now."""
        text = self._kept + chunk
        whole = len(text) - _unfinished(text)
        self._kept = text[whole:]
        return _rendered(text[:whole])

    def rest(self) -> bytes:
        """Return what is left when the stream has ended."""
        kept, self._kept = self._kept, b""
        return _rendered(kept)


def _unfinished(text: bytes) -> int:
    """Return how many bytes at the end may be the beginning of a character or of a sequence."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < wanted else 0
        if byte < 0x80:
            break
    start = text.rfind(_ESC, max(0, len(text) - _LONGEST))
    if start < 0:
        return 0
    is_open = text[start + 1 : start + 2] in (b"", b"[") and all(byte in _PARAMETERS for byte in text[start + 2 :])
    return len(text) - start if is_open else 0


def _rendered(text: bytes) -> bytes:
    decoded = text.decode("utf-8", "surrogateescape")
    if decoded.isprintable():
        return text
    parts: list[str] = []
    at = 0
    while at < len(decoded):
        length = _sequence(decoded, at)
        parts.append(decoded[at : at + length] if length else _shown(decoded[at]))
        at += length or 1
    return "".join(parts).encode("utf-8", "surrogateescape")


def _sequence(text: str, at: int) -> int:
    """Return the length of a colour or of an erasure in the line that begins there, 0 where there is none."""
    if ord(text[at]) != _ESC or text[at + 1 : at + 2] != "[":
        return 0
    end = at + 2
    while end < len(text) and end - at < _LONGEST and ord(text[end]) in _PARAMETERS:
        end += 1
    return end + 1 - at if end < len(text) and ord(text[end]) in _FINAL else 0


def _shown(character: str) -> str:
    number = ord(character)
    if number in _PLAIN or character.isprintable():
        return character
    # What is no UTF-8 is shown; a lone byte of 0x80 to 0x9f is a control to some terminals
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x20 or 0x7F <= number < 0xA0:
        return f"\\x{number:02x}"
    # Joiners and selectors belong to letters and pictures
    return f"\\u{{{number:x}}}" if character in _REORDERING else character
