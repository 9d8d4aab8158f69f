# SPDX-License-Identifier: Apache-2.0
"""Bytes of strangers made safe to show: the only way of a name or a line from a sandbox to a screen or a model.

Nothing that moves a cursor, reorders text, hides or breaks a line gets through, and no byte is lost: one that is not
UTF-8 is shown as `\\xNN`, a character that can't be printed as `\\u{...}`.
"""

from __future__ import annotations

import unicodedata

COLUMNS = 400
TAB = 8

_ALIKE = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"})
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


# Takes back what output may have left in a terminal that could hide, move or divert what is written next. Clears
# nothing, and leaves the cursor where it is.
TERMINAL_RESET = b"".join(
    (
        b"\x18\x1b\\",  # a sequence or a string that was not ended is dropped
        b"\x1b<\x1b\x03",  # back from the languages of VT52 and Tektronix
        b"\x1b[4i\x1b[?4i\x1b[0$}",  # not to a printer, not to the status line
        b"\x1b[?1047l\x1b[?47l",  # not on the alternate screen
        b"\x1b7\x1b[?69l\x1b[r\x1b8",  # no margins; to set them moves the cursor
        b"\x1b[4l\x1b[20l\x1b[?5l\x1b[?7h\x1b[?25h\x1b[?45l\x1b[?2026l",  # overwrite, wrap, show, at once
        b"\x1b(B\x1b)B\x1b*B\x1b+B\x0f",  # letters, no line drawing
        b"\x1b[0m\x1b]8;;\x1b\\",  # no attribute, no link
        b"\x1b[?1l\x1b>\x1b[>4;0m\x1b[=0u",  # keys as usual
        b"\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l",  # no mouse
        b"\x1b[?2004l",  # what is pasted is as if it were typed
    )
)


def quote(name: bytes) -> str:
    """Return a name as one word: plain where that is unmistakable, else in double quotes with escapes."""
    text = name.decode("utf-8", "surrogateescape")
    if text.isprintable() and text and not any(mark in text for mark in "\\\"' "):
        return text
    return '"' + "".join(map(_in_quotes, text)) + '"'


def show_line(raw: bytes, columns: int = COLUMNS) -> str:
    """Return a line of content (without its end) for display: tabs expanded, cut with a count if too long."""
    # Only what can be shown is decoded; a character has at most four bytes.
    text = raw[: 4 * columns + 4].decode("utf-8", "surrogateescape").expandtabs(TAB)
    if not text.isprintable():
        text = "".join(map(_visible, text))
    if len(text) <= columns and len(raw) <= 4 * columns + 4:
        return text
    return f"{text[:columns]} [cut: {len(raw)} bytes in this line]"


def is_cut(raw: bytes, columns: int = COLUMNS) -> bool:
    """Tell whether `show_line` leaves something of a line out; also of one that only looks like it."""
    # A byte takes eight columns at most, as a tab or as an escape
    return 8 * len(raw) > columns and show_line(raw, columns).endswith(" bytes in this line]")


def is_mixed_script(name: bytes) -> bool:
    """Tell whether one word of a name mixes letters of scripts that look alike, such as Latin and Cyrillic."""
    if name.isascii():
        return False
    scripts: set[str] = set()
    for character in name.decode("utf-8", "replace"):
        if not character.isalpha():
            scripts.clear()
        elif (script := unicodedata.name(character, "").partition(" ")[0]) in _ALIKE:
            scripts.add(script)
            if len(scripts) > 1:
                return True
    return False


def _in_quotes(character: str) -> str:
    return "\\" + character if character in '\\"' else _visible(character)


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return _NAMED.get(character) or f"\\u{{{code:x}}}"
