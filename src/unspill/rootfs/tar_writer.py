# SPDX-License-Identifier: Apache-2.0
"""Writes the entries of an archive to a tree, each by its kind, and says what it leaves out.

A later entry replaces an earlier one, but never a directory by something else or the reverse: only a layer may do that
to the layers below it.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsUnsafe
from unspill.rootfs.tar_bounds import PATH_BYTES, Memory, shown, too_much
from unspill.rootfs.tar_layers import PREFIX
from unspill.rootfs.tar_names import Names
from unspill.rootfs.tar_tree import NEW_FILE, join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.rootfs.tar_bounds import Bounds
    from unspill.rootfs.tar_entries import Stream
    from unspill.rootfs.tar_headers import Header
    from unspill.rootfs.tar_layers import Layer
    from unspill.rootfs.tar_tree import Tree

OLD_FILE, FILE, CONTIGUOUS, HARD_LINK, SYMLINK, DIRECTORY = b"\0", b"0", b"7", b"1", b"2", b"5"
FILES = frozenset((OLD_FILE, FILE, CONTIGUOUS))
# What a rootfs gets from its sandbox, and no archive may bring
LEFT_OUT = {b"3": "device", b"4": "device", b"6": "fifo"}
# What the directories may take in memory whose times are set at the end: half a million fit
_MOST_BYTES = 192 << 20
_EACH_BYTES = 300
RIGHTS = ((stat.S_ISUID, "setuid"), (stat.S_ISGID, "setgid"))


class Writer:
    """Counts what it wrote in `entries` and `size_bytes`, and what it did not in `left_out`, by kind."""

    def __init__(self, stream: Stream, tree: Tree, bounds: Bounds, layer: Layer | None) -> None:
        self._stream = stream
        self._tree = tree
        self._bounds = bounds
        self._layer = layer
        self._names = Names(bounds.depth)
        self._times: dict[tuple[bytes, bytes], int] = {}
        self._memory = Memory("the paths of directories", _MOST_BYTES)
        self.entries = 0
        self.size_bytes = 0
        self.left_out: dict[str, int] = {}

    def write(self, entry: Header) -> None:
        """Write one entry, with its content.

        Raises:
            RootfsUnsafe: it must not be written.
        """
        self.entries += 1
        self._tree.trim()
        kind = entry.kind
        if kind in FILES and not entry.name.endswith(b"/"):
            self._write_file(entry)
        elif entry.size:
            raise RootfsUnsafe(f"{shown(entry.name)} has a content, but is no file")
        elif kind in (DIRECTORY, OLD_FILE):
            # The oldest tar marks directories by their slash alone
            self._write_directory(entry)
        elif kind == SYMLINK:
            self._write_symlink(entry)
        elif kind == HARD_LINK:
            self._write_hard_link(entry)
        else:
            self._leave_out(entry)

    def finish(self) -> None:
        """Set the times of the directories, which change as long as something is written into them."""
        for above, name in sorted(self._times):
            time_ns = self._times[above, name]
            self._tree.trim()
            if name:
                parent = self._tree.directory(above)
                os.utime(name, ns=(time_ns, time_ns), dir_fd=parent, follow_symlinks=False)
            else:
                os.utime(self._tree.directory(b""), ns=(time_ns, time_ns))

    def _write_file(self, entry: Header) -> None:
        above, name = self._split(entry)
        size = entry.size
        if self._layer is not None and name.startswith(PREFIX):
            if size:
                raise RootfsUnsafe(f"{shown(entry.name)} has a content, but is a whiteout")
            self._layer.white_out(above, name)
            return
        if size > self._bounds.file_bytes:
            raise too_much(f"{shown(name)} has {size} bytes")
        parent = self._tree.directory(above)
        mode = self._allowed(entry.mode) & 0o777 | stat.S_IRUSR
        try:
            fd = os.open(name, NEW_FILE, mode, dir_fd=parent)
        except FileExistsError:
            self._make_room(above, name)
            fd = os.open(name, NEW_FILE, mode, dir_fd=parent)
        try:
            # Neither the umask nor a default access list of the tree may change what the archive says
            os.fchmod(fd, mode)
            self._stream.copy(fd, size)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)
        self.size_bytes += size
        self._claim(above, name)

    def _write_directory(self, entry: Header) -> None:
        above, name = self._names.split(entry.name)
        mode = self._allowed(entry.mode) | stat.S_IRWXU
        if (above, name) not in self._times:
            self._memory.charge(len(above) + len(name) + _EACH_BYTES)
        self._times[above, name] = entry.mtime_ns
        kind = self._tree.kind(above, name) if name else stat.S_IFDIR
        if kind == stat.S_IFDIR:
            os.fchmod(self._tree.directory(join(above, name)), mode)
        else:
            if kind is not None:
                self._make_room(above, name, for_directory=True)
            self._tree.make_directory(above, name, mode)
        self._claim(above, name)

    def _write_symlink(self, entry: Header) -> None:
        above, name = self._split(entry)
        target, time_ns = entry.target, entry.mtime_ns
        if not 0 < len(target) < PATH_BYTES:
            raise RootfsUnsafe(f"{shown(entry.name)} is a link to nothing, or to too long a name")
        self._make(above, name, lambda parent: os.symlink(target, name, dir_fd=parent))
        os.utime(name, ns=(time_ns, time_ns), dir_fd=self._tree.directory(above), follow_symlinks=False)
        self._claim(above, name)

    def _write_hard_link(self, entry: Header) -> None:
        above, name = self._split(entry)
        there, target = self._names.split(entry.target)
        # Nor to what would have to be removed to make room for the link
        is_own = (join(there, target) + b"/").startswith(join(above, name) + b"/")
        if is_own or self._tree.kind(there, target) != stat.S_IFREG:
            raise RootfsUnsafe(f"{shown(entry.name)} is a hard link to no file of the archive: {shown(entry.target)}")
        source = self._tree.directory(there)
        self._make(
            above,
            name,
            lambda parent: os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False),
        )
        self._claim(above, name)

    def _leave_out(self, entry: Header) -> None:
        above, _ = self._split(entry)
        if entry.kind not in LEFT_OUT:
            raise RootfsUnsafe(f"{shown(entry.name)} is of a kind that no rootfs needs: {shown(entry.kind)}")
        what = LEFT_OUT[entry.kind]
        if above.partition(b"/")[0] != b"dev":
            raise RootfsUnsafe(f"{shown(entry.name)} is a {what}, and not beneath dev")
        self.left_out[what] = self.left_out.get(what, 0) + 1

    def _split(self, entry: Header) -> tuple[bytes, bytes]:
        above, name = self._names.split(entry.name)
        if not name or entry.name.endswith(b"/"):
            raise RootfsUnsafe(f"{shown(entry.name)} has the name of a directory, but is something else")
        return above, name

    def _allowed(self, mode: int) -> int:
        """Return the mode without the bits that give a user's rights away."""
        if mode & (stat.S_ISUID | stat.S_ISGID):
            for bit, what in RIGHTS:
                if mode & bit:
                    self.left_out[what] = self.left_out.get(what, 0) + 1
        return mode & 0o1777

    def _make(self, above: bytes, name: bytes, make: Callable[[int], object]) -> None:
        parent = self._tree.directory(above)
        try:
            make(parent)
        except FileExistsError:
            self._make_room(above, name)
            make(parent)

    def _make_room(self, above: bytes, name: bytes, *, for_directory: bool = False) -> None:
        path = join(above, name)
        if self._layer is not None and not self._layer.owns(path):
            self._layer.remove(above, name)
        elif for_directory or self._tree.kind(above, name) == stat.S_IFDIR:
            raise RootfsUnsafe(f"{shown(path)} is twice in the archive, as a directory and as something else")
        else:
            os.unlink(name, dir_fd=self._tree.directory(above))

    def _claim(self, above: bytes, name: bytes) -> None:
        if self._layer is not None:
            self._layer.claim(join(above, name))
