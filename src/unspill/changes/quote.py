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
