# SPDX-License-Identifier: Apache-2.0
"""Paths as bytes, by their text alone: one spelling for each, which contains which, where a link leads, how to show it.

Nothing here asks the disk what a path is. `fold` brings a name into the spelling that the most forgiving filesystem
compares it by, so that a name in disguise is the name it stands for: some ignore case, Unicode forms, invisible
characters, trailing dots and spaces, streams after a colon, or know a name by a short alias as well.
"""

from __future__ import annotations

import posixpath

_BARE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_PRINTABLE = frozenset(range(0x20, 0x7F))
# Ignored by case-insensitive filesystems although they are no format characters: joiners, fillers, selectors
_IGNORED = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
# What a name in lower case may be made of without being a disguise of another
_PLAIN = bytes(char for char in range(33, 127) if chr(char).lower() == chr(char) and chr(char) not in ":~/")


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


def is_normalised(path: bytes) -> bool:
    """Tell whether a path is absolute and in its one spelling."""
    return path.startswith(b"/") and b"\0" not in path and normalise(path) == path


def contains(outer: bytes, inner: bytes) -> bool:
    """Tell whether `inner` is `outer` or lies beneath it. Both are normalised."""
    return inner == outer or outer == b"/" or inner.startswith(outer + b"/")


def lies_beneath(inner: bytes, outer: bytes) -> bool:
    """Tell whether `inner` lies strictly beneath `outer`."""
    return inner != outer and contains(outer, inner)


def resolve_text(place: bytes, target: bytes, root: bytes) -> list[bytes] | None:
    """Return the components, from the root on, of where `target` leads; None where that may be outside.

    A `..` after a name is taken for outside: if the name is a link, nobody can tell from the text where it leads.

    Args:
        place: The directory that a relative target starts from, itself relative to the root.
        target: Absolute or relative.
        root: The root's own path.
    """
    parts = _components(target)
    if b"\0" in target:
        return None
    if target.startswith(b"/"):
        own = _components(root)
        if parts[: len(own)] != own or b".." in parts:
            return None
        return parts[len(own) :]
    where = _components(place)
    climbs = 0
    while climbs < len(parts) and parts[climbs] == b"..":
        climbs += 1
    if climbs > len(where) or b".." in parts[climbs:]:
        return None
    return where[: len(where) - climbs] + parts[climbs:]


def climbs_after_a_name(target: bytes) -> bool:
    """Tell whether a target has a `..` behind a name, so that its text does not say where it leads."""
    parts = _components(target)
    first_name = next((index for index, part in enumerate(parts) if part != b".."), len(parts))
    return b".." in parts[first_name:]


def show(path: bytes) -> str:
    """Return a path for messages: invalid UTF-8 and whatever does not print is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shell_word(name: bytes) -> str:
    """Return a name as one word of a shell that is safe to print and to paste."""
    if name and _BARE.issuperset(name):
        return name.decode("ascii")
    if _PRINTABLE.issuperset(name):
        return "'" + name.decode("ascii").replace("'", "'\\''") + "'"
    return "$'" + "".join(_escaped(byte) for byte in name) + "'"


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


def _components(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _escaped(byte: int) -> str:
    if byte in b"\\'":
        return "\\" + chr(byte)
    return chr(byte) if byte in _PRINTABLE else f"\\x{byte:02x}"


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
    from unicodedata import category, normalize  # lazy: names that are not ASCII

    folded = normalize("NFKC", normalize("NFKC", text).casefold())
    visible = "".join(char for char in folded if not _is_ignored(char, category(char)))
    # A compatibility form may be spelled with a slash, which divides nothing on any disk
    return visible.replace("/", "_")


def _is_ignored(char: str, category: str) -> bool:
    return category == "Cf" or char in _IGNORED or "\u180b" <= char <= "\u180f" or "\ufe00" <= char <= "\ufe0f"
