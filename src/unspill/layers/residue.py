# SPDX-License-Identifier: Apache-2.0
"""Fold what remains of a stack into one new upper directory: over the live tree it shows that tree with the changes.

Nothing is copied that can be linked, and nothing is hidden that need not be: each deletion is a whiteout of its own, so
what is applied later or made by a person shows through. The live tree is only read. Nothing is made durable here.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import Beneath
from unspill.host.overlay import (
    MODE_MARK,
    OPAQUE,
    ORIGIN,
    list_attributes,
    make_whiteout,
    user_attributes,
    was_copied_up,
)
from unspill.layers.trees import BorrowedModes, Chain, duplicate, open_to_owner, true_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self, TypeVar

    from unspill.model.change import Change

    T = TypeVar("T")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_MAX = 4096
# A link is refused because there are too many, or because what is to be linked lies on another filesystem.
_COPY = (errno.EMLINK, errno.EXDEV)


def build_residue(
    dest: bytes,
    sources: Sequence[bytes],
    remaining: Sequence[Change],
    locate: Callable[[Change], bytes],
    like: bytes,
    beneath: Sequence[bytes] = (),
) -> bool:
    """Make the upper directory `dest` of what remains; return False, and make nothing, where nothing does.

    Args:
        dest: The directory to make.
        sources: The upper directories that the changes are from, the topmost first. They are about to be dropped.
        remaining: The changes in the order of a scan: a directory before what is in it.
        locate: Tells the path of the entry of a change, in a source or somewhere else on that filesystem.
        like: The live root.
        beneath: The upper directories that stay beneath it, the topmost first.

    Raises:
        OSError: something can't be linked, read or made.
    """
    if not remaining:
        return False
    os.mkdir(dest, 0o700)
    chain = Chain(dest, rights=0o700)
    try:
        with _Sources(sources) as opened:
            fill = _Fill(chain, _LiveWalk(like), opened, locate, beneath)
            try:
                fill.run(remaining)
            finally:
                fill.live.close()
    finally:
        chain.close()
    return True


class _Fill:
    """One walk through the residue, depth first: a directory gets its metadata when nothing more comes into it."""

    def __init__(
        self,
        chain: Chain,
        live: _LiveWalk,
        sources: _Sources,
        locate: Callable[[Change], bytes],
        beneath: Sequence[bytes],
    ) -> None:
        self._chain = chain
        self._beneath = beneath
        self.live = live
        self._sources = sources
        self._locate = locate
        self._here = b""
        # Of the directory that the walk is in and of those above it
        self._metadata: list[_Metadata] = []

    def run(self, remaining: Sequence[Change]) -> None:
        first = remaining[0]
        self._metadata.append(self._changed(first) if first.path == b"." else self._on_the_way(b""))
        for change in remaining[1:] if first.path == b"." else remaining:
            above, _, name = change.path.rpartition(b"/")
            if above != self._here:
                self._go_to(above)
            self._add(change, name)
        self._go_to(b"")
        self._set_metadata()

    def _add(self, change: Change, name: bytes) -> None:
        if change.entry is None:
            make_whiteout(name, self._chain.fd)
        elif change.entry.kind != "dir":
            self._sources.call(self._locate(change), lambda entry, dir_fd: _link(entry, dir_fd, name, self._chain.fd))
        else:
            self._enter(name)
            self._metadata.append(self._changed(change))

    def _go_to(self, path: bytes) -> None:
        """Leave directories and make others, until the walk is in the one at `path`."""
        while self._here and not (path + b"/").startswith(self._here + b"/"):
            self._set_metadata()
            self._chain.leave()
            self.live.leave()
            self._here = self._here.rpartition(b"/")[0]
        rest = path[len(self._here) + 1 :] if self._here else path
        for name in rest.split(b"/") if rest else ():
            self._enter(name)
            self._metadata.append(self._on_the_way(self._here))

    def _enter(self, name: bytes) -> None:
        os.mkdir(name, 0o700, dir_fd=self._chain.fd)
        self._chain.enter(name)
        self.live.enter(name)
        self._here = self._here + b"/" + name if self._here else name

    def _set_metadata(self) -> None:
        """Give the directory that the walk is in its metadata; its mode comes when the walk leaves it."""
        metadata, fd = self._metadata.pop(), self._chain.fd
        for name, value in metadata.attributes.items():
            os.setxattr(fd, name, value)
        os.utime(fd, ns=metadata.times)
        self._chain.give_mode(metadata.mode)

    def _changed(self, change: Change) -> _Metadata:
        metadata = self._sources.metadata(self._locate(change))
        if not was_copied_up(self._sources.tops[::-1], change.path):
            # From a lower layer perhaps, which goes as well
            metadata.attributes.pop(ORIGIN, None)
        if change.kind == "replaced" and change.base_kind in (None, "dir"):
            # Beneath is a directory that can't be listed, so what is in it can't be hidden one by one.
            metadata.attributes[OPAQUE] = b"y"
        return metadata

    def _on_the_way(self, path: bytes) -> _Metadata:
        """Return the metadata of a directory that only leads to changes: it looks as it does without them."""
        live = self.live.metadata()
        metadata = self._found(path, self._beneath) or live or self._found(path, self._sources.tops)
        if metadata is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path and live is not None:
            # As of one that was copied up: should the person delete it, it is no new one
            metadata.attributes[ORIGIN] = b""
        return metadata

    def _found(self, path: bytes, layers: Sequence[bytes]) -> _Metadata | None:
        """Return the metadata of the topmost directory at a path that layers have."""
        for layer in layers:
            try:
                return self._sources.metadata(layer + b"/" + path if path else layer)
            except (FileNotFoundError, NotADirectoryError):
                continue
        return None


class _LiveWalk:
    """The live directories beside those that are being filled, as far as they can be read."""

    def __init__(self, root: bytes) -> None:
        self._chain = Chain(root)
        # So many directories deep nothing is found any more
        self._lost = 0

    def enter(self, name: bytes) -> None:
        if not self._lost:
            try:
                self._chain.enter(name)
                return
            except OSError:
                pass
        self._lost += 1

    def leave(self) -> None:
        if self._lost:
            self._lost -= 1
            return
        try:
            self._chain.leave()
        except SandboxUnavailable:
            # Moved away meanwhile: from here on what the layers have must do.
            self._lost = 1 << 30

    def metadata(self) -> _Metadata | None:
        """Return the metadata of the directory, if it is there and readable."""
        try:
            return None if self._lost else _read_metadata(self._chain.fd, is_ours=False)
        except OSError:
            return None

    def close(self) -> None:
        self._chain.close()


class _Sources:
    """Entries of sealed layers by absolute path, however long that is and whatever their directories forbid.

    The layers are about to go: a directory that a command closed to its owner is opened, and stays so. A scan puts its
    mode right, should the layer stay after all.
    """

    def __init__(self, tops: Sequence[bytes]) -> None:
        self.tops = tops
        self._top = b""
        self._tree: Beneath | None = None
        self._modes = BorrowedModes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        if self._tree is not None:
            self._tree.close()
        self._modes.close()

    def call(self, path: bytes, act: Callable[[bytes, int | None], T]) -> T:
        """Call a function with a name and the directory descriptor that it counts from, for the entry at `path`.

        Raises:
            OSError: the function raised it.
        """
        # Nothing moves in a sealed layer, so its own path is as good as a descriptor, and needs no directory opened.
        if len(path) < _PATH_MAX:
            try:
                return act(path, None)
            except PermissionError:
                pass
        tree, inner = self._find_tree(path)
        above, _, name = inner.rpartition(b"/")
        return act(name, self._directory(tree, above))

    def metadata(self, path: bytes) -> _Metadata:
        """Return the metadata of a directory.

        Raises:
            OSError: there is none, or it can't be read.
        """
        fd = self._open_directory(path)
        try:
            return _read_metadata(fd, is_ours=True)
        finally:
            os.close(fd)

    def _open_directory(self, path: bytes) -> int:
        if len(path) < _PATH_MAX:
            try:
                return os.open(path, _DIRECTORY)
            except PermissionError:
                pass
        tree, inner = self._find_tree(path)
        fd = self._directory(tree, inner)
        # That of a tree's own top may be good for look-ups only.
        return os.open(b"/proc/self/fd/%d" % fd, _DIRECTORY & ~os.O_NOFOLLOW)

    def _find_tree(self, path: bytes) -> tuple[Beneath, bytes]:
        path = path.removesuffix(b"/.")
        top = next((top for top in self.tops if path == top or path.startswith(top + b"/")), None)
        if top is None:
            top = os.path.dirname(path)
        if self._tree is None or top != self._top:
            if self._tree is not None:
                self._tree.close()
            self._top = top
            self._tree = Beneath(os.open(top, os.O_PATH | _DIRECTORY), self._open_closed)
            mode = stat.S_IMODE(os.fstat(self._tree.root_fd).st_mode)
            if mode & 0o700 != 0o700:
                self._open_closed(b"/proc/self/fd/%d" % self._tree.root_fd, mode)
        return self._tree, path[len(top) + 1 :]

    def _directory(self, tree: Beneath, path: bytes) -> int:
        try:
            return tree.directory(path)
        except PermissionError:
            # One on the way is closed: it can only be opened when it is the last of a path.
            at = path.find(b"/")
            while at >= 0:
                tree.directory(path[:at])
                at = path.find(b"/", at + 1)
            return tree.directory(path)

    def _open_closed(self, path: bytes, _mode: int) -> None:
        if os.geteuid() != 0:
            self._modes.lock(self._top)
            # Whoever had the lock may have changed the mode since it was looked at
            open_to_owner(path, stat.S_IMODE(os.stat(path).st_mode))


class _Metadata:
    """What a directory gets when all that belongs into it is there."""

    __slots__ = ("attributes", "mode", "times")

    def __init__(self, mode: int, attributes: dict[str, bytes], times: tuple[int, int]) -> None:
        self.mode = mode
        self.attributes = attributes
        self.times = times


def _read_metadata(fd: int, *, is_ours: bool) -> _Metadata:
    status = os.fstat(fd)
    names = list_attributes(fd)
    mode, attributes = stat.S_IMODE(status.st_mode), user_attributes(fd, names)
    # In a live tree those attributes would be somebody else's.
    if is_ours and MODE_MARK in names:
        mode = true_mode(fd, mode)
    if is_ours and ORIGIN in names:
        attributes[ORIGIN] = b""
    return _Metadata(mode, attributes, (status.st_atime_ns, status.st_mtime_ns))


def _link(source: bytes, source_fd: int | None, name: bytes, dest_fd: int) -> None:
    try:
        os.link(source, name, src_dir_fd=source_fd, dst_dir_fd=dest_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _COPY:
            raise
        duplicate(source, source_fd, name, dest_fd)
