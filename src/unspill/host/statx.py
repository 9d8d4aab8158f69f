# SPDX-License-Identifier: Apache-2.0
"""What `statx` tells of a file and `os.stat` does not: when it was made, and whether it can be changed at all."""

from __future__ import annotations

import ctypes

_NO_FOLLOW = 0x100
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20
_BORN = 0x800
# struct statx: where its fields are
_MASK, _ATTRIBUTES, _BIRTH_S, _BIRTH_NS = slice(0, 4), slice(8, 16), slice(80, 88), slice(88, 92)


class Statx:
    """Asks about entries of open directories, and follows no link. One thread at a time."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(256)
        self._call = getattr(ctypes.CDLL(None), "statx", None)
        if self._call is not None:
            self._call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]

    def is_immutable(self, dir_fd: int, name: bytes) -> bool:
        """Tell whether an entry is immutable or can only be appended to."""
        found = self._ask(dir_fd, name, 0)
        return found is not None and bool(_number(found[_ATTRIBUTES]) & (_IMMUTABLE | _APPEND_ONLY))

    def born_ns(self, dir_fd: int, name: bytes) -> int | None:
        """Return when an entry was made, which nobody can set; None where the filesystem does not know."""
        found = self._ask(dir_fd, name, _BORN)
        if found is None or not _number(found[_MASK]) & _BORN:
            return None
        return _number(found[_BIRTH_S]) * 1_000_000_000 + _number(found[_BIRTH_NS])

    def _ask(self, dir_fd: int, name: bytes, wanted: int) -> bytes | None:
        if self._call is None or self._call(dir_fd, name, _NO_FOLLOW, wanted, self._buffer):
            return None
        return self._buffer.raw


def _number(raw: bytes) -> int:
    from sys import byteorder

    return int.from_bytes(raw, byteorder)
