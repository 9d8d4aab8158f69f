# SPDX-License-Identifier: Apache-2.0
"""Any bytes as words of a POSIX shell, in text that is safe to print and to paste.

Control characters and whatever is not ASCII never appear raw: such a word becomes a variable that printf fills.
"""

from __future__ import annotations

_BARE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_PRINTABLE = frozenset(range(0x20, 0x7F))


class Words:
    """Turns bytes into words and keeps the assignments that must stand before them."""

    def __init__(self) -> None:
        self.assignments: list[str] = []

    def word(self, value: bytes) -> str:
        """Return a word that the shell reads as exactly these bytes."""
        if value and _BARE.issuperset(value):
            return value.decode("ascii")
        if _PRINTABLE.issuperset(value):
            return "'" + value.decode("ascii").replace("'", "'\\''") + "'"
        name = f"v{len(self.assignments)}"
        # $(...) drops newlines at the end, so there is a full stop after them
        self.assignments.append(f"{name}=$(printf '{printf_format(value)}.'); {name}=${{{name}%.}}")
        return f'"${name}"'


def printf_format(value: bytes) -> str:
    """Return a format, to be put between single quotes, for which printf prints exactly these bytes."""
    # `%%` and not octal: dash looks for conversions after it has replaced the escapes
    text = "".join(_PRINTF.get(byte) or f"\\{byte:03o}" for byte in value)
    return "\\055" + text[1:] if text.startswith("-") else text


_PRINTF = {byte: chr(byte) for byte in _PRINTABLE if byte not in b"\\'"} | {ord("%"): "%%"}
