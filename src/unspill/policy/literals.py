# SPDX-License-Identifier: Apache-2.0
"""Literal addresses: four plain decimal numbers, or IPv6 between brackets, and how they are written.

No zone, no other base, no shorter form. Written out here because decisions are made without the C library.
"""

from __future__ import annotations

_DIGITS = b"0123456789"
_HEX = _DIGITS + b"abcdef"
_GROUPS = 8


def find_literal(raw: bytes) -> bytes:
    """Return the packed bytes of a literal IPv4 or bracketed IPv6 address, nothing if it is neither."""
    if raw[:1] == b"[" and raw[-1:] == b"]":
        return _pack6(raw[1:-1].lower())
    return _pack4(raw)


def written(packed: bytes) -> str:
    """Return a packed address in its canonical form."""
    if len(packed) == 4:
        return ".".join(map(str, packed))
    groups = [int.from_bytes(packed[at : at + 2]) for at in range(0, 16, 2)]
    start, length = _longest_zeros(groups)
    is_mapped = groups[:6] == [0, 0, 0, 0, 0, 0xFFFF]
    if is_mapped or (start, length) == (0, 6):
        return f"::{'ffff:' if is_mapped else ''}{written(packed[12:])}"
    if length < 2:
        return _joined(groups)
    return f"{_joined(groups[:start])}::{_joined(groups[start + length :])}"


def _pack4(raw: bytes) -> bytes:
    numbers = raw.split(b".")
    if len(numbers) != 4 or not all(map(_is_byte, numbers)):
        return b""
    return bytes(map(int, numbers))


def _is_byte(raw: bytes) -> bool:
    is_number = 1 <= len(raw) <= 3 and not raw.translate(None, _DIGITS)
    return is_number and (raw == b"0" or raw[:1] != b"0") and int(raw) <= 255


def _pack6(raw: bytes) -> bytes:
    if not 2 <= len(raw) <= 45 or raw.count(b"::") > 1 or b":::" in raw:
        return b""
    before, gap, behind = raw.partition(b"::")
    head = _groups(before, may_end=not gap)
    tail = _groups(behind, may_end=True)
    if head is None or tail is None:
        return b""
    zeros = 16 - len(head) - len(tail)
    is_whole = zeros >= 2 if gap else zeros == 0
    return head + bytes(zeros) + tail if is_whole else b""


def _groups(raw: bytes, *, may_end: bool) -> bytes | None:
    """Return groups as bytes, with an IPv4 address as the last if that ends the whole; None if they are not groups."""
    if not raw:
        return b""
    *parts, last = raw.split(b":")
    end = b""
    if may_end and b"." in last:
        end = _pack4(last)
        if not end:
            return None
    else:
        parts.append(last)
    if len(parts) > _GROUPS or not all(1 <= len(part) <= 4 and not part.translate(None, _HEX) for part in parts):
        return None
    return b"".join(int(part, 16).to_bytes(2) for part in parts) + end


def _longest_zeros(groups: list[int]) -> tuple[int, int]:
    """Return where the longest run of zeros begins, the first of equals, and its length."""
    best_start = best_length = length = 0
    for at, group in enumerate(groups):
        length = 0 if group else length + 1
        if length > best_length:
            best_start, best_length = at - length + 1, length
    return best_start, best_length


def _joined(groups: list[int]) -> str:
    return ":".join(f"{group:x}" for group in groups)
