# SPDX-License-Identifier: Apache-2.0
"""Paths as bytes, by their text alone: one spelling for each, which contains which, where a link leads, how to show it.

Nothing here asks the disk what a path is. `fold` brings a name into the spelling that the most forgiving filesystem
compares it by, so that a name in disguise is the name it stands for: some ignore case, Unicode forms, invisible
characters, trailing dots and spaces, streams after a colon, or know a name by a short alias as well.

Bytes of strangers reach a screen or a model only as they are quoted here: nothing that moves a cursor, reorders text,
hides or breaks a line gets through, and no byte is lost. Of names, letters that are there to be taken for others are
escaped as well; what is plainly written in one script is not.
"""

from __future__ import annotations

import posixpath
import unicodedata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any

_BARE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_PRINTABLE = frozenset(range(0x20, 0x7F))
# Ignored by case-insensitive filesystems although they are no format characters: joiners, fillers, selectors
_IGNORED = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
# What a name in lower case may be made of without being a disguise of another
_PLAIN = bytes(char for char in range(33, 127) if chr(char).lower() == chr(char) and chr(char) not in ":~/")

_WILD = frozenset(b"*?[\\")
_EVERY_BYTE = frozenset(range(256))

COLUMNS = 400
# Of a path that the kernel takes; a name in it may be shorter still
LONGEST_PATH = 4095
TAB = 8
# Before each row of a line that was cut to the width of a terminal
ROW_MARK = "| "
_NARROWEST = 20
_ALIKE = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"})
# Printable, and yet a blank, a slash, a dot, a stroke, or a letter of ASCII in another shape
_MISLEADING = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
    "\u2044\u2215\u2216\u2571\u27cb\u29f5\u29f8\ufe68\uff0f\uff3c"
    "\u2024\u2025\uff0e"
    "\u01c0\u01c1\u01c2\u01c3\ua78c\u0251\u0261\u0269"
)
# What nobody could tell from a letter of ASCII, by script: Cyrillic, Greek, Armenian
_LIKE_LATIN = frozenset(
    "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0456\u0458\u0455\u04bb\u0501\u051b\u051d\u0475\u04cf\u0410"
    "\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u0423\u04ae\u04c0"
    "\u03bf\u03bd\u03b9\u03ba\u03c5\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4"
    "\u03a5\u03a7"
    "\u0585\u057d\u0570\u0578\u0581\u0555\u054d"
)
# Written together with Latin letters without looking like them
_BESIDE_LATIN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC"})
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


def glob_matches(parts: Sequence[bytes], patterns: tuple[bytes, ...]) -> bool:
    """Tell whether the components of a path match patterns, as in `.gitignore`: `**` stands for any number of them.

    At the end `**` stands for one component at least. The time is at most the product of both lengths.
    """
    if patterns[-1:] == (b"**",):
        patterns = (*patterns, b"*")
    return _matches(parts, patterns, b"**", _name_matches)


def _name_matches(name: bytes, pattern: bytes) -> bool:
    """Tell whether one name matches a pattern with `*`, `?`, `[a-z]` and `\\`."""
    if not _WILD.intersection(pattern):
        return name == pattern
    items = _items(pattern)
    return items is not None and _matches([bytes((byte,)) for byte in name], items, None, _is_in)


def _matches(
    words: Sequence[bytes], items: Sequence[Any], any_number: object, is_one: Callable[[bytes, Any], bool]
) -> bool:
    """Match words with items, of which `any_number` stands for any number of words; the last such one gives way."""
    word = item = 0
    star = retry = -1
    while word < len(words):
        if item < len(items) and items[item] == any_number:
            star, retry, item = item, word, item + 1
        elif item < len(items) and is_one(words[word], items[item]):
            word, item = word + 1, item + 1
        elif star >= 0:
            retry += 1
            word, item = retry, star + 1
        else:
            return False
    return all(left == any_number for left in items[item:])


def _items(pattern: bytes) -> list[frozenset[int] | None] | None:
    """Return which bytes each place of a pattern allows, None for `*`; None where a bracket is never closed."""
    items: list[frozenset[int] | None] = []
    at = 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        end = at + 1
        if char == b"*":
            items.append(None)
        elif char == b"?":
            items.append(_EVERY_BYTE)
        elif char == b"[":
            start = at + 2 if pattern[at + 1 : at + 2] in (b"!", b"^") else at + 1
            # A bracket right at the beginning of a class is one of its characters
            close = pattern.find(b"]", start + 1)
            if close < 0:
                return None
            named = _class_of(pattern[start:close])
            items.append(named if start == at + 1 else _EVERY_BYTE - named)
            end = close + 1
        else:
            end += char == b"\\"
            items.append(frozenset(pattern[end - 1 : end]))
        at = end
    return items


def _class_of(text: bytes) -> frozenset[int]:
    found: set[int] = set()
    at = 0
    while at < len(text):
        at += text[at : at + 1] == b"\\" and at + 1 < len(text)
        if text[at + 1 : at + 2] == b"-" and at + 2 < len(text):
            found.update(range(text[at], text[at + 2] + 1))
            at += 3
        else:
            found.add(text[at])
            at += 1
    return frozenset(found)


def _is_in(byte: bytes, allowed: frozenset[int] | None) -> bool:
    return allowed is not None and byte[0] in allowed


