# SPDX-License-Identifier: Apache-2.0
"""Match paths with a pattern: `*` and `?` within a name, `**` across names, `[a-z]` and `[!a-z]`.

All places of the pattern that the path may have reached are followed at once, as the bits of one number: so the time
grows with the length of the path, whatever the pattern. Characters are compared, not bytes; a leading dot is one of
them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # Tells which characters one place of a pattern accepts.
    Accepts = Callable[[str], bool]


class Glob:
    """One pattern."""

    __slots__ = ("_end", "_forks", "_loops", "_masks", "_places", "_prefix")

    def __init__(self, pattern: bytes) -> None:
        text = pattern.decode("utf-8", "surrogateescape")
        self._places: list[Accepts] = []
        # Bits of the places that accept any number of characters, and of those that are before a `**/`
        self._loops = 0
        self._forks = 0
        self._masks: dict[str, int] = {}
        cut = min((text.find(mark) for mark in "*?[" if mark in text), default=len(text))
        self._prefix = text[:cut].encode("utf-8", "surrogateescape")
        self._compile(text)
        self._end = 1 << len(self._places)

    def matches(self, path: bytes) -> bool:
        """Tell whether the pattern matches a whole path."""
        if not path.startswith(self._prefix):
            return False
        reached = self._passed(1)
        for character in path.decode("utf-8", "surrogateescape"):
            mask = self._masks.get(character)
            if mask is None:
                mask = self._masks[character] = self._accepting(character)
            reached &= mask
            if not reached:
                return False
            reached = self._passed(reached & self._loops | (reached & ~self._loops) << 1)
        return bool(reached & self._end)

    def _compile(self, text: str) -> None:
        at = 0
        while at < len(text):
            if text[at] != "*":
                accepts, at = _place(text, at)
                self._places.append(accepts)
                continue
            start = at
            while at < len(text) and text[at] == "*":
                at += 1
            crosses, is_whole = at - start > 1, start == 0 or text[start - 1] == "/"
            if crosses and is_whole and text[at : at + 1] == "/":
                # It may also stand for no directory at all, so before it is a place that leads into it and past it.
                self._forks |= 1 << len(self._places)
                self._places.append(_nothing)
            self._loops |= 1 << len(self._places)
            self._places.append(_anything if crosses else _in_a_name)

    def _accepting(self, character: str) -> int:
        return sum(1 << at for at, accepts in enumerate(self._places) if accepts(character))

    def _passed(self, reached: int) -> int:
        """Add the places that are reached without another character."""
        while True:
            forks = reached & self._forks
            more = reached | (reached & self._loops) << 1 | forks << 1 | forks << 3
            if more == reached:
                return reached
            reached = more


def _place(text: str, at: int) -> tuple[Accepts, int]:
    """Return what the pattern accepts at a position that is no star, and the position after it."""
    if text[at] == "?":
        return _in_a_name, at + 1
    if text[at] == "[" and (end := text.find("]", at + 2 + (text[at + 1 : at + 2] in ("!", "^")))) > 0:
        return _one_of(text[at + 1 : end]), end + 1
    return text[at].__eq__, at + 1


def _one_of(body: str) -> Accepts:
    is_negated = body[:1] in ("!", "^")
    rest = body[is_negated:]
    ranges: list[tuple[str, str]] = []
    while rest:
        size = 3 if len(rest) > 2 and rest[1] == "-" else 1
        ranges.append((rest[0], rest[size - 1]))
        rest = rest[size:]

    def accepts(character: str) -> bool:
        return character != "/" and any(low <= character <= high for low, high in ranges) != is_negated

    return accepts


def _in_a_name(character: str) -> bool:
    return character != "/"


def _nothing(_character: str) -> bool:
    return False


def _anything(_character: str) -> bool:
    return True
