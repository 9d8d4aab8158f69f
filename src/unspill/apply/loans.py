# SPDX-License-Identifier: Apache-2.0
"""More rights for a moment: what an owner may not read or write, and we must, has another mode meanwhile.

The mode is written down first, one entry at a time, so that a process which dies in between leaves no trace: whoever
ends its operation gives the entry its mode back.
"""

from __future__ import annotations

import os

from unspill.apply.places import operation_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import OperationId

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Loans:
    """Lends the owner rights on one entry at a time, on behalf of an operation."""

    __slots__ = ("_note",)

    def __init__(self, state: bytes, operation: OperationId) -> None:
        self._note = operation_dir(state, operation) + b"/loan"

    def lend(self, handle: int, mode: int, rights: int) -> None:
        """Give the owner of the entry behind a descriptor for look-ups more rights."""
        link, found = b"/proc/self/fd/%d" % handle, os.fstat(handle)
        text = b"%d %d %o %b" % (found.st_dev, found.st_ino, mode, os.readlink(link))
        fd = os.open(self._note, _WRITE, 0o600)
        try:
            os.write(fd, text)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.chmod(link, mode | rights)

    def give_back(self, handle: int, mode: int) -> None:
        """Give the entry its mode back."""
        os.chmod(b"/proc/self/fd/%d" % handle, mode)
        os.unlink(self._note)


def end_loan(state: bytes, operation: OperationId) -> None:
    """Give an entry its mode back that a process has left with another one; before anything of it is moved.

    Raises:
        OSError: the filesystem fails.
    """
    note = operation_dir(state, operation) + b"/loan"
    try:
        with open(note, "rb") as file:
            _device, inode, mode, path = file.read().split(b" ", 3)
    except FileNotFoundError:
        return
    except ValueError:
        # Nothing was lent yet
        os.unlink(note)
        return
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        os.unlink(note)
        return
    try:
        # By the inode alone: on some filesystems the device has another number after a reboot
        if os.fstat(fd).st_ino == int(inode):
            os.chmod(b"/proc/self/fd/%d" % fd, int(mode, 8))
    finally:
        os.close(fd)
    os.unlink(note)
