# SPDX-License-Identifier: Apache-2.0
"""Absolute paths as bytes: one spelling for each, and which of two contains the other.

Knows names only. Nothing here asks the disk what a path is.

MERGED
[words] Names as words of a shell: whatever a stranger called something, a command line that we propose can be pasted.

Pure; a word never depends on who reads it.

[folding] Names as the most forgiving filesystem compares them, so that a name in disguise is the name it stands for.

Some filesystems ignore case, Unicode forms, invisible characters, trailing dots and spaces, streams after a colon, or
know a name by a short alias as well. What is equal on any of them is folded to one spelling here.
"""

from __future__ import annotations

import posixpath

_BARE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_PRINTABLE = frozenset(range(0x20, 0x7F))


def shell_word(name: bytes) -> str:
    """Return a name as one word of a shell that is safe to print and to paste."""
    if name and _BARE.issuperset(name):
        return name.decode("ascii")
    if _PRINTABLE.issuperset(name):
        return "'" + name.decode("ascii").replace("'", "'\\''") + "'"
    return "$'" + "".join(_escaped(byte) for byte in name) + "'"


def _escaped(byte: int) -> str:
    if byte in b"\\'":
        return "\\" + chr(byte)
    return chr(byte) if byte in _PRINTABLE else f"\\x{byte:02x}"


# Ignored by case-insensitive filesystems although they are no format characters: joiners, fillers, selectors
_IGNORED = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


# What a name in lower case may be made of without being a disguise of another
_PLAIN = bytes(char for char in range(33, 127) if chr(char).lower() == chr(char) and chr(char) not in ":~/")


def fold(path: bytes, aliases: dict[str, str]) -> bytes:
    """Return a path in the one spelling of all that some filesystem takes for it.

    Args:
        path: Relative, components divided by slashes; there are as many of them afterwards.
        aliases: Names by what is before the tilde in their short alias.
    """
    return b"/".join(_fold_name(name, aliases) for name in path.split(b"/"))


def is_odd(name: bytes) -> bool:
    """Tell whether a name in lower case may still be a disguise of another one."""
    return bool(name.translate(None, _PLAIN)) or name[-1:] == b"."


def alias_of(name: bytes) -> str:
    """Return what is before the tilde in the short alias that a name gets where names have eight letters."""
    base, dot, _ = name.decode("ascii").lstrip(".").rpartition(".")
    whole = base if dot else name.decode("ascii").lstrip(".")
    return whole.replace(".", "")[:6]


def _fold_name(name: bytes, aliases: dict[str, str]) -> bytes:
    text = name.decode("utf-8", "surrogateescape")
    if not name.isascii():
        text = _fold_unicode(text)
    text = text.lower()
    text = text.partition(":")[0] or text
    text = text.rstrip(" .") or text
    stem, tilde, number = text.partition("~")
    if tilde and number[:1].isdigit():
        text = aliases.get(stem, text)
    return text.encode("utf-8", "surrogateescape")


def _fold_unicode(text: str) -> str:
    from unicodedata import category, normalize

    folded = normalize("NFKC", normalize("NFKC", text).casefold())
    visible = "".join(char for char in folded if not _is_ignored(char, category(char)))
    # A compatibility form may be spelled with a slash, which divides nothing on any disk
    return visible.replace("/", "_")


def _is_ignored(char: str, category: str) -> bool:
    return category == "Cf" or char in _IGNORED or "\u180b" <= char <= "\u180f" or "\ufe00" <= char <= "\ufe0f"


def normalise(path: bytes) -> bytes:
    """Return the one spelling of an absolute path: no `.`, no `..`, single slashes, none at the end.

    Raises:
        ValueError: the path is not absolute, or a byte of it is NUL.
    """
    if not path.startswith(b"/"):
        raise ValueError("not an absolute path")
    if b"\0" in path:
        raise ValueError("a path can't contain NUL")
    # POSIX leaves exactly two leading slashes alone; Linux knows no such thing
    return b"/" + posixpath.normpath(path).lstrip(b"/")


def contains(outer: bytes, inner: bytes) -> bool:
    """Tell whether `inner` is `outer` or lies beneath it. Both are normalised."""
    return inner == outer or outer == b"/" or inner.startswith(outer + b"/")


def lies_beneath(inner: bytes, outer: bytes) -> bool:
    """Tell whether `inner` lies strictly beneath `outer`."""
    return inner != outer and contains(outer, inner)


def show(path: bytes) -> str:
    """Return a path for messages: invalid UTF-8 and whatever does not print is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
