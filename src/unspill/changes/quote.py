# SPDX-License-Identifier: Apache-2.0
"""Names and lines of strangers, made safe to show: the only way of bytes from a sandbox to a screen or a model.

Nothing that moves a cursor, reorders text, hides or ends a line gets through; what is not UTF-8 stays legible.
"""

from __future__ import annotations

TAB = 8
WIDTH = 400


def escape(raw: bytes) -> str:
    """Return text in which every character is printable and each byte that was not UTF-8 is `\\xNN`."""
    text = raw.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character == "\\":
        return "\\\\"
    if character == "\n":
        return "\\n"
    return character if character.isprintable() else f"\\u{{{code:x}}}"


def quote(path: bytes) -> str:
    """Return a path as one unbroken word: as it is where nothing in it needs quotes, else within them."""
    shown = escape(path)
    plain = shown == path.decode("utf-8", "replace") and shown.strip() == shown and shown
    if plain and not any(mark in shown for mark in "\"' "):
        return shown
    return '"' + shown.replace('"', '\\"') + '"'
