# SPDX-License-Identifier: Apache-2.0
"""How much an archive may ask for, and how its names are shown to people.

What goes beyond is refused as unsafe: nobody needs it in a rootfs, and a bomb needs nothing else.
"""

from __future__ import annotations

from unspill.errors import RootfsUnsafe
from unspill.model.record import Record

MIB = 1 << 20
GIB = 1 << 30
NAME_BYTES = 255
PATH_BYTES = 4096
# Of one extended header: a path and a target fit many times over, and so do the attributes that are left out
EXTENSION_BYTES = MIB


class Bounds(Record):
    """The most that one archive may hold.

    `total_bytes` is the uncompressed stream as a whole. Beyond the first `free_bytes` of it, it may be `ratio` times
    what was read for it. `memory_bytes` is what a decompressor may allocate.
    """

    total_bytes: int = 32 * GIB
    file_bytes: int = 16 * GIB
    entries: int = 2_000_000
    ratio: int = 1000
    free_bytes: int = 64 * MIB
    memory_bytes: int = 256 * MIB
    depth: int = 128

    def check_stream(self, read: int, made: int) -> None:
        """Check how much came out of how much.

        Raises:
            RootfsUnsafe: it is too much, or too much for what was read.
        """
        if made > self.total_bytes:
            raise too_much(f"more than {self.total_bytes} bytes come out of it")
        if made > self.free_bytes and made > read * self.ratio:
            raise too_much(f"more than {self.ratio} times its size comes out of it")


class Memory:
    """What the paths that have to be remembered until the end of an archive may take; a path takes more than its bytes.

    `whose` names them for people.
    """

    def __init__(self, whose: str, most_bytes: int) -> None:
        self._whose = whose
        self._left = most_bytes

    def charge(self, size: int) -> None:
        """Take note that so many bytes more are in use.

        Raises:
            RootfsUnsafe: there are more paths, or longer ones, than in any rootfs.
        """
        self._left -= size
        if self._left < 0:
            raise too_much(f"{self._whose} are too many, or too long")


def too_much(what: str) -> RootfsUnsafe:
    """Return the refusal of an archive that goes beyond its bounds."""
    return RootfsUnsafe(
        f"the archive is larger than any rootfs should be: {what}",
        remedy="Do not use this archive; if you trust it, unpack it yourself and name the directory.",
    )


def shown(name: bytes) -> str:
    """Return a name that is safe to print, whatever bytes it has."""
    return repr(name if len(name) <= 200 else name[:200] + b"...")[1:]
