# SPDX-License-Identifier: Apache-2.0
"""What a copy looked like when it was made, so that later each entry tells whether it was touched.

Kept small: a project may have a million files. Directories are found by their inode, which has no depth.
"""

from __future__ import annotations

import stat
from struct import Struct

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    # Kind (perhaps with UNSEEN), inode, ctime_ns, size; of a directory only kind and inode.
    Print = tuple[int, int, int, int]

UNSEEN = 1
"""Added to the kind of a stand-in, whose original could not be read. Kinds have no low bits."""

_PRINT = Struct("=4Q")
_UNSIGNED = 2**64 - 1


class MadeDirectory(Record):
    """One directory of a copy. `digests` are of its files, where the filesystem does not time every write."""

    mode: int
    attributes: dict[str, bytes]
    names: bytes
    prints: bytes
    digests: dict[bytes, bytes] | None = None

    def entries(self) -> dict[bytes, Print]:
        """Return the print of each entry by its name."""
        if not self.prints:
            return {}
        found: Iterator[Print] = _PRINT.iter_unpack(self.prints)
        return dict(zip(self.names.split(b"/"), found, strict=True))


class Manifest(Record):
    """A whole copy. `settled_ns` is a moment of its filesystem after the last entry was made.

    `entries` and `cloned` are numbers: of all entries, and of the files whose blocks are shared with the original.
    `findings` are what a person should know about the copy.
    """

    device: int
    settled_ns: int
    directories: dict[int, MadeDirectory]
    entries: int
    cloned: int
    findings: tuple[str, ...] = ()

    def is_untouched(self, made: Print, status: os.stat_result) -> bool:
        """Tell whether an entry that is not a directory is the one that was made, as it was made."""
        return made[2] < self.settled_ns and print_of(status) == (made[0] & ~UNSEEN, *made[1:])

    def find_directory(self, made: Print, identity: tuple[int, int]) -> MadeDirectory | None:
        """Return how a directory was made if it is still that one, by device and inode."""
        is_same = stat.S_ISDIR(made[0]) and identity == (self.device, made[1])
        return self.directories[made[1]] if is_same else None


class Listing:
    """The entries of a directory that is being filled."""

    __slots__ = ("_names", "_prints", "digests", "youngest_ns")

    def __init__(self) -> None:
        self._names: list[bytes] = []
        self._prints = bytearray()
        self.digests: dict[bytes, bytes] = {}
        self.youngest_ns = 0

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: bytes, status: os.stat_result, *, unseen: bool) -> None:
        kind, inode, ctime_ns, size = print_of(status)
        self._names.append(name)
        self._prints += _PRINT.pack(kind | UNSEEN if unseen else kind, inode, ctime_ns, size)
        self.youngest_ns = max(self.youngest_ns, ctime_ns)

    def add_directory(self, name: bytes, inode: int, *, unseen: bool) -> None:
        self._names.append(name)
        self._prints += _PRINT.pack(stat.S_IFDIR | UNSEEN if unseen else stat.S_IFDIR, inode, 0, 0)

    def finish(self, mode: int, attributes: dict[str, bytes]) -> MadeDirectory:
        return MadeDirectory(
            mode=mode,
            attributes=attributes,
            names=b"/".join(self._names),
            prints=bytes(self._prints),
            digests=self.digests or None,
        )


def print_of(status: os.stat_result) -> Print:
    """Return what changes whenever an entry does: nobody can set a ctime back."""
    return stat.S_IFMT(status.st_mode), status.st_ino, status.st_ctime_ns & _UNSIGNED, status.st_size
