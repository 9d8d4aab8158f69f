# SPDX-License-Identifier: Apache-2.0
"""Calls that the kernel tells of before it makes them: what was called, with which path, and the word to go on.

Only looks: each call is let go on as it is, so what the caller of it changes meanwhile decides nothing here.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys

from unspill.host import libc
from unspill.host.seccomp_notices import NO_DIRECTORY, is_writing, naming_calls
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.host.seccomp_notices import Named

_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_NOTICE_BYTES = 80
_GO_ON = (0).to_bytes(12, sys.byteorder) + (1).to_bytes(4, sys.byteorder)
_AT_FDCWD = -100
_PAGE, _LONGEST = 4096, 4096


class Access(Record):
    """One file that a call names: its absolute path, as the caller sees it."""

    path: bytes
    is_write: bool


class _Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Notices:
    """The descriptor that the kernel tells by, and how the calls of this machine are read."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._calls = naming_calls(os.uname().machine)
        self._buffer = ctypes.create_string_buffer(_PAGE)
        self._ours = _Part(ctypes.addressof(self._buffer), 0)
        self._theirs = _Part(0, 0)
        self._read = libc.process_vm_readv

    def next(self) -> Notice | None:
        """Return the call that waits longest; None if its caller has died meanwhile."""
        notice = bytearray(_NOTICE_BYTES)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
        except OSError:
            return None
        return Notice(bytes(notice))

    def accesses(self, notice: Notice) -> list[Access]:
        """Return the files that a call names; none where its memory can't be read."""
        found = []
        for named in self._calls.get(notice.number, ()):
            path = self._path(notice, named)
            if path:
                found.append(Access(path=path, is_write=self._is_write(notice, named)))
        return found

    def _is_write(self, notice: Notice, named: Named) -> bool:
        if named.flags is None:
            return named.is_write
        flags = notice.argument(named.flags)
        if named.in_memory:
            flags = int.from_bytes(self._memory(notice.pid, flags, 8), sys.byteorder)
        return is_writing(flags)

    def _path(self, notice: Notice, named: Named) -> bytes:
        address = notice.argument(named.path)
        path = self._text(notice.pid, address) if address else b""
        if not path or path.startswith(b"/"):
            return path
        try:
            return os.readlink(b"/proc/%d/%b" % (notice.pid, _base(notice, named))) + b"/" + path
        except OSError:
            return b""

    def _text(self, pid: int, address: int) -> bytes:
        """Return what stands at an address up to its NUL; b"" if it is too long for a path."""
        text = b""
        while len(text) < _LONGEST:
            # Not over the end of a page: the next one may not be there
            piece = self._memory(pid, address, _PAGE - address % _PAGE)
            if not piece:
                return b""
            head, nul, _rest = piece.partition(b"\0")
            text += head
            if nul:
                return text
            address += len(piece)
        return b""

    def _memory(self, pid: int, address: int, length: int) -> bytes:
        self._ours.length = self._theirs.length = length
        self._theirs.base = address
        count = self._read(pid, ctypes.byref(self._ours), 1, ctypes.byref(self._theirs), 1, 0)
        return self._buffer.raw[:count] if count > 0 else b""

    def is_alive(self, notice: Notice) -> bool:
        """Tell whether the caller still waits: then what was read of its process was really its own."""
        try:
            fcntl.ioctl(self._listener, _IS_VALID, notice.id)
        except OSError:
            return False
        return True

    def go_on(self, notice: Notice) -> None:
        """Let the call be made."""
        try:
            fcntl.ioctl(self._listener, _SEND, notice.id + _GO_ON)
        except OSError:
            return  # its caller has died


class Notice:
    """One `struct seccomp_notif`."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.id = raw[:8]
        self.pid = int.from_bytes(raw[8:12], sys.byteorder)
        self.number = int.from_bytes(raw[16:20], sys.byteorder)

    def argument(self, index: int) -> int:
        """Return an argument, unsigned."""
        return int.from_bytes(self._raw[32 + 8 * index : 40 + 8 * index], sys.byteorder)


def _base(notice: Notice, named: Named) -> bytes:
    if named.directory == NO_DIRECTORY:
        return b"cwd"
    fd = notice.argument(named.directory) & 0xFFFFFFFF
    return b"cwd" if fd == _AT_FDCWD & 0xFFFFFFFF else b"fd/%d" % fd
