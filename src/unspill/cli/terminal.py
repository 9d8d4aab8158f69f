# SPDX-License-Identifier: Apache-2.0
"""A command's output on its way to a terminal: text and colours pass, whatever else a terminal obeys is shown instead.

A terminal answers questions as if they had been typed, changes its title, its clipboard and its past. What is not on a
terminal gets every byte as it was. No byte is lost: what is not obeyed is readable.

What output leaves in a terminal is taken back before our own lines: they come last, and nothing hides them.
"""

from __future__ import annotations

from unspill.changes.quote import TERMINAL_RESET

_ESC = 0x1B
_NEW_LINE = 0x0A
# New line, return (progress bars), tab, backspace: none of them leaves the line or speaks to the terminal
_PLAIN = frozenset(b"\n\r\t\b")
# Select graphic rendition, erase in line
_FINAL = frozenset(b"mK")
_PARAMETERS = frozenset(b"0123456789;:")
_LONGEST = 48
# All but the controls of ASCII, and of those the ones that never leave the line
_HARMLESS = bytes(byte for byte in range(256) if byte >= 0x20 and byte != 0x7F) + b"\n\r\t\b\a\x1b"
# The controls of eight bits, in UTF-8: sequences may begin with them as well
_C1 = tuple(bytes((0xC2, byte)) for byte in range(0x80, 0xA0))
_PLAIN_TEXT = b"\x1b[0m"
# The only number that some terminals know. It brings back a saved cursor, with attributes: all else must follow it
_LEAVE_ALTERNATE = b"\x1b[?1049l"
# Palette, text, background and cursor; the last one is the Linux console's
_USUAL_COLOURS = b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\\x1b]R\x1b\\"
# Nothing is below the last line, whatever lies above
_TO_THE_END = b"\x1b[?6l\x1b[9999;1H\r\n"
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


class Traces:
    """What output, chunk by chunk, may have left in a terminal, by itself or by way of a program that reads it."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_line_open = False
        self._has_sequences = False
        self._has_strings = False
        self._is_wild = False

    def note(self, chunk: bytes) -> None:
        """Look at what is written."""
        text = self._kept + chunk
        end = len(text) - _unfinished(text)
        self._kept = text[end:]
        self._look(text[:end])
        while (at := text.rfind(b"\x1b", 0, end)) >= 0 and _sequence(text[at:end].decode("latin-1"), 0) == end - at:
            # Colours are often put back after the end of the line
            end = at
        self._is_line_open = text[end - 1] != _NEW_LINE if end else self._is_line_open

    def reset(self, *, is_read: bool) -> bytes:
        """Return what makes a terminal usual again, nothing after plain lines; `is_read` is where our lines follow."""
        self._look(self._kept)
        if self._is_wild:
            colours = _USUAL_COLOURS if self._has_strings else b""
            return TERMINAL_RESET + _LEAVE_ALTERNATE + TERMINAL_RESET + colours + _TO_THE_END
        new_line = b"\n" if is_read and (self._is_line_open or self._kept) else b""
        return (_PLAIN_TEXT if self._has_sequences else b"") + new_line

    def _look(self, text: bytes) -> None:
        if self._is_wild and self._has_strings:
            return
        is_high = b"\xc2" in text and any(control in text for control in _C1)
        has_sequences = b"\x1b" in text
        self._has_sequences = self._has_sequences or has_sequences
        self._has_strings = self._has_strings or is_high or b"\x1b]" in text
        self._is_wild = self._is_wild or is_high or bool(text.translate(None, _HARMLESS))
        if has_sequences and not self._is_wild:
            decoded = text.decode("latin-1")
            at = decoded.find("\x1b")
            while at >= 0 and not self._is_wild:
                self._is_wild = not _sequence(decoded, at)
                at = decoded.find("\x1b", at + 1)


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
