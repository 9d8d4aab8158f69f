# SPDX-License-Identifier: Apache-2.0
"""Words of strangers inside a question: shown so that they can't be taken for anything but what they are.

Stricter than `changes.quote`, because somebody decides by it within seconds: besides what does not print, also marks
that combine, blanks, letters that run from right to left and signs that look like ASCII are spelt out as `\\u{...}`.
"""

from __future__ import annotations

# The shell of this host, and those that a rootfs may have
_SHELLS = (b"/bin/sh", b"/bin/bash", b"/usr/bin/bash")
COLUMNS = 300

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"'}
# Letters by their category, and yet a blank or a stroke: fillers of Hangul, clicks that look like | and !
_MISLEADING = frozenset("\u115f\u1160\u3164\uffa0\u01c0\u01c1\u01c2\u01c3\ua78c")
_LETTERS_AND_DIGITS = frozenset(("Lu", "Ll", "Lt", "Lo", "Nd"))
_FROM_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN"))


def is_text(argv: tuple[bytes, ...]) -> bool:
    """Tell whether a command was given as a text, which the usual shell runs."""
    return len(argv) == 3 and argv[0] in _SHELLS and argv[1] == b"-c"


def is_plain(character: str) -> bool:
    """Tell whether a character can be shown as it is: it takes its place in the line, and looks like no other."""
    if character.isascii():
        return character.isprintable()
    import unicodedata

    return (
        unicodedata.category(character) in _LETTERS_AND_DIGITS
        and unicodedata.bidirectional(character) not in _FROM_RIGHT_TO_LEFT
        and unicodedata.normalize("NFKC", character) == character
        and character not in _MISLEADING
    )


def show_word(word: bytes) -> str:
    """Return an argument or a path: bare if no shell would see more in it than a word, else in quotes with escapes."""
    text = word.decode("utf-8", "surrogateescape")
    if text and all(character in _BARE or (not character.isascii() and is_plain(character)) for character in text):
        return text
    return _quoted(text)


def show_command(argv: tuple[bytes, ...]) -> str:
    """Return a command on one line: what a shell is given as it was written, a list of arguments as words."""
    if is_text(argv):
        return _show_script(argv[2])
    return " ".join(map(show_word, argv))


def shorten(shown: str, columns: int = COLUMNS) -> str:
    """Return shown text with its middle left out and counted where it is too long: both of its ends count."""
    if len(shown) <= columns:
        return shown
    head = columns * 2 // 3
    tail = columns - head
    left_out = len(shown) - head - tail
    return f"{shown[:head]} [... {left_out} characters left out ...] {shown[-tail:]}"


def wrap(shown: str, columns: int = 100) -> list[str]:
    """Return shown text in lines that a mark at their beginning tells from everything else."""
    return [f"| {shown[start : start + columns]}" for start in range(0, len(shown), columns)] or ["| "]


def _show_script(script: bytes) -> str:
    text = script.decode("utf-8", "surrogateescape")
    # What starts with a quote, or does not end where it seems to, could be taken for the quoted form of something else
    if text and text.strip() == text and text[0] != '"' and all(map(is_plain, text)):
        return text
    return _quoted(text)


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if is_plain(character):
        return character
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{{{code:x}}}"
