# SPDX-License-Identifier: Apache-2.0
"""Names as words of a shell: whatever a stranger called something, a command line that we propose can be pasted.

Pure; a word never depends on who reads it.
"""

from __future__ import annotations

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
