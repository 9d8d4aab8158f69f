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
from unspill.layers.chain import Chain
from unspill.layers.overlay_form import OPAQUE, list_attributes, make_whiteout, shown_name
from unspill.layers.reach import MODE_MARK, Reach, true_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.change import Change

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
        from unspill.layers.duplicate import duplicate

        duplicate(source, source_fd, name, dest_fd)
