# SPDX-License-Identifier: Apache-2.0
"""Single values between records and rows, checked on the way out.

A damaged or forged file may hold anything: a wrong type, or an id that is a path. Nothing that fails
here ever becomes part of a path.
"""

from __future__ import annotations

from unspill.errors import StoreDamaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    Cell = str | bytes | int | float | None
    Row = tuple[Cell, ...]

ID_LENGTH = 16
_HEX = frozenset("0123456789abcdef")


def as_text(cell: Cell) -> str:
    """Return a text cell.

    Raises:
        StoreDamaged: it is none.
    """
    if not isinstance(cell, str):
        raise _unexpected("text", cell)
    return cell


def as_blob(cell: Cell) -> bytes:
    """Return a bytes cell."""
    if not isinstance(cell, bytes):
        raise _unexpected("bytes", cell)
    return cell


def as_int(cell: Cell) -> int:
    """Return an integer cell."""
    if not isinstance(cell, int):
        raise _unexpected("an integer", cell)
    return cell


def as_float(cell: Cell) -> float:
    """Return a number cell."""
    if not isinstance(cell, int | float):
        raise _unexpected("a number", cell)
    return float(cell)


def as_id(cell: Cell) -> str:
    """Return the id of a sandbox, run or layer: 16 hexadecimal digits, never anything a path could be made of."""
    text = as_text(cell)
    if not is_id(text):
        raise _unexpected("an id", cell)
    return text


def is_id(name: object) -> bool:
    """Tell whether a name is made as our ids are."""
    return isinstance(name, str) and len(name) == ID_LENGTH and _HEX.issuperset(name)


def as_unsigned(cell: Cell) -> int:
    """Return a 64-bit number that was stored by `to_signed`."""
    return as_int(cell) & 0xFFFF_FFFF_FFFF_FFFF


def to_signed(number: int) -> int:
    """Return a device or inode number as SQLite can hold it: its integers are signed, the kernel's are not."""
    return number - (1 << 64) if number >= 1 << 63 else number


def to_text(text: str) -> str:
    """Return text as SQLite can hold it: what a path that is not UTF-8 was decoded to is spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _unexpected(wanted: str, cell: Cell) -> StoreDamaged:
    return StoreDamaged(f"The store holds {type(cell).__name__} where {wanted} should be.")