def show(path: bytes) -> str:
    """Return a path for messages: invalid UTF-8 and whatever does not print is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    if text.isascii() and text.isprintable():
        return text
    misleading = find_misleading(text)
    return "".join(
        char if char.isprintable() and at not in misleading else char.encode("unicode_escape").decode("ascii")
        for at, char in enumerate(text)
    )


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
    return category == "Cf" or char in _IGNORED or _is_selector(char)


def quote(name: bytes) -> str:
    """Return a name as one word: plain where that is unmistakable, else in double quotes with escapes."""
    text = name.decode("utf-8", "surrogateescape")
    misleading = find_misleading(text)
    if text.isprintable() and text and not misleading and not any(mark in text for mark in "\\\"' "):
        return text
    shown = (escaped(char) if at in misleading else _in_quotes(char) for at, char in enumerate(text))
    return '"' + "".join(shown) + '"'


def find_misleading(text: str) -> set[int]:
    """Return where a name has printable characters that are there to be taken for others, or not to be seen.

    These are blanks, look-alikes of slash and dot, letters of another script in a word with Latin ones, and words that
    could be read as ASCII as a whole, unless another word in the same component is plainly of their script.
    """
    if text.isascii():
        return set()
    found = {at for at, char in enumerate(text) if char in _MISLEADING or _is_selector(char)}
    start = 0
    for component in text.split("/"):
        words = list(_words(component))
        plain = {_script(char) for _, word in words for char in word if not _is_like_latin(char)}
        for at, word in words:
            if _is_disguised(word, plain):
                found |= {start + at + index for index, char in enumerate(word) if _script(char) != "LATIN"}
        start += len(component) + 1
    return found


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the runs of letters in a text that are not all ASCII, and where each begins."""
    start = 0
    for at in range(len(text) + 1):
        if at < len(text) and text[at].isalpha():
            continue
        if not text[start:at].isascii():
            yield start, text[start:at]
        start = at + 1


def _is_disguised(word: str, plain: set[str]) -> bool:
    scripts = {_script(char) for char in word}
    if "LATIN" in scripts:
        return not scripts <= {"LATIN"} | _BESIDE_LATIN
    return all(map(_is_like_latin, word)) and not scripts <= plain


def _script(char: str) -> str:
    return unicodedata.name(char, "").partition(" ")[0]


def _is_like_latin(char: str) -> bool:
    return char in _LIKE_LATIN or unicodedata.decomposition(char).startswith(("<font>", "<wide>"))


def _is_selector(char: str) -> bool:
    return "\u180b" <= char <= "\u180f" or "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def show_line(raw: bytes, columns: int = COLUMNS) -> str:
    """Return a line of content (without its end) for display: tabs expanded, cut with a count if too long."""
    # Only what can be shown is decoded; a character has at most four bytes.
    text = raw[: 4 * columns + 4].decode("utf-8", "surrogateescape").expandtabs(TAB)
    if not text.isprintable():
        text = "".join(map(_visible, text))
    if len(text) <= columns and len(raw) <= 4 * columns + 4:
        return text
    return f"{text[:columns]} [cut: {len(raw)} bytes in this line]"


def wrap(line: str, columns: int, *, at_words: bool = False) -> str:
    """Return a line for a terminal that is so wide, cut by us: no row but the first looks like the start of a line.

    Colours pass. Nothing is cut where the width is unknown. With `at_words`, rows end between words where they can.
    """
    if columns < _NARROWEST or (len(line) <= columns and line.isascii()):
        return line
    rows, row, left, at = [], "", columns, 0
    while at < len(line):
        end = at + 1
        if line[at] == "\033":
            end = line.find("m", at) + 1 or len(line)
        elif (width := 2 if unicodedata.east_asian_width(line[at]) in "WF" else 1) > left:
            space = row.rfind(" ", columns // 2) if at_words and line[at] != " " else -1
            begun = row[space + 1 :] if space > 0 else ""
            if not begun.isascii() or "\033" in begun:
                begun = ""
            rows.append(row[: len(row) - len(begun)].rstrip() if begun else row)
            row, left = ROW_MARK + begun, columns - len(ROW_MARK) - len(begun)
            if at_words and line[at] == " ":
                at = end
                continue
            left -= width
        else:
            left -= width
        row += line[at:end]
        at = end
    return "\n".join((*rows, row))


def closest(word: str, known: Collection[str]) -> str:
    """Return the word that a mistyped one most likely stands for, or the only one that it begins; else nothing."""
    begun = [one for one in known if len(word) > 1 and one.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    most = 1 + len(word) // 4
    near = [(_distance(word, one), one) for one in known if abs(len(one) - len(word)) <= most]
    distance, found = min(near, default=(most + 1, ""))
    return found if distance <= most < len(word) - 1 else ""


def _distance(one: str, other: str) -> int:
    """Return how many letters must be changed, left out, added or swapped with the next to make one word the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, char in enumerate(one):
        older, before, row = before, row, [at + 1]
        for to, wanted in enumerate(other):
            cost = min(row[to] + 1, before[to + 1] + 1, before[to] + (char != wanted))
            if at and to and (char, one[at - 1]) == (other[to - 1], wanted):
                cost = min(cost, older[to - 1] + 1)
            row.append(cost)
    return row[-1]


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
    return character if character.isprintable() else escaped(character)


def escaped(character: str) -> str:
    """Return what stands for a character that is not shown as it is."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return _NAMED.get(character) or f"\\u{{{code:x}}}"


def moved(path: bytes, old: bytes, new: bytes) -> bytes:
    """Return where a path is once the directory `old` is at `new`."""
    return new + path[len(old) :] if path == old or path.startswith(old + b"/") else path
