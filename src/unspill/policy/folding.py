# SPDX-License-Identifier: Apache-2.0
"""Names as the most forgiving filesystem compares them, so that a name in disguise is the name it stands for.

Some filesystems ignore case, Unicode forms, invisible characters, trailing dots and spaces, streams after a colon, or
know a name by a short alias as well. What is equal on any of them is folded to one spelling here.
"""

from __future__ import annotations

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
