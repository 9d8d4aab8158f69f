# SPDX-License-Identifier: Apache-2.0
"""Fold what remains of a stack into one new upper directory: over the live tree it shows that tree with the changes.

Nothing is copied that can be linked, and nothing is hidden that need not be: each deletion is a whiteout of its own, so
what is applied later or made by a person shows through. The live tree is only read. Nothing is made durable here.

MERGED
[reach] Reach entries of sealed layers by their paths, however long those are and whatever their directories forbid.

For layers that are about to go: a directory that is closed to its owner is opened, and stays so. An attribute that
overlayfs hides keeps the mode that the command left; a scan puts it right, should the layer stay after all.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import Beneath
from unspill.host.overlay import (
    MODE_MARK,
    OPAQUE,
    before_opening,
    half_open,
    list_attributes,
    make_whiteout,
    shown_name,
)
from unspill.layers.flatten import Chain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self, TypeVar

    from unspill.model.change import Change

    T = TypeVar("T")


# The turn is that of a scan, which may go on at the same time.
PATIENCE_S = 30.0

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_MAX = 4096


class Reach:
    """Entries below some directories of ours, by absolute path."""

    def __init__(self, tops: Sequence[bytes]) -> None:
        self._tops = tops
        self._top = b""
        self._tree: Beneath | None = None
        self._turn = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        if self._tree is not None:
            self._tree.close()
        if self._turn >= 0:
            os.close(self._turn)

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

    def open_directory(self, path: bytes) -> int:
        """Return a new descriptor of a directory, through which its attributes can be read."""
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
        top = next((top for top in self._tops if path == top or path.startswith(top + b"/")), None)
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

    def _open_closed(self, path: bytes, mode: int) -> None:
        if os.geteuid() == 0:
            return
        self._take_turn()
        mode = true_mode(path, mode)
        # An attribute can't be set on what its owner can't write, and nobody may find it open without the mark.
        os.chmod(path, half_open(mode))
        os.setxattr(path, MODE_MARK, b"%o" % mode)
        os.chmod(path, mode | 0o700)

    def _take_turn(self) -> None:
        """Wait until no scan has directories of this layer open to their owner, but not for ever."""
        if self._turn >= 0:
            return
        self._turn = os.open(os.path.dirname(self._top), _DIRECTORY)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.002)
            else:
                break


def true_mode(directory: bytes | int, mode: int) -> int:
    """Return the permissions that a command left on a directory, though it may be open to its owner now."""
    try:
        return int(os.getxattr(directory, MODE_MARK), 8)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EACCES):
            return before_opening(mode)
        raise


# A link is refused because there are too many, or because what is to be linked lies on another filesystem.
_COPY = (errno.EMLINK, errno.EXDEV)


class _Look:
    """What a directory is to look like when all that belongs into it is there."""

    __slots__ = ("attributes", "mode", "times")

    def __init__(self, mode: int, attributes: dict[str, bytes], times: tuple[int, int]) -> None:
        self.mode = mode
        self.attributes = attributes
        self.times = times


def build_residue(
    dest: bytes, sources: Sequence[bytes], remaining: Sequence[Change], locate: Callable[[Change], bytes], like: bytes
) -> bool:
    """Make the upper directory `dest` of what remains; return False, and make nothing, where nothing does.

    Args:
        dest: The directory to make.
        sources: The upper directories that the changes are from, the topmost first. They are about to be dropped.
        remaining: The changes in the order of a scan: a directory before what is in it.
        locate: Tells the path of the entry of a change, in a source or somewhere else on that filesystem.
        like: The live root.

    Raises:
        OSError: something can't be linked, read or made.
    """
    if not remaining:
        return False
    os.mkdir(dest, 0o700)
    chain = Chain(dest, rights=0o700)
    try:
        with Reach(sources) as reach:
            fill = _Fill(chain, _LiveWalk(like), reach, sources, locate)
            try:
                fill.run(remaining)
            finally:
                fill.live.close()
    finally:
        chain.close()
    return True


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

    def look(self) -> _Look | None:
        """Return what the directory looks like, if it is there and readable."""
        try:
            return None if self._lost else _look_of(self._chain.fd, is_ours=False)
        except OSError:
            return None

    def close(self) -> None:
        self._chain.close()


class _Fill:
    """One walk through the residue, depth first: a directory gets its look when nothing more comes into it."""

    def __init__(
        self, chain: Chain, live: _LiveWalk, reach: Reach, sources: Sequence[bytes], locate: Callable[[Change], bytes]
    ) -> None:
        self._chain = chain
        self.live = live
        self._reach = reach
        self._sources = sources
        self._locate = locate
        self._here = b""
        self._looks: list[_Look] = []

    def run(self, remaining: Sequence[Change]) -> None:
        first = remaining[0]
        root = self._changed_look(first) if first.path == b"." else self.live.look() or self._found_look(b"")
        self._looks.append(root)
        for change in remaining[1:] if first.path == b"." else remaining:
            above, _, name = change.path.rpartition(b"/")
            if above != self._here:
                self._go_to(above)
            self._add(change, name)
        self._go_to(b"")
        self._dress()

    def _add(self, change: Change, name: bytes) -> None:
        if change.entry is None:
            make_whiteout(name, self._chain.fd)
        elif change.entry.kind != "dir":
            self._reach.call(self._locate(change), lambda entry, dir_fd: _link(entry, dir_fd, name, self._chain.fd))
        else:
            self._enter(name)
            self._looks.append(self._changed_look(change))

    def _go_to(self, path: bytes) -> None:
        """Leave directories and make others, until the walk is in the one at `path`."""
        while self._here and not (path + b"/").startswith(self._here + b"/"):
            self._dress()
            self._chain.leave()
            self.live.leave()
            self._here = self._here.rpartition(b"/")[0]
        rest = path[len(self._here) + 1 :] if self._here else path
        for name in rest.split(b"/") if rest else ():
            # It is only on the way, so it looks as it does in the live tree.
            self._enter(name)
            self._looks.append(self.live.look() or self._found_look(self._here))

    def _enter(self, name: bytes) -> None:
        os.mkdir(name, 0o700, dir_fd=self._chain.fd)
        self._chain.enter(name)
        self.live.enter(name)
        self._here = self._here + b"/" + name if self._here else name

    def _dress(self) -> None:
        """Give the directory that the walk is in what it is to look like; its mode comes when the walk leaves it."""
        look, fd = self._looks.pop(), self._chain.fd
        for name, value in look.attributes.items():
            os.setxattr(fd, name, value)
        os.utime(fd, ns=look.times)
        self._chain.give_mode(look.mode)

    def _changed_look(self, change: Change) -> _Look:
        look = self._read(self._locate(change))
        if change.kind == "replaced" and change.base_kind in (None, "dir"):
            # Beneath is a directory that can't be listed, so what is in it can't be hidden one by one.
            look.attributes[OPAQUE] = b"y"
        return look

    def _found_look(self, path: bytes) -> _Look:
        """Return the look of the topmost directory at a path that the sources have."""
        for source in self._sources:
            try:
                return self._read(source + b"/" + path if path else source)
            except (FileNotFoundError, NotADirectoryError):
                continue
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _read(self, path: bytes) -> _Look:
        fd = self._reach.open_directory(path)
        try:
            return _look_of(fd, is_ours=True)
        finally:
            os.close(fd)


def _look_of(fd: int, *, is_ours: bool) -> _Look:
    status = os.fstat(fd)
    names = list_attributes(fd)
    attributes = {name: os.getxattr(fd, name) for name in names if shown_name(name) is not None}
    mode = stat.S_IMODE(status.st_mode)
    # In a live tree that attribute would be somebody else's.
    if is_ours and MODE_MARK in names:
        mode = true_mode(fd, mode)
    return _Look(mode, attributes, (status.st_atime_ns, status.st_mtime_ns))


def _link(source: bytes, source_fd: int | None, name: bytes, dest_fd: int) -> None:
    try:
        os.link(source, name, src_dir_fd=source_fd, dst_dir_fd=dest_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _COPY:
            raise
        from unspill.layers.trees import duplicate

        duplicate(source, source_fd, name, dest_fd)
